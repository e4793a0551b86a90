// Packs of tokens times their experts' integers, against double arithmetic.
#include "op/experts/int_packs_cuda.h"

#include <cmath>
#include <tuple>

#include "gpu/brick_data.h"
#include "op/linear.h"

namespace ridge {
namespace {

class IntPacksCuda : public OnDevice {
 protected:
  static constexpr int kExperts = 5;

  /// Matrices of some roles of kExperts experts, and their values.
  struct Experts {
    Experts(const gpu::Stream& stream, const char* format, int n_roles, int64_t rows_of_each, int64_t columns)
        : n_out(rows_of_each), n_in(columns) {
      std::vector<std::vector<Linear>> matrices(static_cast<size_t>(n_roles));
      std::vector<std::vector<const Linear*>> of_role(static_cast<size_t>(n_roles));
      const std::vector<const std::vector<float>*> no_bias(kExperts);
      const std::vector<std::vector<const std::vector<float>*>> no_biases(static_cast<size_t>(n_roles), no_bias);
      for (int i = 0; i < n_roles * kExperts; ++i) rows.emplace_back(format, n_out, n_in, uint64_t(n_out + n_in + i));
      for (size_t i = 0; i < rows.size(); ++i) {
        sizes.push_back(product_sizes(rows[i]));
        matrices[i / kExperts].push_back(
            {.format = &rows[i].format, .n_out = n_out, .n_in = n_in, .rows = rows[i].bytes.data()});
      }
      for (size_t role = 0; role < matrices.size(); ++role)
        for (const Linear& m : matrices[role]) of_role[role].push_back(&m);
      product = DeviceExpertMatmul(stream, of_role, no_biases, n_roles == 2);
    }
    /// A row of an expert's matrix times x, and how far integers of x may be from it: of a group an activation is off
    /// by half a step, its largest value / 127 / 254, and by the roundings that make it (x, inverse, step: 3); sums of
    /// integers are exact. Of a group up to 8 minima are added and up to 12 factors and sums rounded, then the groups.
    double times(int role, int expert, int64_t row, const float* x, double& error) const {
      const auto matrix = size_t(role * kExperts + expert);
      const float* const w = &rows[matrix].weights[size_t(row * n_in)];
      const double* const of_parts = &sizes[matrix][size_t(row * n_in)];
      const int64_t of_group = rows[0].format.group == 256 ? 256 : 128;
      double sum = 0;
      for (int64_t group = 0; group < n_in / of_group; ++group) {
        double top = 0, size = 0, of_weights = 0;
        for (int64_t k = of_group * group; k < of_group * (group + 1); ++k) {
          sum += double(w[k]) * x[k];
          size += std::abs(of_parts[k] * x[k]), of_weights += std::abs(w[k]);
          top = std::max(top, double(std::abs(x[k])));
        }
        error += of_weights * top * (0.5 / 127 / 254 + 3 * 0x1p-24) + size * double(n_in / of_group + 20) * 0x1p-24;
      }
      return sum;
    }

    int64_t n_out, n_in;
    std::vector<BrickRows> rows;
    std::vector<std::vector<double>> sizes;
    DeviceExpertMatmul product;
  };

  /// y [n_slots, n_out], behind which nothing is written; slots that no pack has stay 7.
  std::vector<float> run(const Experts& experts, const std::vector<ExpertPack>& packs, const gpu::Buffer& x, int share,
                         int64_t n_slots) const {
    const gpu::Buffer dp = up(packs), y = up(std::vector<float>(size_t(n_slots * experts.n_out + 1), 7.0f));
    experts.product.run(stream(), {.packs = dp.as<ExpertPack>(),
                                   .n_packs = ssize(packs),
                                   .most = ExpertPack::kMost,
                                   .x = x.as<float>(),
                                   .share = share,
                                   .y = {y.as<float>()},
                                   .ints = true,
                                   .overlap = true});
    auto got = down(y.as<float>(), n_slots * experts.n_out + 1);
    EXPECT_EQ(got.back(), 7.0f) << "wrote past its end";
    return got;
  }
};

/// Fewer tiles than blocks and more, rows of one group and of many, heights that are no whole tiles; packs of one slot
/// to four, empty ones behind them. The last slot is of no pack.
TEST_F(IntPacksCuda, ProductsAreWithinTheirRounding) {
  for (const auto& [format, n_out, n_in] : {std::tuple<const char*, int64_t, int64_t>{"int4_g128", 37, 128},
                                            {"int4_g128", 16, 384},
                                            {"int4_g128", 200, 512},
                                            {"int4_g128", 5, 2048},
                                            {"int4_g128", 4100, 640},
                                            {"int4_g128", 24, 4096},
                                            {"q4_k", 37, 256},
                                            {"q4_k", 2100, 768},
                                            {"q4_k", 24, 4096},
                                            {"q5_k", 20, 1536},
                                            {"q5_k", 1000, 512},
                                            {"q6_k", 37, 2048},
                                            {"q6_k", 2100, 256},
                                            {"q6_k", 5, 4096},
                                            {"q8_0", 37, 384},
                                            {"q8_0", 2100, 640},
                                            {"q4_0", 20, 2048},
                                            {"q4_0", 2100, 128}})
    for (const int n_roles : {1, 2})
      for (const int share : {1, 3}) {
        const Experts experts(stream(), format, n_roles, n_out, n_in);
        ASSERT_GT(experts.product.most_packed_slots(), 1) << format << ": other kernels would run";
        const std::vector<ExpertPack> packs = {
            {0, 4, {11, 0, 5, 3}}, {2, 1, {1}}, {2, 2, {2, 4}}, {4, 3, {10, 9, 6}}, {4, 2, {7, 8}}, {}, {}};
        constexpr int64_t kSlots = 13;
        const auto x = normal_floats(4, (kSlots + share - 1) / share * n_in);
        const gpu::Buffer dx = up(x);
        const auto got = run(experts, packs, dx, share, kSlots);
        for (const ExpertPack& pack : packs)
          for (int i = 0; i < pack.n; ++i)
            for (int64_t row = 0; row < n_out; ++row) {
              double errors[2] = {}, sums[2] = {};
              const float* const of_slot = &x[size_t(pack.slots[i] / share * n_in)];
              for (int role = 0; role < n_roles; ++role)
                sums[role] = experts.times(role, pack.expert, row, of_slot, errors[role]);
              // Slopes: of silu below 1.1, times up; its value.
              const double silu = sums[0] / (1 + std::exp(-sums[0])),
                           expected = n_roles == 1 ? sums[0] : silu * sums[1],
                           bound = n_roles == 1 ? errors[0]
                                                : 1.1 * errors[0] * (std::abs(sums[1]) + errors[1]) +
                                                      errors[1] * std::abs(silu) + 8 * 0x1p-24 * std::abs(expected);
              ASSERT_NEAR(got[size_t(pack.slots[i] * n_out + row)], expected, bound)
                  << format << " " << n_out << "x" << n_in << " slot " << pack.slots[i] << " row " << row;
            }
        for (int64_t row = 0; row < n_out; ++row) ASSERT_EQ(got[size_t((kSlots - 1) * n_out + row)], 7.0f);

        std::vector<ExpertPack> single;
        for (const ExpertPack& pack : packs)
          for (int i = 0; i < pack.n; ++i) single.push_back({pack.expert, 1, {pack.slots[i]}});
        EXPECT_EQ(run(experts, single, dx, share, kSlots), got) << "a slot has other bits in another pack";
      }
}

/// A NaN is of its own slot alone, and no packs with slots leave y as it was.
TEST_F(IntPacksCuda, ValuesThatAreNoNumbersStayWithTheirSlot) {
  for (const char* const format : {"int4_g128", "q4_k", "q6_k", "q8_0"}) {
    const Experts experts(stream(), format, 1, 48, 256);
    auto x = normal_floats(4, 3 * 256);
    const auto clean = run(experts, {{1, 3, {0, 1, 2}}}, up(x), 1, 3);
    x[256 + 7] = NAN;
    const auto got = run(experts, {{1, 3, {0, 1, 2}}}, up(x), 1, 3);
    for (size_t i = 0; i < 3 * 48; ++i) {
      if (i / 48 == 1) EXPECT_TRUE(std::isnan(got[i])) << i;
      else EXPECT_EQ(got[i], clean[i]) << i;
    }
    EXPECT_EQ(run(experts, {{}, {}}, up(x), 1, 3), std::vector<float>(3 * 48 + 1, 7.0f));
  }
}

}  // namespace
}  // namespace ridge
