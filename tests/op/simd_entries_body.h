// The bodies of SimdEntries, included once per ISA after its Simd struct.
#pragma once

#include "op/gemv/panel_simd.h"
#include "op/simd/decode.h"
#include "op/simd/exp.h"
#include "op/simd_entries.h"

namespace ridge {
namespace {

void exp_entry(const float* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += Simd::kLanes) Simd::store(out + i, vector_exp(Simd::load(in + i)));
}

void sum_each_entry(const float* in, float* sums) {
  Simd::F rows[Simd::kLanes];
  for (int i = 0; i < Simd::kLanes; ++i) rows[Simd::slot(i)] = Simd::load(in + i * Simd::kLanes);
  Simd::store(sums, Simd::sum_each(rows));
}

constexpr SimdEntries entries_for(Isa isa) {
  return {isa, Simd::kLanes, {quantize_group<1>, quantize_group<2>}, exp_entry, sum_each_entry, row_decoder};
}

}  // namespace
}  // namespace ridge
