// The gated short convolution against its formula in double, whole and in parts.
#include "op/delta/short_conv.h"

#include <gtest/gtest.h>

#include "cases/drafted_steps.h"
#include "cases/guarded.h"

namespace ridge {
namespace {

/// A sequence of tokens through the op, in slot 1 of 2.
std::vector<float> run(const std::vector<float>& bcx, const std::vector<float>& weights, int kernel, int channels,
                       const std::vector<DraftedStep>& steps, SlotNumbers slots = 2) {
  CpuContext context(2);
  const int64_t n = ssize(bcx) / (3 * channels), values = int64_t(kernel - 1) * channels;
  std::vector<float> states(size_t(slots.n_states() * values), 0.0f), out(size_t(n * channels), 7.0f);
  for (const DraftedStep& step : steps) {
    const KvSpan span{.first_row = 0, .n_rows = step.n_rows(), .n_past = step.first, .slot = 1};
    const std::vector<float> rows = step.rows(bcx, 3 * channels);
    std::vector<float> given(size_t(span.n_rows * channels));
    short_conv(context, {.kernel = kernel,
                         .weights = weights.data(),
                         .spans = {&span, 1},
                         .states = {states.data(), values, slots.n_histories},
                         .bcx = View2<const float>(rows.data(), span.n_rows, 3 * channels),
                         .out = View2<float>(given.data(), span.n_rows, channels)});
    std::copy_n(given.begin(), step.right * channels, out.begin() + step.first * channels);
  }
  for (size_t i = 0; i < states.size() / 2; ++i) EXPECT_EQ(states[i], 0) << "another sequence's state";
  return out;
}

TEST(ShortConv, IsItsFormula) {
  for (const int kernel : {2, 3, 5})
    for (const int channels : {1, 64, 700}) {
      const int n = 9;
      const std::vector<float> bcx = random_floats(1, n * 3 * channels), weights = random_floats(2, kernel * channels);
      const std::vector<float> out = run(bcx, weights, kernel, channels, cut_steps({}, n));
      const auto at = [&](int t, int part, int j) { return double(bcx[size_t((3 * t + part) * channels + j)]); };
      for (int t = 0; t < n; ++t)
        for (int j = 0; j < channels; ++j) {
          double sum = 0, size = 0;
          for (int k = 0; k < kernel; ++k)
            if (const int from = t - (kernel - 1) + k; from >= 0) {
              const double term = weights[size_t(k * channels + j)] * at(from, 0, j) * at(from, 2, j);
              sum += term;
              size += std::abs(term);
            }
          // Products of two roundings each and kernel sums, then the gate: kernel + 3 roundings of the largest sum.
          EXPECT_NEAR(out[size_t(t * channels + j)], at(t, 1, j) * sum,
                      (kernel + 3) * 0x1p-24 * size * std::abs(at(t, 1, j)) + 1e-30)
              << kernel << " " << channels << " token " << t << " channel " << j;
        }
    }
}

TEST(ShortConv, HasTheSameBitsHoweverTheTokensAreCut) {
  const int channels = 37, n = 11;
  const std::vector<float> bcx = random_floats(3, n * 3 * channels), weights = random_floats(4, 3 * channels);
  const std::vector<float> whole = run(bcx, weights, 3, channels, cut_steps({}, n));
  EXPECT_EQ(run(bcx, weights, 3, channels, cut_steps({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, n)), whole);
  EXPECT_EQ(run(bcx, weights, 3, channels, cut_steps({1, 7}, n)), whole);
  EXPECT_EQ(run(bcx, weights, 3, channels, cut_steps({1, 7}, n), {2, 2}), whole);
  EXPECT_EQ(run(bcx, weights, 3, channels, kDraftedSteps, {2, 2}), whole) << "behind wrong tokens";
}

}  // namespace
}  // namespace ridge
