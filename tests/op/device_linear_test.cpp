// The table of a device's kernels for weight matrices, which needs no device.
#include "op/device_linear.h"

#include <gmock/gmock.h>

#include <optional>

#include "op/kernel_tables.h"
#include "ridge/error.h"

namespace ridge {
namespace {

using testing::AllOf;
using testing::HasSubstr;

DeviceLinearProblem problem(std::string_view format, int64_t n_tokens, bool int8_activations = false) {
  return {{.format = *find_weight_format(format), .n_out = 64, .n_in = 256, .int8_activations = int8_activations},
          n_tokens};
}
std::string_view choice(const DeviceLinearProblem& p, const ForcedKernels& forced = {}) {
  return choose_device_linear(p, forced).name;
}
template <class Function>
std::string usage_error(const Function& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    return e.what();
  }
  return "nothing was thrown";
}

TEST(DeviceLinear, EveryFormatHasItsKernelsOrIsRefused) {
  struct Expected {
    std::string_view format, few, many;
    bool int8_activations = false;
  };
  const Expected expected[] = {{"f32", "f32", "f32"},
                               {"f16", "bricks", "bricks-f16"},
                               {"bf16", "bricks", "bricks-2planes"},
                               {"fp8_g32", "bricks", "bricks-f16"},
                               {"q8_0", "bricks-int8", "bricks-f16"},
                               {"q6_k", "bricks-int8", "bricks-f16"},
                               {"q5_k", "bricks-int8", "bricks-f16"},
                               {"q5_1", "bricks-int8", "bricks-f16"},
                               {"q5_0", "bricks-int8", "bricks-f16"},
                               {"q4_k", "bricks-int8", "bricks-f16"},
                               {"q4_1", "bricks-int8", "bricks-f16"},
                               {"q4_0", "bricks-int8", "bricks-f16"},
                               {"q3_k", "bricks", "bricks-f16"},
                               {"q2_k", "bricks", "bricks-f16"},
                               {"nvfp4", "bricks", "bricks-f16"},
                               {"mxfp4", "bricks", "bricks-f16"},
                               {"iq4_nl", "bricks-int8", "bricks-f16"},
                               {"iq4_xs", "bricks", "bricks-f16"},
                               {"int4_g128", "int-2planes", "int4-f16"},
                               {"i2_s", "ternary", "ternary-int8", true},
                               {"i2_s", "f32", "f32"}};
  for (const WeightFormat& format : weight_formats()) {
    bool is_served = false;
    for (const Expected& e : expected) {
      if (e.format != format.name) continue;
      is_served = true;
      EXPECT_EQ(choice(problem(e.format, 1, e.int8_activations)), e.few) << e.format;
      EXPECT_EQ(choice(problem(e.format, kFewTokens, e.int8_activations)), e.few) << e.format;
      EXPECT_EQ(choice(problem(e.format, kFewTokens + 1, e.int8_activations)), e.many) << e.format;
    }
    if (is_served) continue;
    EXPECT_THAT(usage_error([&] { choice(problem(format.name, 1)); }),
                AllOf(HasSubstr(std::string(format.name)), HasSubstr("ridge quantize"), HasSubstr("--device cpu")));
  }
}

TEST(DeviceLinear, RowsOfAMatrixHaveOnePacking) {
  for (const WeightFormat& format : weight_formats())
    for (const bool int8_activations : {false, true}) {
      std::optional<DevicePacking> packing;
      for (const DeviceLinearVariant& row : device_linear_variants())
        for (const int64_t n_tokens : {int64_t(1), kFewTokens + 1}) {
          const Support support = row.supports(problem(format.name, n_tokens, int8_activations));
          EXPECT_EQ(support.ok, support.why_not.empty());
          if (!support.ok) continue;
          EXPECT_EQ(packing.value_or(row.packing), row.packing) << format.name;
          packing = row.packing;
        }
    }
}

TEST(DeviceLinear, AForcedKernelServesOrSaysWhyNot) {
  const ForcedKernels forced = {{"gemv", "int-1plane+bricks"}, {"gemm", "bricks-2planes"}};
  EXPECT_EQ(choice(problem("int4_g128", 1), forced), "int-1plane");
  EXPECT_EQ(choice(problem("f16", 1), forced), "bricks");
  EXPECT_EQ(choice(problem("f16", 100), forced), "bricks-2planes");
  EXPECT_THAT(usage_error([&] { choice(problem("int4_g128", 100), forced); }),
              AllOf(HasSubstr("gemm=bricks-2planes"), HasSubstr("no bricks of int4_g128"), HasSubstr("can: int4-f16")));
  EXPECT_THAT(usage_error([&] { choice(problem("bf16", 100), {{"gemm", "bricks-f16"}}); }), HasSubstr("8 bits"));
  const ForcedKernels int8 = {{"gemv", "bricks-int8"}};
  for (const std::string_view format : {"q4_k", "q5_k", "q6_k", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"})
    EXPECT_EQ(choice(problem(format, 1), {{"gemv", "bricks"}}), "bricks") << format;
  EXPECT_THAT(usage_error([&] { choice(problem("iq4_xs", 1), int8); }), HasSubstr("reads bricks of q8_0"));
  DeviceLinearProblem half_a_brick = problem("q8_0", 1);
  half_a_brick.matrix.n_in = 576;
  EXPECT_THAT(usage_error([&] { choice(half_a_brick, int8); }),
              HasSubstr("rows of 576 columns are not whole groups of 128"));
  EXPECT_EQ(choice(half_a_brick, {}), "bricks");
  DeviceLinearProblem long_rows = problem("q4_k", 1);
  long_rows.matrix.n_in = (1 << 16) + 256;
  EXPECT_THAT(usage_error([&] { choice(long_rows, int8); }), HasSubstr("rows of 65792 columns"));
  EXPECT_EQ(choice(long_rows, {}), "bricks");
}

TEST(KernelTables, ChoicesAreCheckedAgainstTheTables) {
  ForcedKernels forced;
  const auto tables = device_kernel_tables();
  force_kernel(tables, "gemv=bricks+int-1plane", forced);
  EXPECT_EQ(forced, (ForcedKernels{{"gemv", "bricks+int-1plane"}}));
  EXPECT_THAT(
      usage_error([&] { force_kernel(tables, "gemv=bricks-f16", forced); }),
      AllOf(HasSubstr("no kernel 'bricks-f16'"), HasSubstr("bricks, bricks-int8, int-1plane, int-2planes, ternary")));
  EXPECT_THAT(usage_error([&] { force_kernel(tables, "gemv=bricks+", forced); }), HasSubstr("no kernel ''"));
  EXPECT_THAT(
      usage_error([&] { force_kernel(tables, "attention=rows", forced); }),
      AllOf(HasSubstr("unknown op 'attention'"), HasSubstr("gemv, gemm, all_reduce, gather_columns, experts, launch")));
  EXPECT_THAT(usage_error([&] { force_kernel(kernel_tables(), "stream=ref", forced); }), HasSubstr("unknown op"));
}

}  // namespace
}  // namespace ridge
