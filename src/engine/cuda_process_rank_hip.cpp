// Ranks with a GPU each in a build for AMD. Takes the place of cuda_process_rank_cuda.cpp.
#include "engine/cuda_process_rank.h"

#include "gpu/device_query.h"

namespace ridge {

std::unique_ptr<Backend> make_cuda_process_rank(int, const ModelPlan&, const Weights&, std::span<const std::string>,
                                                Ranks&, const ModelSlice&) {
  throw_error(ErrorKind::usage, "--tp with a GPU for each process: {} (leave out --tp, or use the CPU)", gpu::kOneGpu);
}

}  // namespace ridge
