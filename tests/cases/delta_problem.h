// Layers of the gated delta rule for tests, and what they give in double.
#pragma once

#include <cmath>

#include "base/rng.h"
#include "op/delta/delta.h"

namespace ridge {

/// A layer with `n_slots` sequences, which remember something.
struct DeltaProblem {
  explicit DeltaProblem(const DeltaShape& of, int tokens, uint64_t seed, int n_slots = 2) : shape(of), n(tokens) {
    Rng rng(seed);
    const auto fill = [&](std::vector<float>& values, int64_t count, double deviation) {
      for (int64_t i = 0; i < count; ++i) values.push_back(float(deviation * rng.normal()));
    };
    fill(conv, shape.kernel * shape.channels(), 0.7);
    fill(decay, shape.n_value_heads, 1);
    for (float& value : decay) value = -std::exp(value);
    fill(dt_bias, shape.n_value_heads, 1);
    fill(states, n_slots * shape.state_values(), 0.5);
    fill(qkv, n * shape.channels(), 1);
    fill(a, n * shape.n_value_heads, 1);
    fill(b, n * shape.n_value_heads, 1);
    out.resize(size_t(n * shape.values()));
  }
  /// Rows [first, first + count) of the step as new tokens of the sequence in `slot`.
  static KvSpan span(int first, int count, int slot, int n_past = 0) {
    return {.first_row = first, .n_rows = count, .n_past = n_past, .slot = slot};
  }
  void run(CpuContext& context, std::span<const KvSpan> spans, int n_histories = 0) {
    gated_delta(context, {.shape = shape,
                          .conv = conv.data(),
                          .decay = decay.data(),
                          .dt_bias = dt_bias.data(),
                          .spans = spans,
                          .states = {states.data(), shape.state_values(), n_histories},
                          .qkv = {qkv.data(), n, shape.channels()},
                          .a = {a.data(), n, shape.n_value_heads},
                          .b = {b.data(), n, shape.n_value_heads},
                          .out = {out.data(), n, shape.values()}});
  }

  DeltaShape shape;
  int64_t n;
  std::vector<float> conv, decay, dt_bias, states, qkv, a, b, out;
};

/// The formulas in double, one value head and one token after another. Returns out and leaves the states in `p`.
inline std::vector<double> delta_oracle(DeltaProblem& p, std::span<const KvSpan> spans) {
  const DeltaShape& s = p.shape;
  const auto at = [](const std::vector<float>& v, int64_t i) { return double(v[size_t(i)]); };
  std::vector<double> out(p.out.size());
  for (const KvSpan& span : spans) {
    float* const state = p.states.data() + span.slot * s.state_values();
    float* const tail = state + s.values() * s.key_dim;
    for (int64_t t = span.first_row; t < span.first_row + span.n_rows; ++t) {
      std::vector<double> x;
      for (int64_t c = 0; c < s.channels(); ++c) {
        double sum = at(p.conv, (s.kernel - 1) * s.channels() + c) * at(p.qkv, t * s.channels() + c);
        for (int k = 0; k + 1 < s.kernel; ++k) sum += at(p.conv, k * s.channels() + c) * tail[k * s.channels() + c];
        x.push_back(sum / (1 + std::exp(-sum)));
        for (int k = 0; k + 2 < s.kernel; ++k) tail[k * s.channels() + c] = tail[(k + 1) * s.channels() + c];
        tail[(s.kernel - 2) * s.channels() + c] = p.qkv[size_t(t * s.channels() + c)];
      }
      for (int head = 0; head < s.n_value_heads; ++head) {
        const int ratio = s.n_value_heads / s.n_key_heads;
        const int64_t key = (s.keys_cycle ? head % s.n_key_heads : head / ratio) * s.key_dim;
        const double *const q = &x[size_t(key)], *const k = &x[size_t(s.keys() + key)],
                            *const v = &x[size_t(2 * s.keys() + head * s.value_dim)];
        double qq = 1e-6, kk = 1e-6;
        for (int i = 0; i < s.key_dim; ++i) qq += q[i] * q[i], kk += k[i] * k[i];
        const double gate = at(p.a, t * s.n_value_heads + head) + at(p.dt_bias, head);
        const double keep = std::exp(at(p.decay, head) * std::log(1 + std::exp(gate)));
        const double beta = 1 / (1 + std::exp(-at(p.b, t * s.n_value_heads + head)));
        for (int j = 0; j < s.value_dim; ++j) {
          const auto entry = [&](int i) -> float& { return state[(int64_t(head) * s.key_dim + i) * s.value_dim + j]; };
          double known = 0, sum = 0;
          for (int i = 0; i < s.key_dim; ++i) known += keep * entry(i) * k[i] / std::sqrt(kk);
          for (int i = 0; i < s.key_dim; ++i) {
            const double now = keep * entry(i) + k[i] / std::sqrt(kk) * beta * (v[j] - known);
            entry(i) = float(now);
            sum += now * q[i] / std::sqrt(qq * s.key_dim);
          }
          out[size_t(t * s.values() + head * s.value_dim + j)] = sum;
        }
      }
    }
  }
  return out;
}

inline constexpr DeltaShape kDeltaShapes[] = {
    {.n_key_heads = 1, .n_value_heads = 1, .key_dim = 4, .value_dim = 3, .kernel = 2},
    {.n_key_heads = 2, .n_value_heads = 6, .key_dim = 16, .value_dim = 20, .kernel = 4},
    {2, 6, 16, 20, 4, true},
    {.n_key_heads = 3, .n_value_heads = 3, .key_dim = 128, .value_dim = 128, .kernel = 3}};

}  // namespace ridge
