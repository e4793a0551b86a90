// Declarations of every kernel body, for the variant tables.
#pragma once

#include "op/linear.h"

namespace ridge {

Support needs_rows(const Linear& w);
Support needs_panels(const Linear& w);
Support needs_ternary_rows(const Linear& w);
Support needs_ternary_panels(const Linear& w);

using LinearKernel = void(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y);
LinearKernel linear_ref;                         // op/gemv/ref.cpp: double accumulation, the oracle
LinearKernel rows_avx2, rows_avx512, rows_neon;  // op/gemv/rows_simd.h, op/gemv/strips_simd.h
using LinearsKernel = void(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all);
LinearsKernel panel_1plane_avxvnni, panel_2planes_avxvnni;
LinearsKernel panel_1plane_avx2, panel_1plane_avx512, panel_2planes_avx2, panel_2planes_avx512;  // op/gemv/panel_simd.h
LinearsKernel panel_1plane_neon, panel_2planes_neon;
LinearsKernel panel_1plane_i8mm, panel_2planes_i8mm;                   // op/gemv/panel_i8mm_neon.cpp
LinearsKernel panel_float_avx2, panel_float_avx512, panel_float_neon;  // op/gemv/float_panels_simd.h
LinearKernel ternary_ref;  // op/gemv/ternary.cpp: int8 activations one by one, the oracle
LinearKernel ternary_avx2, ternary_avx512, ternary_neon;  // op/gemv/ternary_simd.h

/// Scratch of the kernels, each in the kernel's file.
using LinearScratch = ScratchBytes(const Linear& w, int64_t n_tokens, int n_threads);
LinearScratch linear_ref_scratch, rows_avx2_scratch, rows_avx512_scratch, rows_neon_scratch, ternary_ref_scratch,
    ternary_scratch;

}  // namespace ridge
