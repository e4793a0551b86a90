// What this program is: version, commit, compiler. Every stored row of results carries it.
#pragma once

#include <string_view>

namespace ridge {

struct BuildInfo {
  std::string_view version;     ///< "0.1.0"
  std::string_view commit;      ///< short hash, "-dirty" behind it when the tree had changes; "unknown" without git
  int number;                   ///< commits up to this one, 0 when unknown
  std::string_view compiler;    ///< name and version
  std::string_view build_type;  ///< Release, Debug, ...
  bool cuda;                    ///< compiled with CUDA
};
const BuildInfo& build_info();

}  // namespace ridge
