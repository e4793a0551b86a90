// 4-bit matrices as safetensors checkpoints pack them, into rows of format int4_g128. Every layout's 32-bit words hold
// eight codes, nibble t at bits 4t .. 4t+3; scales are F16, one per 128 inputs. In place of NAME.weight there are:
//
//   ridge    NAME.qweight [n_out, n_in/8]   word j of a row holds inputs 8j + t
//            NAME.scales  [n_out, n_in/128]
//   gptq     NAME.qweight [n_in/8, n_out]   word (j, o) holds inputs 8j + t of output o
//            NAME.scales  [n_in/128, n_out]
//            NAME.qzeros  [n_in/128, n_out/8]  nibble t: zero of output 8j + t, less one (gptq_v2: the zero itself)
//            NAME.g_idx   [n_in], optional  group of every input
//   awq      NAME.qweight [n_in, n_out/8]   nibble t of word (i, j): input i, output 8j + {0,2,4,6,1,3,5,7}[t]
//            NAME.scales  [n_in/128, n_out]
//            NAME.qzeros  [n_in/128, n_out/8]  zeros, in the order of qweight
//
// Only what int4_g128 holds exactly is taken: 4 bits, groups of 128 in their natural order, every zero 8. Anything else
// is refused with the reason. Sources: AutoGPTQ's and AutoAWQ's checkpoints as published.
#pragma once

#include <string_view>

#include "io/tensor.h"

namespace ridge::io {

enum class Int4Layout : uint8_t { none, ridge, gptq, gptq_v2, awq };

/// What quantization_config of a config.json says; `none` without one, and for methods that other code reads (bitnet).
/// Fails on methods, bits and groups that do not map onto int4_g128.
Result<Int4Layout> int4_layout(std::string_view config_json, std::string_view where);

/// The quantization_config that names layout `ridge`.
inline constexpr std::string_view kRidgeQuantizationConfig =
    R"({"quant_method":"ridge-int4","bits":4,"group_size":128,"sym":true})";

/// The tensors of one matrix, nullptr where the file has none.
struct Int4Matrix {
  const Tensor* qweight = nullptr;
  const Tensor* scales = nullptr;
  const Tensor* qzeros = nullptr;
  const Tensor* g_idx = nullptr;
};

/// Checks shapes, dtypes, zeros and order; the message starts with the fault ("scales is missing").
Status check_int4(Int4Layout layout, const Int4Matrix& matrix, int64_t n_out, int64_t n_in);
/// Writes the row-major int4_g128 blocks of a checked matrix: n_out * n_in / 128 * 66 bytes.
void unpack_int4(Int4Layout layout, const Int4Matrix& matrix, int64_t n_out, int64_t n_in, std::byte* blocks);

/// int4_g128 blocks to the tensors of layout `ridge`: the words of qweight or the halves of scales of `n_blocks`.
void pack_ridge_qweight(const std::byte* blocks, int64_t n_blocks, std::byte* words);
void pack_ridge_scales(const std::byte* blocks, int64_t n_blocks, std::byte* scales);

}  // namespace ridge::io
