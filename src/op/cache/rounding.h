// The kernels of weighted rounding (format/weighted_rounding.h), one per ISA; equal bit for bit.
#pragma once

#include "format/weighted_rounding.h"
#include "op/cpu.h"

namespace ridge {

struct RoundRowVariant {
  std::string_view name;
  Isa isa;
  Support (*supports)(int head_dim);
  RoundRow run;
};
std::span<const RoundRowVariant> kv_round_variants();

/// The selected kernel for rows of head_dim values.
RoundRow select_round_row(const CpuContext& context, int head_dim);

void round_row_avx2(const float* u, const float* metric, int dim, const float* levels, int count, RoundedRow& out);
void round_row_avx512(const float* u, const float* metric, int dim, const float* levels, int count, RoundedRow& out);
void round_row_neon(const float* u, const float* metric, int dim, const float* levels, int count, RoundedRow& out);

}  // namespace ridge
