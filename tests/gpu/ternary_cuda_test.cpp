// The device's ops of BitNet b1.58 against the CPU's references, bit for bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "gpu/device_data.h"
#include "op/gemm/ternary_cuda.h"
#include "op/gemv/ternary.h"
#include "op/kernels.h"
#include "op/norm_rope/norm_rope.h"
#include "op/norm_rope/norm_rope_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

/// Equal bits, any NaN being the same.
testing::AssertionResult same_bits(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) return testing::AssertionFailure() << "sizes " << got.size();
  for (size_t i = 0; i < got.size(); ++i)
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(expected[i]) &&
        !(std::isnan(got[i]) && std::isnan(expected[i])))
      return testing::AssertionFailure() << "value " << i << ": " << got[i] << ", expected " << expected[i];
  return testing::AssertionSuccess();
}

/// Random codes, or all codes `only`; as the CPU's i2_s rows and as the device's bytes.
struct Matrix {
  int64_t n_out, n_in;
  float scale;
  std::vector<int8_t> codes;
  std::vector<std::byte> rows;

  Matrix(int64_t outputs, int64_t inputs, float matrix_scale, uint64_t seed, int only = 2)
      : n_out(outputs), n_in(inputs), scale(matrix_scale), rows(size_t(outputs * inputs / 4)) {
    Rng rng(seed);
    std::vector<float> values;
    for (int64_t i = 0; i < n_out * n_in; ++i) {
      codes.push_back(int8_t(only == 2 ? int(rng.next() % 3) - 1 : only));
      values.push_back(codes.back());
    }
    EXPECT_TRUE(encode_rows(**find_weight_format("i2_s"), values, n_in, rows));
  }

  std::vector<float> reference(const std::vector<float>& x) const {
    static CpuContext context(2);
    const Linear w{.format = *find_weight_format("i2_s"),
                   .n_out = n_out,
                   .n_in = n_in,
                   .rows = rows.data(),
                   .scale = scale,
                   .int8_activations = true};
    const int64_t n_rows = int64_t(x.size()) / n_in;
    std::vector<float> y(size_t(n_rows * n_out), 0.0f);
    ternary_ref(context, w, {x.data(), n_rows, n_in}, {y.data(), n_rows, n_out});
    return y;
  }
};

class TernaryCuda : public OnDevice {
 protected:
  /// y of rows x, with the bytes after y and after the scratch watched.
  std::vector<float> run(const Matrix& m, const gpu::Buffer& codes, const std::vector<float>& x) const {
    const int64_t n_rows = int64_t(x.size()) / m.n_in, scratch_bytes = device_ternary_scratch_bytes(n_rows, m.n_in);
    const gpu::Buffer dx = up(x), dy = up(std::vector<float>(size_t(n_rows * m.n_out) + 1, 7.0f)),
                      scratch = up(std::vector<uint8_t>(size_t(scratch_bytes) + 16, 0xA5));
    device_ternary_gemm(stream(), n_rows, m.n_out, m.n_in, dx.as<float>(), codes.as<int8_t>(), m.scale,
                        scratch.as<void>(), dy.as<float>());
    EXPECT_EQ(down(scratch.as<uint8_t>() + scratch_bytes, 16), std::vector<uint8_t>(16, 0xA5))
        << "wrote past the scratch";
    std::vector<float> y = down(dy.as<float>(), n_rows * m.n_out + 1);
    EXPECT_EQ(y.back(), 7.0f) << "wrote past y";
    y.pop_back();
    return y;
  }
  std::vector<float> run(const Matrix& m, const std::vector<float>& x) const { return run(m, up(m.codes), x); }
};

TEST_F(TernaryCuda, EqualsTheReferenceAtEveryShape) {
  constexpr int kMostRows = 300;
  uint64_t seed = 0;
  for (const int n_out : {1, 17, 640})
    for (const int n_in : {128, 256, 512, 1280}) {
      const Matrix m(n_out, n_in, 0.0677f, ++seed);
      const gpu::Buffer codes = up(m.codes);
      const std::vector<float> x = normal_floats(seed, kMostRows * n_in, 3), expected = m.reference(x);
      for (const int n_rows : {1, 3, 64, 65, kMostRows})  // the reference's rows do not depend on each other
        ASSERT_TRUE(same_bits(run(m, codes, {x.begin(), x.begin() + n_rows * n_in}),
                              std::span(expected).first(size_t(n_rows * n_out))))
            << n_rows << " x " << n_out << " x " << n_in;
    }
}

TEST_F(TernaryCuda, EqualsTheReferenceOnEveryKindOfRow) {
  constexpr int kIn = 512;
  constexpr float kMax = std::numeric_limits<float>::max();
  std::vector<std::vector<float>> rows;
  // Ordinary rows of every size, below the least scale of 1e-5 and in denormals too.
  for (const double spread : {1e-42, 1e-30, 1e-6, 3e-6, 1e-5, 1.0, 300.0, 1e30})
    rows.push_back(normal_floats(rows.size(), kIn, spread));
  rows.emplace_back(kIn, 0.0f);
  rows.emplace_back(kIn, -0.0f);
  rows.emplace_back(kIn, kMax);
  rows.emplace_back(kIn, 1e-5f);
  std::vector<float> ties(kIn);  // k + 0.5 for every k; the last value makes the factor 1
  for (int i = 0; i < kIn; ++i) ties[size_t(i)] = float(i % 254) - 126.5f;
  ties.back() = 127;
  rows.push_back(ties);
  // One value that is not finite, the first, the last, or between two threads' share.
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY})
    for (const int at : {0, 255, 256, kIn - 1}) {
      rows.push_back(normal_floats(rows.size(), kIn));
      rows.back()[size_t(at)] = bad;
      rows.push_back(normal_floats(rows.size(), kIn));  // its neighbour must not notice
    }
  rows.emplace_back(kIn, NAN);
  std::vector<float> x;
  for (const auto& row : rows) x.insert(x.end(), row.begin(), row.end());
  for (const float scale : {0.0677f, 1.0f, 1e-5f, -2.0f, 0.0f}) {
    const Matrix m(33, kIn, scale, 5);
    const std::vector<float> expected = m.reference(x);
    const int64_t n_nan = std::count_if(expected.begin(), expected.end(), [](float y) { return std::isnan(y); });
    EXPECT_TRUE(n_nan == 17 * 33 || scale == 0) << n_nan;  // a scale of 0 makes one of an infinite product
    EXPECT_TRUE(same_bits(run(m, x), expected)) << scale;
  }
}

TEST_F(TernaryCuda, LargestSumsAreExact) {
  for (const int code : {-1, 1})
    for (const float value : {-3.5f, 3.5f}) {
      const Matrix m(65, 6912, 0.0677f, 1, code);
      const std::vector<float> x(3 * 6912, value), y = run(m, x);
      EXPECT_TRUE(same_bits(y, m.reference(x)));
      EXPECT_EQ(y.front(), float(6912 * 127 * code * (value > 0 ? 1 : -1)) * (3.5f / 127.0f) * m.scale);
    }
}

TEST_F(TernaryCuda, SumsPastTheFloatsIntegersAreRoundedOnce) {
  // 127 * 132223 is odd and above 2^24: the integer is exact, its float is rounded.
  constexpr int64_t kIn = 132224;
  static_assert(127 * (kIn - 1) > 1 << 24 && 127 * (kIn - 1) % 2 == 1);
  const Matrix m(1, kIn, 1.0f, 1, 1);
  std::vector<float> x(size_t(kIn), 127.0f);
  x[5] = 0;
  const std::vector<float> y = run(m, x);
  EXPECT_TRUE(same_bits(y, m.reference(x)));
  EXPECT_EQ(y.front(), float(127 * (kIn - 1)));
}

TEST_F(TernaryCuda, RefusesWhatItsLoadsCannotRead) {
  const gpu::Buffer x(4096), w(4096), scratch(4096), y(4096);
  const auto product = [&](int64_t n_in, int x_offset, int w_offset, int scratch_offset) {
    device_ternary_gemm(stream(), 1, 1, n_in, x.as<float>() + x_offset, w.as<int8_t>() + w_offset, 1,
                        scratch.as<std::byte>() + scratch_offset, y.as<float>());
  };
  EXPECT_NO_THROW(product(128, 4, 16, 16));
  EXPECT_THROW(product(120, 0, 0, 0), Error);
  EXPECT_THROW(product(128, 1, 0, 0), Error);
  EXPECT_THROW(product(128, 0, 4, 0), Error);
  EXPECT_THROW(product(128, 0, 0, 8), Error);
  stream().synchronize();
}

TEST_F(TernaryCuda, Relu2GluIsTheReference) {
  constexpr int kN = 1003;
  std::vector<float> gate = normal_floats(8, kN, 4), factor = normal_floats(9, kN);
  const float special[] = {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-22f, 1e30f, -1e30f, 300.0f, INFINITY, -INFINITY, NAN};
  size_t i = 0;
  for (const float a : special)
    for (const float b : special) gate[i] = a, factor[i++] = b;
  const gpu::Buffer on_device = up(gate), df = up(factor);
  device_relu2_glu(stream(), kN - 1, on_device.as<float>(), df.as<float>());
  std::vector<float> expected = gate;
  CpuContext context(1);
  relu2_glu(context, {expected.data(), 1, kN - 1}, {factor.data(), 1, kN - 1});  // the last value stays as it is
  EXPECT_TRUE(same_bits(down(on_device.as<float>(), kN), expected));
}

}  // namespace
}  // namespace ridge
