#include "op/delta/delta.h"

#include <algorithm>
#include <cmath>

#include "op/delta/kernels.h"
#include "op/delta/taps.h"
#include "op/trace.h"

namespace ridge {
namespace {

float sigmoid(float x) { return float(1 / (1 + std::exp(-double(x)))); }

/// A block of columns from `first` on of a sequence's new rows through the convolution, whose tail moves on.
void convolve(const Delta& d, const Taps& taps, const KvSpan& span, int64_t first) {
  const int64_t n = std::min(kTapChannels, taps.channels - first), tail = d.shape.values() * d.shape.key_dim;
  const StatePath path = path_of(d.states, span);
  float sums[kTapChannels];
  for (int t = 0; t < span.n_rows; ++t) {
    float* const row = &d.qkv(span.first_row + t, first);
    std::fill_n(sums, n, 0.0f);
    taps.add(first, n, row, path.before(t) + tail, path.behind(t) + tail, sums);
    for (int64_t i = 0; i < n; ++i) row[i] = sums[i] / (1 + std::exp(-sums[i]));
  }
}

/// x /= |x|, times `factor`.
void normalise(float* x, int64_t n, float factor) {
  double sum = 1e-6;
  for (int64_t i = 0; i < n; ++i) sum += double(x[i]) * x[i];
  const float by = float(factor / std::sqrt(sum));
  for (int64_t i = 0; i < n; ++i) x[i] *= by;
}

Support always() { return {}; }

}  // namespace

void delta_step_ref(const DeltaToken& d) {
  for (int64_t j = 0; j < d.value_dim; ++j) {
    double known = 0, sum = 0;
    for (int64_t i = 0; i < d.key_dim; ++i) known += double(d.before[i * d.value_dim + j]) * d.k[i];
    const double change = d.beta * (d.v[j] - d.keep * known);
    for (int64_t i = 0; i < d.key_dim; ++i) {
      float& entry = d.state[i * d.value_dim + j];
      entry = float(d.keep * double(d.before[i * d.value_dim + j]) + d.k[i] * change);
      sum += double(entry) * d.q[i];
    }
    d.out[j] = float(sum);
  }
}

std::span<const DeltaVariant> delta_variants() {
  static constexpr DeltaVariant kVariants[] = {
    {"ref", Isa::scalar, always, delta_step_ref},
#if defined(__x86_64__)
    {"columns-avx2", Isa::avx2, always, delta_step_avx2},
    {"columns-avx512", Isa::avx512, always, delta_step_avx512},
#elif defined(__aarch64__)
    {"columns-neon", Isa::neon, always, delta_step_neon},
#endif
  };
  return kVariants;
}

void gated_delta(CpuContext& context, const Delta& d) {
  const DeltaShape& s = d.shape;
  const int64_t channels = s.channels(), keys = s.keys(), n_spans = ssize(d.spans), n = d.qkv.rows;
  const int64_t matrix = int64_t(s.key_dim) * s.value_dim, state_bytes = 4 * n_spans * s.state_values();
  RIDGE_CHECK(d.qkv.cols == channels && d.out.cols == s.values(), "{} columns of {}", d.qkv.cols, channels);
  const DeltaVariant& variant = select_variant(context, "delta", delta_variants());
  const TracedOp traced(
      context, "delta", variant.name,
      {4 * n * channels + state_bytes, 4 * n * s.values() + state_bytes, n * s.n_value_heads * 7 * matrix});

  const Taps taps{d.conv, s.kernel, channels};
  context.pool.for_each(n_spans * taps.blocks(), [&](int64_t i, int) {
    const KvSpan& span = d.spans[size_t(i / taps.blocks())];
    convolve(d, taps, span, i % taps.blocks() * kTapChannels);
  });
  const float scale = 1 / std::sqrt(float(s.key_dim));
  context.pool.for_each(n * s.n_key_heads, [&](int64_t i, int) {
    float* const q = &d.qkv(i / s.n_key_heads, i % s.n_key_heads * s.key_dim);
    normalise(q, s.key_dim, scale);
    normalise(q + keys, s.key_dim, 1);
  });
  context.pool.for_each(n_spans * s.n_value_heads, [&](int64_t i, int) {
    const KvSpan& span = d.spans[size_t(i / s.n_value_heads)];
    const int head = int(i % s.n_value_heads);
    const int64_t key = int64_t(s.key_head(head)) * s.key_dim, value = int64_t(head) * s.value_dim;
    const StatePath path = path_of(d.states, span);
    for (int64_t t = span.first_row; t < span.first_row + span.n_rows; ++t) {
      const int new_token = int(t) - span.first_row;
      const double gate = d.decay[head] * softplus(double(d.a(t, head)) + d.dt_bias[head]);
      variant.step({.key_dim = s.key_dim,
                    .value_dim = s.value_dim,
                    .keep = float(std::exp(gate)),
                    .beta = sigmoid(d.b(t, head)),
                    .q = &d.qkv(t, key),
                    .k = &d.qkv(t, keys + key),
                    .v = &d.qkv(t, 2 * keys + value),
                    .before = path.before(new_token) + head * matrix,
                    .state = path.behind(new_token) + head * matrix,
                    .out = &d.out(t, value)});
    }
  });
}

}  // namespace ridge
