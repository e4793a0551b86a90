// Decode attention over p8 and rotor-3 caches, compiled for RDNA3 from the sources of the CUDA build: fewer instances
// than its files have. tools/hip_check.py looks at the assembly.
#include "op/attn/tile_split_cuda.h"

namespace ridge::tiles {

// hip_check.py knows the kernels by these numbers.
static_assert(int(TileKind::int8_blocks) == 3 && int(TileKind::rotor3) == 7);

template __global__ void attn_split_kernel<128, int(TileKind::int8_blocks), int(TileKind::int8_blocks), false, false>(
    const DeviceAttention, const Cut);
template __global__ void attn_split_kernel<128, int(TileKind::rotor3), int(TileKind::rotor3), false, true>(
    const DeviceAttention, const Cut);

}  // namespace ridge::tiles
