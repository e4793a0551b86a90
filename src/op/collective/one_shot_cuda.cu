#include "op/collective/one_shot_cuda.h"

#include <algorithm>
#include <type_traits>

#include "gpu/packet.h"
#include "gpu/tensor.h"

namespace ridge {
namespace {

constexpr int kLooks = 256;  // for a packet, between two looks at the clock
constexpr int kPlaceThreads = 256;
constexpr int kWarp = 32;

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

__device__ __forceinline__ void send_to(const Call& call, int to, const uint32_t (&words)[3]) {
  gpu::store_packet(static_cast<uint4*>(call.rank.outbox[to]) + call.place,
                    make_uint4(words[0], words[1], words[2], call.stamp));
}

/// To every other rank.
__device__ __forceinline__ void send(const Call& call, const uint32_t (&words)[3]) {
  const int n = call.rank.n_ranks;
  for (int step = 1; step < n; ++step)  // each rank begins with another one
    send_to(call, call.rank.rank + step < n ? call.rank.rank + step : call.rank.rank + step - n, words);
}

/// Takes the packets of the ranks whose bits are set in `missing`, all in one look, so that ranks do not wait one
/// behind another. Most: ranks that there may be. False when one did not come in time.
template <int Most>
__device__ __forceinline__ bool receive(const Call& call, uint32_t missing, uint4 (&packets)[Most]) {
  OneShotEnd* const end = call.rank.end;
  const int own = call.rank.number[call.rank.rank];
  uint64_t start = 0;
  bool is_long = false;
  for (int look = 1; missing != 0; ++look) {
#pragma unroll
    for (int from = 0; from < Most; ++from)
      if (missing >> from & 1)
        packets[from] = gpu::load_packet(static_cast<const uint4*>(call.rank.inbox[from]) + call.place);
#pragma unroll
    for (int from = 0; from < Most; ++from)
      if ((missing >> from & 1) && packets[from].w == call.stamp) missing &= ~(1u << from);
    if (missing == 0) break;
    gpu::wait_a_little();
    if (look < kLooks) continue;
    look = 0;
    const uint64_t now = gpu::clock_ns();
    const uint32_t named = uint32_t(call.rank.number[__ffs(int(missing)) - 1]) + 1;
    if (start == 0) start = now;
    const bool late = now - start > call.rank.timeout_ns;
    is_long = now - start > call.rank.timeout_ns / 2;
    if (is_long) gpu::store_host_word(&end->waits_for[own], named);
    if (!late && gpu::load_host_word(&end->all) == 0) continue;
    if (late) {
      gpu::store_host_word(&end->missing, named);
      gpu::store_host_word(&end->waiting, uint32_t(own) + 1);
      __threadfence_system();
      gpu::store_host_word(&end->all, 1);
    }
    call.rank.state[0] = 1;
    return false;
  }
  if (is_long) gpu::store_host_word(&end->waits_for[own], 0);
  return true;
}

/// sum = ((packet of rank 0 + packet of rank 1) + ...), in that order.
template <int Most>
__device__ __forceinline__ void add_in_order(int n_ranks, const uint4 (&packets)[Most], float (&sum)[3]) {
#pragma unroll
  for (int from = 0; from < Most; ++from) {
    if (from >= n_ranks) break;
    const float words[3] = {__uint_as_float(packets[from].x), __uint_as_float(packets[from].y),
                            __uint_as_float(packets[from].z)};
    for (int i = 0; i < 3; ++i) sum[i] = from == 0 ? words[i] : sum[i] + words[i];
  }
}

__device__ __forceinline__ uint32_t other_ranks(const OneShotRank& rank) {
  return ((1u << rank.n_ranks) - 1) & ~(1u << rank.rank);
}

/// Up to three floats of a thread as words of a packet.
__device__ __forceinline__ void load_words(const float* values, int count, uint32_t (&words)[3]) {
  for (int i = 0; i < 3; ++i) words[i] = i < count ? __float_as_uint(values[i]) : 0;
}

template <int Most>
__device__ __forceinline__ void keep(const uint32_t (&words)[3], int at, uint4 (&packets)[Most]) {
#pragma unroll
  for (int from = 0; from < Most; ++from)
    if (from == at) packets[from] = make_uint4(words[0], words[1], words[2], 0);
}

template <int Most>
__global__ void __launch_bounds__(kOneShotThreads, kOneShotBlocks)
    one_shot_kernel(const __grid_constant__ OneShotRank rank, float* values, int n) {
  gpu::wait_for_previous_grid();
  gpu::let_next_grid_start();  // not before the wait: docs/decisions/0012
  const Call call = begin_call(rank);
  const int first = 3 * (int(blockIdx.x) * kOneShotThreads + int(threadIdx.x)), count = min(n - first, 3);
  if (count > 0 && !call.failed) {
    uint32_t own[3];
    load_words(values + first, count, own);
    send(call, own);
    uint4 packets[Most];
    keep(own, rank.rank, packets);
    if (receive(call, other_ranks(rank), packets)) {
      float sum[3];
      add_in_order(rank.n_ranks, packets, sum);
      for (int i = 0; i < 3; ++i)
        if (i < count) values[first + i] = sum[i];
    }
  }
  end_call(call);
}

/// Each warp's packets have an owner, which takes them from all ranks, adds, and sends the sums: a rank sends
/// 2 (n - 1) / n of its bytes where one-shot sends n - 1 times its bytes, for the latency of a second packet.
template <int Most>
__global__ void __launch_bounds__(kOneShotThreads, kOneShotBlocks)
    two_shot_kernel(const __grid_constant__ OneShotRank rank, float* values, int n) {
  gpu::wait_for_previous_grid();
  gpu::let_next_grid_start();
  const Call call = begin_call(rank);
  const int thread = int(blockIdx.x) * kOneShotThreads + int(threadIdx.x);
  const int first = 3 * thread, count = min(n - first, 3), owner = thread / kWarp % rank.n_ranks;
  if (count > 0 && !call.failed) {
    uint32_t words[3];
    load_words(values + first, count, words);
    uint4 packets[Most];
    keep(words, rank.rank, packets);
    float sum[3];
    if (owner == rank.rank) {
      if (receive(call, other_ranks(rank), packets)) {
        add_in_order(rank.n_ranks, packets, sum);
        for (int i = 0; i < 3; ++i) {
          words[i] = __float_as_uint(sum[i]);
          if (i < count) values[first + i] = sum[i];
        }
        send(call, words);
      }
    } else {
      send_to(call, owner, words);
      if (receive(call, 1u << owner, packets)) {
#pragma unroll
        for (int from = 0; from < Most; ++from)
          if (from == owner) words[0] = packets[from].x, words[1] = packets[from].y, words[2] = packets[from].z;
        for (int i = 0; i < 3; ++i)
          if (i < count) values[first + i] = __uint_as_float(words[i]);
      }
    }
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

template <int Most>
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
    uint32_t missing = 0;
    for (int from = 0; from < rank.n_ranks; ++from)
      if (from != rank.rank && (count_of(from) > 0 || threadIdx.x == 0)) missing |= 1u << from;
    uint4 packets[Most];
    keep(words, rank.rank, packets);
    if (receive(call, missing, packets)) {
#pragma unroll
      for (int from = 0; from < Most; ++from) {
        if (from >= rank.n_ranks) break;
        const int comes = count_of(from);
        if (comes <= 0) continue;
        const uint32_t all[3] = {packets[from].x, packets[from].y, packets[from].z};
        put(borders, rank.n_ranks, from, first, comes, all, whole);
      }
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

/// Calls `launch` with the least number of ranks that a kernel is made for.
template <typename Launch>
void for_ranks(int n_ranks, const Launch& launch) {
  if (n_ranks <= 2) return launch(std::integral_constant<int, 2>());
  if (n_ranks <= 4) return launch(std::integral_constant<int, 4>());
  launch(std::integral_constant<int, kMostDeviceRanks>());
}

using SumKernel = void (*)(OneShotRank, float*, int);

void sum(gpu::StreamHandle stream, const char* name, SumKernel kernel, const OneShotRank& rank, float* values,
         int64_t n, bool overlap) {
  const int64_t most = int64_t(rank.n_blocks) * kOneShotBlockFloats;
  for (int64_t first = 0; first < n; first += most)
    gpu::launch(name, kernel, {n_blocks(rank, n - first), kOneShotThreads, 0, stream, overlap}, rank, values + first,
                int(std::min(most, n - first)));
}

}  // namespace

void one_shot_sum(gpu::StreamHandle stream, const OneShotRank& rank, float* values, int64_t n, bool overlap) {
  for_ranks(rank.n_ranks,
            [&](auto most) { sum(stream, "one_shot_sum", one_shot_kernel<most()>, rank, values, n, overlap); });
}

void two_shot_sum(gpu::StreamHandle stream, const OneShotRank& rank, float* values, int64_t n, bool overlap) {
  for_ranks(rank.n_ranks,
            [&](auto most) { sum(stream, "two_shot_sum", two_shot_kernel<most()>, rank, values, n, overlap); });
}

void one_shot_gather(gpu::StreamHandle stream, const OneShotRank& rank, const float* own, const ColumnBorders& borders,
                     float* whole, bool overlap) {
  int64_t n = 0;  // floats of the rank that has most
  for (int r = 0; r < rank.n_ranks; ++r) n = std::max(n, int64_t(borders.n_rows) * (borders.at[r + 1] - borders.at[r]));
  const int64_t floats = int64_t(rank.n_blocks) * kOneShotBlockFloats;
  for_ranks(rank.n_ranks, [&](auto most) {
    for (int64_t first = 0; first < n; first += floats)
      gpu::launch("one_shot_gather", gather_kernel<most()>,
                  {n_blocks(rank, n - first), kOneShotThreads, 0, stream, overlap}, rank,
                  reinterpret_cast<const uint32_t*>(own), borders, int(first), reinterpret_cast<uint32_t*>(whole));
  });
}

void place_columns(gpu::StreamHandle stream, int n_ranks, const float* parts, const ColumnBorders& borders,
                   float* whole) {
  if (borders.n_rows == 0) return;
  const dim3 blocks(unsigned(gpu::ceil_div(borders.at[n_ranks], kPlaceThreads)), unsigned(borders.n_rows));
  gpu::launch("place_columns", place_kernel, {blocks, kPlaceThreads, 0, stream}, n_ranks,
              reinterpret_cast<const uint32_t*>(parts), borders, reinterpret_cast<uint32_t*>(whole));
}

}  // namespace ridge
