// The build without CUDA; device_ceilings_run_cuda.cpp replaces this file in the other one.
#include "lab/op/device_ceilings.h"

namespace ridge::lab {

DeviceCeilings measure_device_ceilings(const DeviceCeilingOptions& options) {
  throw_error(ErrorKind::no_device, "device cuda:{} is not available: this program was built without CUDA",
              options.device);
}

}  // namespace ridge::lab
