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

  /// "CUDA yes", "CUDA no", "HIP for gfx1100 gfx1151".
  std::string gpu_text() const {
    return hip.empty() ? std::string(cuda ? "CUDA yes" : "CUDA no") : "HIP for " + std::string(hip);
  }
};
const BuildInfo& build_info();

}  // namespace ridge
