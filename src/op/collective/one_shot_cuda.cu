#include "op/collective/one_shot_cuda.h"

#include <algorithm>

#include "gpu/packet.h"
#include "gpu/tensor.h"

namespace ridge {
namespace {

constexpr int kLooks = 256;  // for a packet, between two looks at the clock
constexpr int kPlaceThreads = 256;

/// A block's part of one call.
struct Call {
  const OneShotRank& rank;
  uint32_t stamp;
  int64_t place;  // of this thread's packet in an inbox
  bool failed;    // an earlier wait did
};

__device__ __forceinline__ Call begin_call(const OneShotRank& rank) {
  const uint32_t stamp = rank.state[1 + blockIdx.x] + 1;
  return {rank, stamp, (int64_t(stamp % 2) * rank.n_blocks + blockIdx.x) * kOneShotThreads + threadIdx.x,
          rank.state[0] != 0};
}

/// By every thread of the block.
__device__ __forceinline__ void end_call(const Call& call) {
  __syncthreads();  // every thread has its stamp
  if (threadIdx.x == 0) call.rank.state[1 + blockIdx.x] = call.stamp;
}

__device__ __forceinline__ void send(const Call& call, const uint32_t (&words)[3]) {
  const int n = call.rank.n_ranks;
  for (int step = 1; step < n; ++step) {  // each rank begins with another one
    const int to = call.rank.rank + step < n ? call.rank.rank + step : call.rank.rank + step - n;
    gpu::store_packet(static_cast<uint4*>(call.rank.outbox[to]) + call.place,
                      make_uint4(words[0], words[1], words[2], call.stamp));
  }
}

/// False when it did not come in time.
__device__ __forceinline__ bool receive(const Call& call, int from, uint32_t (&words)[3]) {
  const uint4* const at = static_cast<const uint4*>(call.rank.inbox[from]) + call.place;
  OneShotEnd* const end = call.rank.end;
  const int own = call.rank.number[call.rank.rank];
  const uint32_t missing = uint32_t(call.rank.number[from]) + 1;
  uint64_t start = 0;
  bool is_long = false;
  for (int look = 1;; ++look) {
    const uint4 packet = gpu::load_packet(at);
    if (packet.w == call.stamp) {
      words[0] = packet.x, words[1] = packet.y, words[2] = packet.z;
      if (is_long) gpu::store_host_word(&end->waits_for[own], 0);
      return true;
    }
    gpu::wait_a_little();
    if (look < kLooks) continue;
    look = 0;
    const uint64_t now = gpu::clock_ns();
    if (start == 0) start = now;
    const bool late = now - start > call.rank.timeout_ns;
    is_long = now - start > call.rank.timeout_ns / 2;
    if (is_long) gpu::store_host_word(&end->waits_for[own], missing);
    if (!late && gpu::load_host_word(&end->all) == 0) continue;
    if (late) {
      gpu::store_host_word(&end->missing, missing);
      gpu::store_host_word(&end->waiting, uint32_t(own) + 1);
      __threadfence_system();
      gpu::store_host_word(&end->all, 1);
    }
    call.rank.state[0] = 1;
    return false;
  }
}

__global__ void __launch_bounds__(kOneShotThreads, kOneShotBlocks)
    sum_kernel(const __grid_constant__ OneShotRank rank, float* values, int n) {
  gpu::wait_for_previous_grid();
  gpu::let_next_grid_start();  // not before the wait: docs/decisions/0012
  const Call call = begin_call(rank);
  const int first = 3 * (int(blockIdx.x) * kOneShotThreads + int(threadIdx.x)), count = min(n - first, 3);
  if (count > 0 && !call.failed) {
    uint32_t own[3] = {};
    for (int i = 0; i < 3; ++i)
      if (i < count) own[i] = __float_as_uint(values[first + i]);
    send(call, own);
    float sum[3] = {};
    bool all_came = true;
    for (int from = 0; from < rank.n_ranks && all_came; ++from) {
      uint32_t words[3] = {own[0], own[1], own[2]};
      if (from != rank.rank) all_came = receive(call, from, words);
      for (int i = 0; i < 3; ++i) sum[i] = from == 0 ? __uint_as_float(words[i]) : sum[i] + __uint_as_float(words[i]);
    }
    for (int i = 0; i < 3; ++i)
      if (i < count && all_came) values[first + i] = sum[i];
  }
  end_call(call);
}

/// Writes up to three floats of rank `from`, from its float `first` on.
__device__ __forceinline__ void put(const ColumnBorders& borders, int n_ranks, int from, int first, int count,
                                    const uint32_t (&words)[3], uint32_t* whole) {
  const int begin = borders.at[from], width = borders.at[from + 1] - begin;
  for (int i = 0; i < 3; ++i) {
    if (i >= count) return;
    const int row = (first + i) / width;
    whole[int64_t(row) * borders.at[n_ranks] + begin + (first + i - row * width)] = words[i];
  }
}

__global__ void __launch_bounds__(kOneShotThreads, kOneShotBlocks)
    gather_kernel(const __grid_constant__ OneShotRank rank, const uint32_t* own,
                  const __grid_constant__ ColumnBorders borders, int begin, uint32_t* whole) {
  gpu::wait_for_previous_grid();
  gpu::let_next_grid_start();
  const Call call = begin_call(rank);
  const int first = begin + 3 * (int(blockIdx.x) * kOneShotThreads + int(threadIdx.x));
  const auto count_of = [&](int r) { return borders.n_rows * (borders.at[r + 1] - borders.at[r]) - first; };
  if (!call.failed) {
    const int count = count_of(rank.rank);
    uint32_t words[3] = {};
    for (int i = 0; i < 3; ++i)
      if (i < count) words[i] = own[first + i];
    // A block with nothing to say says so: its packet tells that this rank has read what came before.
    if (count > 0 || threadIdx.x == 0) send(call, words);
    put(borders, rank.n_ranks, rank.rank, first, count, words, whole);
    for (int from = 0; from < rank.n_ranks; ++from) {
      const int comes = count_of(from);
      if (from == rank.rank || (comes <= 0 && threadIdx.x != 0)) continue;
      if (!receive(call, from, words)) break;
      put(borders, rank.n_ranks, from, first, comes, words, whole);
    }
  }
  end_call(call);
}

__global__ void place_kernel(int n_ranks, const uint32_t* parts, const __grid_constant__ ColumnBorders borders,
                             uint32_t* whole) {
  const int total = borders.at[n_ranks], row = int(blockIdx.y);
  const int column = int(blockIdx.x) * kPlaceThreads + int(threadIdx.x);
  if (column >= total) return;
  int r = 0;
  while (column >= borders.at[r + 1]) ++r;
  const int begin = borders.at[r], width = borders.at[r + 1] - begin;
  whole[int64_t(row) * total + column] = parts[int64_t(borders.n_rows) * begin + int64_t(row) * width + column - begin];
}

/// Blocks for so many packets' floats from `first` on.
unsigned n_blocks(const OneShotRank& rank, int64_t n_left) {
  return unsigned(std::min<int64_t>(rank.n_blocks, gpu::ceil_div(n_left, kOneShotBlockFloats)));
}

}  // namespace

void one_shot_sum(gpu::StreamHandle stream, const OneShotRank& rank, float* values, int64_t n, bool overlap) {
  const int64_t most = int64_t(rank.n_blocks) * kOneShotBlockFloats;
  for (int64_t first = 0; first < n; first += most)
    gpu::launch("one_shot_sum", sum_kernel, {n_blocks(rank, n - first), kOneShotThreads, 0, stream, overlap}, rank,
                values + first, int(std::min(most, n - first)));
}

void one_shot_gather(gpu::StreamHandle stream, const OneShotRank& rank, const float* own, const ColumnBorders& borders,
                     float* whole, bool overlap) {
  int64_t n = 0;  // floats of the rank that has most
  for (int r = 0; r < rank.n_ranks; ++r) n = std::max(n, int64_t(borders.n_rows) * (borders.at[r + 1] - borders.at[r]));
  const int64_t most = int64_t(rank.n_blocks) * kOneShotBlockFloats;
  for (int64_t first = 0; first < n; first += most)
    gpu::launch("one_shot_gather", gather_kernel, {n_blocks(rank, n - first), kOneShotThreads, 0, stream, overlap},
                rank, reinterpret_cast<const uint32_t*>(own), borders, int(first), reinterpret_cast<uint32_t*>(whole));
}

void place_columns(gpu::StreamHandle stream, int n_ranks, const float* parts, const ColumnBorders& borders,
                   float* whole) {
  if (borders.n_rows == 0) return;
  const dim3 blocks(unsigned(gpu::ceil_div(borders.at[n_ranks], kPlaceThreads)), unsigned(borders.n_rows));
  gpu::launch("place_columns", place_kernel, {blocks, kPlaceThreads, 0, stream}, n_ranks,
              reinterpret_cast<const uint32_t*>(parts), borders, reinterpret_cast<uint32_t*>(whole));
}

}  // namespace ridge
