// Device code: how every format lies in a brick (bricks_cuda.h) and becomes A fragments, and what several formats
// share. brick_formats_cuda.h and brick_k_formats_cuda.h have the formats. For *.cu files only.
//
// Lane 4 r + c of a warp holds, for each step of 16 columns, eight codes: element e = 0 .. 7 is row r + 8 (e / 2 % 2),
// column 2 c + e % 2 + 8 (e / 4) of the step, so words 2i, 2i+1 of the fragment are elements 4i .. 4i+3. Fragments hold
// the codes, which f16 represents exactly; scales are applied to sums, in float.
//
// Codes of two to six bits become f16 by a mask: in the lowest bits of an f16, code q is the number 2^-24 q, below
// the normal ones, which tensor cores multiply exactly. Codes of rows r + 8 stay where they are, some bits higher. So
// results are kUnit times too small, those of rows r + 8 kLower times larger than the others. What is subtracted from
// every code comes in as the value that sums start with, made from sums of x.
//
// A format has
//   Block, kGroup            as the weight format
//   kColumns, kBytes         of a brick; columns are whole chunks of 64, bytes whole pieces of 16
//   kBfloat                  fragments are bfloat16
//   kScaleSteps              steps of 16 columns that share a scale; 0 when there are none
//   kUnit, kLower            results are kUnit, for rows r + 8 kUnit * kLower times what they should be
//   kHasMin                  a weight is scale * code - min
//   kHasMatrixScale          scales have a factor of the whole matrix, put_matrix_scale(half, scale, brick): of rows r,
//                            r + 8
//   kHasStart                products start with values for rows r, and kLower times them for rows r + 8
//   kSums, kSumFactor        sums of x over 32 / kSums columns, times kSumFactor: of minima, or what products
//                            start with
//   kGemvStages              bricks in a warp's ring in the GEMV
//   kXUnits                  eights of x that a lane of the GEMV has under way together: registers
//   code(row, k)             of a row of blocks, as unsigned bits
//   put(get, lane, brick)    writes a lane's share of the codes, get(step, e) being the code
//   put_scales(row, n, i, brick)  writes the scales of row i of the tile; row: its n blocks in this brick
//   load(brick, chunk, lane), fragment(codes, step, a)   steps 0 .. 3 of a chunk
//   scales(brick, chunk, lane)   of the lane's two rows
#pragma once

#include <cstring>

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
/// The six bits from bit kAt of `fields`, which means them less 32: times 2^kAt, exact. They stand in the mantissa of
/// 2^23.
template <int kAt>
__device__ float signed_field(uint32_t fields) {
  return __uint_as_float(gpu::and_or(fields, 63u << kAt, 0x4B000000u)) - (0x1p23f + (32 << kAt));
}
/// What formats without anything special have.
struct BrickDefaults {
  static constexpr bool kBfloat = false, kHasMin = false, kHasMatrixScale = false, kHasStart = false;
  static constexpr float kUnit = 1, kLower = 1, kSumFactor = 0;
  static constexpr int kSums = 0, kXUnits = 4;
};
/// Codes as f16 below the normal ones, kZero of which is subtracted.
template <int kZero, int kLowerOf = 16>
struct TinyF16 : BrickDefaults {
  static constexpr bool kHasStart = kZero > 0;
  static constexpr float kUnit = 0x1p-24f, kLower = kLowerOf, kSumFactor = -kZero * kUnit;
};

template <class Block>
__device__ uint16_t scale_bits(const Block& block) {
  if constexpr (requires { block.d; }) return block.d;
  else return block.scale;
}
/// fp16 scales of blocks, [row][group of the brick], behind the codes. Two or fewer a chunk.
template <int kCodeBytes, int kGroups>
struct BlockScales {
  using ChunkScales = Scales<2>;
  template <class Block>
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    auto* to = reinterpret_cast<uint16_t*>(brick + kCodeBytes) + i * kGroups;
    for (int g = 0; g < kGroups; ++g) to[g] = g < n ? scale_bits(row[g]) : uint16_t(0);
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

/// fp16 scales and minima, [row][group of the brick] in pairs behind the codes: a weight is scale * code + min.
template <int kCodeBytes, int kLowerOf>
struct ScalesAndMins {
  using ChunkScales = Scales<2>;
  template <class Block>
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    auto* to = reinterpret_cast<uint32_t*>(brick + kCodeBytes) + 4 * i;
    for (int g = 0; g < 4; ++g) to[g] = g < n ? row[g].scale | uint32_t(row[g].min) << 16 : 0u;
  }
  __device__ static ChunkScales scales(const uint8_t* brick, int chunk, int lane) {
    ChunkScales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint8_t* from = brick + kCodeBytes + 16 * (lane / 4 + 8 * half) + 8 * chunk;
      const uint2 pairs = *reinterpret_cast<const uint2*>(from);
      const float2 first = gpu::unpack_f16(pairs.x), second = gpu::unpack_f16(pairs.y);
      const float minus = half == 1 ? -float(kLowerOf) : -1.0f;
      scales.scale[half][0] = first.x, scales.scale[half][1] = second.x;
      scales.min[half][0] = minus * first.y, scales.min[half][1] = minus * second.y;
    }
    return scales;
  }
};

/// A step's eight codes in a word of the lane: Place::place(code, e) is where that of element e is.
template <int kBrickColumns, class Place>
struct StepWords {
  struct Codes {
    uint4 words;
  };
  template <class Get>
  __device__ static void put(const Get& get, int lane, uint8_t* brick) {
    for (int step = 0; step < kBrickColumns / 16; ++step) {
      uint32_t word = 0;
      for (int e = 0; e < 8; ++e) word |= Place::place(get(step, e), e);
      *lane_word(brick, step, lane) = word;
    }
  }
  __device__ static Codes load(const uint8_t* brick, int chunk, int lane) { return {lane_words(brick, chunk, lane)}; }
};

/// The low four bits of codes: element 2i + h is its word's nibble i + 4h.
struct NibblePlaces {
  __device__ static uint32_t place(uint32_t code, int e) { return (code & 15u) << (4 * (e / 2) + 16 * (e % 2)); }
};
template <int kBrickColumns>
struct Nibbles : StepWords<kBrickColumns, NibblePlaces> {
  using Codes = typename StepWords<kBrickColumns, NibblePlaces>::Codes;
  __device__ static void fragment(const Codes& codes, int step, uint32_t (&a)[4]) {
    const uint32_t word = pick(codes.words, step);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[2 * i] = word >> (8 * i) & 0x000F000Fu;
      a[2 * i + 1] = word >> (8 * i) & 0x00F000F0u;
    }
  }
};

/// Codes of five bits: nibbles, then a word of single bits a lane and chunk, [chunk][lane]. The nibble of a row r is
/// the code's lower four bits, that of a row r + 8 its upper four. The other bits of step s, of columns 2c + h + 8i,
/// are bit 16h + 8i + 2s + 1 for row r and the one below for row r + 8: a shift brings both beside their nibbles.
template <int kBrickColumns>
struct FiveBits {
  static constexpr int kHigh = 8 * kBrickColumns, kCodeBytes = 10 * kBrickColumns, kLowerOf = 8;
  struct Codes {
    uint4 low;
    uint32_t high;
  };

  template <class Get>
  __device__ static void put(const Get& get, int lane, uint8_t* brick) {
    Nibbles<kBrickColumns>::put([&](int step, int e) { return get(step, e) >> (e / 2 % 2); }, lane, brick);
    for (int chunk = 0; chunk < kBrickColumns / 64; ++chunk) {
      uint32_t bits = 0;
      for (int s = 0; s < 4; ++s)
        for (int e = 0; e < 8; ++e) {
          const uint32_t code = get(4 * chunk + s, e);
          const bool lower_row = e / 2 % 2 == 1;
          bits |= (lower_row ? code & 1u : code >> 4) << (16 * (e % 2) + 8 * (e / 4) + 2 * s + !lower_row);
        }
      reinterpret_cast<uint32_t*>(brick + kHigh)[32 * chunk + lane] = bits;
    }
  }
  __device__ static Codes load(const uint8_t* brick, int chunk, int lane) {
    return {lane_words(brick, chunk, lane), reinterpret_cast<const uint32_t*>(brick + kHigh)[32 * chunk + lane]};
  }
  __device__ static void fragment(const Codes& codes, int step, uint32_t (&a)[4]) {
    const uint32_t low = pick(codes.low, step);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int right = 2 * step + 8 * i - 3;
      const uint32_t bits = (right < 0 ? codes.high << -right : codes.high >> right) & 0x00180018u;
      a[2 * i] = gpu::select_bits<0x000F000F>(low >> (8 * i), bits);
      a[2 * i + 1] = gpu::select_bits<0x00F000F0>(low >> (8 * i), bits);
    }
  }
};

/// Four bytes, each 128 more than a value, as words i and i + 1 of a fragment.
__device__ inline void bytes_to_f16(uint32_t bytes, uint32_t& first, uint32_t& second) {
  first = gpu::sub_f16x2(__byte_perm(bytes, 0x64646464u, 0x4140), 0x64806480u);  // 1024 + 128
  second = gpu::sub_f16x2(__byte_perm(bytes, 0x64646464u, 0x4342), 0x64806480u);
}

}  // namespace ridge::bricks
