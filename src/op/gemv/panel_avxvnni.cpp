// Panel kernels (op/gemv/panel_simd.h) for AVX2 with the integer dot product of AVX-VNNI.
#include "op/simd/avx2.h"
// The Simd struct above must come first.
#include "op/gemv/panel_simd.h"
#include "op/kernels.h"

namespace ridge {

void panel_1plane_avxvnni(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  run_panels<1>(context, x, all);
}
void panel_2planes_avxvnni(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  run_panels<2>(context, x, all);
}

}  // namespace ridge
