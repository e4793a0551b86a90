// The panel kernels of AVX-VNNI with their instruction in its AVX-512 form: what a machine without AVX-VNNI can run.
#include "op/simd/avx2.h"
// The Simd struct above must come first.
#include "op/gemv/panel_simd.h"
#include "op/kernels.h"

namespace ridge {

LinearsKernel panel_2planes_ymm_vnni;

void panel_2planes_ymm_vnni(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  run_panels<2>(context, x, all);
}

}  // namespace ridge
