// gpu/tensor.h in plain C++, on the emulated warp.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/f16.h"

namespace ridge::gpu {
namespace emulated {

template <class Sum>
struct MmaIn {
  Sum d[4];
  uint32_t a[4], b[2];
};

/// As many columns as 16 bytes hold: a register at any level of optimisation.
template <class Number>
using Columns [[gnu::vector_size(16)]] = Number;

/// sums[row][column] += rows[row][k] * columns[k][column] of 16 rows and 8 columns, for k in their order.
template <int kDepth, class Number>
void add_products(Number (&sums)[16][8], const Number (&rows)[16][kDepth], const Number (&columns)[kDepth][8]) {
  constexpr int kWide = 16 / sizeof(Number);
  for (int row = 0; row < 16; ++row)
    for (int first = 0; first < 8; first += kWide) {
      Columns<Number> sum, column;
      std::memcpy(&sum, &sums[row][first], 16);
      for (int k = 0; k < kDepth; ++k) {
        std::memcpy(&column, &columns[k][first], 16);
        sum += rows[row][k] * column;
      }
      std::memcpy(&sums[row][first], &sum, 16);
    }
}

/// Value(word, i, is_a) gives element i of a word. A float holds every sum of 32 products of bytes exactly.
template <class Sum, int kPerWord, class Value>
void mma(Sum (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Value) {
  struct Out {
    Sum d[4];
  };
  MmaIn<Sum> mine{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  const Out out = emulate::collective<MmaIn<Sum>, Out>(mine, [](auto& in, auto& outs) {
    constexpr bool kExact = std::is_integral_v<Sum>;
    using Number = std::conditional_t<kExact, float, double>;
    Number rows[16][8 * kPerWord], columns[8 * kPerWord][8], sums[16][8] = {};
    for (int lane = 0; lane < 32; ++lane) {
      const int at = lane / 4, quad = lane % 4 * 2 * kPerWord;
      for (int half = 0; half < 2; ++half)
        for (int e = 0; e < kPerWord; ++e) {
          const int k = quad + half * kPerWord + e;
          rows[at][k] = Number(Value()(in[lane]->a[2 * half], e, true));
          rows[at + 8][k] = Number(Value()(in[lane]->a[2 * half + 1], e, true));
          columns[k][at] = Number(Value()(in[lane]->b[half], e, false));
        }
      if constexpr (!kExact)
        for (int i = 0; i < 4; ++i) sums[at + 8 * (i / 2)][lane % 4 * 2 + i % 2] = Number(in[lane]->d[i]);
    }
    add_products(sums, rows, columns);
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const Number sum = sums[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2];
        if constexpr (kExact) outs[lane]->d[i] = Sum(in[lane]->d[i] + int64_t(sum));
        else outs[lane]->d[i] = Sum(sum);
      }
  });
  for (int i = 0; i < 4; ++i) d[i] = out.d[i];
}

struct Bytes {
  int operator()(uint32_t word, int i, bool) const { return int8_t(word >> (8 * i)); }
};
struct MixedBytes {
  int operator()(uint32_t word, int i, bool is_a) const {
    return is_a ? int(word >> (8 * i) & 255u) : int(int8_t(word >> (8 * i)));
  }
};
struct F16 {
  float operator()(uint32_t word, int i, bool) const { return f16_to_f32(uint16_t(word >> (16 * i))); }
};
struct Bfloats {
  float operator()(uint32_t word, int i, bool) const { return bf16_to_f32(uint16_t(word >> (16 * i))); }
};

}  // namespace emulated

inline void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated::mma<int, 4>(d, a, b0, b1, emulated::Bytes());
}
inline void mma_s8_from(int start, int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  for (int& x : d) x = start;
  mma_s8(d, a, b0, b1);
}
inline void mma_u8s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated::mma<int, 4>(d, a, b0, b1, emulated::MixedBytes());
}
inline void mma_u8s8_k16(int (&d)[4], const uint32_t (&a)[2], uint32_t b) {
  const uint32_t both[4] = {a[0], a[1], 0, 0};
  mma_u8s8(d, both, b, 0);
}
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated::mma<float, 2>(d, a, b0, b1, emulated::F16());
}
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated::mma<float, 2>(d, a, b0, b1, emulated::Bfloats());
}

inline void copy_async16(void* shared, const void* global) { emulate::start_copy(shared, global, 16); }
inline void copy_async16_if(bool wanted, void* shared, const void* global) {
  if (wanted) copy_async16(shared, global);
}
inline void copy_commit() { emulate::commit_copies(); }
template <int kLeft>
void copy_wait() {
  emulate::wait_copies(kLeft);
}

using Arrival = unsigned long long;  // number of phases that have ended
inline void set_up_arrivals(Arrival* arrivals, int n, int lane) {
  if (lane < n) arrivals[lane] = 0;
  __syncwarp();
}
inline void start_piece(Arrival* arrival, void* shared, const void* global, int bytes, int lane) {
  if (lane == 0) emulate::start_piece(arrival, shared, global, bytes);
}
inline void wait_for_piece(Arrival* arrival, unsigned phase) { emulate::wait_for_piece(arrival, phase); }

inline void prefetch(const void*) {}
inline void wait_for_previous_grid() {}
inline void let_next_grid_start() {}
inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_reciprocal(float x) { return std::abs(x) > 0x1p126f ? 0.0f : 1 / x; }
inline uint32_t pack_f16(float low, float high) { return uint32_t(f32_to_f16(low)) | uint32_t(f32_to_f16(high)) << 16; }
inline uint32_t pack_bf16(float low, float high) {
  return uint32_t(f32_to_bf16(low)) | uint32_t(f32_to_bf16(high)) << 16;
}
inline float2 unpack_f16(uint32_t pair) { return {f16_to_f32(uint16_t(pair)), f16_to_f32(uint16_t(pair >> 16))}; }
inline uint32_t sub_f16x2(uint32_t a, uint32_t b) {
  const float2 x = unpack_f16(a), y = unpack_f16(b);
  return pack_f16(x.x - y.x, x.y - y.y);
}
inline uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }
template <uint32_t mask>
uint32_t select_bits(uint32_t a, uint32_t b) {
  return (a & mask) | (b & ~mask);
}
/// Exact for sums of f16 that need no more than a float's bits.
inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  const float2 x = unpack_f16(a), y = unpack_f16(b), z = unpack_f16(c);
  return pack_f16(x.x * y.x + z.x, x.y * y.y + z.y);
}

inline uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t s = selector >> (4 * i) & 15u;
    uint32_t byte = uint32_t(bytes >> (8 * (s & 7))) & 255u;
    if (s & 8) byte = byte & 128u ? 255u : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
inline float f16_to_float(uint16_t half) { return f16_to_f32(half); }
inline uint16_t float_to_f16(float value) { return f32_to_f16(value); }
inline float bf16_to_float(uint16_t bits) { return bf16_to_f32(bits); }
inline uint16_t float_to_bf16(float value) { return f32_to_bf16(value); }

}  // namespace ridge::gpu
