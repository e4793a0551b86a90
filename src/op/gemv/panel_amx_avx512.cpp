// Panel kernels for many tokens with the int8 tiles of AMX; fewer tokens than a tile has rows run those of AVX-512.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/gemv/panel_amx_simd.h"
#include "op/kernels.h"

namespace ridge {
namespace {

/// The processor's tile registers. Assembly, for the intrinsics of g++ take tile numbers as text and do not say that they
/// read memory.
struct TileRegisters {
  static void shape(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
  static void release() { asm volatile("tilerelease"); }
  template <int kTile>
  static void load(const void* rows, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* rows, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  /// kTo += signed bytes of kTokens times unsigned bytes of kWeights.
  template <int kTo, int kTokens, int kWeights>
  static void dot() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kTo), "i"(kTokens), "i"(kWeights));
  }
};
using Tiles = AmxTiles<TileRegisters>;

}  // namespace

void panel_1plane_amx(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  x.rows < Tiles::kTokens ? panel_1plane_avx512(context, x, all) : run_panels<1, Tiles>(context, x, all);
}
void panel_2planes_amx(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  x.rows < Tiles::kTokens ? panel_2planes_avx512(context, x, all) : run_panels<2, Tiles>(context, x, all);
}

}  // namespace ridge
