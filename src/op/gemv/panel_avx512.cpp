// Panel kernels (op/gemv/panel_simd.h) for avx512.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/gemv/panel_simd.h"
#include "op/kernels.h"

namespace ridge {

void panel_avx512(CpuContext& context, const Linear& w, View2<const float> x, View2<float> y) {
  run_panels_any(context, w, x, y, PanelFormats{});
}

}  // namespace ridge
