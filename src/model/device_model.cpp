// The build without CUDA; device_model_cuda.cpp replaces this file in the other one.
#include "model/device_model.h"

namespace ridge {

std::unique_ptr<DeviceModel> open_device_model(int device, const Config&, const Weights&, const Rope&,
                                               const DeviceOptions&) {
  throw Error(
      ErrorKind::no_device,
      fmt::format("device cuda:{} is not available: this program was built without CUDA (use --device cpu)", device));
}

}  // namespace ridge
