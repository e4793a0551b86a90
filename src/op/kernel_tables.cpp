#include "op/kernel_tables.h"

#include <algorithm>
#include <iterator>

#include "base/closest.h"
#include "op/attn/attn.h"
#include "op/attn/device_attention.h"
#include "op/cache/rounding.h"
#include "op/collective/collective.h"
#include "op/delta/delta.h"
#include "op/device_linear.h"
#include "op/norm_rope/norm_rope.h"
#include "op/stream/stream.h"

namespace ridge {
namespace {

template <class Variant>
KernelTable table_of(std::string_view op, bool of_models, std::span<const Variant> variants) {
  KernelTable table{op, of_models, {}};
  for (const Variant& variant : variants) table.kernels.push_back({variant.name, variant.isa});
  return table;
}

/// The rows that serve some weight format at this number of tokens.
KernelTable device_linear_table(int64_t n_tokens) {
  KernelTable table{device_linear_op(n_tokens), true, {}};
  for (const DeviceLinearVariant& variant : device_linear_variants()) {
    const auto serves = [&](const WeightFormat& format) {
      const Linear floats{.format = &format}, ints{.format = &format, .int8_activations = true};
      return variant.supports({floats, n_tokens}).ok || variant.supports({ints, n_tokens}).ok;
    };
    if (std::ranges::any_of(weight_formats(), serves)) table.kernels.push_back({variant.name});
  }
  return table;
}

KernelTable collective_table(std::string_view op, std::span<const CollectiveVariant> variants) {
  KernelTable table{op, true, {}};
  for (const CollectiveVariant& variant : variants) table.kernels.push_back({variant.name});
  return table;
}

}  // namespace

std::vector<KernelTable> kernel_tables() {
  return {table_of("gemv", true, gemv_variants()),           table_of("gemm", true, gemm_variants()),
          table_of("attention", true, attention_variants()), table_of("norm_rope", true, norm_rope_variants()),
          table_of("kv_round", true, kv_round_variants()),   table_of("delta", true, delta_variants()),
          table_of("stream", false, stream_variants())};
}

std::vector<KernelTable> device_kernel_tables() {
  KernelTable attention{"attention", false, {}};
  for (const DeviceAttentionVariant& variant : device_attention_variants()) attention.kernels.push_back({variant.name});
  return {device_linear_table(1),
          device_linear_table(kFewTokens + 1),
          attention,
          collective_table("all_reduce", all_reduce_variants(1, 2)),
          collective_table("gather_columns", gather_columns_variants()),
          {"experts", true, {{"bricks"}, {"ints"}}},
          {"launch", true, {{"plain"}, {"overlap"}}},
          {"rows", true, {{"four"}, {"own"}}}};
}

std::vector<std::string_view> op_names(std::span<const KernelTable> tables) {
  std::vector<std::string_view> names;
  for (const KernelTable& table : tables) names.push_back(table.op);
  return names;
}

void force_kernel(std::span<const KernelTable> tables, const std::string& choice, ForcedKernels& forced) {
  const size_t equals = choice.find('=');
  const std::string op = choice.substr(0, equals), names = equals == std::string::npos ? "" : choice.substr(equals + 1);
  std::vector<KernelTable> chosen;
  std::ranges::copy_if(tables, std::back_inserter(chosen), &KernelTable::of_models);
  const auto table = std::ranges::find(chosen, op, &KernelTable::op);
  if (table == chosen.end())
    throw_error(ErrorKind::usage, "kernel {}: unknown op '{}' ({})", choice, op, choices_text(op, op_names(chosen)));
  const std::span<const KernelInfo> kernels = table->kernels;
  for (size_t at = 0, end = 0; at <= names.size(); at = end + 1) {
    end = std::min(names.find('+', at), names.size());
    const std::string name = names.substr(at, end - at);
    if (find_row(kernels, name)) continue;
    std::vector<std::string_view> known;
    for (const KernelInfo& kernel : kernels) known.push_back(kernel.name);
    throw_error(ErrorKind::usage, "kernel {}: op {} has no kernel '{}' ({})", choice, op, name,
                choices_text(name, known));
  }
  forced[op] = names;
}

}  // namespace ridge
