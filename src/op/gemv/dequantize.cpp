#include "op/gemv/dequantize.h"

#include "op/kernels.h"

namespace ridge {

void dequantize_rows_ref(const Linear& w, int64_t first, int64_t last, float* out) {
  for (int64_t r = first; r < last; ++r)
    w.format->decode(w.rows + r * w.format->row_bytes(w.n_in), w.n_in, out + r * w.n_in);
}

std::span<const DequantizeVariant> dequantize_variants() {
  static constexpr DequantizeVariant kVariants[] = {
    {"ref", Isa::scalar, needs_rows, dequantize_rows_ref},
#if defined(__x86_64__)
    {"rows-avx2", Isa::avx2, needs_rows, dequantize_rows_avx2},
    {"rows-avx512", Isa::avx512, needs_rows, dequantize_rows_avx512},
#elif defined(__aarch64__)
    {"rows-neon", Isa::neon, needs_rows, dequantize_rows_neon},
#endif
  };
  return kVariants;
}

void dequantize(CpuContext& context, const Linear& w, float* out) {
  DequantizeRows* const rows = select_variant(context, "dequantize", dequantize_variants(), w).rows;
  const int64_t rows_per_task = std::max<int64_t>(1, 65536 / w.format->row_bytes(w.n_in));
  context.pool.for_each((w.n_out + rows_per_task - 1) / rows_per_task, [&](int64_t task, int) {
    rows(w, task * rows_per_task, std::min(w.n_out, (task + 1) * rows_per_task), out);
  });
}

}  // namespace ridge
