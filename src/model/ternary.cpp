#include "model/ternary.h"

#include <algorithm>
#include <cmath>

#include "format/i2_s.h"
#include "format/list.h"
#include "io/json.h"

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

auto bad_row_size(int64_t n_in) {
  return bad_file("has rows of {} elements, ternary matrices need a multiple of {}", n_in, I2_S::kGroup);
}

/// Encodes every row divided by the scale (0 counts as 1).
Result<TernaryMatrix> encode(const io::Tensor& matrix, float scale) {
  const int64_t n_in = matrix.shape.back();
  if (n_in % I2_S::kGroup != 0) return bad_row_size(n_in);
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

Result<TernaryLayout> ternary_layout(std::string_view config_json, std::string_view where) {
  RIDGE_TRY(const io::Json json, io::parse_json(config_json, where));
  const auto found = json.is_object() ? json.find("quantization_config") : json.end();
  if (found == json.end() || found->is_null()) return TernaryLayout::master;
  if (!found->is_object()) return bad_file("{}: quantization_config is not an object", where);
  const auto field = [&](const char* key, io::Json otherwise) {
    const auto value = found->find(key);
    return value == found->end() || value->is_null() ? otherwise : *value;
  };
  const io::Json method = field("quant_method", "bitnet"), mode = field("quantization_mode", "offline"),
                 linear = field("linear_class", "bitlinear"), has_norm = field("use_rms_norm", false);
  const auto refused = [&](const char* key, const io::Json& value, const char* expected) {
    return bad_file("{}: quantization_config.{} is {}, expected {} for a BitNet model", where, key, value.dump(),
                    expected);
  };
  if (method != "bitnet") return refused("quant_method", method, "\"bitnet\"");
  if (has_norm != false) return refused("use_rms_norm", has_norm, "false");
  if (linear != "bitlinear" && linear != "autobitlinear")
    return refused("linear_class", linear, "\"bitlinear\" or \"autobitlinear\"");
  // Only the second class knows modes.
  if (linear == "bitlinear") return TernaryLayout::divide_scale;
  if (mode != "online" && mode != "offline") return refused("quantization_mode", mode, "\"online\" or \"offline\"");
  return mode == "online" ? TernaryLayout::master : TernaryLayout::times_scale;
}

Result<TernaryMatrix> unpack_ternary(const io::Tensor& packed, float scale) {
  const int64_t n_packed = packed.shape[0], n_in = packed.shape.back();
  if (n_in % I2_S::kGroup != 0) return bad_row_size(n_in);
  const WeightFormat& i2_s = *weight_format_of_gguf(I2_S::kGgufType);
  const int64_t row_bytes = i2_s.row_bytes(n_in);
  TernaryMatrix ternary{AlignedBuffer(4 * n_packed * row_bytes), scale};
  std::vector<float> row(size_t(n_in), 0.0f);
  for (int64_t r = 0; r < 4 * n_packed; ++r) {
    const std::byte* const bytes = packed.data.data() + r % n_packed * n_in;
    for (int64_t i = 0; i < n_in; ++i) {
      const int code = int(bytes[i]) >> 2 * (r / n_packed) & 3;
      if (code == 3) return bad_file("has a code of 3 in row {} column {}, expected 0, 1 or 2", r, i);
      row[size_t(i)] = float(code - 1);
    }
    i2_s.encode(row.data(), n_in, ternary.rows.data() + r * row_bytes);
  }
  return ternary;
}

}  // namespace ridge
