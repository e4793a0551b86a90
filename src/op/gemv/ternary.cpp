#include "op/gemv/ternary.h"

#include <cmath>
#include <cstring>

#include "format/i2_s.h"
#include "op/kernels.h"

namespace ridge {
namespace {

void pack_panel(int64_t n_rows, int64_t n_in, const std::byte* rows, std::byte* panel) {
  static_assert(I2_S::kGroup == kTernaryGroup && kTernaryGroup == 128);
  const int64_t n_groups = n_in / kTernaryGroup;
  std::memset(panel, 0x55, size_t(kTernaryRows * n_in / 4));  // code 0 everywhere
  for (int64_t r = 0; r < n_rows; ++r)
    for (int64_t group = 0; group < n_groups; ++group) {
      I2_S::Block block;
      std::memcpy(&block, rows + (r * n_groups + group) * int64_t(sizeof block), sizeof block);
      for (int column = 0; column < kTernaryGroup; ++column) {
        const int code = block.q[column % 32] >> (6 - 2 * (column / 32)) & 3;
        const int unit = column / kTernaryColumns, k = column % kTernaryColumns / 4, j = column % 4;
        std::byte& byte = panel[(group * (kTernaryGroup / kTernaryColumns) + unit) * 64 + 4 * r + j];
        byte ^= std::byte((code ^ 1) << (2 * k));
      }
    }
}

}  // namespace

Support needs_ternary_rows(const Linear& w) {
  if (!w.int8_activations) return {false, "the matrix does not take int8 activations"};
  if (!w.rows) return {false, "the row-major weights were not kept"};
  return {};
}

Support needs_ternary_panels(const Linear& w) {
  if (!w.int8_activations) return {false, "the matrix does not take int8 activations"};
  if (!w.panels) return {false, "the weights were not packed into panels"};
  return {};
}

bool wants_ternary_panels(const Linear& w, Isa isa) { return w.int8_activations && isa > Isa::scalar; }

int64_t ternary_panel_bytes(int64_t n_out, int64_t n_in) {
  return (n_out + kTernaryRows - 1) / kTernaryRows * kTernaryRows * n_in / 4;
}

void pack_ternary_panels(CpuContext& context, int64_t n_out, int64_t n_in, const std::byte* rows, std::byte* panels) {
  RIDGE_CHECK(n_in % kTernaryGroup == 0, "rows of {}", n_in);
  context.pool.for_each((n_out + kTernaryRows - 1) / kTernaryRows, [&](int64_t panel, int) {
    const int64_t first = panel * kTernaryRows;
    pack_panel(std::min<int64_t>(kTernaryRows, n_out - first), n_in, rows + first * n_in / 4,
               panels + first * n_in / 4);
  });
}

void quantize_token_ref(const float* x, int64_t n, int8_t* q, float& scale, int32_t& sum) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::abs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  const float top = token_top(largest), inverse = 127.0f / top;
  scale = finite ? top / 127.0f : NAN;
  sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    q[i] = finite ? int8_t(std::nearbyint(x[i] * inverse)) : int8_t(0);
    sum += q[i];
  }
}

/// Int8Tokens.
ScratchBytes ternary_scratch(const Linear& w, int64_t n_tokens, int) {
  return {n_tokens * w.n_in, 4 * n_tokens, 4 * n_tokens};
}
/// Integers of the tokens and their scales; decoded codes of a row for each thread.
ScratchBytes ternary_ref_scratch(const Linear& w, int64_t n_tokens, int n_threads) {
  return {n_tokens * w.n_in, 4 * n_tokens, 4 * n_threads * w.n_in};
}

/// The oracle: codes and activations multiplied one by one.
void ternary_ref(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  context.make_scratch(ternary_ref_scratch(w, x.rows, context.pool.size()));
  auto* q = context.scratch[0].as<int8_t>();
  auto* scales = context.scratch[1].as<float>();
  auto* codes = context.scratch[2].as<float>();
  int32_t unused;
  for (int64_t t = 0; t < x.rows; ++t) quantize_token_ref(&x(t, 0), x.cols, q + t * x.cols, scales[t], unused);
  context.pool.for_each(w.n_out, [&](int64_t r, int thread) {
    float* row = codes + thread * w.n_in;
    w.format->decode(w.rows + r * w.format->row_bytes(w.n_in), w.n_in, row);
    for (int64_t t = 0; t < y.rows; ++t) {
      int32_t sum = 0;
      for (int64_t i = 0; i < w.n_in; ++i) sum += int32_t(row[i]) * q[t * x.cols + i];
      y(t, r) = float(sum) * scales[t] * w.scale;
    }
  });
}

}  // namespace ridge
