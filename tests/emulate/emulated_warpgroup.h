// gpu/warpgroup.h in plain C++. A product is complete when it returns: what the emulator cannot show is a register that
// is written while a product reads it.
#pragma once

#include <cstdint>

namespace ridge::gpu {

/// Addresses have fewer bits.
inline constexpr uint64_t kShortColumns = uint64_t(1) << 62;
inline uint64_t shared_columns(const void* first) { return reinterpret_cast<uintptr_t>(first); }
inline uint64_t shared_short_columns(const void* first) { return shared_columns(first) | kShortColumns; }
inline uint64_t columns_behind(uint64_t columns, int bytes) { return columns + unsigned(bytes); }
inline void publish_shared() {}

template <bool kAdds, int kColumnTiles>
void warpgroup_mma_f16(float (&d)[kColumnTiles][4], const uint32_t (&a)[4], uint64_t b) {
  struct In {
    uint32_t a[4];
    float (*d)[4];
    uint64_t b;
  };
  struct Out {};
  (void)emulate::collective<In, Out>(In{{a[0], a[1], a[2], a[3]}, d, b}, [](auto& in, auto&) {
    static thread_local double rows[16][16], columns[16][8], sums[16][8];
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const float2 two = unpack_f16(in[lane]->a[i]);
        double* at = &rows[lane / 4 + 8 * (i % 2)][8 * (i / 2) + lane % 4 * 2];
        at[0] = two.x, at[1] = two.y;
      }
    const bool is_short = in[0]->b & kShortColumns;
    const uintptr_t first = in[0]->b & ~kShortColumns;
    for (int n = 0; n < kColumnTiles; ++n) {
      for (int column = 0; column < 8; ++column)
        for (int k = 0; k < 16; ++k) {
          const uintptr_t at = first + uintptr_t((8 * n + column) * (is_short ? 64 : 128) + k * 2);
          columns[k][column] = f16_to_f32(*reinterpret_cast<const uint16_t*>(at ^ (at >> 7 & (is_short ? 3 : 7)) << 4));
        }
      const auto sum_of = [&](int lane, int i) -> double& {
        return sums[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2];
      };
      for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) sum_of(lane, i) = kAdds ? double(in[lane]->d[n][i]) : 0;
      emulated::add_products(sums, rows, columns);
      for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) in[lane]->d[n][i] = float(sum_of(lane, i));
    }
  });
}
inline void warpgroup_fence() {}
inline void warpgroup_commit() {}
template <int kLeft>
void warpgroup_wait() {}
inline void wait_behind(float) {}
template <int kWords>
void keep_words(uint32_t (&)[kWords]) {}
template <int kColumnTiles>
void keep_sums(float (&)[kColumnTiles][4]) {}
template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}

inline void set_up_counts(Arrival* arrivals, int n, int count, int lane) {
  if (lane < n) emulate::set_up_count(arrivals + lane, count);
}
inline void arrive(Arrival* arrival) { emulate::arrive(arrival); }
inline void expect_pieces(Arrival* arrival, int bytes) { emulate::expect_pieces(arrival, bytes); }
inline void add_piece(Arrival* arrival, void* shared, const void* global, int bytes) {
  emulate::add_piece(arrival, shared, global, bytes);
}
inline int cluster_rank() { return emulate::cluster_rank(); }
inline void sync_cluster() { emulate::sync_cluster(); }
inline float4 load_peer(const float4* own, int rank) {
  return *static_cast<const float4*>(emulate::peer_shared(own, rank));
}
inline void sync_threads(int barrier, int n_threads) { emulate::sync_threads(barrier, n_threads); }

}  // namespace ridge::gpu
