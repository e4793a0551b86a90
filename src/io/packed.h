// Matrices that checkpoints keep as several tensors, codes apart from scales, into the rows of one weight format. A
// directory's tensors say which matrices are packed: excluded modules are plain tensors. M is [n_out, n_in]; in place
// of NAME.weight there are
//
//   ridge    NAME.qweight I32 [n_out, n_in/8]   nibble t of word (o, j): input 8j + t
//            NAME.scales F16 [n_out, n_in/128]  M = (q - 8) scale, groups of 128
//   gptq     NAME.qweight I32 [n_in/8, n_out]   nibble t of word (j, o): input 8j + t
//            NAME.scales F16 [n_groups, n_out]  M[o, i] = (q - zero[g, o]) scale[g, o], g = g_idx[i]
//            NAME.qzeros I32 [n_groups, n_out/8]  nibble t of word (g, j): zero of output 8j + t, less one (gptq_v2:
//            NAME.g_idx I32 [n_in], optional; without it g = i / group             the zero itself)
//   awq      NAME.qweight I32 [n_in, n_out/8]   nibble t of word (i, j): output 8j + {0,2,4,6,1,3,5,7}[t]
//            NAME.scales F16 [n_groups, n_out], NAME.qzeros I32 [n_groups, n_out/8] in the order of qweight
//   fp8      NAME.weight F8_E4M3 [n_out, n_in], NAME.weight_scale_inv or .weight_scale F32, F16 or BF16
//            [ceil(n_out/r), ceil(n_in/c)]      M[o, i] = weight scale[o/r, i/c], blocks cut off at the edges;
//                                               [n_out, 1] has a scale of every row, [1] one of the matrix
//   nvfp4    NAME.weight U8 [n_out, n_in/2], NAME.weight_scale F8_E4M3 [n_out, n_in/16], NAME.weight_scale_2 F32 [1]
//            M[o, i] = e2m1 weight_scale[o, i/16] weight_scale_2; even i in the low nibble (ModelOpt)
//            NAME.weight_packed, .weight_scale, .weight_global_scale: the same, divided by the global scale
//            (compressed-tensors)
//
// What becomes of them, every value kept: int4_g128 where all zeros are 8 and groups are 128 inputs (or several), q4_0
// where all are 8 and groups are of another multiple of 32, else q5_0, whose codes have room for code - zero; fp8
// becomes fp8_g32, or f32 where 32 divides neither rows nor blocks; nvfp4 becomes nvfp4. One format serves all int4
// matrices of a checkpoint. Where g_idx is not in order (act-order), columns are sorted by their groups, and
// Tensor::order says where they came from. Scales of activations (input_scale, input_global_scale) are left out:
// activations stay floats.
// Sources: AutoGPTQ's, AutoAWQ's, DeepSeek's, ModelOpt's and compressed-tensors' checkpoints as published.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "io/tensor.h"

namespace ridge::io {

enum class Int4Layout : uint8_t { none, ridge, gptq, gptq_v2, awq };

/// What quantization_config of a config.json says about packed matrices.
struct Packing {
  std::string method;  ///< quant_method; empty without one, and for methods that other code reads (bitnet, mxfp4)
  Int4Layout int4 = Int4Layout::none;
  int64_t group = 0;          ///< inputs under a scale of int4; 0: all
  bool ordered = true;        ///< whether groups are in order; else every int4 matrix needs its g_idx
  int64_t block_rows = 0;     ///< of fp8; 0: the shape of the scales says it
  int64_t block_columns = 0;  ///< likewise
};
/// Fails on methods, bits and layouts that are not read, naming the field. Without a quantization_config counts what
/// `hf_quant_config_json` says, "" where there is none: older checkpoints of ModelOpt have that file alone.
Result<Packing> read_packing(std::string_view config_json, std::string_view hf_quant_config_json,
                             std::string_view where);

/// The quantization_config that names layout `ridge`.
inline constexpr std::string_view kRidgeQuantizationConfig =
    R"({"quant_method":"ridge-int4","bits":4,"group_size":128,"sym":true})";

/// Puts one tensor NAME.weight in place of the parts of every packed matrix; its bytes are in `buffers`. Fails on
/// parts that are missing, of other shapes or types, on scales that are not finite and on groups that do not exist,
/// naming the matrix. Returns what was done, for people; empty where nothing was.
Result<std::string> unpack_tensors(const Packing& packing, std::vector<Tensor>& tensors,
                                   std::vector<AlignedBuffer>& buffers, std::string_view where);

/// int4_g128 blocks to the tensors of layout `ridge`: the words of qweight or the halves of scales of `n_blocks`.
void pack_ridge_qweight(const std::byte* blocks, int64_t n_blocks, std::byte* words);
void pack_ridge_scales(const std::byte* blocks, int64_t n_blocks, std::byte* scales);

}  // namespace ridge::io
