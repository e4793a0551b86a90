// BitNet matrices: ternary codes with one scale, from master weights or from whatever format a file keeps them in.
#pragma once

#include "base/aligned.h"
#include "io/tensor.h"

namespace ridge {

/// i2_s rows [n_out, n_in] in units of `scale`.
struct TernaryMatrix {
  AlignedBuffer rows;
  float scale = 1;
};

/// The rule of BitNet b1.58 on master weights: scale = max(mean |W|, 1e-5) over the matrix, code = round(W / scale),
/// ties to even, clamped to -1..1. Fails on NaN and infinity and on rows that are no multiple of 128; messages have no
/// tensor name.
Result<TernaryMatrix> quantize_ternary(const io::Tensor& matrix);

/// A matrix that holds only -s, 0 and +s for one s (as converters write BitNet matrices in tq1_0, tq2_0, f16 ...), its
/// codes kept and scale = s. Anything else fails.
Result<TernaryMatrix> repack_ternary(const io::Tensor& matrix);

/// How a Hugging Face directory keeps the matrices of a BitNet model: `quantization_config` of its config.json.
enum class TernaryLayout {
  master,        ///< floats that quantize_ternary() rounds (quantization_mode "online", or nothing said)
  times_scale,   ///< packed codes; results are multiplied by weight_scale (linear_class "autobitlinear")
  divide_scale,  ///< packed codes; results are divided by weight_scale (linear_class "bitlinear", the default)
};

/// Reads it, with the defaults of transformers. Other classes and modes and a norm in front of every matmul fail by
/// name; `where` names the file.
Result<TernaryLayout> ternary_layout(std::string_view config_json, std::string_view where);

/// Packed codes [n_out / 4, n_in], bytes: bits 2 k and 2 k + 1 of byte [r, i] hold the code of row r + k n_out / 4,
/// column i, plus one (as transformers packs them). `scale` becomes the matrix's. Fails on a code of 3 and on
/// rows that are no multiple of 128; messages have no tensor name.
Result<TernaryMatrix> unpack_ternary(const io::Tensor& packed, float scale);

}  // namespace ridge
