// Integer weights on the device, in the order of the tensor cores' fragments: int4_g128 and ternary; the k-quants and
// formats of 32 columns a scale lie in bricks (op/gemv/bricks_cuda.h).
//
// A tile is 16 rows times 128 columns (a group), int_tile_bytes(kind) long; the tiles of 16 rows follow one another, so
// that rows are read as one stream. Rows past the last are zero. Lane 4 r + c of a warp owns rows r and r + 8 of a
// tile. An mma of depth 32 takes four bytes (k = 4 c .. 4 c + 3, and 16 more) of each of them: with word i of a
// lane for row r + 8 (i % 2), byte e of it belongs to column 32 m + 16 (i / 2) + 4 c + e, m being the mma, 0 to 3.
//   int4_g128  bytes 512 p + 16 lane + 4 i + e: nibbles of mma 2 p (high) and 2 p + 1 (low), two's complement; at 1024
//              the 16 scales as fp16, those of rows r and r + 8 beside each other. 1056 bytes
//   ternary    bytes 16 lane + 4 i + e: two's complement codes of mma 0, 1, 2, 3 from bits 7-6 down. 512 bytes
// A value at the top of its byte is 16 (64) times itself as a signed byte: a mask makes an operand of the mma, or a
// shift and a mask, and nothing has to be subtracted.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "gpu/device.h"

namespace ridge {

enum class IntKind : uint8_t { int4_g128, ternary, q4_k, q5_k, q6_k, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl };
constexpr bool is_brick_kind(IntKind kind) { return kind >= IntKind::q4_k; }
/// The kind of a weight format that has one, by its name (format/list.h); for constants.
constexpr IntKind int_kind_of(std::string_view format) {
  constexpr std::string_view kNames[] = {"int4_g128", "i2_s", "q4_k", "q5_k", "q6_k",  "q8_0",
                                         "q4_0",      "q4_1", "q5_0", "q5_1", "iq4_nl"};
  int i = 0;
  while (kNames[i] != format) ++i;  // past the last one the compiler refuses it
  return IntKind(i);
}
/// Bricks of super-blocks of 256 columns, or of blocks of 32, four in a row of a brick.
constexpr bool is_super_block_kind(IntKind kind) { return is_brick_kind(kind) && kind <= IntKind::q6_k; }
constexpr bool is_block_kind(IntKind kind) { return kind >= IntKind::q8_0; }
/// Whether weights are scale * code + min, instead of scale * (code - zero).
constexpr bool has_min(IntKind kind) {
  return kind == IntKind::q4_k || kind == IntKind::q5_k || kind == IntKind::q4_1 || kind == IntKind::q5_1;
}

inline constexpr int kIntGroup = 128, kIntTileRows = 16;
/// Columns of a tile, which share a step of an activation's integers.
constexpr int int_group(IntKind kind) { return is_super_block_kind(kind) ? 256 : kIntGroup; }
constexpr int int_tile_bytes(IntKind kind) {
  switch (kind) {
    case IntKind::int4_g128: return 1056;
    case IntKind::ternary: return 512;
    case IntKind::q4_k: return 2304;
    case IntKind::q5_k: return 2816;
    case IntKind::q6_k: return 3360;
    case IntKind::q8_0: return 2176;
    case IntKind::q4_0: return 1152;
    case IntKind::q4_1: return 1280;
    case IntKind::q5_0: return 1408;
    case IntKind::q5_1: return 1536;
    case IntKind::iq4_nl: return 1152;
  }
  return 0;
}
/// Scales of a row of a brick.
constexpr int int_sub_blocks(IntKind kind) { return is_block_kind(kind) ? 4 : kind == IntKind::q6_k ? 16 : 8; }

/// A row-major matrix on the device: Int4G128 blocks, or I2_S blocks with Linear::scale.
struct IntRows {
  const void* rows;
  int64_t n_out;
  float scale = 1;
};

/// Matrices that are multiplied by the same vector, packed: one below the other, or, when `gated`, rows of two
/// matrices alternating in eights (gate row i is row i % 8 of tile i / 8, up row i is 8 further down).
struct IntWeights {
  IntKind kind = IntKind::int4_g128;
  bool gated = false;
  int64_t n_out = 0;  ///< outputs per token: rows of all matrices, or rows of the gate
  int64_t n_in = 0;
  gpu::Buffer tiles;      ///< [n_row_tiles][n_groups] tiles
  gpu::Buffer row_scale;  ///< ternary: [16 n_row_tiles] float32, of the row's matrix

  int64_t n_groups() const { return n_in / kIntGroup; }
  int64_t n_row_tiles() const { return (n_out + (gated ? 7 : 15)) / (gated ? 8 : 16); }
  int64_t tile_bytes() const { return n_row_tiles() * n_groups() * int_tile_bytes(kind); }
  int64_t row_scale_bytes() const { return kind == IntKind::ternary ? 4 * kIntTileRows * n_row_tiles() : 0; }
  /// Bytes of the weights that a matmul reads.
  int64_t bytes() const { return tile_bytes() + row_scale_bytes(); }
};

/// Packs on the stream; the rows may go when it has run. n_in is a multiple of 128; `gated` takes two matrices of as
/// many rows. Codes of i2_s are 0, 1 and 2. Throws Error(no_memory).
IntWeights pack_int_weights(gpu::StreamHandle stream, IntKind kind, int64_t n_in, std::span<const IntRows> matrices,
                            bool gated = false);

}  // namespace ridge
