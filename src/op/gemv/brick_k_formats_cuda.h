// Device code: brick formats of super-blocks of 256 weights, the k-quants. For *.cu files only.
#pragma once

#include "format/q2_k.h"
#include "format/q3_k.h"
#include "format/q4_k.h"
#include "format/q5_k.h"
#include "format/q6_k.h"
#include "op/gemv/brick_parts_cuda.h"

namespace ridge::bricks {

/// Four six-bit fields a chunk, from bit 0, in three words: their low 24 bits are those of chunks 0 to 2, their top
/// bytes those of chunk 3.
__device__ inline void put_fields(uint32_t* words, int chunk, uint32_t fields) {
  if (chunk < 3) words[chunk] |= fields;
  else
    for (int w = 0; w < 3; ++w) words[w] |= (fields >> (8 * w) & 255u) << 24;
}
__device__ inline uint32_t chunk_fields(uint32_t first, uint32_t second, uint32_t third, int chunk) {
  const uint32_t fields = chunk == 0 ? first : chunk == 1 ? second : third;
  return chunk == 3 ? __byte_perm(__byte_perm(first, second, 0x0073), third, 0x0710) : fields;
}

/// Scales and minima of q4_k and q5_k, behind the codes 16 bytes a row: d and dmin, then fields s, m, s', m' of every
/// chunk (scale and minimum of its two sub-blocks).
template <int kCodeBytes, int kLowerOf>
struct SubBlockScales {
  using ChunkScales = Scales<2>;
  template <class Block>
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    uint32_t words[4] = {};
    if (n > 0) {
      words[0] = row->d | uint32_t(row->dmin) << 16;
      for (int chunk = 0; chunk < 4; ++chunk) {
        const ScaleMin first = unpack_scale_min(row->scales, 2 * chunk);
        const ScaleMin second = unpack_scale_min(row->scales, 2 * chunk + 1);
        put_fields(words + 1, chunk, uint32_t(first.scale | first.min << 6 | second.scale << 12 | second.min << 18));
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
      const float min_step = d.y * (half == 1 ? kLowerOf * 0x1p-6f : 0x1p-6f);
      const float scale_zero = d.x * -0x1p23f, min_zero = min_step * -0x1p23f;
      uint32_t fields = chunk_fields(row.y, row.z, row.w, chunk);
#pragma unroll
      for (int g = 0; g < 2; ++g, fields >>= 12) {
        scales.scale[half][g] = fmaf(__uint_as_float(gpu::and_or(fields, 0x03Fu, 0x4B000000u)), d.x, scale_zero);
        scales.min[half][g] = fmaf(__uint_as_float(gpu::and_or(fields, 0xFC0u, 0x4B000000u)), min_step, min_zero);
      }
    }
    return scales;
  }
};

/// q2_k: words 2i and 2i + 1 of step s have, from bit 8 (s % 2) + 4 i of the halves of word s / 2 of a chunk, two bits
/// each. Behind the codes the file's 16 bytes of scales and minima a row, then d and dmin of every row.
struct BrickQ2_K : TinyF16<0, 4> {
  using Block = Q2_K::Block;
  static constexpr int kGroup = 256, kColumns = 256, kBytes = 1344, kScaleSteps = 1, kGemvStages = 6, kSums = 2;
  static constexpr int kScales = 1024, kD = 1280;
  static constexpr bool kHasMin = true;
  static constexpr float kSumFactor = kUnit;
  struct Codes {
    uint32_t words[2];
  };
  using ChunkScales = Scales<4>;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const int i = int(k % 256);
    return row[k / 256].q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3u;
  }
  template <class Get>
  __device__ static void put(const Get& get, int lane, uint8_t* brick) {
    for (int word = 0; word < kColumns / 32; ++word) {
      uint32_t bits = 0;
      for (int s = 0; s < 2; ++s)
        for (int e = 0; e < 8; ++e) bits |= get(2 * word + s, e) << (16 * (e % 2) + 8 * s + 2 * (e / 2));
      reinterpret_cast<uint32_t*>(brick)[64 * (word / 2) + 2 * lane + word % 2] = bits;
    }
  }
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    if (n > 0) memcpy(brick + kScales + 16 * i, row->scales, 16);
    else memset(brick + kScales + 16 * i, 0, 16);
    reinterpret_cast<uint32_t*>(brick + kD)[i] = n > 0 ? row->d | uint32_t(row->dmin) << 16 : 0u;
  }
  __device__ static Codes load(const uint8_t* brick, int chunk, int lane) {
    const uint2 words = *reinterpret_cast<const uint2*>(brick + 256 * chunk + 8 * lane);
    return {{words.x, words.y}};
  }
  __device__ static void fragment(const Codes& codes, int step, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t bits = codes.words[step / 2] >> (8 * (step % 2) + 4 * i);
      a[2 * i] = bits & 0x00030003u;
      a[2 * i + 1] = bits & 0x000C000Cu;
    }
  }
  /// As SubBlockScales makes them.
  __device__ static ChunkScales scales(const uint8_t* brick, int chunk, int lane) {
    ChunkScales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      const float2 d = gpu::unpack_f16(reinterpret_cast<const uint32_t*>(brick + kD)[row]);  // d, dmin
      const float min_step = d.y * (half == 1 ? kLower * 0x1p-4f : 0x1p-4f);
      const float scale_zero = d.x * -0x1p23f, min_zero = min_step * -0x1p23f;
      uint32_t fields = *reinterpret_cast<const uint32_t*>(brick + kScales + 16 * row + 4 * chunk);
#pragma unroll
      for (int g = 0; g < 4; ++g, fields >>= 8) {
        scales.scale[half][g] = fmaf(__uint_as_float(gpu::and_or(fields, 0x0Fu, 0x4B000000u)), d.x, scale_zero);
        scales.min[half][g] = fmaf(__uint_as_float(gpu::and_or(fields, 0xF0u, 0x4B000000u)), min_step, min_zero);
      }
    }
    return scales;
  }
};

/// q3_k: three words a lane and chunk, [chunk][word][lane]. Word s has step s of the chunk, three bits from bit 3 i of
/// its halves for word i of the fragment. Of step 3, word i < 3 is bits 12 to 14 of word i and word 3 the top bits of
/// all three. Behind the codes the scales' fields, three words a row, then d of each row.
struct BrickQ3_K : TinyF16<4, 8> {
  using Block = Q3_K::Block;
  static constexpr int kGroup = 256, kColumns = 256, kBytes = 1760, kScaleSteps = 1, kGemvStages = 5, kSums = 2;
  static constexpr int kScales = 1536, kD = 1728;
  struct Codes {
    uint32_t words[3];
  };
  using ChunkScales = Scales<4>;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const Block& block = row[k / 256];
    const int i = int(k % 256);
    return (block.q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3u) | (block.high[i % 32] >> (i / 32) & 1u) << 2;
  }
  template <class Get>
  __device__ static void put(const Get& get, int lane, uint8_t* brick) {
    for (int chunk = 0; chunk < kColumns / 64; ++chunk) {
      uint32_t words[3] = {};
      for (int e = 0; e < 8; ++e) {
        const int i = e / 2, half = 16 * (e % 2);
        for (int s = 0; s < 3; ++s) words[s] |= get(4 * chunk + s, e) << (half + 3 * i);
        const uint32_t last = get(4 * chunk + 3, e);
        for (int s = 0; s < 3; ++s)
          words[s] |= i == 3 ? (last >> s & 1u) << (half + 15) : i == s ? last << (half + 12) : 0u;
      }
      for (int s = 0; s < 3; ++s) reinterpret_cast<uint32_t*>(brick)[32 * (3 * chunk + s) + lane] = words[s];
    }
  }
  __device__ static void put_scales(const Block* row, int64_t n, int i, uint8_t* brick) {
    uint32_t words[3] = {};
    if (n > 0)
      for (int chunk = 0; chunk < 4; ++chunk) {
        uint32_t fields = 0;
        for (int g = 0; g < 4; ++g) fields |= uint32_t(Q3_K::scale_of(*row, 4 * chunk + g) + 32) << (6 * g);
        put_fields(words, chunk, fields);
      }
    memcpy(brick + kScales + 12 * i, words, 12);
    reinterpret_cast<uint16_t*>(brick + kD)[i] = n > 0 ? row->d : uint16_t(0);
  }
  __device__ static Codes load(const uint8_t* brick, int chunk, int lane) {
    const uint32_t* from = reinterpret_cast<const uint32_t*>(brick) + 96 * chunk + lane;
    return {{from[0], from[32], from[64]}};
  }
  __device__ static void fragment(const Codes& codes, int step, uint32_t (&a)[4]) {
    const uint32_t(&words)[3] = codes.words;
    if (step < 3) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        a[2 * i] = words[step] >> (6 * i) & 0x00070007u;
        a[2 * i + 1] = words[step] >> (6 * i) & 0x00380038u;
      }
    } else {
      a[0] = words[0] >> 12 & 0x00070007u;
      a[1] = words[1] >> 9 & 0x00380038u;
      a[2] = words[2] >> 12 & 0x00070007u;
      const uint32_t upper = gpu::and_or(words[1] >> 11, 0x00100010u, words[2] >> 10 & 0x00200020u);
      a[3] = gpu::and_or(words[0] >> 12, 0x00080008u, upper);
    }
  }
  __device__ static ChunkScales scales(const uint8_t* brick, int chunk, int lane) {
    ChunkScales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      const float d = gpu::unpack_f16(reinterpret_cast<const uint16_t*>(brick + kD)[row]).x;
      const auto* words = reinterpret_cast<const uint32_t*>(brick + kScales + 12 * row);
      uint32_t fields = chunk_fields(words[0], words[1], words[2], chunk);
#pragma unroll
      for (int g = 0; g < 4; g += 2, fields >>= 12) {
        scales.scale[half][g] = signed_field<0>(fields) * d;
        scales.scale[half][g + 1] = signed_field<6>(fields) * (d * 0x1p-6f);
      }
    }
    return scales;
  }
};

struct BrickQ4_K : Nibbles<256>, TinyF16<0>, SubBlockScales<2048, 16> {
  using Block = Q4_K::Block;
  static constexpr int kGroup = 256, kColumns = 256, kBytes = 2304, kScaleSteps = 2, kGemvStages = 4, kSums = 1;
  static constexpr bool kHasMin = true;
  static constexpr float kSumFactor = kUnit;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    return uint32_t(sub_block_nibble(row[k / 256].q, int(k % 256) / 32, int(k % 32)));
  }
};

struct BrickQ5_K : FiveBits<256>,
                   TinyF16<0, FiveBits<256>::kLowerOf>,
                   SubBlockScales<FiveBits<256>::kCodeBytes, FiveBits<256>::kLowerOf> {
  using Block = Q5_K::Block;
  static constexpr int kGroup = 256, kColumns = 256, kBytes = 2816, kScaleSteps = 2, kGemvStages = 4, kSums = 1;
  static constexpr bool kHasMin = true;
  static constexpr float kSumFactor = kUnit;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const Block& block = row[k / 256];
    const int j = int(k % 256) / 32, i = int(k % 32);
    return uint32_t(sub_block_nibble(block.q, j, i)) | (block.high[i] >> j & 1u) << 4;
  }
};

/// q6_k: nibbles, the lower four bits of the codes of a row r and the upper four of a row r + 8; the other two bits in
/// the lane's second share, of steps 2w and 2w + 1 in word w: of columns 2c + h + 8i of step s they begin at bit
/// 16h + 8i + 4 (s % 2) + 2 for row r, two below for row r + 8. Then 16 scales a row and d of each row.
struct BrickQ6_K : TinyF16<32, 4> {
  using Block = Q6_K::Block;
  static constexpr int kGroup = 256, kColumns = 256, kBytes = 3360, kScaleSteps = 1, kGemvStages = 3, kSums = 2;
  static constexpr int kHigh = 2048, kScales = 3072, kD = 3328;
  struct Codes {
    uint4 low;
    uint32_t high[2];
  };
  using ChunkScales = Scales<4>;

  __device__ static uint32_t code(const Block* row, int64_t k) {
    const Block& block = row[k / 256];
    const int i = int(k % 256), half = i / 128, quarter = i % 128 / 32, l = i % 32;
    return (block.low[64 * half + 32 * (quarter % 2) + l] >> (quarter / 2 * 4) & 15u) |
           (block.high[32 * half + l] >> (2 * quarter) & 3u) << 4;
  }
  template <class Get>
  __device__ static void put(const Get& get, int lane, uint8_t* brick) {
    Nibbles<256>::put([&](int step, int e) { return get(step, e) >> (e / 2 % 2 * 2); }, lane, brick);
    for (int word = 0; word < kColumns / 32; ++word) {
      uint32_t bits = 0;
      for (int s = 0; s < 2; ++s)
        for (int e = 0; e < 8; ++e) {
          const uint32_t code = get(2 * word + s, e);
          const bool lower_row = e / 2 % 2 == 1;
          bits |= (lower_row ? code & 3u : code >> 4) << (16 * (e % 2) + 8 * (e / 4) + 4 * s + (lower_row ? 0 : 2));
        }
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
    for (int i = 0; i < 2; ++i) {
      const int right = 4 * (step % 2) + 8 * i - 2;
      const uint32_t bits = (right < 0 ? high << -right : high >> right) & 0x003C003Cu;
      a[2 * i] = gpu::select_bits<0x000F000F>(low >> (8 * i), bits);
      a[2 * i + 1] = gpu::select_bits<0x00F000F0>(low >> (8 * i), bits);
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

}  // namespace ridge::bricks
