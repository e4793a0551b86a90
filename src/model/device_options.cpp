#include "base/check.h"
#include "model/device_model.h"
#include "ridge/error.h"

namespace ridge {

DeviceOptions parse_device_kernels(std::span<const std::string> kernels) {
  DeviceOptions options;
  for (const std::string& choice : kernels) {
    if (choice == "int4=1plane") options.int4_planes = 1;
    else if (choice == "int4=2planes") options.int4_planes = 2;
    else if (choice == "launch=plain") options.overlap = false;
    else if (choice == "launch=overlap") options.overlap = true;
    else
      throw Error(ErrorKind::usage, fmt::format("--kernel {} with --device cuda: expects int4=1plane, int4=2planes, "
                                                "launch=plain or launch=overlap",
                                                choice));
  }
  return options;
}

}  // namespace ridge
