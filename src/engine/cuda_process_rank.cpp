// The build without CUDA; cuda_process_rank_cuda.cpp replaces this file in the other one.
#include "engine/cuda_process_rank.h"

namespace ridge {

std::unique_ptr<Backend> make_cuda_process_rank(int device, const ModelPlan&, const Weights&,
                                                std::span<const std::string>, Ranks&, const ModelSlice&) {
  throw_error(ErrorKind::no_device,
              "device cuda:{} is not available: this program was built without CUDA (use the CPU)", device);
}

}  // namespace ridge
