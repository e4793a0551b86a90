// Multiply-adds in registers: what the processor's units give when nothing is loaded. The ceilings that every op bound
// by arithmetic is held against. Integers small enough that every sum is exact, so the result of a run is known and
// nothing can be left out.
#pragma once

#include "op/cpu.h"

namespace ridge {

struct RateVariant {
  std::string_view number;  ///< what is multiplied: "int8", "f32", "bf16", "f16"
  std::string_view name;
  Isa isa;
  Support (*supports)();      ///< of the processor, beyond `isa`
  int64_t ops;                ///< multiplications and additions of a round
  int64_t result;             ///< what a round adds to the result of run()
  int64_t (*run)(int64_t n);  ///< n rounds, at most kMostRateRounds
};
/// Float sums stay below 2^24.
inline constexpr int64_t kMostRateRounds = 1 << 21;

/// By number, those of each worst to best.
std::span<const RateVariant> rate_variants();

}  // namespace ridge
