// Row kernels: one output row at a time in float, for every weight format. f32, f16 and bf16 convert in registers;
// other formats decode the row into a buffer first (op/simd/decode.h, or the format's reference where that has no
// row), so a format has a working gemv without a line of its own.
#pragma once

#include "op/linear.h"
#include "op/simd/decode.h"

namespace ridge {
namespace {

/// <row, x>: four accumulators hide the FMA latency.
template <class Load>
inline float row_dot(const std::byte* row, const float* x, int64_t n) {
  constexpr int kLanes = Simd::kLanes;
  Simd::F sum[4] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    // 2 KiB ahead, as in panel_simd.h; within a decoded row it costs an idle slot.
    for (int line = 0; line < 4 * kLanes * Load::kBytes; line += 64)
      __builtin_prefetch(row + Load::kBytes * i + 2048 + line);
    for (int j = 0; j < 4; ++j)
      sum[j] = Simd::fma(Load::load(row, i + j * kLanes), Simd::load(x + i + j * kLanes), sum[j]);
  }
  for (; i + kLanes <= n; i += kLanes) sum[0] = Simd::fma(Load::load(row, i), Simd::load(x + i), sum[0]);
  float tail = 0;
  for (; i < n; ++i) tail += Load::one(row, i) * x[i];
  return Simd::sum(Simd::add(Simd::add(sum[0], sum[1]), Simd::add(sum[2], sum[3]))) + tail;
}

void run_rows(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  const int64_t row_bytes = w.format->row_bytes(w.n_in);
  const int64_t rows_per_task = std::max<int64_t>(1, 65536 / row_bytes);
  const bool in_place = w.format->group == 1;
  float* decoded = in_place ? nullptr : context.scratch[0].ensure<float>(context.pool.size() * w.n_in);
  const RowDecoder decode = row_decoder(*w.format);
  const auto dot = w.format->name == F16::kName    ? row_dot<LoadF16>
                   : w.format->name == BF16::kName ? row_dot<LoadBF16>
                                                   : row_dot<LoadF32>;
  context.pool.for_each((w.n_out + rows_per_task - 1) / rows_per_task, [&](int64_t task, int thread) {
    const int64_t last = std::min(w.n_out, (task + 1) * rows_per_task);
    for (int64_t r = task * rows_per_task; r < last; ++r) {
      const std::byte* row = w.rows + r * row_bytes;
      if (!in_place) {
        float* buffer = decoded + thread * w.n_in;
        decode(row, w.n_in, buffer);
        row = reinterpret_cast<const std::byte*>(buffer);
      }
      for (int64_t t = 0; t < y.rows; ++t) y(t, r) = dot(row, &x(t, 0), w.n_in);
    }
  });
}

}  // namespace
}  // namespace ridge
