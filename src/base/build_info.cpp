#include "base/build_info.h"

#include <algorithm>
#include <charconv>

namespace ridge {

const BuildInfo& build_info() {
#if defined(__clang__)
  static constexpr BuildInfo kInfo{RIDGE_VERSION,    RIDGE_COMMIT,   RIDGE_BUILD_NUMBER, __VERSION__,
                                   RIDGE_BUILD_TYPE, RIDGE_HAS_CUDA, RIDGE_HIP_TARGETS,  RIDGE_CUDA_TARGETS};
#else
  static constexpr BuildInfo kInfo{RIDGE_VERSION,    RIDGE_COMMIT,   RIDGE_BUILD_NUMBER, "g++ " __VERSION__,
                                   RIDGE_BUILD_TYPE, RIDGE_HAS_CUDA, RIDGE_HIP_TARGETS,  RIDGE_CUDA_TARGETS};
#endif
  return kInfo;
}

bool has_native_code(std::string_view cuda_targets, int sm) {
  for (size_t at = 0; at < cuda_targets.size();) {
    const size_t end = std::min(cuda_targets.find(' ', at), cuda_targets.size());
    const std::string_view target = cuda_targets.substr(at, end - at);
    at = end + 1;
    if (target == "native" || target.starts_with("all"))
      return true;  // CMake's words for this machine's and for every one
    int of = 0;
    const auto [behind, error] = std::from_chars(target.data(), target.data() + target.size(), of);
    if (error != std::errc() || target.ends_with("-virtual")) continue;
    // Native code runs on later GPUs of the same generation; with a letter behind the number on this one alone.
    const bool alone = behind != target.data() + target.size() && *behind != '-';
    if (alone ? of == sm : of / 10 == sm / 10 && of <= sm) return true;
  }
  return false;
}

}  // namespace ridge
