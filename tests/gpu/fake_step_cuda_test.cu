#include "gpu/fake_step.h"

#include "gpu/launch.h"

namespace ridge {
namespace {

__device__ int32_t next(int32_t token) { return (5 * token + 3) % kFakeVocab; }

__global__ void step_kernel(const int32_t* tokens, float* logits) {
  const int32_t likeliest = next(tokens[blockIdx.x]);
  for (int i = int(threadIdx.x); i < kFakeVocab; i += int(blockDim.x))
    logits[int(blockIdx.x) * kFakeVocab + i] = i == likeliest ? 1.0f : 0.0f;
}
__global__ void draw_kernel(int32_t* tokens) { tokens[threadIdx.x] = next(tokens[threadIdx.x]); }

}  // namespace

void fake_step(gpu::StreamHandle stream, int n_seq, const int32_t* tokens, float* logits) {
  gpu::launch("fake_step", step_kernel, {unsigned(n_seq), 32, 0, stream}, tokens, logits);
}
void fake_draw(gpu::StreamHandle stream, int n_seq, int32_t* tokens) {
  gpu::launch("fake_draw", draw_kernel, {1, unsigned(n_seq), 0, stream}, tokens);
}

}  // namespace ridge
