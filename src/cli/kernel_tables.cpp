#include "cli/kernel_tables.h"

#include "op/attn/attn.h"
#include "op/cache/rounding.h"
#include "op/linear.h"
#include "op/norm_rope/norm_rope.h"
#include "op/stream/stream.h"

namespace ridge::cli {
namespace {

template <class Variant>
KernelTable table_of(std::string_view op, std::span<const Variant> variants) {
  KernelTable table{op, {}};
  for (const Variant& variant : variants) table.kernels.push_back({op, variant.name, variant.isa});
  return table;
}

}  // namespace

std::vector<KernelTable> kernel_tables() {
  return {table_of("gemv", gemv_variants()),
          table_of("gemm", gemm_variants()),
          table_of("attention", attention_variants()),
          table_of("norm_rope", norm_rope_variants()),
          table_of("kv_round", kv_round_variants()),
          table_of("stream", stream_variants())};
}

}  // namespace ridge::cli
