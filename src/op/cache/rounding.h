// The kernels that search for codes, one per ISA, equal bit for bit: weighted rounding to levels
// (format/weighted_rounding.h) and the trellis (format/trellis.h).
#pragma once

#include "format/kv_format.h"
#include "op/cpu.h"

namespace ridge {

template <class Run>
struct CodeVariant {
  std::string_view name;
  Isa isa;
  Support (*supports)(int head_dim);
  Run run;
};
using RoundRowVariant = CodeVariant<RoundRow>;
using TrellisVariant = CodeVariant<CodeTrellis>;
std::span<const RoundRowVariant> kv_round_variants();
std::span<const TrellisVariant> kv_trellis_variants();

/// The selected kernels for rows of head_dim values.
CodeKernels select_code_kernels(const CpuContext& context, int head_dim);

void round_row_avx2(const float* u, const float* metric, int dim, const float* levels, int count, RoundedRow& out);
void round_row_avx512(const float* u, const float* metric, int dim, const float* levels, int count, RoundedRow& out);
void code_trellis_avx2(const float* u, const float* factor, int dim, TrellisRow& out);
void code_trellis_neon(const float* u, const float* factor, int dim, TrellisRow& out);
void code_trellis_avx512(const float* u, const float* factor, int dim, TrellisRow& out);
void round_row_neon(const float* u, const float* metric, int dim, const float* levels, int count, RoundedRow& out);

}  // namespace ridge
