#include "base/build_info.h"

namespace ridge {

const BuildInfo& build_info() {
#if defined(__clang__)
  static constexpr BuildInfo kInfo{RIDGE_VERSION,    RIDGE_COMMIT,   RIDGE_BUILD_NUMBER, __VERSION__,
                                   RIDGE_BUILD_TYPE, RIDGE_HAS_CUDA, RIDGE_HIP_TARGETS};
#else
  static constexpr BuildInfo kInfo{RIDGE_VERSION,    RIDGE_COMMIT,   RIDGE_BUILD_NUMBER, "g++ " __VERSION__,
                                   RIDGE_BUILD_TYPE, RIDGE_HAS_CUDA, RIDGE_HIP_TARGETS};
#endif
  return kInfo;
}

}  // namespace ridge
