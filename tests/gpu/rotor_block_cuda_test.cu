// What the coding of rotor rows by a block takes for granted: quotients and nearest levels are the host's.
#include "op/cache/rotor_block.h"

#include <cmath>
#include <limits>

#include "device_data.h"

namespace ridge {
namespace {

__global__ void quotient_kernel(int n, const float* a, const float* b, float* out) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = quotient(a[i], b[i], 1.0f / b[i]);
}

template <int kBits>
__global__ void nearest_kernel(int n, const float* x, float* levels, int* codes) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  levels[i] = Rotor<kBits>::nearest(x[i]);
  codes[i] = Rotor<kBits>::code(levels[i]);
}

class RotorBlockCuda : public OnDevice {
 protected:
  template <int kBits>
  void expect_nearest() {
    constexpr LevelTable<kBits> kLevels = LloydMax<kBits>::kLevels;
    std::vector<float> x = normal_floats(1, 4000, 1.5);
    constexpr float kMost = std::numeric_limits<float>::max();
    for (int i = 0; i + 1 < kLevels.kCount; ++i) {
      const float border = 0.5f * (kLevels.at[i] + kLevels.at[i + 1]);
      for (const float near : {border, std::nextafter(border, kMost), std::nextafter(border, -kMost)})
        if (near != 0 || !std::signbit(near)) x.push_back(near);
      x.push_back(kLevels.at[i]);
    }
    for (const float far : {kMost, -kMost, 1e-45f, -1e-45f, INFINITY, -INFINITY}) x.push_back(far);
    const int n = int(x.size());
    const gpu::Buffer there = up(x), levels(4 * n), codes(4 * n);
    gpu::launch("nearest", nearest_kernel<kBits>, {unsigned(gpu::ceil_div(n, 128)), 128, 0, stream()}, n,
                there.as<float>(), levels.as<float>(), codes.as<int>());
    const auto got_levels = down(levels.as<float>(), n);
    const auto got_codes = down(codes.as<int>(), n);
    for (int i = 0; i < n; ++i) {
      const int want = RotorCodes<kBits>::nearest(x[size_t(i)]);
      ASSERT_EQ(got_codes[size_t(i)], want) << x[size_t(i)];
      ASSERT_EQ(got_levels[size_t(i)], kLevels.at[want]) << x[size_t(i)];
    }
  }
};

TEST_F(RotorBlockCuda, NearestLevelsAreTheHosts) {
  expect_nearest<3>();
  expect_nearest<4>();
}

/// Every bit where a level plus the quotient could differ.
TEST_F(RotorBlockCuda, QuotientsAreCorrectlyRounded) {
  Rng rng(3);
  std::vector<float> a, b;
  const auto add = [&](int exponent_a, int exponent_b) {
    const auto fraction = [&] { return 1 + float(rng.next() >> 41) * 0x1p-23f; };
    a.push_back(std::ldexp(rng.next() % 2 ? fraction() : -fraction(), exponent_a));
    b.push_back(std::ldexp(fraction(), exponent_b));
  };
  for (int i = 0; i < 200000; ++i) add(int(rng.next() % 8) - 4, int(rng.next() % 8) - 4);
  for (int i = 0; i < 20000; ++i) add(int(rng.next() % 208) - 149, int(rng.next() % 79) - 40);
  // Divisors next to a power of two, and quotients next to the middle of two floats.
  for (int i = 0; i < 20000; ++i) {
    const float divisor = i % 2 ? 2 - float(i % 64 + 1) * 0x1p-23f : 1 + float(i % 64) * 0x1p-23f;
    const double middle = 1 + double(rng.next() >> 41) * 0x1p-23 + 0x1p-24;
    a.push_back(float(middle * double(divisor)));
    b.push_back(divisor);
  }
  for (const float zero : {0.0f, -0.0f}) a.push_back(zero), b.push_back(1.5f);
  const int n = int(a.size());
  const gpu::Buffer of_a = up(a), of_b = up(b), out(4 * n);
  gpu::launch("quotient", quotient_kernel, {unsigned(gpu::ceil_div(n, 128)), 128, 0, stream()}, n, of_a.as<float>(),
              of_b.as<float>(), out.as<float>());
  const auto got = down(out.as<float>(), n);
  for (int i = 0; i < n; ++i) {
    const float want = a[size_t(i)] / b[size_t(i)];
    if (std::abs(a[size_t(i)]) < 0x1p-100f) ASSERT_LT(std::abs(got[size_t(i)]), 0x1p-50f);
    else ASSERT_EQ(got[size_t(i)], want) << a[size_t(i)] << " / " << b[size_t(i)];
  }
}

}  // namespace
}  // namespace ridge
