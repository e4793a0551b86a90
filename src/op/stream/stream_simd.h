// Streams over vectors. Included once per ISA after its Vector: V, load(), store(), store_nt(), zero(), bytes_of() all
// bytes of a value, add() of 64-bit words, triad(a, b) = a + 3 b of floats, and fence() behind store_nt().
#pragma once

#include "op/stream/kernels.h"

namespace ridge {
namespace {

using V = Vector::V;
constexpr int64_t kBytes = sizeof(V);
// Independent sums, so that no load waits for an addition.
constexpr int64_t kSums = 8;

/// Applies step(i) to every vector offset of [0, n), kSums a round.
template <class Step>
inline void each_vector(int64_t n, const Step& step) {
  for (int64_t i = 0; i < n; i += kSums * kBytes) {
#pragma GCC unroll 8
    for (int64_t j = 0; j < kSums; ++j) step(i + j * kBytes);
  }
}

uint64_t stream_read(const std::byte* in, int64_t n) {
  V sums[kSums];
  for (V& sum : sums) sum = Vector::zero();
  // Four places at once, each running through its own pages, and a prefetch 1 KiB ahead: 2 % more than one stream of
  // plain loads (two Emerald Rapids cores, 33.5 against 32.5 GB/s).
  const int64_t quarter = n / 4;
  for (int64_t i = 0; i < quarter; i += 2 * kBytes) {
#pragma GCC unroll 4
    for (int64_t part = 0; part < 4; ++part) {
      const std::byte* at = in + part * quarter + i;
      for (int64_t line = 0; line < 2 * kBytes; line += 64) __builtin_prefetch(at + 1024 + line);
      sums[2 * part] = Vector::add(sums[2 * part], Vector::load(at));
      sums[2 * part + 1] = Vector::add(sums[2 * part + 1], Vector::load(at + kBytes));
    }
  }
  uint64_t words[kBytes / 8], total = 0;
  for (const V& sum : sums) {
    __builtin_memcpy(words, &sum, sizeof words);
    for (const uint64_t word : words) total += word;
  }
  return total;
}

void stream_write(std::byte* out, int64_t n, uint8_t value) {
  const V x = Vector::bytes_of(value);
  each_vector(n, [&](int64_t i) { Vector::store(out + i, x); });
}

void stream_write_nt(std::byte* out, int64_t n, uint8_t value) {
  const V x = Vector::bytes_of(value);
  each_vector(n, [&](int64_t i) { Vector::store_nt(out + i, x); });
  Vector::fence();
}

void stream_copy(const std::byte* in, std::byte* out, int64_t n) {
  each_vector(n, [&](int64_t i) { Vector::store(out + i, Vector::load(in + i)); });
}

void stream_copy_nt(const std::byte* in, std::byte* out, int64_t n) {
  each_vector(n, [&](int64_t i) { Vector::store_nt(out + i, Vector::load(in + i)); });
  Vector::fence();
}

void stream_triad(const std::byte* a, const std::byte* b, std::byte* out, int64_t n) {
  each_vector(n, [&](int64_t i) { Vector::store(out + i, Vector::triad(Vector::load(a + i), Vector::load(b + i))); });
}

}  // namespace
}  // namespace ridge
