// Several GPUs in a build for AMD. Takes the place of cuda_ranks_cuda.cpp.
#include "engine/backend.h"
#include "gpu/device_query.h"

namespace ridge {

std::unique_ptr<Backend> make_cuda_backend(std::span<const int> devices, int, const Config&, const Weights&,
                                           std::span<const std::string>, double) {
  throw_error(ErrorKind::usage, "--device: {} GPUs are named, but {} (name one, as --device hip:{})", devices.size(),
              gpu::kOneGpu, devices[0]);
}

}  // namespace ridge
