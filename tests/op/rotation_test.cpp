// The rotations of cache space: orthogonal, exactly the documented ones, and doing what they are for.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "cases/guarded.h"
#include "format/list.h"
#include "op/cache/rotation.h"

namespace ridge {
namespace {

constexpr Rotation kRotations[] = {Rotation::none, Rotation::planar, Rotation::hadamard};

double norm(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += double(value) * value;
  return std::sqrt(sum);
}

TEST(PlanarAngle, KnownAnswers) {
  const double layer0[] = {3.602763, 3.696987, 4.424203, 5.829306}, layer7[] = {5.306083, 2.227632, 0.485612, 1.678792};
  for (int pair = 0; pair < 4; ++pair) {
    EXPECT_NEAR(planar_angle(0, pair), layer0[pair], 5e-7);
    EXPECT_NEAR(planar_angle(7, pair), layer7[pair], 5e-7);
  }
}

TEST(PlanarAngle, HashWrapsIn32Bits) {
  // layer * 0x9E3779B9 wraps for layer >= 2, and so does the addition of the pair.
  EXPECT_EQ(planar_angle(2, 0), 2 * M_PI * splitmix32(0x3C6EF372u) * 0x1p-32);
  EXPECT_EQ(planar_angle(5, 1), 2 * M_PI * splitmix32(uint32_t(5ull * 0x9E3779B9ull) + 1) * 0x1p-32);
}

TEST(RowRotation, EqualsItsMatrix) {
  // Columns are the images of unit vectors; Walsh-Hadamard entries are (-1)^popcount(i & j) / sqrt(part).
  for (const int layer : {0, 7})
    for (const std::vector<int>& parts :
         {std::vector{8}, {64}, {64, 16}, {64, 32}, {128}, {128, 64}, {128, 64, 32, 16}, {512, 64}}) {
      const int dim = std::accumulate(parts.begin(), parts.end(), 0);
      // Of every element: where its part begins, and how wide the part is.
      std::vector<std::pair<int, int>> part_of;
      for (const int part : parts) part_of.insert(part_of.end(), size_t(part), {int(part_of.size()), part});
      const RowRotation hadamard(Rotation::hadamard, layer, dim), planar(Rotation::planar, layer, dim);
      for (int column = 0; column < dim; ++column) {
        std::vector<float> h(size_t(dim), 0.0f), p(size_t(dim), 0.0f);
        h[size_t(column)] = p[size_t(column)] = 1;
        hadamard.forward(h.data());
        planar.forward(p.data());
        const bool negative = splitmix32(uint32_t(layer) * 0x9E3779B9u + uint32_t(column)) >> 31;
        const double angle = planar_angle(layer, column / 2);
        for (int row = 0; row < dim; ++row) {
          const auto [first, part] = part_of[size_t(column)];
          const bool same_part = part_of[size_t(row)].first == first;
          const int sign =
              (std::popcount(unsigned(row - first) & unsigned(column - first)) % 2 == 1) != negative ? -1 : 1;
          ASSERT_NEAR(h[size_t(row)], same_part ? sign / std::sqrt(double(part)) : 0, 1e-6)
              << dim << " " << row << " " << column;
          const double turned = row / 2 != column / 2 ? 0
                                : row == column       ? std::cos(angle)
                                : row > column        ? std::sin(angle)
                                                      : -std::sin(angle);
          ASSERT_NEAR(p[size_t(row)], turned, 1e-6) << dim << " " << row << " " << column;
        }
      }
    }
}

TEST(RowRotation, KeepsNormsAndDotProductsAndIsUndoneByBackward) {
  for (const Rotation kind : kRotations)
    for (const int layer : {0, 1, 79})
      for (const int dim : {2, 8, 16, 64, 80, 96, 128, 192, 256, 576}) {
        const RowRotation rotation(kind, layer, dim);
        EXPECT_EQ(rotation.kind(), kind);
        const std::vector<float> a = random_floats(1, dim), b = random_floats(2, dim);
        Guarded<float> ra(dim, 1, a), rb(dim, 3, b);
        rotation.forward(ra.data());
        rotation.forward(rb.data());
        double before = 0, after = 0;
        for (int i = 0; i < dim; ++i) before += double(a[size_t(i)]) * b[size_t(i)], after += double(ra[i]) * rb[i];
        // log2(part) additions and one product round: 10 u for each of the two vectors at a part of 512.
        const double bound = 20 * 0x1p-24 * norm(a) * norm(b);
        EXPECT_NEAR(after, before, bound) << rotation_name(kind) << " " << dim;
        EXPECT_NEAR(norm(ra.span()), norm(a), 10 * 0x1p-24 * norm(a));
        rotation.backward(ra.data());
        ASSERT_TRUE(ra.intact() && rb.intact());
        for (int i = 0; i < dim; ++i)
          ASSERT_NEAR(ra[i], a[size_t(i)], 20 * 0x1p-24 * norm(a)) << rotation_name(kind) << " " << dim;
      }
}

TEST(RowRotation, LayersDiffer) {
  for (const Rotation kind : {Rotation::planar, Rotation::hadamard}) {
    std::vector<float> a = random_floats(1, 128), b = a;
    RowRotation(kind, 0, 128).forward(a.data());
    RowRotation(kind, 1, 128).forward(b.data());
    EXPECT_NE(a, b);
  }
}

TEST(RowRotation, OnlyHadamardSpreadsAnOutlierChannel) {
  // Rows with one channel 20 times larger, coded in 3 bits: relative error of the whole row about 0.69 unrotated, 0.64
  // planar, 0.17 hadamard.
  const KvFormat& format = **find_kv_format("rotor-3");
  const auto error_of = [&](Rotation kind) {
    double error = 0, size = 0;
    for (int trial = 0; trial < 400; ++trial) {
      std::vector<float> x = random_floats(uint64_t(trial) + 10, 128), decoded(128);
      x[size_t(trial * 37 % 128)] *= 20;
      const RowRotation rotation(kind, trial % 8, 128);
      std::vector<float> rotated = x;
      rotation.forward(rotated.data());
      std::vector<std::byte> row(size_t(format.row_bytes(128)));
      format.encode(rotated.data(), 128, {}, row.data());
      format.decode(row.data(), 128, {}, decoded.data());
      rotation.backward(decoded.data());
      for (size_t i = 0; i < 128; ++i) error += std::pow(double(decoded[i]) - x[i], 2), size += double(x[i]) * x[i];
    }
    return std::sqrt(error / size);
  };
  EXPECT_NEAR(error_of(Rotation::none), 0.69, 0.05);
  EXPECT_NEAR(error_of(Rotation::planar), 0.64, 0.05);
  EXPECT_NEAR(error_of(Rotation::hadamard), 0.17, 0.03);
}

TEST(FindRotation, KnowsItsNamesAndListsThem) {
  for (const Rotation rotation : kRotations) EXPECT_EQ(find_rotation(rotation_name(rotation)).value(), rotation);
  const auto unknown = find_rotation("givens");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().kind, ErrorKind::usage);
  EXPECT_NE(unknown.error().message.find("hadamard"), std::string::npos);
}

}  // namespace
}  // namespace ridge
