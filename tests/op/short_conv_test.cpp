// The gated short convolution against its formula in double, whole and in parts.
#include "op/delta/short_conv.h"

#include <gtest/gtest.h>

#include "cases/guarded.h"

namespace ridge {
namespace {

/// A sequence of n tokens through the op, cut in front of the tokens of `cuts`; slot 1 of 2.
std::vector<float> run(const std::vector<float>& bcx, const std::vector<float>& weights, int kernel, int channels,
                       const std::vector<int>& cuts, int n_threads = 1) {
  CpuContext context(n_threads);
  const int n = int(bcx.size()) / (3 * channels);
  std::vector<float> states(size_t(2 * (kernel - 1) * channels), 0.0f), out(size_t(n) * size_t(channels), 7.0f);
  std::vector<int> ends = cuts;
  ends.push_back(n);
  int first = 0;
  for (const int end : ends) {
    const KvSpan span{.first_row = 0, .n_rows = end - first, .n_past = first, .slot = 1};
    short_conv(context,
               {.kernel = kernel,
                .weights = weights.data(),
                .spans = {&span, 1},
                .states = states.data(),
                .bcx = View2<const float>(bcx.data() + size_t(first) * size_t(3 * channels), end - first, 3 * channels),
                .out = View2<float>(out.data() + size_t(first) * size_t(channels), end - first, channels)});
    first = end;
  }
  for (size_t i = 0; i < states.size() / 2; ++i) EXPECT_EQ(states[i], 0) << "another sequence's state";
  return out;
}

TEST(ShortConv, IsItsFormula) {
  for (const int kernel : {2, 3, 5})
    for (const int channels : {1, 64, 700}) {
      const int n = 9;
      const std::vector<float> bcx = random_floats(1, n * 3 * channels), weights = random_floats(2, kernel * channels);
      const std::vector<float> out = run(bcx, weights, kernel, channels, {}, 2);
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
  const int channels = 37, n = 12;
  const std::vector<float> bcx = random_floats(3, n * 3 * channels), weights = random_floats(4, 3 * channels);
  const std::vector<float> whole = run(bcx, weights, 3, channels, {});
  EXPECT_EQ(run(bcx, weights, 3, channels, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), whole);
  EXPECT_EQ(run(bcx, weights, 3, channels, {1, 7}, 3), whole);
}

}  // namespace
}  // namespace ridge
