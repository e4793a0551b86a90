// The gemm table (two tokens or more), worst to best. Panel kernels are shared with gemv.
#include "op/gemv/panels.h"
#include "op/kernels.h"

namespace ridge {

std::span<const LinearVariant> gemm_variants() {
  static constexpr LinearVariant kVariants[] = {
      {"ref", Isa::scalar, needs_rows, linear_ref},
      {"rows-avx2", Isa::avx2, needs_rows, rows_avx2},
      {"rows-avx512", Isa::avx512, needs_rows, rows_avx512},
      {"panel-avx2", Isa::avx2, needs_panels, panel_avx2},
      {"panel-avx512", Isa::avx512, needs_panels, panel_avx512},
      {"ternary-ref", Isa::scalar, needs_ternary_rows, ternary_ref},
      {"ternary-avx2", Isa::avx2, needs_ternary_panels, ternary_avx2},
      {"ternary-avx512", Isa::avx512, needs_ternary_panels, ternary_avx512},
  };
  return kVariants;
}

}  // namespace ridge
