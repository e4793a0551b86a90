// The slots of many tokens by expert: a block an expert counts its slots, then finds its place behind the experts
// before.
#include "gpu/launch.h"
#include "op/experts/experts_cuda.h"

namespace ridge {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

__device__ int areas_of(int n_slots, int width) { return (n_slots + width - 1) / width; }

__global__ void __launch_bounds__(kThreads) count_kernel(const ExpertChoice c, int32_t* counts) {
  int n = 0;
  for (int64_t i = threadIdx.x; i < c.n_slots(); i += kThreads) n += c.experts[i] == int(blockIdx.x);
  const double sum = gpu::block_sum<kThreads>(n);
  if (threadIdx.x == 0) counts[blockIdx.x] = int(sum);
}

__global__ void __launch_bounds__(kThreads)
    place_kernel(const ExpertChoice c, const int32_t* counts, const ExpertGroups groups) {
  __shared__ int found[kWarps];
  const int expert = int(blockIdx.x), thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
  int before = 0;
  for (int e = thread; e < expert; e += kThreads) before += areas_of(counts[e], groups.width);
  const int first = int(gpu::block_sum<kThreads>(before)), n_areas = areas_of(counts[expert], groups.width);
  if (thread == 0 && expert == int(gridDim.x) - 1) *groups.n_areas = first + n_areas;
  for (int i = thread; i < n_areas; i += kThreads) groups.experts[first + i] = expert;
  int32_t* const columns = groups.columns + int64_t(first) * groups.width;
  for (int i = counts[expert] + thread; i < n_areas * groups.width; i += kThreads) columns[i] = -1;

  int n = 0;  // slots in order: those of threads before, of warps before
  for (int64_t from = 0; from < c.n_slots(); from += kThreads) {
    const int64_t slot = from + thread;
    const bool mine = slot < c.n_slots() && c.experts[slot] == expert;
    const unsigned lanes = __ballot_sync(gpu::kAllLanes, mine);
    __syncthreads();
    if (lane == 0) found[warp] = __popc(lanes);
    __syncthreads();
    int at = n + __popc(lanes & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) at += found[w];
      n += found[w];
    }
    if (mine) columns[at] = int32_t(slot), groups.column_of[slot] = int32_t(columns - groups.columns) + at;
  }
}

}  // namespace

void device_group_experts(gpu::StreamHandle stream, const ExpertChoice& choice, int32_t* counts,
                          const ExpertGroups& groups) {
  const auto n_experts = unsigned(choice.n_scores());
  gpu::launch("slots of experts", count_kernel, {n_experts, kThreads, 0, stream}, choice, counts);
  gpu::launch("groups of experts", place_kernel, {n_experts, kThreads, 0, stream}, choice, counts, groups);
}

}  // namespace ridge
