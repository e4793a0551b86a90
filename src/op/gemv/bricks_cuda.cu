#include "op/gemv/bricks_cuda.h"

#include "op/gemv/brick_formats_cuda.h"

namespace ridge {
namespace {

using namespace bricks;

constexpr int kThreads = 128;

/// A warp writes a brick. Rows of the tile: rows + i (i < 8) and second + i - 8, where they exist.
template <class F>
__global__ void __launch_bounds__(kThreads)
    fill_kernel(int64_t n_bricks, int64_t bricks_per_tile, int64_t n_in, int64_t n_rows, int rows_per_tile,
                const typename F::Block* rows, const typename F::Block* second, float2 matrix_scales, uint8_t* to) {
  const int64_t i = int64_t(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (i >= n_bricks) return;
  const int lane = int(threadIdx.x) % 32;
  const int64_t tile = i / bricks_per_tile, brick = i % bricks_per_tile;
  const int64_t blocks_per_row = n_in / F::kGroup;
  const auto row_of = [&](int row) -> const typename F::Block* {
    const int64_t index = tile * rows_per_tile + row % rows_per_tile;
    if (index >= n_rows) return nullptr;
    return (row < rows_per_tile ? rows : second) + index * blocks_per_row;
  };
  const typename F::Block* const mine[2] = {row_of(lane / 4), row_of(lane / 4 + 8)};
  F::put(
      [&](int step, int e) -> uint32_t {
        const int64_t k = brick * F::kColumns + 16 * step + 2 * (lane % 4) + e % 2 + 8 * (e / 4);
        const typename F::Block* row = mine[e / 2 % 2];
        return row && k < n_in ? F::code(row, k) : 0u;
      },
      lane, to + i * F::kBytes);
  if constexpr (F::kHasMatrixScale) {
    if (lane == 0) F::put_matrix_scale(0, matrix_scales.x, to + i * F::kBytes);
    if (lane == 0) F::put_matrix_scale(1, matrix_scales.y, to + i * F::kBytes);
  }
  if constexpr (F::kScaleSteps > 0) {
    if (lane >= kBrickRows) return;
    const int64_t first = brick * (F::kColumns / F::kGroup);
    const typename F::Block* row = row_of(lane);
    F::put_scales(row ? row + first : nullptr, row ? blocks_per_row - first : 0, lane, to + i * F::kBytes);
  }
}

}  // namespace

std::optional<BrickFormat> find_brick_format(std::string_view weight_format) {
  constexpr std::pair<std::string_view, BrickFormat> kFormats[] = {
      {F16::kName, BrickFormat::f16},         {BF16::kName, BrickFormat::bf16},
      {FP8_G32::kName, BrickFormat::fp8_g32}, {Q8_0::kName, BrickFormat::q8_0},
      {Q4_0::kName, BrickFormat::q4_0},       {Q4_1::kName, BrickFormat::q4_1},
      {Q5_0::kName, BrickFormat::q5_0},       {Q5_1::kName, BrickFormat::q5_1},
      {Q2_K::kName, BrickFormat::q2_k},       {Q3_K::kName, BrickFormat::q3_k},
      {Q4_K::kName, BrickFormat::q4_k},       {Q5_K::kName, BrickFormat::q5_k},
      {Q6_K::kName, BrickFormat::q6_k},       {NVFP4::kName, BrickFormat::nvfp4},
      {MXFP4::kName, BrickFormat::mxfp4},     {IQ4_NL::kName, BrickFormat::iq4_nl},
      {IQ4_XS::kName, BrickFormat::iq4_xs},   {Int4G128::kName, BrickFormat::int4_g128}};
  for (const auto& [name, format] : kFormats)
    if (name == weight_format) return format;
  return std::nullopt;
}

int BrickMatrix::brick_columns() const {
  return with_format(format, [](auto f) { return decltype(f)::kColumns; });
}
int BrickMatrix::brick_bytes() const {
  return with_format(format, [](auto f) { return decltype(f)::kBytes; });
}
bool keeps_matrix_scale(BrickFormat format) {
  return with_format(format, [](auto f) { return decltype(f)::kHasMatrixScale; });
}
int64_t BrickMatrix::bricks_per_tile() const { return gpu::ceil_div(n_in, brick_columns()); }
int64_t BrickMatrix::first_tile(int part) const {
  int64_t tiles = 0;
  for (int i = 0; i < part; ++i) tiles += gpu::ceil_div(n_out[i], rows_per_tile());
  return tiles;
}

BrickMatrix plan_brick_matrix(BrickFormat format, int64_t n_in, std::span<const int64_t> n_out, bool paired) {
  const int group = with_format(format, [](auto f) { return decltype(f)::kGroup; });
  expect(n_in > 0 && n_in % group == 0, "bricks: rows are not of whole groups");
  expect(!n_out.empty() && n_out.size() <= kMostBrickParts, "bricks: too many parts or none");
  BrickMatrix matrix{.format = format, .n_in = n_in, .n_parts = int(n_out.size()), .paired = paired};
  for (size_t i = 0; i < n_out.size(); ++i) {
    expect(n_out[i] > 0, "bricks: a part without rows");
    matrix.n_out[i] = n_out[i];
  }
  return matrix;
}

BrickMatrix make_brick_matrix(BrickFormat format, int64_t n_in, std::span<const int64_t> n_out, bool paired) {
  BrickMatrix matrix = plan_brick_matrix(format, n_in, n_out, paired);
  matrix.data = gpu::Buffer(matrix.bytes());
  return matrix;
}

void device_fill_bricks(gpu::StreamHandle stream, const BrickMatrix& matrix, BrickPart of, int64_t first_row,
                        int64_t n_rows, BrickSource rows, BrickSource up_rows) {
  const int64_t per_tile = matrix.rows_per_tile();
  const int part = of.part;
  expect(part >= 0 && part < matrix.n_parts && first_row >= 0 && first_row % per_tile == 0 && n_rows > 0 &&
             first_row + n_rows <= matrix.n_out[part] &&
             (n_rows % per_tile == 0 || first_row + n_rows == matrix.n_out[part]),
         "bricks: rows that are not of the part or cut its tiles");
  expect(matrix.paired == (up_rows.rows != nullptr), "bricks: one matrix for a pair or two for one");
  expect(keeps_matrix_scale(matrix.format) || (rows.scale == 1 && up_rows.scale == 1),
         "bricks: the format has no scale of the whole matrix");
  const int64_t per_row = matrix.bricks_per_tile(), n_bricks = gpu::ceil_div(n_rows, per_tile) * per_row;
  const int64_t first_brick = (of.matrix * matrix.n_tiles() + matrix.first_tile(part) + first_row / per_tile) * per_row;
  const float2 scales = {rows.scale, matrix.paired ? up_rows.scale : rows.scale};
  with_format(matrix.format, [&](auto f) {
    using F = decltype(f);
    using Block = typename F::Block;
    gpu::launch("fill_bricks", fill_kernel<F>, {unsigned(gpu::ceil_div(n_bricks, kThreads / 32)), kThreads, 0, stream},
                n_bricks, per_row, matrix.n_in, n_rows, int(per_tile), static_cast<const Block*>(rows.rows),
                static_cast<const Block*>(up_rows.rows), scales, matrix.data.as<uint8_t>() + first_brick * F::kBytes);
  });
}

}  // namespace ridge
