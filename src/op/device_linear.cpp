#include "op/device_linear.h"

#include <algorithm>

namespace ridge {
namespace {

constexpr std::string_view kBrickFormats[] = {"f16",   "bf16",  "q8_0",   "q4_0",   "q4_1",   "q5_0",
                                              "q5_1",  "q2_k",  "q3_k",   "q4_k",   "q5_k",   "q6_k",
                                              "nvfp4", "mxfp4", "iq4_nl", "iq4_xs", "fp8_g32"};

constexpr std::string_view kIntBrickFormats[] = {"q8_0", "q6_k", "q5_k", "q5_1",  "q5_0",
                                                 "q4_k", "q4_1", "q4_0", "iq4_nl"};

bool is_few(const DeviceLinearProblem& p) { return p.n_tokens <= kFewTokens; }
bool has_name(const DeviceLinearProblem& p, std::string_view name) { return p.matrix.format->name == name; }

Support few_only(const DeviceLinearProblem& p) {
  if (!is_few(p)) return {false, fmt::format("serves up to {} tokens (gemv)", kFewTokens)};
  return {};
}
Support many_only(const DeviceLinearProblem& p) {
  if (is_few(p)) return {false, fmt::format("serves more than {} tokens (gemm)", kFewTokens)};
  return {};
}

/// Real floats, and ternary codes times the scale of their matrix, which are floats without any rounding.
Support floats_support(const DeviceLinearProblem& p) {
  if (has_name(p, "f32") || (has_name(p, "i2_s") && !p.matrix.int8_activations)) return {};
  if (p.matrix.int8_activations) return {false, "the matrix takes int8 activations"};
  return {false, fmt::format("{} is not kept as floats", p.matrix.format->name)};
}

Support brick_format(const DeviceLinearProblem& p) {
  if (p.matrix.scale != 1 && !has_name(p, "nvfp4")) return {false, "bricks have no scale of the whole matrix"};
  if (std::ranges::find(kBrickFormats, p.matrix.format->name) != std::end(kBrickFormats)) return {};
  return {false, fmt::format("there are no bricks of {}", p.matrix.format->name)};
}
Support half_brick_format(const DeviceLinearProblem& p) {
  if (has_name(p, "bf16")) return {false, "one plane of bf16 has 8 bits of an activation"};
  return brick_format(p);
}
/// As has_int_gemv() of op/gemv/int_gemv_cuda.h.
Support int_brick_format(const DeviceLinearProblem& p) {
  if (std::ranges::find(kIntBrickFormats, p.matrix.format->name) == std::end(kIntBrickFormats))
    return {false,
            fmt::format("reads bricks of {}, not of {}", fmt::join(kIntBrickFormats, ", "), p.matrix.format->name)};
  const int64_t n_in = p.matrix.n_in, group = p.matrix.format->group == 256 ? 256 : 128;
  if (n_in % group != 0) return {false, fmt::format("rows of {} columns are not whole groups of {}", n_in, group)};
  constexpr int64_t kMostColumns = 1 << 16;  // a block holds a row of x
  if (n_in > kMostColumns) return {false, fmt::format("rows of {} columns are longer than {}", n_in, kMostColumns)};
  return {};
}
Support int4_format(const DeviceLinearProblem& p) {
  if (has_name(p, "int4_g128")) return {};
  return {false, fmt::format("{} is not int4_g128", p.matrix.format->name)};
}
Support ternary_format(const DeviceLinearProblem& p) {
  if (!has_name(p, "i2_s")) return {false, fmt::format("{} is not i2_s", p.matrix.format->name)};
  if (!p.matrix.int8_activations) return {false, "the matrix does not take int8 activations"};
  return {};
}

template <Support (*kFormat)(const DeviceLinearProblem&), Support (*kTokens)(const DeviceLinearProblem&)>
Support both(const DeviceLinearProblem& p) {
  const Support format = kFormat(p);
  return format.ok ? kTokens(p) : format;
}

}  // namespace

std::span<const DeviceLinearVariant> device_linear_variants() {
  static constexpr DeviceLinearVariant kVariants[] = {
      {"f32", DevicePacking::floats, 0, 0, floats_support},
      {"bricks", DevicePacking::bricks, 2, 16, both<brick_format, few_only>},
      {"bricks-int8", DevicePacking::bricks, 2, 8, both<int_brick_format, few_only>},
      {"bricks-2planes", DevicePacking::bricks, 2, 16, both<brick_format, many_only>},
      {"bricks-f16", DevicePacking::bricks, 1, 16, both<half_brick_format, many_only>},
      {"int-1plane", DevicePacking::ints, 1, 8, both<int4_format, few_only>},
      {"int-2planes", DevicePacking::ints, 2, 8, both<int4_format, few_only>},
      {"int4-f16", DevicePacking::ints, 1, 16, both<int4_format, many_only>},
      {"ternary", DevicePacking::ints, 1, 8, both<ternary_format, few_only>},
      {"ternary-int8", DevicePacking::ints, 1, 8, both<ternary_format, many_only>},
  };
  return kVariants;
}

const DeviceLinearVariant& choose_device_linear(const DeviceLinearProblem& p, const ForcedKernels& forced) {
  const auto rows = device_linear_variants();
  const auto support = [&](const DeviceLinearVariant& row) { return row.supports(p); };
  if (std::ranges::none_of(rows, [&](const auto& row) { return support(row).ok; }))
    throw_error(ErrorKind::usage,
                "devices have no kernel for {} weights ({}x{}): ridge quantize makes one of f16, bf16, q8_0, q6_k, "
                "q5_k, q4_k, q4_0 or int4_g128, or use --device cpu",
                p.matrix.format->name, p.matrix.n_out, p.matrix.n_in);
  return select_row(forced, device_linear_op(p.n_tokens), rows, support);
}

}  // namespace ridge
