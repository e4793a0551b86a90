// Device code: how every format lies in a brick (bricks_cuda.h) and becomes A fragments. For *.cu files only.
//
// Lane 4 r + c of a warp holds, for each step of 16 columns, eight codes: element e = 0 .. 7 is row r + 8 (e / 2 % 2),
// column 2 c + e % 2 + 8 (e / 4) of the step, so words 2i, 2i+1 of the fragment are elements 4i .. 4i+3. Fragments hold
// the codes, which halves represent exactly; scales are applied to sums, in float.
//
// Codes of four and six bits become halves by a mask: in the lowest bits of a half, code q is the number 2^-24 q, below
// the normal ones, which tensor cores multiply exactly. Codes of rows r + 8 stay where they are, four bits higher. So
// results are kUnit times too small, those of rows r + 8 kLower times larger than the others. What is subtracted from
// every code comes in as the value that sums start with, made from sums of x.
//
// A format has
//   Block, kGroup            as the weight format
//   kColumns, kBytes         of a brick; columns are whole chunks of 64
//   kBfloat                  fragments are bfloat16
//   kScaleSteps              steps of 16 columns that share a scale; 0 when there are none
//   kUnit, kLower            results are kUnit, for rows r + 8 kUnit * kLower times what they should be
//   kHasMin                  a weight is scale * code - min
//   kHasStart                products start with values for rows r, and kLower times them for rows r + 8
//   kSums, kSumFactor        sums of x over 32 / kSums columns, times kSumFactor: of minima, or what products start
//   with kGemvStages              bricks in a warp's ring in the GEMV code(row, k)             of a row of blocks, as
//   unsigned bits put(get, lane, brick)    writes a lane's share of the codes, get(step, e) being the code
//   put_scales(row, n, i, brick)  writes the scales of row i of the tile; row: its n blocks in this brick
//   load(brick, chunk, lane), fragment(codes, step, a)   steps 0 .. 3 of a chunk
//   scales(brick, chunk, lane)   of the lane's two rows
#pragma once

#include <cstring>

#include "format/int4_g128.h"
#include "format/plain.h"
#include "format/q4_0.h"
#include "format/q4_k.h"
#include "format/q6_k.h"
#include "format/q8_0.h"
#include "gpu/tensor.h"
#include "op/gemv/bricks_cuda.h"
#include "ridge/error.h"

namespace ridge::bricks {

/// Throws Error(failure) with `what` unless `ok`. (RIDGE_CHECK's format strings are beyond nvcc.)
inline void expect(bool ok, const char* what) {
  if (!ok) throw Error(ErrorKind::failure, what);
}

/// Scales and minima of a chunk: [row r or r + 8][group of the chunk].
template <int kGroups>
struct Scales {
  float scale[2][kGroups];
  float min[2][kGroups];
};

/// Sixteen bytes of this lane; n counts such loads of a warp from the brick's start.
__device__ inline uint4 lane_words(const uint8_t* brick, int n, int lane) {
  return *reinterpret_cast<const uint4*>(brick + (32 * n + lane) * 16);
}
__device__ inline uint32_t pick(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}
/// Word `word` of a lane's words of a brick, four to a load.
__device__ inline uint32_t* lane_word(uint8_t* brick, int word, int lane) {
  return reinterpret_cast<uint32_t*>(brick + (32 * (word / 4) + lane) * 16) + word % 4;
}
/// What formats without anything special have.
struct BrickDefaults {
  static constexpr bool kBfloat = false, kHasMin = false, kHasStart = false;
  static constexpr float kUnit = 1, kLower = 1, kSumFactor = 0;
  static constexpr int kSums = 0;
};
/// Codes as halves below the normal ones, kZero of which is subtracted.
template <int kZero>
struct TinyHalves : BrickDefaults {
  static constexpr bool kHasStart = kZero > 0;
  static constexpr float kUnit = 0x1p-24f, kLower = 16, kSumFactor = -kZero * kUnit;
};

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

/// fp16 scales of blocks, [row][group of the brick], behind the codes. Two or fewer a chunk.
template <int kCodeBytes, int kGroups>
struct BlockScales {
  using ChunkScales = Scales<2>;
  template <class Block>
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    auto* to = reinterpret_cast<uint16_t*>(brick + kCodeBytes) + i * kGroups;
    for (int g = 0; g < kGroups; ++g) to[g] = g < n ? row[g].scale : uint16_t(0);
  }
  /// Two groups of 32 columns in a chunk.
  __device__ static ChunkScales scales(const uint8_t* brick, int chunk, int lane) {
    ChunkScales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto* from = reinterpret_cast<const uint16_t*>(brick + kCodeBytes) + (lane / 4 + 8 * half) * kGroups;
      const uint32_t pair = kGroups == 1 ? from[0] * 0x10001u : *reinterpret_cast<const uint32_t*>(from + 2 * chunk);
      const float2 values = gpu::unpack_f16(pair);
      scales.scale[half][0] = values.x, scales.scale[half][1] = values.y;
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
      a[2 * i] = gpu::sub_f16x2(__byte_perm(word, 0x64646464u, 0x4140), 0x64806480u);  // 1024 + 128
      a[2 * i + 1] = gpu::sub_f16x2(__byte_perm(word, 0x64646464u, 0x4342), 0x64806480u);
    }
  }
};

/// Codes of four bits: a step is a word, element 2i + h is its nibble i + 4h.
template <int kBrickColumns>
struct Nibbles {
  struct Codes {
    uint4 words;
  };
  template <class Get>
  __device__ static void put(const Get& get, int lane, uint8_t* brick) {
    for (int step = 0; step < kBrickColumns / 16; ++step) {
      uint32_t word = 0;
      for (int e = 0; e < 8; ++e) word |= (get(step, e) & 15u) << (4 * (e / 2) + 16 * (e % 2));
      *lane_word(brick, step, lane) = word;
    }
  }
  __device__ static Codes load(const uint8_t* brick, int chunk, int lane) { return {lane_words(brick, chunk, lane)}; }
  __device__ static void fragment(const Codes& codes, int step, uint32_t (&a)[4]) {
    const uint32_t word = pick(codes.words, step);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[2 * i] = word >> (8 * i) & 0x000F000Fu;
      a[2 * i + 1] = word >> (8 * i) & 0x00F000F0u;
    }
  }
};

struct BrickQ4_0 : Nibbles<128>, TinyHalves<8>, BlockScales<1024, 4> {
  using Block = Q4_0::Block;
  static constexpr int kGroup = 32, kColumns = 128, kBytes = 1152, kScaleSteps = 2, kGemvStages = 8, kSums = 1;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const int i = int(k % 32);
    return row[k / 32].q[i % 16] >> (i / 16 * 4);
  }
};

struct BrickInt4 : Nibbles<128>, TinyHalves<8>, BlockScales<1024, 1> {
  using Block = Int4G128::Block;
  static constexpr int kGroup = 128, kColumns = 128, kBytes = 1056, kScaleSteps = 2, kGemvStages = 8, kSums = 1;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const int i = int(k % 128);
    return row[k / 128].q[i / 2] >> (i % 2 * 4);
  }
};

/// q4_k: behind the codes 16 bytes a row: d and dmin, then three words, whose low 24 bits are the six-bit fields s, m,
/// s', m' of chunks 0 to 2 (scale and minimum of its two sub-blocks, from bit 0); their top bytes are those of chunk 3.
struct BrickQ4_K : Nibbles<256>, TinyHalves<0> {
  using Block = Q4_K::Block;
  static constexpr int kGroup = 256, kColumns = 256, kBytes = 2304, kScaleSteps = 2, kGemvStages = 4, kSums = 1;
  static constexpr bool kHasMin = true;
  static constexpr float kSumFactor = kUnit;
  static constexpr int kCodeBytes = 2048;
  using ChunkScales = Scales<2>;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    return uint32_t(sub_block_nibble(row[k / 256].q, int(k % 256) / 32, int(k % 32)));
  }
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    uint32_t words[4] = {};
    if (n > 0) {
      words[0] = row->d | uint32_t(row->dmin) << 16;
      for (int chunk = 0; chunk < 4; ++chunk) {
        const ScaleMin first = unpack_scale_min(row->scales, 2 * chunk);
        const ScaleMin second = unpack_scale_min(row->scales, 2 * chunk + 1);
        const auto fields = uint32_t(first.scale | first.min << 6 | second.scale << 12 | second.min << 18);
        if (chunk < 3) words[1 + chunk] |= fields;
        else
          for (int w = 0; w < 3; ++w) words[1 + w] |= (fields >> (8 * w) & 255u) << 24;
      }
    }
    memcpy(brick + kCodeBytes + 16 * i, words, 16);
  }
  /// A field in the mantissa of 2^23 makes a float without a conversion; subtracting 2^23 and multiplying by d is one
  /// exact fused step.
  __device__ static ChunkScales scales(const uint8_t* brick, int chunk, int lane) {
    ChunkScales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 row = *reinterpret_cast<const uint4*>(brick + kCodeBytes + 16 * (lane / 4 + 8 * half));
      const float2 d = gpu::unpack_f16(row.x);  // d, dmin
      const float min_step = d.y * (half == 1 ? kLower * 0x1p-6f : 0x1p-6f), scale_zero = d.x * -0x1p23f,
                  min_zero = min_step * -0x1p23f;
      uint32_t fields = chunk == 0 ? row.y : chunk == 1 ? row.z : row.w;
      if (chunk == 3) fields = __byte_perm(__byte_perm(row.y, row.z, 0x0073), row.w, 0x0710);
#pragma unroll
      for (int g = 0; g < 2; ++g, fields >>= 12) {
        scales.scale[half][g] = fmaf(__uint_as_float(gpu::and_or(fields, 0x03Fu, 0x4B000000u)), d.x, scale_zero);
        scales.min[half][g] = fmaf(__uint_as_float(gpu::and_or(fields, 0xFC0u, 0x4B000000u)), min_step, min_zero);
      }
    }
    return scales;
  }
};

/// q6_k: the low four bits as nibbles; the upper two bits in the lane's second share, of steps 2w and 2w + 1 in word w:
/// element 2i + h of step s is bits 16 h + 2 field(s % 2, i); then 16 scales a row and d of each row.
struct BrickQ6_K : TinyHalves<32> {
  using Block = Q6_K::Block;
  static constexpr int kGroup = 256, kColumns = 256, kBytes = 3360, kScaleSteps = 1, kGemvStages = 3, kSums = 2;
  static constexpr int kHigh = 2048, kScales = 3072, kD = 3328;
  struct Codes {
    uint4 low;
    uint32_t high[2];
  };
  using ChunkScales = Scales<4>;

  /// Where the upper bits of words i of a step lie, so that few shifts bring them above their nibbles.
  __device__ static constexpr int field(int step, int i) {
    return step == 0 ? (i % 2 == 0 ? 2 + i / 2 : 4 + i / 2) : (i % 2 == 0 ? i / 2 : 6 + i / 2);
  }

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const Block& block = row[k / 256];
    const int i = int(k % 256), half = i / 128, quarter = i % 128 / 32, l = i % 32;
    return (block.low[64 * half + 32 * (quarter % 2) + l] >> (quarter / 2 * 4) & 15u) |
           (block.high[32 * half + l] >> (2 * quarter) & 3u) << 4;
  }
  template <class Get>
  __device__ static void put(const Get& get, int lane, uint8_t* brick) {
    Nibbles<256>::put(get, lane, brick);
    for (int word = 0; word < kColumns / 32; ++word) {
      uint32_t bits = 0;
      for (int s = 0; s < 2; ++s)
        for (int e = 0; e < 8; ++e) bits |= get(2 * word + s, e) >> 4 << (16 * (e % 2) + 2 * field(s, e / 2));
      *lane_word(brick + kHigh, word, lane) = bits;
    }
  }
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    if (n > 0) memcpy(brick + kScales + 16 * i, row->scales, 16);
    else memset(brick + kScales + 16 * i, 0, 16);
    reinterpret_cast<uint16_t*>(brick + kD)[i] = n > 0 ? row->d : uint16_t(0);
  }
  __device__ static Codes load(const uint8_t* brick, int chunk, int lane) {
    const uint8_t* high = brick + kHigh + (32 * (chunk / 2) + lane) * 16 + 8 * (chunk % 2);
    const uint2 words = *reinterpret_cast<const uint2*>(high);
    return {lane_words(brick, chunk, lane), {words.x, words.y}};
  }
  __device__ static void fragment(const Codes& codes, int step, uint32_t (&a)[4]) {
    const uint32_t low = pick(codes.low, step), high = codes.high[step / 2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool lower_row = i % 2 == 1;
      const int shift = 2 * field(step % 2, i) - (lower_row ? 8 : 4);
      const uint32_t upper = shift < 0 ? high << (shift < 0 ? -shift : 0) : high >> (shift < 0 ? 0 : shift);
      const uint32_t nibbles = low >> (8 * (i / 2)) & (lower_row ? 0x00F000F0u : 0x000F000Fu);
      a[i] = gpu::and_or(upper, lower_row ? 0x03000300u : 0x00300030u, nibbles);
    }
  }
  __device__ static ChunkScales scales(const uint8_t* brick, int chunk, int lane) {
    ChunkScales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      const float d = gpu::unpack_f16(reinterpret_cast<const uint16_t*>(brick + kD)[row]).x;
      const uint32_t word = *reinterpret_cast<const uint32_t*>(brick + kScales + 16 * row + 4 * chunk);
      for (int g = 0; g < 4; ++g) scales.scale[half][g] = d * float(int8_t(word >> (8 * g)));
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
    case BrickFormat::q8_0: return f(BrickQ8_0());
    case BrickFormat::q4_0: return f(BrickQ4_0());
    case BrickFormat::q4_k: return f(BrickQ4_K());
    case BrickFormat::q6_k: return f(BrickQ6_K());
    case BrickFormat::int4_g128: break;
  }
  return f(BrickInt4());
}

}  // namespace ridge::bricks
