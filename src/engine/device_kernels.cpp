#include "engine/device_kernels.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "op/experts/int_formats.h"
#include "op/kernel_tables.h"

namespace ridge {
namespace {

/// "gemv=bricks" for what the matrix would run.
std::string chosen_kernel(const Linear& m, std::string_view name, int64_t n_tokens, const ForcedKernels& forced) {
  try {
    return fmt::format("{}={}", device_linear_op(n_tokens), choose_device_linear({m, n_tokens}, forced).name);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("matrix {}: {}", name, e.what()), e.field());
  }
}

}  // namespace

DeviceOptions parse_device_kernels(std::span<const std::string> kernels) {
  DeviceOptions options;
  for (const std::string& choice : kernels) force_kernel(device_kernel_tables(), choice, options.kernels);
  options.overlap = is_allowed(options.kernels, "launch", "overlap");
  options.kernels.erase("launch");
  if (options.kernels.contains("rows") && is_allowed(options.kernels, "rows", "four"))
    options.least_rows = kMostExactTokens;
  options.kernels.erase("rows");
  options.int_experts = is_allowed(options.kernels, "experts", "ints");
  return options;
}

void check_device_kernels(const Weights& weights, const ForcedKernels& forced) {
  std::set<std::string> used;
  bool has_int_experts = false;
  for_each_matrix(weights, [&](const Linear& m, std::string_view name) {
    has_int_experts =
        has_int_experts || (name.starts_with("expert ") &&
                            std::ranges::find(kIntExpertFormats, m.format->name) != std::end(kIntExpertFormats));
    // op/experts: kernels of their own, for every format
    if (name == "router" || name.starts_with("expert ") || name == "k_b" || name == "v_b") return;
    for (const int64_t n_tokens : {int64_t(1), kFewTokens + 1}) used.insert(chosen_kernel(m, name, n_tokens, forced));
  });
  if (const auto at = forced.find("experts"); at != forced.end() && !has_int_experts)
    throw_wrong_field("kernels", "kernel experts={}: the model has no experts of {}, others have one kernel",
                      at->second, fmt::join(kIntExpertFormats, ", "));
  for (const auto& [op, names] : forced)
    for (const DeviceLinearVariant& row : device_linear_variants())
      if (op != "experts" && is_allowed(forced, op, row.name) && !used.contains(fmt::format("{}={}", op, row.name)))
        throw_wrong_field("kernels", "kernel {}={}: no matrix of the model runs {} (they run: {})", op, names, row.name,
                          fmt::join(used, ", "));
}

}  // namespace ridge
