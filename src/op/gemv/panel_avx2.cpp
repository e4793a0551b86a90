// Panel kernels (op/gemv/panel_simd.h, op/gemv/float_panels_simd.h) for avx2.
#include "op/simd/avx2.h"
// The Simd struct above must come first.
#include "op/gemv/float_panels_simd.h"
#include "op/gemv/panel_simd.h"
#include "op/kernels.h"

namespace ridge {

void panel_1plane_avx2(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  run_panels<1>(context, x, all);
}
void panel_2planes_avx2(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  run_panels<2>(context, x, all);
}
void panel_float_avx2(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  run_float_panels(context, x, all);
}

}  // namespace ridge
