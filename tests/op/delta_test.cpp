#include "op/delta/delta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/rng.h"

namespace ridge {
namespace {

/// A layer with two sequences, which remember something.
struct Problem {
  explicit Problem(const DeltaShape& of, int tokens, uint64_t seed) : shape(of), n(tokens) {
    Rng rng(seed);
    const auto fill = [&](std::vector<float>& values, int64_t count, double deviation) {
      for (int64_t i = 0; i < count; ++i) values.push_back(float(deviation * rng.normal()));
    };
    fill(conv, shape.kernel * shape.channels(), 0.7);
    fill(decay, shape.n_value_heads, 1);
    for (float& value : decay) value = -std::exp(value);
    fill(dt_bias, shape.n_value_heads, 1);
    fill(states, 2 * shape.state_values(), 0.5);
    fill(qkv, n * shape.channels(), 1);
    fill(a, n * shape.n_value_heads, 1);
    fill(b, n * shape.n_value_heads, 1);
    out.resize(size_t(n * shape.values()));
  }
  /// Rows [first, first + count) of the step as new tokens of the sequence in `slot`.
  static KvSpan span(int first, int count, int slot) { return {.first_row = first, .n_rows = count, .slot = slot}; }
  void run(CpuContext& context, std::span<const KvSpan> spans) {
    gated_delta(context, {.shape = shape,
                          .conv = conv.data(),
                          .decay = decay.data(),
                          .dt_bias = dt_bias.data(),
                          .spans = spans,
                          .states = states.data(),
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
std::vector<double> oracle(Problem& p, std::span<const KvSpan> spans) {
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

constexpr DeltaShape kShapes[] = {
    {.n_key_heads = 1, .n_value_heads = 1, .key_dim = 4, .value_dim = 3, .kernel = 2},
    {.n_key_heads = 2, .n_value_heads = 6, .key_dim = 16, .value_dim = 20, .kernel = 4},
    {2, 6, 16, 20, 4, true},
    {.n_key_heads = 3, .n_value_heads = 3, .key_dim = 128, .value_dim = 128, .kernel = 3}};

class GatedDelta : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, GatedDelta, testing::Values(Isa::scalar, Isa::avx2, Isa::avx512),
                         [](const auto& isa) { return std::string(isa_name(isa.param)); });

TEST_P(GatedDelta, IsTheFormula) {
  for (const DeltaShape& shape : kShapes) {
    CpuContext context(2, GetParam());
    Problem ours(shape, 13, 5), theirs = ours;
    const KvSpan spans[] = {Problem::span(4, 9, 0), Problem::span(0, 4, 1)};
    ours.run(context, spans);
    const std::vector<double> expected = oracle(theirs, spans);
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(ours.out[i], expected[i], 2e-5) << "value " << i;
    for (size_t i = 0; i < ours.states.size(); ++i)
      ASSERT_NEAR(ours.states[i], theirs.states[i], 2e-5) << "value " << i << " of the states";
  }
}

TEST_P(GatedDelta, TheCutOfAPromptAndThreadsChangeNoBit) {
  for (const DeltaShape& shape : kShapes) {
    CpuContext one(1, GetParam()), three(3, GetParam());
    Problem whole(shape, 12, 7), cut = whole;
    const KvSpan all[] = {Problem::span(0, 12, 1)};
    whole.run(three, all);
    for (const auto& [first, count] : {std::pair(0, 1), {1, 4}, {5, 2}, {7, 5}}) {
      const KvSpan part[] = {Problem::span(first, count, 1)};
      Problem step = cut;
      step.run(one, part);
      cut.states = step.states;
      std::copy_n(step.out.begin() + first * shape.values(), count * shape.values(),
                  cut.out.begin() + first * shape.values());
    }
    EXPECT_EQ(std::memcmp(whole.out.data(), cut.out.data(), 4 * whole.out.size()), 0);
    EXPECT_EQ(std::memcmp(whole.states.data(), cut.states.data(), 4 * whole.states.size()), 0);
  }
}

}  // namespace
}  // namespace ridge
