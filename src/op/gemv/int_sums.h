// Device code that integer matmuls share: tiles of weights, their products with columns of int8 activations, and what
// becomes of a sum.
#pragma once

#include "op/gemv/int_tokens.h"

namespace ridge {

/// Where sums go, and what they meet there.
struct IntTarget {
  const float* row_scale;  // ternary
  const float* bias;
  float* y[kMostIntParts];
  int first_row[kMostIntParts + 1];  // of every part, and the end of the last
  int n_parts;
  bool padded;                        // every part begins with a tile of its own
  int first_tile_row[kMostIntParts];  // of every part, padding counted, where there is any
  int64_t n_out;                      // of all parts
  int n_row_tiles, n_tokens;
  IntOutput output;

  /// Which row a row of the tiles is; one past the last where it is none.
  __device__ int64_t output_row(int64_t row) const {
    if (!padded) return row;
    int64_t skipped = 0, end = first_row[1];
#pragma unroll
    for (int i = 1; i < kMostIntParts; ++i)
      if (i < n_parts && row >= first_tile_row[i]) skipped = first_tile_row[i] - first_row[i], end = first_row[i + 1];
    return row - skipped < end ? row - skipped : n_out;
  }

  /// Row `row` of a token.
  __device__ float* place(int64_t token, int64_t row) const {
    if (n_parts == 1) return y[0] + token * n_out + row;
    int part = 0;
#pragma unroll
    for (int i = 1; i < kMostIntParts; ++i)
      if (i < n_parts && row >= first_row[i]) part = i;
    const int first = first_row[part];
    return y[part] + token * (first_row[part + 1] - first) + row - first;
  }
};

/// A launch, whichever kernel it takes.
struct IntJob {
  const uint8_t* tiles;
  IntTokens tokens;
  IntImage image;  // in device memory; values are null when every block makes its own
  IntShared at;
  IntTarget target;
  void* part_sums;     // [n_row_tiles][parts of a row][n_tokens][kIntTileRows], float or int32; of one part null
  unsigned* arrivals;  // [blocks of one part], zero between launches

  std::span<const std::byte> weights(IntKind kind) const {
    return {reinterpret_cast<const std::byte*>(tiles),
            size_t(target.n_row_tiles) * size_t(tokens.n_groups) * size_t(int_tile_bytes(kind))};
  }
};

/// A warp's sums of eight columns into [n_tokens][kIntSumPitch]; the two planes of a token, which lie in one lane, are
/// added.
template <class Sum>
__device__ void store_eight(const Sum (&of)[4], int planes, int n_tokens, int lane, Sum* to) {
  const int r = lane / 4, c = lane % 4;
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    const Sum first = of[2 * below], second = of[2 * below + 1];
    Sum* row = to + r + 8 * below;
    if (planes == 2) {
      if (c < n_tokens) row[c * kIntSumPitch] = first + second;
    } else {
      if (2 * c < n_tokens) row[2 * c * kIntSumPitch] = first;
      if (2 * c + 1 < n_tokens) row[(2 * c + 1) * kIntSumPitch] = second;
    }
  }
}

/// Those of all eights.
template <class Sum, int kTiles>
__device__ void store_eights(const Sum (&of)[kTiles][4], int planes, int n_tokens, int lane, Sum* to) {
  const int eight_tokens = planes == 2 ? 4 : 8;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
    store_eight(of[n], planes, n_tokens - n * eight_tokens, lane, to + n * eight_tokens * kIntSumPitch);
}

/// Sums of a lane: rows r, r and r + 8, r + 8; columns 2c, 2c + 1 of each eight.
template <IntKind kKind, int kTiles>
struct Sums;

/// Codes and scales of a tile that a lane reads.
template <IntKind kKind>
struct Tile;

template <>
struct Tile<IntKind::int4_g128> {
  uint4 pair[2];
  uint32_t scales;

  /// `mine` is 16 lane bytes into a tile.
  __device__ void load(const uint8_t* mine, int lane) {
    pair[0] = *reinterpret_cast<const uint4*>(mine);
    pair[1] = *reinterpret_cast<const uint4*>(mine + 512);
    scales = *reinterpret_cast<const uint32_t*>(mine - 16 * lane + 1024 + lane / 4 * 4);
  }
};
template <>
struct Tile<IntKind::ternary> {
  uint4 codes;

  __device__ void load(const uint8_t* mine, int) { codes = *reinterpret_cast<const uint4*>(mine); }
};

/// Offsets of the words that a lane gives to the mmas of a group: of mmas 0 and 1, and of mmas 2 and 3. With one eight
/// of columns, a missing column reads the last one; its sums go nowhere.
struct Columns {
  int first, second;  // offsets of the halves, in the first eight

  template <int kTiles>
  __device__ static Columns of_lane(int lane, int n_columns) {
    const int column = kTiles == 1 ? min(lane / 4, n_columns - 1) : lane / 4;
    const int at = column * kIntGroup + lane % 4 * 16;
    return {at + half_offset(column, 0), at + half_offset(column, 1)};
  }
};

template <int kTiles>
struct Sums<IntKind::int4_g128, kTiles> {
  float of[kTiles][4] = {};

  __device__ void begin() { *this = {}; }
  __device__ void store(float* to, int planes, int n_tokens, int lane) const {
    store_eights(of, planes, n_tokens, lane, to);
  }
  /// Adds a group: values and scales are those of the group, the latter from the lane's columns on. Of kTiles eights
  /// of columns, n_tiles are there.
  __device__ void add(const Tile<IntKind::int4_g128>& tile, const uint8_t* values, const float* scales,
                      const Columns& columns, int n_tiles) {
    uint32_t a[4][4];
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const uint32_t words[4] = {tile.pair[p].x, tile.pair[p].y, tile.pair[p].z, tile.pair[p].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) a[2 * p][i] = words[i] & 0xF0F0F0F0u, a[2 * p + 1][i] = words[i] << 4 & 0xF0F0F0F0u;
    }
    // Sums stay below 2^21 and start at the bits of kIntRound: they are floats, kIntRound larger, and kIntRound times a
    // scale of 11 bits is exact.
    const float2 scale = gpu::unpack_f16(tile.scales);
    const float2 less = make_float2(-kIntRound * scale.x, -kIntRound * scale.y);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (kTiles > 1 && n >= n_tiles) break;
      const uint4 b0 = *reinterpret_cast<const uint4*>(values + columns.first + n * 8 * kIntGroup);
      const uint4 b1 = *reinterpret_cast<const uint4*>(values + columns.second + n * 8 * kIntGroup);
      const float2 step = *reinterpret_cast<const float2*>(scales + 8 * n);
      int sum[4];
      gpu::mma_s8_from(__float_as_int(kIntRound), sum, a[0], b0.x, b0.y);
      gpu::mma_s8(sum, a[1], b0.z, b0.w);
      gpu::mma_s8(sum, a[2], b1.x, b1.y);
      gpu::mma_s8(sum, a[3], b1.z, b1.w);
      of[n][0] = __fmaf_rn(__fmaf_rn(__int_as_float(sum[0]), scale.x, less.x), step.x, of[n][0]);
      of[n][1] = __fmaf_rn(__fmaf_rn(__int_as_float(sum[1]), scale.x, less.x), step.y, of[n][1]);
      of[n][2] = __fmaf_rn(__fmaf_rn(__int_as_float(sum[2]), scale.y, less.y), step.x, of[n][2]);
      of[n][3] = __fmaf_rn(__fmaf_rn(__int_as_float(sum[3]), scale.y, less.y), step.y, of[n][3]);
    }
  }
};

template <int kTiles>
struct Sums<IntKind::ternary, kTiles> {
  int of[kTiles][4] = {};  // 64 times the sums

  __device__ void begin() { *this = {}; }
  __device__ void store(int* to, int planes, int n_tokens, int lane) const {
    store_eights(of, planes, n_tokens, lane, to);
  }
  __device__ void add(const Tile<IntKind::ternary>& tile, const uint8_t* values, const float*, const Columns& columns,
                      int n_tiles) {
    const uint32_t words[4] = {tile.codes.x, tile.codes.y, tile.codes.z, tile.codes.w};
    uint32_t a[4][4];
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i] = words[i] << (2 * m) & 0xC0C0C0C0u;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (kTiles > 1 && n >= n_tiles) break;
      const uint4 b0 = *reinterpret_cast<const uint4*>(values + columns.first + n * 8 * kIntGroup);
      const uint4 b1 = *reinterpret_cast<const uint4*>(values + columns.second + n * 8 * kIntGroup);
      gpu::mma_s8(of[n], a[0], b0.x, b0.y);
      gpu::mma_s8(of[n], a[1], b0.z, b0.w);
      gpu::mma_s8(of[n], a[2], b1.x, b1.y);
      gpu::mma_s8(of[n], a[3], b1.z, b1.w);
    }
  }
};

// --- The end of a tile ---

/// Values in device memory that an output needs besides its sum; asked for before the sum is made.
struct Ends {
  float row_scale, bias, y;
};

/// Loads the Ends of one lane's output; zeros where there is none.
template <IntKind kKind>
__device__ Ends load_ends(const IntTarget& w, int tile, int token, int row) {
  Ends ends = {};
  if (tile >= w.n_row_tiles || token >= w.n_tokens) return ends;
  if (kKind == IntKind::ternary) ends.row_scale = w.row_scale[tile * kIntTileRows + row];
  const int64_t at = w.output_row(int64_t(tile) * kIntTileRows + row);
  if (at >= w.n_out) return ends;
  if (w.bias) ends.bias = w.bias[at];
  if (w.output == IntOutput::add) ends.y = *w.place(token, at);
  return ends;
}

__device__ inline float product(float sum, float factor, float) { return __fmul_rn(sum, factor); }
__device__ inline float product(int sum, float factor, float row_scale) {
  return __fmul_rn(__fmul_rn(__int2float_rn(sum >> 6), factor), row_scale);
}

/// Lanes 0-15 and 16-31 hold the products of a token's 16 rows of tile `tile`.
template <IntKind kKind>
__device__ void write_outputs(const IntTarget& w, int tile, int token, int row, float p, const Ends& ends) {
  const bool gated = w.output == IntOutput::silu_glu || w.output == IntOutput::relu2_glu;
  if (gated) {
    const float up = __shfl_down_sync(gpu::kAllLanes, p, 8);
    const int64_t at = int64_t(tile) * 8 + row;
    if (row >= 8 || at >= w.n_out || token >= w.n_tokens) return;
    float gate = p < 0 ? 0 : p;  // keeps NaN
    if (w.output == IntOutput::relu2_glu) gate = __fmul_rn(gate, gate);
    else if (kKind == IntKind::ternary) gate = p / (1.0f + expf(-p));
    else gate = p * gpu::fast_reciprocal(1.0f + gpu::fast_exp2(-1.44269504f * p));
    *w.place(token, at) = __fmul_rn(gate, up);
    return;
  }
  const int64_t at = w.output_row(int64_t(tile) * kIntTileRows + row);
  if (at >= w.n_out || token >= w.n_tokens) return;
  if (w.bias) p = __fadd_rn(p, ends.bias);
  *w.place(token, at) = w.output == IntOutput::add ? __fadd_rn(ends.y, p) : p;
}

}  // namespace ridge
