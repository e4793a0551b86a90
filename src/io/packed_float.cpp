#include <cmath>
#include <cstring>

#include "format/fp8_g32.h"
#include "format/list.h"
#include "format/nvfp4.h"
#include "io/packed_parts.h"

namespace ridge::io {
namespace {

/// Rows and columns of an fp8 matrix that share one scale.
struct ScaleBlocks {
  int64_t rows, columns;
};

int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

Result<ScaleBlocks> scale_blocks(const Packing& packing, const Tensor& scales, int64_t n_out, int64_t n_in) {
  const std::vector<int64_t>& shape = scales.shape;
  if (shape == std::vector<int64_t>{1}) return ScaleBlocks{n_out, n_in};
  const bool of_rows = shape == std::vector{n_out} || shape == std::vector<int64_t>{n_out, 1};
  const int64_t rows = packing.block_rows, columns = packing.block_columns;
  if (rows > 0 && shape == std::vector{ceil_div(n_out, rows), ceil_div(n_in, columns)})
    return ScaleBlocks{rows, columns};
  if (of_rows && rows == 0) return ScaleBlocks{1, n_in};
  const std::string expected = rows > 0 ? fmt::format("[{}, {}]", ceil_div(n_out, rows), ceil_div(n_in, columns))
                                        : fmt::format("[1] or [{}, 1]", n_out);
  return bad_file("weight_scale_inv is [{}], expected {}", fmt::join(shape, ", "), expected);
}

}  // namespace

Result<UnpackedMatrix> unpack_fp8(const Packing& packing, const PackedMatrix& m) {
  if (m.codes->shape.size() != 2) return bad_file("weight has {} dimensions, expected 2", m.codes->shape.size());
  if (!m.scales) return bad_file("weight_scale_inv is missing");
  const int64_t n_out = m.codes->shape[0], n_in = m.codes->shape[1];
  RIDGE_TRY(const ScaleBlocks blocks, scale_blocks(packing, *m.scales, n_out, n_in));
  RIDGE_TRY(const std::vector<float> scales, finite_values("weight_scale_inv", *m.scales));
  const auto* const codes = reinterpret_cast<const uint8_t*>(m.codes->data.data());
  for (int64_t i = 0; i < n_out * n_in; ++i)
    if (e4m3_is_nan(codes[i])) return bad_file("weight holds a NaN in row {} column {}", i / n_in, i % n_in);

  const int64_t n_columns = ceil_div(n_in, blocks.columns);
  const auto scale_of = [&](int64_t row, int64_t column) {
    return scales[size_t(row / blocks.rows * n_columns + column / blocks.columns)];
  };
  constexpr int kGroup = FP8_G32::kGroup;
  const bool fits = n_in % kGroup == 0 && (blocks.columns % kGroup == 0 || blocks.columns >= n_in);
  UnpackedMatrix to{
      .format = fits ? *find_weight_format(FP8_G32::kName) : weight_format_of_gguf(0), .n_out = n_out, .n_in = n_in};
  to.rows = AlignedBuffer(n_out * to.format->row_bytes(n_in));
  if (!fits) {
    auto* value = to.rows.as<float>();
    for (int64_t i = 0; i < n_out * n_in; ++i) value[i] = e4m3_value(codes[i]) * scale_of(i / n_in, i % n_in);
    return to;
  }
  auto* block = to.rows.as<FP8_G32::Block>();
  for (int64_t row = 0; row < n_out; ++row)
    for (int64_t column = 0; column < n_in; column += kGroup, ++block) {
      block->scale = scale_of(row, column);
      std::memcpy(block->q, codes + row * n_in + column, kGroup);
    }
  return to;
}

Result<UnpackedMatrix> unpack_nvfp4(const PackedMatrix& m) {
  if (m.codes->shape.size() != 2) return bad_file("weight has {} dimensions, expected 2", m.codes->shape.size());
  const int64_t n_out = m.codes->shape[0], n_in = 2 * m.codes->shape[1];
  if (n_in % NVFP4::kGroup != 0)
    return bad_file("weight has rows of {} inputs, expected a multiple of {}", n_in, NVFP4::kGroup);
  RIDGE_TRY_STATUS(check_part("weight_scale", m.scales, packed_e4m3(), {n_out, n_in / 16}));
  const std::string_view global = m.divides ? "weight_global_scale" : "weight_scale_2";
  if (!m.global_scale) return bad_file("{} is missing", global);
  RIDGE_TRY(const std::vector<float> scale, finite_values(global, *m.global_scale));
  if (scale.size() != 1 || !(scale[0] > 0) || !std::isfinite(1 / scale[0]))
    return bad_file("{} has {} values, the first of which is {}, expected one above 0", global, scale.size(), scale[0]);

  UnpackedMatrix to{.format = *find_weight_format(NVFP4::kName), .n_out = n_out, .n_in = n_in};
  to.rows = AlignedBuffer(n_out * to.format->row_bytes(n_in));
  to.scale = m.divides ? 1 / scale[0] : scale[0];
  const auto *codes = reinterpret_cast<const uint8_t*>(m.codes->data.data()),
             *scales = reinterpret_cast<const uint8_t*>(m.scales->data.data());
  auto* block = to.rows.as<NVFP4::Block>();
  for (int64_t i = 0; i < n_out * n_in; i += NVFP4::kGroup, ++block, codes += 32, scales += 4) {
    std::memcpy(block->scales, scales, sizeof block->scales);
    if (NVFP4::problem(*block)) return bad_file("weight_scale holds a NaN in row {}", i / n_in);
    for (int at = 0; at < NVFP4::kGroup; ++at) NVFP4::put_code(codes[at / 2] >> (at % 2 * 4) & 0xF, at, *block);
  }
  return to;
}

}  // namespace ridge::io
