// What this program is: version, commit, compiler. Every stored row of results carries it.
#pragma once

#include <string>
#include <string_view>

namespace ridge {

struct BuildInfo {
  std::string_view version;     ///< "0.1.0"
  std::string_view commit;      ///< short hash, "-dirty" behind it when the tree had changes; "unknown" without git
  int number;                   ///< commits up to this one, 0 when unknown
  std::string_view compiler;    ///< name and version
  std::string_view build_type;  ///< Release, Debug, ...
  bool cuda;                    ///< compiled with CUDA
  std::string_view hip = {};    ///< targets of a build for AMD GPUs, "gfx1100 gfx1151"; empty in others
  /// Of a build with CUDA, as CMake names them: "80-real 90a-real 120", which is native code and PTX, "120-virtual".
  std::string_view cuda_targets = {};

  /// "CUDA yes", "CUDA no", "HIP for gfx1100 gfx1151".
  std::string gpu_text() const {
    return hip.empty() ? std::string(cuda ? "CUDA yes" : "CUDA no") : "HIP for " + std::string(hip);
  }
};
const BuildInfo& build_info();

/// Whether one of these targets (BuildInfo::cuda_targets) is native code for a GPU of compute capability sm (86: 8.6).
/// If not, the driver compiles PTX at the first start, which takes about a minute.
bool has_native_code(std::string_view cuda_targets, int sm);

}  // namespace ridge
