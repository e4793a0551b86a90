#include "op/delta/mamba.h"

#include <algorithm>
#include <cmath>

#include "op/delta/taps.h"
#include "op/trace.h"

namespace ridge {
namespace {

/// A block of channels from `first` on of a sequence's new rows through the convolution, whose tail moves on.
void convolve(const Mamba& m, const Taps& taps, const KvSpan& span, int64_t first) {
  const int64_t n = std::min(kTapChannels, taps.channels - first), tail = m.shape.inner() * m.shape.state_dim;
  const StatePath path = path_of(m.states, span);
  float sums[kTapChannels];
  for (int t = 0; t < span.n_rows; ++t) {
    float* const row = &m.in(span.first_row + t, m.shape.inner() + first);
    std::copy_n(m.conv_bias + first, n, sums);
    taps.add(first, n, row, path.before(t) + tail, path.behind(t) + tail, sums);
    for (int64_t i = 0; i < n; ++i) row[i] = sums[i] / (1 + std::exp(-sums[i]));
  }
}

/// Factors of a token: of the head's matrix (keep), of what enters the matrix (dt), and of what passes by it (d).
struct Factors {
  float keep, dt, d;
};
/// The matrix of a head [state_dim, head_dim], in front of a token and behind it.
struct Matrices {
  const float* before;
  float* behind;
};

/// One token through the matrix of one head. `b` are B of the head's group.
void step(const MambaShape& shape, const Factors& by, const float* x, const float* b, Matrices state, float* out) {
  const int64_t head_dim = shape.head_dim;
  const float* const c = b + int64_t(shape.n_groups) * shape.state_dim;
  for (int64_t i = 0; i < head_dim; ++i) out[i] = by.d * x[i];
  for (int64_t s = 0; s < shape.state_dim; ++s, state.before += head_dim, state.behind += head_dim) {
    const float in = by.dt * b[s], read = c[s];
    for (int64_t i = 0; i < head_dim; ++i) {
      const float value = by.keep * state.before[i] + in * x[i];
      state.behind[i] = value;
      out[i] += read * value;
    }
  }
}

}  // namespace

void mamba2(CpuContext& context, const Mamba& m) {
  const MambaShape& s = m.shape;
  const int64_t n = m.in.rows, inner = s.inner(), channels = s.channels(), n_spans = ssize(m.spans);
  RIDGE_CHECK(s.kernel > 1 && m.in.cols == s.columns() && m.out.cols == inner, "{} columns of {}", m.in.cols,
              s.columns());
  const int64_t state_bytes = 4 * n_spans * s.state_values();
  const TracedOp traced(
      context, "mamba2", {},
      {4 * n * s.columns() + state_bytes, 4 * n * inner + state_bytes, n * inner * int64_t(s.state_dim) * 5});

  const Taps taps{m.conv, s.kernel, channels};
  context.pool.for_each(n_spans * taps.blocks(), [&](int64_t i, int) {
    const KvSpan& span = m.spans[size_t(i / taps.blocks())];
    convolve(m, taps, span, i % taps.blocks() * kTapChannels);
  });
  context.pool.for_each(n_spans * s.n_heads, [&](int64_t i, int) {
    const KvSpan& span = m.spans[size_t(i / s.n_heads)];
    const int64_t head = i % s.n_heads, group = head / (s.n_heads / s.n_groups);
    const StatePath path = path_of(m.states, span);
    const int64_t matrix = head * s.state_dim * s.head_dim;
    for (int64_t t = span.first_row; t < span.first_row + span.n_rows; ++t) {
      const float* const x = &m.in(t, inner);  // x of all heads, B of all groups, C of all groups, dt
      const float* const b = x + inner + group * s.state_dim;
      const double dt = softplus(double(x[channels + head]) + m.dt_bias[head]);
      const int new_token = int(t) - span.first_row;
      step(s, {float(std::exp(m.decay[head] * dt)), float(dt), m.d[head]}, x + head * s.head_dim, b,
           {path.before(new_token) + matrix, path.behind(new_token) + matrix}, &m.out(t, head * s.head_dim));
    }
  });
}

}  // namespace ridge
