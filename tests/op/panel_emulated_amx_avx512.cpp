// The panel kernels of AMX with tile registers in memory, for processors without AMX. Like the processor, they refuse
// registers without a shape and products of shapes that do not fit.
#include "op/simd/avx512.h"
// The Simd struct above must come first.
#include "op/gemv/panel_amx_simd.h"
#include "op/kernels.h"

namespace ridge {
namespace {

struct Register {
  int rows = 0, row_bytes = 0;  // 0: no shape
  uint8_t bytes[16][64];
};

struct EmulatedRegisters {
  inline static thread_local Register registers[8];

  static void shape(const TileShapes& shapes) {
    RIDGE_CHECK(shapes.palette == 1 && shapes.start_row == 0, "palette {}", shapes.palette);
    for (int i = 0; i < 8; ++i) {
      RIDGE_CHECK(shapes.rows[i] <= 16 && shapes.row_bytes[i] <= 64, "register {} is too large", i);
      registers[i] = {shapes.rows[i], shapes.row_bytes[i], {}};
    }
  }
  static void release() {
    for (Register& r : registers) r = {};
  }
  static Register& with_shape(int tile) {
    RIDGE_CHECK(registers[tile].rows > 0, "register {} has no shape", tile);
    return registers[tile];
  }
  template <int kTile>
  static void load(const void* rows, int64_t stride) {
    Register& r = with_shape(kTile);
    for (int i = 0; i < r.rows; ++i)
      __builtin_memcpy(r.bytes[i], static_cast<const char*>(rows) + i * stride, size_t(r.row_bytes));
  }
  template <int kTile>
  static void store(void* rows, int64_t stride) {
    const Register& r = with_shape(kTile);
    for (int i = 0; i < r.rows; ++i)
      __builtin_memcpy(static_cast<char*>(rows) + i * stride, r.bytes[i], size_t(r.row_bytes));
  }
  template <int kTile>
  static void zero() {
    __builtin_memset(with_shape(kTile).bytes, 0, sizeof(Register::bytes));
  }
  template <int kTo, int kTokens, int kWeights>
  static void dot() {
    Register& to = with_shape(kTo);
    const Register &a = with_shape(kTokens), &b = with_shape(kWeights);
    RIDGE_CHECK(to.rows == a.rows && to.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows,
                "{} x {} = {} x {} times {} x {}", to.rows, to.row_bytes, a.rows, a.row_bytes, b.rows, b.row_bytes);
    for (int m = 0; m < to.rows; ++m)
      for (int n = 0; n < to.row_bytes / 4; ++n) {
        int32_t sum;
        __builtin_memcpy(&sum, &to.bytes[m][4 * n], 4);
        for (int k = 0; k < b.rows; ++k)
          for (int j = 0; j < 4; ++j) sum += int8_t(a.bytes[m][4 * k + j]) * b.bytes[k][4 * n + j];
        __builtin_memcpy(&to.bytes[m][4 * n], &sum, 4);
      }
  }
};
using Tiles = AmxTiles<EmulatedRegisters>;

}  // namespace

LinearsKernel panel_1plane_emulated_amx, panel_2planes_emulated_amx;

void panel_1plane_emulated_amx(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  run_panels<1, Tiles>(context, x, all);
}
void panel_2planes_emulated_amx(CpuContext& context, View2<const float> x, std::span<const LinearOutput> all) {
  run_panels<2, Tiles>(context, x, all);
}

}  // namespace ridge
