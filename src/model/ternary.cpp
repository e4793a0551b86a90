#include "model/ternary.h"

#include <cmath>

#include "format/i2_s.h"
#include "format/list.h"

namespace ridge {
namespace {

/// Decodes row by row: fn(row index, values) gives a Status.
template <class Fn>
Status for_rows(const io::Tensor& matrix, const Fn& fn) {
  const int64_t n_in = matrix.shape.back();
  std::vector<float> row(size_t(n_in), 0.0f);
  for (int64_t r = 0; r < matrix.shape[0]; ++r) {
    matrix.format->decode(matrix.data.data() + r * matrix.format->row_bytes(n_in), n_in, row.data());
    RIDGE_TRY_STATUS(fn(r, std::span<float>(row)));
  }
  return {};
}

/// Encodes every row divided by the scale (0 counts as 1).
Result<TernaryMatrix> encode(const io::Tensor& matrix, float scale) {
  const int64_t n_in = matrix.shape.back();
  if (n_in % I2_S::kGroup != 0)
    return bad_file("has rows of {} elements, ternary matrices need a multiple of {}", n_in, I2_S::kGroup);
  const WeightFormat& i2_s = *weight_format_of_gguf(I2_S::kGgufType);
  TernaryMatrix ternary{AlignedBuffer(matrix.shape[0] * i2_s.row_bytes(n_in)), scale};
  RIDGE_TRY_STATUS(for_rows(matrix, [&](int64_t r, std::span<float> row) -> Status {
    if (scale > 0)
      for (float& weight : row) weight /= scale;
    i2_s.encode(row.data(), n_in, ternary.rows.data() + r * i2_s.row_bytes(n_in));
    return {};
  }));
  return ternary;
}

}  // namespace

Result<TernaryMatrix> quantize_ternary(const io::Tensor& matrix) {
  double sum = 0;
  RIDGE_TRY_STATUS(for_rows(matrix, [&](int64_t r, std::span<float> row) -> Status {
    double of_row = 0;
    for (const float weight : row) of_row += std::abs(weight);
    if (!std::isfinite(of_row)) return bad_file("row {} holds a NaN or an infinity", r);
    sum += of_row;
    return {};
  }));
  const double mean = sum / double(matrix.shape[0] * matrix.shape.back());
  return encode(matrix, std::max(float(mean), 1e-5f));
}

Result<TernaryMatrix> repack_ternary(const io::Tensor& matrix) {
  float scale = 0;
  RIDGE_TRY_STATUS(for_rows(matrix, [&](int64_t r, std::span<float> row) -> Status {
    for (size_t i = 0; i < row.size(); ++i) {
      const float size = std::abs(row[i]);
      if (scale == 0 && std::isfinite(size)) scale = size;
      if (size != 0 && size != scale)
        return bad_file(
            "is not ternary: row {} column {} is {} beside {} elsewhere (a BitNet matrix holds -s, 0 and +s for one s; "
            "master weights are quantised from a Hugging Face directory only)",
            r, i, row[i], scale);
    }
    return {};
  }));
  return encode(matrix, scale);
}

}  // namespace ridge
