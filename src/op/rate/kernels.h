// Declarations of the rate kernel bodies, for the table.
#pragma once

#include "op/rate/rate.h"

namespace ridge {

/// Sums that run side by side, so that none waits for the one before: latency 4 x 2 units, and some.
inline constexpr int kRateSums = 12;

using RateRun = int64_t(int64_t n);
RateRun rate_f32_ref, rate_int8_ref;
RateRun rate_f32_avx2, rate_int8_avx2;
RateRun rate_f32_avx512, rate_int8_avx512;
RateRun rate_f32_neon, rate_int8_neon;
RateRun rate_bf16_avx512;  // needs AVX512-BF16
RateRun rate_f16_avx512;   // needs AVX512-FP16

}  // namespace ridge
