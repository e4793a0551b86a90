// tq1_0: ternary weights, five to a byte, one fp16 scale per 256, 1.6875 bits per weight. GGUF type 34.
//
// A byte b holds up to five base-3 digits as the fraction b / 256: digit n is floor(b * 3^(n+1) / 256) mod 3, and a
// byte for digits d0..d4 is the smallest such b, ceil(256 * (81 d0 + 27 d1 + 9 d2 + 3 d3 + d4) / 243). Every byte is
// valid.
//   weights   0..159: 32 n + m is digit n of q[m], m < 32
//   weights 160..239: 160 + 16 n + m is digit n of q[32 + m], m < 16
//   weights 240..255: 240 + 4 n + m is digit n of high[m], m < 4 (four digits)
// value = (digit - 1) * scale. The encoder takes the scale of least squared error (format/ternary.h), which keeps
// weights that are ternary already; |error| <= max|w| for all others. A scale that is not finite is refused on loading.
// Source: GGUF, block_tq1_0.
#pragma once

#include "format/ternary.h"

namespace ridge {

struct TQ1_0 {
  struct Block {
    uint8_t q[48];
    uint8_t high[4];
    uint16_t scale;  // fp16
  };
  static constexpr const char* kName = "tq1_0";
  static constexpr int kGgufType = 34;
  static constexpr int kGroup = 256;

  /// Where the digits of a byte lie: digit n of byte i of `bytes` is weight first + n_bytes * n + i.
  struct Part {
    int first_byte, n_bytes, n_digits, first;
  };
  RIDGE_HD static constexpr Part part_of(int i) {
    return i == 0 ? Part{0, 32, 5, 0} : i == 1 ? Part{32, 16, 5, 160} : Part{48, 4, 4, 240};
  }
  static constexpr int kParts = 3;

  RIDGE_HD static void decode(const Block& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int p = 0; p < kParts; ++p) {
      const Part part = part_of(p);
      const uint8_t* bytes = part.first_byte < 48 ? block.q + part.first_byte : block.high;
      for (int n = 0, power = 1; n < part.n_digits; ++n, power *= 3)
        for (int i = 0; i < part.n_bytes; ++i) {
          const int fraction = bytes[i] * power & 0xFF;
          out[part.first + part.n_bytes * n + i] = float((fraction * 3 >> 8) - 1) * scale;
        }
    }
  }
  static void encode(const float* in, Block& block) {
    block.scale = best_ternary_scale(in);
    const float scale = f16_to_f32(block.scale);
    for (int p = 0; p < kParts; ++p) {
      const Part part = part_of(p);
      uint8_t* bytes = part.first_byte < 48 ? block.q + part.first_byte : block.high;
      for (int i = 0; i < part.n_bytes; ++i) {
        int digits = 0;
        for (int n = 0; n < 5; ++n)
          digits = 3 * digits + (n < part.n_digits ? ternary_code(in[part.first + part.n_bytes * n + i], scale) : 0);
        bytes[i] = uint8_t((256 * digits + 242) / 243);
      }
    }
  }
  static const char* problem(const Block& block) {
    return (block.scale & 0x7C00) == 0x7C00 ? "the scale is not a finite number" : nullptr;
  }
};
static_assert(sizeof(TQ1_0::Block) == 54);

}  // namespace ridge
