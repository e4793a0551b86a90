// wgmma instructions: four warps multiply together, asynchronously, with B in shared memory. They exist on
// sm_90a alone, so kernels that use them do nothing elsewhere (kWarpgroups) and are launched only where
// device_has_warpgroups() (gpu/device.h) says so. Besides: rings in shared memory that one warp fills and others empty,
// and clusters of blocks.
#pragma once

#include "gpu/tensor.h"

namespace ridge::gpu {

/// Whether this pass of the compiler makes code that has them.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_EMULATED__)
inline constexpr bool kWarpgroups = true;
#else
inline constexpr bool kWarpgroups = false;
#endif

/// B of a wgmma of 16 columns of k times kColumns: 64 columns of k of every column n are 128 bytes, [n][64] f16, and
/// 16-byte unit u of column n stands at unit u ^ n % 8. `first` is such a block's start, aligned to 1024 bytes, plus 32
/// bytes for each 16 columns of k.
__device__ uint64_t shared_columns(const void* first);
/// B as of shared_columns(), but 32 columns of k of every column n are 64 bytes, [n][32] f16, and unit u of column n
/// stands at unit u ^ n / 2 % 4. `first` is aligned to 512 bytes, plus 32 for each 16 columns of k.
__device__ uint64_t shared_short_columns(const void* first);
/// B in the order of `columns`, `bytes` behind its start. It takes one addition; computing each of several starts anew
/// would take five instructions.
__device__ uint64_t columns_behind(uint64_t columns, int bytes);
/// Makes what this thread wrote to shared memory visible to wgmmas that are started after a barrier.
__device__ void publish_shared();

/// D += A B, or D = A B where kAdds is false. A warp of the four has 16 rows, and its words are those of mma_f16
/// (gpu/tensor.h); so are the sums of 8 columns. Registers of `a` and `d` may be used again when the group of the
/// wgmma has ended.
template <bool kAdds = true, int kColumnTiles>
__device__ __forceinline__ void warpgroup_mma_f16(float (&d)[kColumnTiles][4], const uint32_t (&a)[4], uint64_t b);
/// Before the first wgmma, and after the registers of a wgmma were written by other instructions.
__device__ void warpgroup_fence();
/// Ends a group of wgmmas.
__device__ void warpgroup_commit();
/// Waits until at most kLeft groups are under way.
template <int kLeft>
__device__ __forceinline__ void warpgroup_wait();
/// Keeps a wait behind what makes x, which is not negative. ptxas 13.0 orders a wait only against wgmmas and memory,
/// and moves it in front of arithmetic: so x has a store here that never happens.
__device__ void wait_behind(float x);
/// Keeps the compiler from moving what makes these words behind a later wgmma.
template <int kWords>
__device__ __forceinline__ void keep_words(uint32_t (&words)[kWords]);
/// Keeps the compiler from moving what reads or writes sums across the wait, or the wgmma, in front.
template <int kColumnTiles>
__device__ __forceinline__ void keep_sums(float (&d)[kColumnTiles][4]);

/// Registers of a thread from here on, by all warps of a warpgroup: fewer, or more once others have given theirs.
template <int kRegisters>
__device__ __forceinline__ void give_registers();
template <int kRegisters>
__device__ __forceinline__ void take_registers();

/// Like set_up_arrivals(), for n words that end a phase when `count` threads have called arrive().
__device__ void set_up_counts(Arrival* arrivals, int n, int count, int lane);
__device__ void arrive(Arrival* arrival);
/// A phase of several pieces: one lane says how many bytes will come, then any lanes add pieces of them.
__device__ void expect_pieces(Arrival* arrival, int bytes);
__device__ void add_piece(Arrival* arrival, void* shared, const void* global, int bytes);
/// Stages that are filled and emptied in turn, and their words: a stage has been filled, a stage has been used.
template <int kStagesOf, int kBytes>
struct Ring {
  static constexpr int kStages = kStagesOf;
  uint8_t* data;
  Arrival* filled;
  Arrival* used;
  __device__ uint8_t* at(int stage) const { return data + stage * kBytes; }
};
/// A place in a ring, and how often it has been round.
template <int kStages>
struct RingPlace {
  int stage = 0;
  unsigned round = 0;
  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    ++round;
  }
};
template <class R>
__device__ void wait_until_filled(const R& ring, const RingPlace<R::kStages>& place) {
  wait_for_piece(ring.filled + place.stage, place.round & 1);
}
template <class R>
__device__ void wait_until_used(const R& ring, const RingPlace<R::kStages>& place) {
  wait_for_piece(ring.used + place.stage, (place.round & 1) ^ 1);
}

/// A barrier of `n_threads` threads, whole warps, that name the same one of 1 to 15.
__device__ void sync_threads(int barrier, int n_threads);

/// Blocks of a cluster (Grid::cluster) at most, and how many clusters of so many blocks run at the same time on the
/// current device, each block alone on its multiprocessor.
inline constexpr int kMostCluster = 8;
int most_clusters(int blocks);
/// This block's place in its cluster.
__device__ int cluster_rank();
/// A barrier of the threads of a cluster that have not ended. Behind it each sees what the others wrote to their shared
/// memory.
__device__ void sync_cluster();
/// What block `rank` of the cluster has where `own` is in this block's shared memory.
__device__ float4 load_peer(const float4* own, int rank);

#if !defined(__CUDA_EMULATED__) && !defined(__HIP__)  // where there are none, they are named but not called

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define RIDGE_SM90A(...) asm volatile(__VA_ARGS__)
#else
#define RIDGE_SM90A(...) ((void)0)
#endif

__device__ __forceinline__ uint64_t shared_columns(const void* first) {
  // Address and strides count 16 bytes: 1024 from eight columns to the next. 1 at 62: swizzled in 128 bytes.
  return uint64_t((__cvta_generic_to_shared(first) & 0x3FFFF) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 |
         uint64_t(1) << 62;
}

__device__ __forceinline__ uint64_t shared_short_columns(const void* first) {
  // 512 bytes from eight columns to the next. 2 at 62: swizzled in 64 bytes.
  return uint64_t((__cvta_generic_to_shared(first) & 0x3FFFF) >> 4) | uint64_t(1) << 16 | uint64_t(32) << 32 |
         uint64_t(2) << 62;
}
__device__ __forceinline__ uint64_t columns_behind(uint64_t columns, int bytes) {
  return columns + unsigned(bytes) / 16;
}
__device__ __forceinline__ void publish_shared() { RIDGE_SM90A("fence.proxy.async.shared::cta;" ::: "memory"); }

#define RIDGE_SUMS1(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define RIDGE_SUMS4(i) RIDGE_SUMS1(i), RIDGE_SUMS1(i + 1), RIDGE_SUMS1(i + 2), RIDGE_SUMS1(i + 3)
#define RIDGE_NAMES16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define RIDGE_NAMES32 RIDGE_NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define RIDGE_NAMES64                                                                                \
  RIDGE_NAMES32                                                                                      \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55" \
  ",%56,%57,%58,%59,%60,%61,%62,%63"
#define RIDGE_WGMMA(n, names, a0, a1, a2, a3, b, adds, ...)                                                          \
  RIDGE_SM90A("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.f16.f16 {" names "}, {" a0 "," a1 "," a2 "," a3 "}, " b \
              ", " adds ", 1, 1, 0;"                                                                                 \
              : __VA_ARGS__                                                                                          \
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_at), "n"(int(kAdds)))
template <bool kAdds, int kColumnTiles>
__device__ __forceinline__ void warpgroup_mma_f16(float (&d)[kColumnTiles][4], const uint32_t (&a)[4], uint64_t b_at) {
  static_assert(kColumnTiles == 4 || kColumnTiles == 8 || kColumnTiles == 16);
  if constexpr (kColumnTiles == 4)
    RIDGE_WGMMA("32", RIDGE_NAMES16, "%16", "%17", "%18", "%19", "%20", "%21", RIDGE_SUMS4(0));
  if constexpr (kColumnTiles == 8)
    RIDGE_WGMMA("64", RIDGE_NAMES32, "%32", "%33", "%34", "%35", "%36", "%37", RIDGE_SUMS4(0), RIDGE_SUMS4(4));
  if constexpr (kColumnTiles == 16)
    RIDGE_WGMMA("128", RIDGE_NAMES64, "%64", "%65", "%66", "%67", "%68", "%69", RIDGE_SUMS4(0), RIDGE_SUMS4(4),
                RIDGE_SUMS4(8), RIDGE_SUMS4(12));
}
#undef RIDGE_WGMMA
#undef RIDGE_NAMES64
#undef RIDGE_NAMES32
#undef RIDGE_NAMES16
#undef RIDGE_SUMS4
#undef RIDGE_SUMS1

__device__ __forceinline__ void warpgroup_fence() { RIDGE_SM90A("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { RIDGE_SM90A("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void warpgroup_wait() {
  RIDGE_SM90A("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
__device__ __forceinline__ void wait_behind(float x) {
  asm volatile(
      "{.reg .pred never; .reg .b32 at; setp.lt.f32 never, %0, 0f00000000; mov.u32 at, 0; @never st.shared.f32 [at], "
      "%0;}" ::"f"(x)
      : "memory");
}
template <int kWords>
__device__ __forceinline__ void keep_words(uint32_t (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(words[i])::"memory");
}
template <int kColumnTiles>
__device__ __forceinline__ void keep_sums(float (&d)[kColumnTiles][4]) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[n][i])::"memory");
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  RIDGE_SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  RIDGE_SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
#undef RIDGE_SM90A

__device__ __forceinline__ uint32_t shared_address(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }
__device__ __forceinline__ void set_up_counts(Arrival* arrivals, int n, int count, int lane) {
  if (lane < n)
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(arrivals + lane)), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(Arrival* arrival) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(arrival)) : "memory");
}
__device__ __forceinline__ void expect_pieces(Arrival* arrival, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(arrival)), "r"(bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void add_piece(Arrival* arrival, void* shared, const void* global, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(arrival))
               : "memory");
#endif
}
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return int(rank);
}
__device__ __forceinline__ void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ float4 load_peer(const float4* own, int rank) {
  float4 v = {};
#if __CUDA_ARCH__ >= 900
  uint32_t at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(own)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
#endif
  return v;
}
__device__ __forceinline__ void sync_threads(int barrier, int n_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(n_threads) : "memory");
}

#endif

}  // namespace ridge::gpu

#ifdef __CUDA_EMULATED__
#include <emulated_warpgroup.h>  // tests/emulate
#endif
