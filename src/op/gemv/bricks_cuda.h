// Weights on the device in the order in which tensor cores take them: bricks.
//
// A brick is 16 rows (a tile) times as many columns as its format puts together, its bytes one after another: codes,
// then scales. Codes lie so that a lane's 16 bytes are its A fragments of mma.m16n8k16 (gpu/tensor.h), see
// brick_parts_cuda.h. Nothing is rounded: the codes and scales are the file's, and a brick has as many bytes as its
// blocks have in the file (nvfp4: 16 more, for the scale of the matrix). Bricks of a tile follow one another, then
// comes the next tile. Rows are padded to whole tiles and columns to whole bricks, with weights that are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "gpu/device.h"

namespace ridge {

enum class BrickFormat {
  f16,
  bf16,
  fp8_g32,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  nvfp4,
  mxfp4,
  iq4_nl,
  iq4_xs,
  int4_g128
};

/// By the weight format's name (format/list.h); nothing when there are no bricks of it.
std::optional<BrickFormat> find_brick_format(std::string_view weight_format);

inline constexpr int kBrickRows = 16;
inline constexpr int kMostBrickParts = 4;

/// Matrices of one format and n_in that are multiplied with the same x in one launch, one after another in bricks.
struct BrickMatrix {
  BrickFormat format = BrickFormat::f16;
  int64_t n_in = 0;
  int n_parts = 0;
  int64_t n_out[kMostBrickParts] = {};  ///< of each part
  /// Gate and up of a GLU: every part is two matrices of n_out rows, whose rows 8i .. 8i+7 are the upper and the lower
  /// half of tile i.
  bool paired = false;
  gpu::Buffer data;

  int brick_columns() const;  ///< of the format
  int brick_bytes() const;
  int64_t bricks_per_tile() const;
  /// Tiles before part `part`; of all parts for part = n_parts.
  int64_t first_tile(int part) const;
  int64_t n_tiles() const { return first_tile(n_parts); }
  int64_t rows_per_tile() const { return paired ? kBrickRows / 2 : kBrickRows; }
  /// Bytes of the bricks, all of which a matmul reads.
  int64_t bytes() const { return n_tiles() * bricks_per_tile() * brick_bytes(); }
  std::span<const std::byte> all_data() const { return {data.as<std::byte>(), size_t(data.bytes())}; }
};

/// A matrix with everything but `data`, which takes bytes(). n_in must be a multiple of the format's group.
BrickMatrix plan_brick_matrix(BrickFormat format, int64_t n_in, std::span<const int64_t> n_out, bool paired = false);
/// Makes the matrix of plan_brick_matrix() with room for its bricks, all zero.
BrickMatrix make_brick_matrix(BrickFormat format, int64_t n_in, std::span<const int64_t> n_out, bool paired = false);

/// Whether bricks of the format keep a scale of the whole matrix.
bool keeps_matrix_scale(BrickFormat format);

/// Rows of a matrix in device memory, blocks as in the file, and the scale of the whole matrix, which is 1 but in
/// formats that keep it.
struct BrickSource {
  BrickSource(const void* from = nullptr, float of_matrix = 1) : rows(from), scale(of_matrix) {}
  const void* rows;
  float scale;
};

/// Part `part` of a matrix, whose data may hold several of them, one after another.
struct BrickPart {
  BrickPart(int number, int64_t of_matrix = 0) : part(number), matrix(of_matrix) {}
  int part;
  int64_t matrix;
};

/// Fills the tiles of a part that hold its rows first_row .. first_row + n_rows - 1: `rows`; `up_rows` are those of the
/// second matrix when paired, whose first one is the gate. first_row must be a multiple of rows_per_tile(), n_rows too
/// unless the part ends there. The rows may be freed or changed when the stream has come past this.
void device_fill_bricks(gpu::StreamHandle stream, const BrickMatrix& matrix, BrickPart part, int64_t first_row,
                        int64_t n_rows, BrickSource rows, BrickSource up_rows = {});

}  // namespace ridge
