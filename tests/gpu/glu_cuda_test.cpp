// Gated activations on the device against the CPU's reference.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "gpu/device_data.h"
#include "op/norm_rope/norm_rope.h"
#include "op/norm_rope/norm_rope_cuda.h"

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

class GluCuda : public OnDevice {};

TEST_F(GluCuda, Relu2GluIsTheReference) {
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

/// Both sides round each step to floats: tanh and exp by 2 ulp, the rest by half an ulp each. Where the gate is far
/// below zero 1 + tanh cancels, and the difference is small beside the gate.
TEST_F(GluCuda, GeluAndClampedSwigluAreTheReferences) {
  for (const int n : {1, 255, 1003}) {
    std::vector<float> gate = normal_floats(8, n, 5), factor = normal_floats(9, n, 5);
    const float special[] = {0.0f, -0.0f, 7.0f, -7.0f, 7.5f, -7.5f, 100.0f, -100.0f, 1e-30f};
    size_t i = 0;
    for (const float a : special)
      for (const float b : special)
        if (i < gate.size()) gate[i] = a, factor[i++] = b;
    CpuContext context(1);
    const auto near = [&](const auto& on_device, const auto& on_host, const char* name) {
      const gpu::Buffer dg = up(gate), df = up(factor);
      on_device(stream(), n, dg.as<float>(), df.as<float>());
      std::vector<float> expected = gate;
      on_host(context, View2<float>(expected.data(), 1, n), View2<const float>(factor.data(), 1, n));
      const auto got = down(dg.as<float>(), n);
      for (size_t at = 0; at < got.size(); ++at) {
        const double size = std::abs(double(gate[at])) * (std::abs(double(factor[at])) + 1);
        ASSERT_NEAR(got[at], expected[at], 8 * 0x1p-23 * size) << name << " of " << gate[at] << ", " << factor[at];
      }
    };
    near(device_gelu_glu, gelu_glu, "gelu");
    near(device_clamped_swiglu, clamped_swiglu, "clamped swiglu");
  }
}

}  // namespace
}  // namespace ridge
