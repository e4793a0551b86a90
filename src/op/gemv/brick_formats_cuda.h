// Device code: the brick formats (brick_parts_cuda.h says what they have). For *.cu files only.
#pragma once

#include "format/fp8_g32.h"
#include "format/int4_g128.h"
#include "format/iq4.h"
#include "format/mxfp4.h"
#include "format/nvfp4.h"
#include "format/plain.h"
#include "format/q4_0.h"
#include "format/q4_1.h"
#include "format/q5_0.h"
#include "format/q5_1.h"
#include "format/q8_0.h"
#include "op/gemv/brick_k_formats_cuda.h"
#include "op/gemv/brick_parts_cuda.h"

namespace ridge::bricks {

/// Codes that are 16 bits already.
template <class F, bool kIsBfloat>
struct Plain : BrickDefaults {
  using Block = typename F::Block;
  static constexpr int kGroup = 1, kColumns = 64, kBytes = 2048, kScaleSteps = 0, kGemvStages = 5;
  static constexpr bool kBfloat = kIsBfloat;
  using Codes = const uint4*;
  using ChunkScales = Scales<1>;

  __device__ static uint32_t code(const Block* row, int64_t k) { return row[k]; }
  template <class Get>
  __device__ static void put(const Get& get, int lane, uint8_t* brick) {
    for (int step = 0; step < kColumns / 16; ++step)
      for (int i = 0; i < 4; ++i) *lane_word(brick, 4 * step + i, lane) = get(step, 2 * i) | get(step, 2 * i + 1) << 16;
  }
  __device__ static void put_scales(const Block*, int64_t, int, uint8_t*) {}
  __device__ static Codes load(const uint8_t* brick, int chunk, int lane) {
    return reinterpret_cast<const uint4*>(brick) + 128 * chunk + lane;
  }
  __device__ static void fragment(Codes codes, int step, uint32_t (&a)[4]) {
    const uint4 words = codes[32 * step];
    a[0] = words.x, a[1] = words.y, a[2] = words.z, a[3] = words.w;
  }
  __device__ static ChunkScales scales(const uint8_t*, int, int) { return {}; }
};

/// fp8_g32: a code above its zero bit is an f16, 2^-8 times too small, once its sign has moved from bit 14 to 15. Words
/// hold the codes of elements 4i + 2, 4i, 4i + 3, 4i + 1, so that those of a word of the fragment are the upper bytes
/// of both halves. Behind the codes float scales, [row][group of the brick].
struct BrickFP8 : BrickDefaults {
  using Block = FP8_G32::Block;
  static constexpr int kGroup = 32, kColumns = 128, kBytes = 2304, kScaleSteps = 2, kGemvStages = 4, kScales = 2048;
  static constexpr float kUnit = 0x1p-8f;
  using ChunkScales = Scales<2>;
  struct Codes {
    uint4 words[2];
  };

  __device__ static uint32_t code(const Block* row, int64_t k) { return row[k / 32].q[k % 32]; }
  template <class Get>
  __device__ static void put(const Get& get, int lane, uint8_t* brick) {
    for (int step = 0; step < kColumns / 16; ++step)
      for (int i = 0; i < 2; ++i)
        *lane_word(brick, 2 * step + i, lane) =
            get(step, 4 * i + 2) | get(step, 4 * i) << 8 | get(step, 4 * i + 3) << 16 | get(step, 4 * i + 1) << 24;
  }
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    auto* to = reinterpret_cast<float*>(brick + kScales) + 4 * i;
    for (int g = 0; g < 4; ++g) to[g] = g < n ? row[g].scale : 0.0f;
  }
  __device__ static Codes load(const uint8_t* brick, int chunk, int lane) {
    return {{lane_words(brick, 2 * chunk, lane), lane_words(brick, 2 * chunk + 1, lane)}};
  }
  __device__ static void fragment(const Codes& codes, int step, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = pick(codes.words[step / 2], 2 * (step % 2) + i), lower = word << 8;
      a[2 * i] = gpu::and_or(word >> 1, 0x3F803F80u, word & 0x80008000u);
      a[2 * i + 1] = gpu::and_or(lower >> 1, 0x3F803F80u, lower & 0x80008000u);
    }
  }
  __device__ static ChunkScales scales(const uint8_t* brick, int chunk, int lane) {
    ChunkScales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto* from = reinterpret_cast<const float2*>(brick + kScales + 16 * (lane / 4 + 8 * half) + 8 * chunk);
      scales.scale[half][0] = from->x, scales.scale[half][1] = from->y;
    }
    return scales;
  }
};

/// q8_0: byte e of a step's two words is code e plus 128.
struct BrickQ8_0 : BrickDefaults, BlockScales<2048, 4> {
  using Block = Q8_0::Block;
  static constexpr int kGroup = 32, kColumns = 128, kBytes = 2176, kScaleSteps = 2, kGemvStages = 4;
  struct Codes {
    uint4 words[2];
  };

  __device__ static uint32_t code(const Block* row, int64_t k) { return uint8_t(row[k / 32].q[k % 32]) ^ 0x80u; }
  template <class Get>
  __device__ static void put(const Get& get, int lane, uint8_t* brick) {
    for (int step = 0; step < kColumns / 16; ++step)
      for (int i = 0; i < 2; ++i) {
        uint32_t word = 0;
        for (int e = 0; e < 4; ++e) word |= get(step, 4 * i + e) << (8 * e);
        *lane_word(brick, 2 * step + i, lane) = word;
      }
  }
  __device__ static Codes load(const uint8_t* brick, int chunk, int lane) {
    return {{lane_words(brick, 2 * chunk, lane), lane_words(brick, 2 * chunk + 1, lane)}};
  }
  __device__ static void fragment(const Codes& codes, int step, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = pick(codes.words[step / 2], 2 * (step % 2) + i);
      bytes_to_f16(word, a[2 * i], a[2 * i + 1]);
    }
  }
};

struct BrickQ4_0 : Nibbles<128>, TinyF16<8>, BlockScales<1024, 4> {
  using Block = Q4_0::Block;
  static constexpr int kGroup = 32, kColumns = 128, kBytes = 1152, kScaleSteps = 2, kGemvStages = 8, kSums = 1;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const int i = int(k % 32);
    return row[k / 32].q[i % 16] >> (i / 16 * 4);
  }
};

struct BrickQ4_1 : Nibbles<128>, TinyF16<0>, ScalesAndMins<1024, 16> {
  using Block = Q4_1::Block;
  static constexpr int kGroup = 32, kColumns = 128, kBytes = 1280, kScaleSteps = 2, kGemvStages = 7, kSums = 1;
  static constexpr bool kHasMin = true;
  static constexpr float kSumFactor = kUnit;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const int i = int(k % 32);
    return row[k / 32].q[i % 16] >> (i / 16 * 4);
  }
};

struct BrickQ5_0 : FiveBits<128>, TinyF16<16, FiveBits<128>::kLowerOf>, BlockScales<FiveBits<128>::kCodeBytes, 4> {
  using Block = Q5_0::Block;
  static constexpr int kGroup = 32, kColumns = 128, kBytes = 1408, kScaleSteps = 2, kGemvStages = 6, kSums = 1;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    return uint32_t(five_bit_code(row[k / 32].q, row[k / 32].high, int(k % 32)));
  }
};

struct BrickQ5_1 : FiveBits<128>,
                   TinyF16<0, FiveBits<128>::kLowerOf>,
                   ScalesAndMins<FiveBits<128>::kCodeBytes, FiveBits<128>::kLowerOf> {
  using Block = Q5_1::Block;
  static constexpr int kGroup = 32, kColumns = 128, kBytes = 1536, kScaleSteps = 2, kGemvStages = 6, kSums = 1;
  static constexpr bool kHasMin = true;
  static constexpr float kSumFactor = kUnit;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    return uint32_t(five_bit_code(row[k / 32].q, row[k / 32].high, int(k % 32)));
  }
};

struct BrickInt4 : Nibbles<128>, TinyF16<8>, BlockScales<1024, 1> {
  using Block = Int4G128::Block;
  static constexpr int kGroup = 128, kColumns = 128, kBytes = 1056, kScaleSteps = 2, kGemvStages = 8, kSums = 1;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const int i = int(k % 128);
    return row[k / 128].q[i / 2] >> (i % 2 * 4);
  }
};

/// mxfp4: with its sign at bit 15 and its other bits at 11 to 9 a code is an f16, 2^-14 times too small; the exponents,
/// 16 rows of four bytes, give half the scale. Of word i of a fragment the bits below the sign start at 9 - 3i.
struct Mxfp4Places {
  __device__ static constexpr int sign(int i) { return i == 0 ? 15 : i == 1 ? 12 : i == 2 ? 14 : 13; }
  __device__ static uint32_t place(uint32_t code, int e) {
    return ((code & 7u) << (9 - 3 * (e / 2)) | code >> 3 << sign(e / 2)) << (16 * (e % 2));
  }
};
struct BrickMXFP4 : StepWords<128, Mxfp4Places>, BrickDefaults {
  using Block = MXFP4::Block;
  static constexpr int kGroup = 32, kColumns = 128, kBytes = 1088, kScaleSteps = 2, kGemvStages = 8, kScales = 1024;
  static constexpr int kXUnits = 2;
  static constexpr float kUnit = 0x1p-15f;
  using ChunkScales = Scales<2>;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const int i = int(k % 32);
    return row[k / 32].q[i % 16] >> (i / 16 * 4) & 15u;
  }
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    for (int g = 0; g < 4; ++g) brick[kScales + 4 * i + g] = g < n ? row[g].exponent : uint8_t(0);
  }
  __device__ static void fragment(const Codes& codes, int step, uint32_t (&a)[4]) {
    const uint32_t word = pick(codes.words, step);
    a[0] = word & 0x8E008E00u;
    a[1] = word << 3 & 0x8E008E00u;
    a[2] = gpu::and_or(word << 1, 0x80008000u, word << 6 & 0x0E000E00u);
    a[3] = gpu::and_or(word << 2, 0x80008000u, word << 9 & 0x0E000E00u);
  }
  __device__ static ChunkScales scales(const uint8_t* brick, int chunk, int lane) {
    ChunkScales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint8_t* from = brick + kScales + 4 * (lane / 4 + 8 * half) + 2 * chunk;
      const uint32_t pair = *reinterpret_cast<const uint16_t*>(from);
      scales.scale[half][0] = MXFP4::half_scale(int(pair & 255u));
      scales.scale[half][1] = MXFP4::half_scale(int(pair >> 8));
    }
    return scales;
  }
};

/// nvfp4: codes as in mxfp4. Behind them the scales of 16 columns, eight bytes a row, then the matrix's scale as a
/// float for rows r and for rows r + 8, which are two matrices' in a pair, and eight bytes of nothing. A scale above
/// its zero bit is an f16, 2^-8 times too small, once its sign has moved from bit 14 to 15.
struct BrickNVFP4 : StepWords<128, Mxfp4Places>, BrickDefaults {
  using Block = NVFP4::Block;
  static constexpr int kGroup = 64, kColumns = 128, kBytes = 1168, kScaleSteps = 1, kGemvStages = 7;
  static constexpr int kScales = 1024, kMatrixScales = 1152, kXUnits = 2;
  static constexpr bool kHasMatrixScale = true;
  static constexpr float kUnit = 0x1p-14f;
  using ChunkScales = Scales<4>;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    return uint32_t(NVFP4::code(row[k / 64], int(k % 64)));
  }
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    for (int g = 0; g < 8; ++g) brick[kScales + 8 * i + g] = g / 4 < n ? row[g / 4].scales[g % 4] : uint8_t(0);
  }
  __device__ static void put_matrix_scale(int half, float scale, uint8_t* brick) {
    reinterpret_cast<float*>(brick + kMatrixScales)[half] = scale;
  }
  __device__ static void fragment(const Codes& codes, int step, uint32_t (&a)[4]) {
    BrickMXFP4::fragment(codes, step, a);
  }
  __device__ static ChunkScales scales(const uint8_t* brick, int chunk, int lane) {
    ChunkScales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = *reinterpret_cast<const uint32_t*>(brick + kScales + 8 * (lane / 4 + 8 * half) + 4 * chunk);
      const float by = 256 * reinterpret_cast<const float*>(brick + kMatrixScales)[half];
      const float2 odd = gpu::unpack_f16(gpu::and_or(word >> 1, 0x3F803F80u, word & 0x80008000u));
      const float2 even = gpu::unpack_f16(gpu::and_or(word << 7, 0x3F803F80u, word << 8 & 0x80008000u));
      scales.scale[half][0] = by * even.x, scales.scale[half][1] = by * odd.x;
      scales.scale[half][2] = by * even.y, scales.scale[half][3] = by * odd.y;
    }
    return scales;
  }
};

/// Codes of the 16 levels of iq4: element e of a step is nibble e. Its lower three bits choose a byte of the lower and
/// one of the upper eight levels, each plus 128; its top bit chooses between them.
struct Iq4Places {
  __device__ static uint32_t place(uint32_t code, int e) { return code << (4 * e); }
};
template <int kBrickColumns>
struct Iq4Levels : StepWords<kBrickColumns, Iq4Places> {
  using Codes = typename StepWords<kBrickColumns, Iq4Places>::Codes;
  /// Of elements 4 i .. 4 i + 3 of a step: 128 more than their levels.
  __device__ static void level_bytes(const Codes& codes, int step, uint32_t (&bytes)[2]) {
    const uint32_t word = pick(codes.words, step);
    const uint32_t level = word & 0x77777777u, side = gpu::and_or(word >> 1, 0x44444444u, 0x32103210u);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t lower = gpu::select_bytes(0x3F2D1801u, 0x766A5D4Fu, level >> (16 * i));
      const uint32_t upper = gpu::select_bytes(0xA6998D81u, 0xF1D9C5B5u, level >> (16 * i));
      bytes[i] = gpu::select_bytes(lower, upper, side >> (16 * i));
    }
  }
  __device__ static void fragment(const Codes& codes, int step, uint32_t (&a)[4]) {
    uint32_t bytes[2];
    level_bytes(codes, step, bytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) bytes_to_f16(bytes[i], a[2 * i], a[2 * i + 1]);
  }
};

struct BrickIQ4_NL : Iq4Levels<128>, BrickDefaults, BlockScales<1024, 4> {
  using Block = IQ4_NL::Block;
  static constexpr int kGroup = 32, kColumns = 128, kBytes = 1152, kScaleSteps = 2, kGemvStages = 8, kXUnits = 2;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const int i = int(k % 32);
    return row[k / 32].q[i % 16] >> (i / 16 * 4) & 15u;
  }
};

/// iq4_xs: behind the codes two words a row. d is the low half of the first; pairs of the six-bit scales are, of chunks
/// 0 and 1, the low 24 bits of the second word, of chunk 2 bits 16 to 27 of the first, of chunk 3 its top four bits
/// above the second's top byte.
struct BrickIQ4_XS : Iq4Levels<256>, BrickDefaults {
  using Block = IQ4_XS::Block;
  static constexpr int kGroup = 256, kColumns = 256, kBytes = 2176, kScaleSteps = 2, kGemvStages = 4, kScales = 2048;
  static constexpr int kXUnits = 2;
  using ChunkScales = Scales<2>;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const int j = int(k % 256) / 32, i = int(k % 32);
    return row[k / 256].q[16 * j + i % 16] >> (i / 16 * 4) & 15u;
  }
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    uint32_t words[2] = {};
    if (n > 0) {
      const auto pair = [&](int chunk) {
        const int first = IQ4_XS::scale_of(*row, 2 * chunk) + 32, second = IQ4_XS::scale_of(*row, 2 * chunk + 1) + 32;
        return uint32_t(first | second << 6);
      };
      words[0] = row->d | pair(2) << 16 | pair(3) >> 8 << 28;
      words[1] = pair(0) | pair(1) << 12 | pair(3) << 24;
    }
    memcpy(brick + kScales + 8 * i, words, 8);
  }
  __device__ static ChunkScales scales(const uint8_t* brick, int chunk, int lane) {
    ChunkScales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 row = *reinterpret_cast<const uint2*>(brick + kScales + 8 * (lane / 4 + 8 * half));
      const float d = gpu::unpack_f16(row.x).x;
      uint32_t pair = chunk == 0 ? row.y : chunk == 1 ? row.y >> 12 : row.x >> 16;
      if (chunk == 3) pair = row.y >> 24 | row.x >> 28 << 8;
      scales.scale[half][0] = signed_field<0>(pair) * d;
      scales.scale[half][1] = signed_field<6>(pair) * (d * 0x1p-6f);
    }
    return scales;
  }
};

using BrickF16 = Plain<F16, false>;
using BrickBF16 = Plain<BF16, true>;

/// Calls f(type) with a value of the format's type.
template <class Function>
auto with_format(BrickFormat format, const Function& f) {
  switch (format) {
    case BrickFormat::f16: return f(BrickF16());
    case BrickFormat::bf16: return f(BrickBF16());
    case BrickFormat::fp8_g32: return f(BrickFP8());
    case BrickFormat::q8_0: return f(BrickQ8_0());
    case BrickFormat::q4_0: return f(BrickQ4_0());
    case BrickFormat::q4_1: return f(BrickQ4_1());
    case BrickFormat::q5_0: return f(BrickQ5_0());
    case BrickFormat::q5_1: return f(BrickQ5_1());
    case BrickFormat::q2_k: return f(BrickQ2_K());
    case BrickFormat::q3_k: return f(BrickQ3_K());
    case BrickFormat::q4_k: return f(BrickQ4_K());
    case BrickFormat::q5_k: return f(BrickQ5_K());
    case BrickFormat::q6_k: return f(BrickQ6_K());
    case BrickFormat::nvfp4: return f(BrickNVFP4());
    case BrickFormat::mxfp4: return f(BrickMXFP4());
    case BrickFormat::iq4_nl: return f(BrickIQ4_NL());
    case BrickFormat::iq4_xs: return f(BrickIQ4_XS());
    case BrickFormat::int4_g128: break;
  }
  return f(BrickInt4());
}

}  // namespace ridge::bricks
