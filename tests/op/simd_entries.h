// Plain functions around the vector building blocks of op/, so that tests compiled for any processor can call them.
// Call one only when the processor has its ISA.
#pragma once

#include <cstdint>
#include <vector>

#include "format/list.h"
#include "op/cpu.h"

namespace ridge {

struct SimdEntries {
  Isa isa;
  int lanes;
  /// 32 activations to integers of one plane and of two (op/gemv/panels.h).
  void (*quantize_group[2])(const float* x, int64_t plane_q, int8_t* q, float& scale, int32_t* sum);
  void (*exp)(const float* in, int64_t n, float* out);  ///< n a multiple of lanes
  /// sums[i] = sum of row i of in [lanes, lanes], through Simd::sum_each and Simd::slot.
  void (*sum_each)(const float* in, float* sums);
  /// The decoder row and tile kernels use; format.decode where the ISA has none of its own.
  void (*(*row_decoder)(const WeightFormat& format))(const std::byte* blocks, int64_t n, float* out);
};
extern const SimdEntries kEntriesAvx2, kEntriesAvx512, kEntriesNeon;

/// The entries this processor can run.
inline std::vector<SimdEntries> runnable_entries() {
  std::vector<SimdEntries> entries;
#if defined(__x86_64__)
  for (const SimdEntries* e : {&kEntriesAvx2, &kEntriesAvx512})
    if (e->isa <= detect_isa()) entries.push_back(*e);
#elif defined(__aarch64__)
  if (Isa::neon <= detect_isa()) entries.push_back(kEntriesNeon);
#endif
  return entries;
}

}  // namespace ridge
