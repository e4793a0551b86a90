#include "op/cache/rounding.h"

namespace ridge {
namespace {

Support any_dim(int) { return {}; }

/// The vector kernels walk a row 64 values at a time.
Support whole_blocks(int head_dim) {
  if (head_dim % 64 == 0) return {};
  return {false, fmt::format("head_dim {} is not a multiple of 64", head_dim)};
}

}  // namespace

std::span<const RoundRowVariant> kv_round_variants() {
  static constexpr RoundRowVariant kVariants[] = {
    {"ref", Isa::scalar, any_dim, round_weighted},
#if defined(__x86_64__)
    {"rows-avx2", Isa::avx2, whole_blocks, round_row_avx2},
    {"rows-avx512", Isa::avx512, whole_blocks, round_row_avx512},
#elif defined(__aarch64__)
    {"rows-neon", Isa::neon, whole_blocks, round_row_neon},
#endif
  };
  return kVariants;
}

RoundRow select_round_row(const CpuContext& context, int head_dim) {
  return select_variant(context, "kv_round", kv_round_variants(), head_dim).run;
}

}  // namespace ridge
