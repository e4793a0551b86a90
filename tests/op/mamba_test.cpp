// Mamba2 against its recurrence in double, whole and in parts.
#include "op/delta/mamba.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cases/drafted_steps.h"
#include "cases/guarded.h"

namespace ridge {
namespace {

struct MambaProblem {
  MambaShape shape;
  int n = 0;
  std::vector<float> conv, conv_bias, decay, dt_bias, d, in;

  MambaProblem(MambaShape of, int n_tokens) : shape(of), n(n_tokens) {
    conv = random_floats(1, shape.kernel * shape.channels());
    conv_bias = random_floats(2, shape.channels());
    decay = random_floats(3, shape.n_heads);
    for (float& value : decay) value = -std::exp(value);
    dt_bias = random_floats(4, shape.n_heads);
    d = random_floats(5, shape.n_heads);
    in = random_floats(6, n * shape.columns());
  }

  /// A sequence in slot 1 of 2: [n, inner].
  std::vector<float> run(const std::vector<DraftedStep>& steps, int n_threads, SlotNumbers slots = 2) const {
    CpuContext context(n_threads);
    const int64_t inner = shape.inner();
    std::vector<float> states(size_t(slots.n_states() * shape.state_values()), 0.0f), out(size_t(n * inner), 7.0f);
    for (const DraftedStep& step : steps) {
      const KvSpan span{.first_row = 0, .n_rows = step.n_rows(), .n_past = step.first, .slot = 1};
      std::vector<float> rows = step.rows(in, shape.columns()), given(size_t(span.n_rows * inner));
      mamba2(context, {.shape = shape,
                       .conv = conv.data(),
                       .conv_bias = conv_bias.data(),
                       .decay = decay.data(),
                       .dt_bias = dt_bias.data(),
                       .d = d.data(),
                       .spans = {&span, 1},
                       .states = {states.data(), shape.state_values(), slots.n_histories},
                       .in = View2<float>(rows.data(), span.n_rows, shape.columns()),
                       .out = View2<float>(given.data(), span.n_rows, inner)});
      std::copy_n(given.begin(), step.right * inner, out.begin() + step.first * inner);
    }
    for (size_t i = 0; i < states.size() / 2; ++i) EXPECT_EQ(states[i], 0) << "another sequence's state";
    return out;
  }

  std::vector<double> expected() const {
    const int64_t inner = shape.inner(), channels = shape.channels(), per_group = shape.n_heads / shape.n_groups;
    std::vector<double> mixed(size_t(n * channels)), out(size_t(n * inner)),
        state(size_t(inner * shape.state_dim), 0.0);
    for (int64_t t = 0; t < n; ++t)
      for (int64_t c = 0; c < channels; ++c) {
        double sum = conv_bias[size_t(c)];
        for (int64_t k = 0; k < shape.kernel; ++k)
          if (const int64_t from = t - (shape.kernel - 1) + k; from >= 0)
            sum += double(conv[size_t(k * channels + c)]) * in[size_t(from * shape.columns() + inner + c)];
        mixed[size_t(t * channels + c)] = sum / (1 + std::exp(-sum));
      }
    for (int64_t t = 0; t < n; ++t)
      for (int64_t h = 0; h < shape.n_heads; ++h) {
        const double dt =
            std::log1p(std::exp(double(in[size_t(t * shape.columns() + inner + channels + h)]) + dt_bias[size_t(h)]));
        for (int64_t i = 0; i < shape.head_dim; ++i) {
          const double x = mixed[size_t(t * channels + h * shape.head_dim + i)];
          double y = d[size_t(h)] * x;
          for (int64_t s = 0; s < shape.state_dim; ++s) {
            const int64_t b = t * channels + inner + h / per_group * shape.state_dim + s;
            double& entry = state[size_t((h * shape.head_dim + i) * shape.state_dim + s)];
            entry = std::exp(decay[size_t(h)] * dt) * entry + dt * x * mixed[size_t(b)];
            y += entry * mixed[size_t(b + shape.n_groups * shape.state_dim)];
          }
          out[size_t(t * inner + h * shape.head_dim + i)] = y;
        }
      }
    return out;
  }
};

constexpr MambaShape kShapes[] = {{.n_heads = 1, .head_dim = 1, .n_groups = 1, .state_dim = 1, .kernel = 2},
                                  {.n_heads = 8, .head_dim = 16, .n_groups = 2, .state_dim = 16, .kernel = 4},
                                  {.n_heads = 6, .head_dim = 33, .n_groups = 3, .state_dim = 40, .kernel = 3}};

TEST(Mamba, IsItsRecurrence) {
  for (const MambaShape& shape : kShapes) {
    const MambaProblem problem(shape, 11);
    const std::vector<float> out = problem.run(cut_steps({}, 11), 2);
    const std::vector<double> expected = problem.expected();
    double largest = 0;
    for (const double value : expected) largest = std::max(largest, std::abs(value));
    // A state's entry and an output are sums of at most 11 and state_dim + 1 products, of a few roundings each.
    const double bound = (shape.state_dim + 40) * 0x1p-24 * largest;
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], bound) << shape.n_heads << " " << i;
  }
}

TEST(Mamba, HasTheSameBitsHoweverTheTokensAreCut) {
  for (const MambaShape& shape : kShapes) {
    const MambaProblem problem(shape, 11);
    const std::vector<float> whole = problem.run(cut_steps({}, 11), 1);
    EXPECT_EQ(problem.run(cut_steps({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 11), 1), whole);
    EXPECT_EQ(problem.run(cut_steps({2, 9}, 11), 3), whole);
    EXPECT_EQ(problem.run(cut_steps({2, 9}, 11), 3, {2, 2}), whole);
    EXPECT_EQ(problem.run(kDraftedSteps, 1, {2, 2}), whole) << "behind wrong tokens";
  }
}

}  // namespace
}  // namespace ridge
