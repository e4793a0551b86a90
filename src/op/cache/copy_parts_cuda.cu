#include "op/cache/copy_parts_cuda.h"

#include "gpu/launch.h"

namespace ridge {
namespace {

constexpr int kThreads = 128, kBlocksEach = 8;

/// Blocks: (kBlocksEach, part). Clears where `from` is below 0.
__global__ void parts_kernel(const CachePart* parts, int from, int to) {
  const CachePart part = parts[blockIdx.y];
  auto* const words = static_cast<uint32_t*>(part.base);
  const int64_t n = part.bytes / 4, step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step)
    words[to * n + i] = from < 0 ? 0 : words[from * n + i];
}

void launch(gpu::StreamHandle stream, const CachePart* parts, int n, int from, int to) {
  if (n == 0) return;
  gpu::launch("copy of a page or slot", parts_kernel, {dim3(kBlocksEach, unsigned(n)), kThreads, 0, stream}, parts,
              from, to);
}

}  // namespace

void device_copy_parts(gpu::StreamHandle stream, const CachePart* parts, int n, int from, int to) {
  launch(stream, parts, n, from, to);
}
void device_clear_parts(gpu::StreamHandle stream, const CachePart* parts, int n, int at) {
  launch(stream, parts, n, -1, at);
}

}  // namespace ridge
