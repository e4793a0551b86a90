// The build without CUDA; cuda_backend_cuda.cpp replaces this file in the other one.
#include "engine/backend.h"

namespace ridge {

std::unique_ptr<Backend> make_cuda_backend(int device, const ModelPlan&, const Weights&, std::span<const std::string>,
                                           CpuContext*) {
  throw_error(ErrorKind::no_device,
              "device cuda:{} is not available: this program was built without CUDA (use the CPU)", device);
}

std::unique_ptr<Backend> make_cuda_backend(std::span<const int> devices, int, const Config&, const Weights&,
                                           std::span<const std::string>, double) {
  throw_error(ErrorKind::no_device,
              "device cuda:{} is not available: this program was built without CUDA (use the CPU)", devices[0]);
}

int64_t cuda_weight_bytes(const ModelPlan&, const Weights&, std::span<const std::string>) {
  throw_error(ErrorKind::no_device, "device cuda is not available: this program was built without CUDA (use the CPU)");
}

}  // namespace ridge
