// Kernels that are forced on a device, against the matrices of a model.
#include "engine/device_kernels.h"

#include <gmock/gmock.h>

#include "ridge/error.h"

namespace ridge {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// One layer, its matrices in one format, the output in another.
Weights weights_of(std::string_view layer_format, std::string_view output_format) {
  const auto matrix = [](std::string_view format) {
    return Linear{.format = *find_weight_format(format), .n_out = 64, .n_in = 256};
  };
  Weights weights;
  LayerWeights& l = weights.layers.emplace_back();
  for (Linear* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) *m = matrix(layer_format);
  weights.output = matrix(output_format);
  return weights;
}
std::string refusal(const Weights& weights, std::vector<std::string> kernels) {
  try {
    check_device_kernels(weights, parse_device_kernels(kernels).kernels);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    return e.what();
  }
  return "";
}

TEST(DeviceKernels, LaunchIsAnOptionOfItsOwn) {
  const std::vector<std::string> plain = {"gemv=bricks", "launch=plain"};
  EXPECT_FALSE(parse_device_kernels(plain).overlap);
  EXPECT_EQ(parse_device_kernels(plain).kernels, (ForcedKernels{{"gemv", "bricks"}}));
  EXPECT_TRUE(parse_device_kernels({}).overlap);
}

TEST(DeviceKernels, ExpertsAreOfModelsThatHaveThem) {
  Weights weights = weights_of("int4_g128", "int4_g128");
  EXPECT_THAT(refusal(weights, {"experts=ints"}), HasSubstr("no experts of int4_g128, q4_k"));
  ExpertWeights& expert = weights.layers[0].experts.emplace_back();
  expert.gate = expert.up = expert.down = weights.layers[0].q;
  EXPECT_EQ(refusal(weights, {"experts=ints"}), "");
  const auto options = [](const char* kernel) { return parse_device_kernels(std::vector<std::string>{kernel}); };
  EXPECT_FALSE(options("experts=bricks").int_experts);
  EXPECT_TRUE(options("experts=ints").int_experts);
  EXPECT_EQ(options("rows=four").least_rows, kMostExactTokens);
  EXPECT_EQ(options("rows=four").kernels, ForcedKernels{});
  EXPECT_EQ(options("rows=own").least_rows, 1);
}

TEST(DeviceKernels, AFormatWithoutKernelsIsRefusedByTheNameOfItsMatrix) {
  EXPECT_EQ(refusal(weights_of("int4_g128", "q6_k"), {}), "");
  EXPECT_THAT(refusal(weights_of("f16", "tq2_0"), {}), AllOf(HasSubstr("matrix output"), HasSubstr("tq2_0")));
  Weights latent = weights_of("f16", "f16");  // matrices of its heads are experts', of any format
  latent.layers[0].k_b = latent.layers[0].v_b = {weights_of("tq2_0", "f16").layers[0].q};
  EXPECT_EQ(refusal(latent, {}), "");
}

TEST(DeviceKernels, EveryMatrixRunsAForcedKernelAndEveryForcedKernelRuns) {
  const Weights mixed = weights_of("int4_g128", "q6_k");
  EXPECT_EQ(refusal(mixed, {"gemv=int-1plane+bricks"}), "");
  EXPECT_THAT(refusal(mixed, {"gemv=int-1plane"}), AllOf(HasSubstr("matrix output"), HasSubstr("can: bricks")));
  EXPECT_THAT(refusal(mixed, {"gemv=int-1plane+bricks+ternary"}), HasSubstr("no matrix of the model runs ternary"));
  EXPECT_THAT(refusal(mixed, {"gemv=int-1plane+int-2planes+bricks"}),
              HasSubstr("no matrix of the model runs int-1plane"));
}

}  // namespace
}  // namespace ridge
