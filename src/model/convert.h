// Model conversion: a Hugging Face directory or a GGUF file in, a GGUF file with another weight format out; or, for
// int4_g128, a Hugging Face directory in and out.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "format/list.h"

namespace ridge {

/// What `ridge quantize --type` may name: a format for all matrices, or one of GGUF's published mixes.
struct QuantizeType {
  QuantizeType(const WeightFormat& all) : format(&all), better(&all) {}
  const WeightFormat* format;
  const WeightFormat* better;  ///< of a mix: the output matrix, and attn_v and ffn_down of about half the layers
  bool requantizes = false;    ///< may round matrices that are compressed already
  int n_threads = 0;           ///< that encode; 0: one per processor. The bytes are the same.
};
/// Whether attn_v and ffn_down of this layer get the better format: the first and last eighth of the layers and every
/// third between.
bool gets_better(int layer, int n_layers);
/// By name; the failure lists the names there are.
Result<QuantizeType> find_quantize_type(std::string_view name);
std::string quantize_type_names();

/// A matrix that could not get the format it was meant to have, because the group does not divide its rows.
struct Fallback {
  std::string tensor;
  const WeightFormat* wanted;
  const WeightFormat* got;
  int64_t n_in;
};

/// What was written.
struct Converted {
  std::vector<Fallback> fallbacks;
  int64_t n_weights = 0, n_bytes = 0;  ///< of all tensors; bytes as stored
  int n_requantized = 0;               ///< matrices that were compressed already and were rounded a second time
};

/// Writes `out` and says what is in it, with the matrices that fell back to another format. Matrices get the format of
/// `type`; norms and biases stay f32. Rows whose length the group does not divide get the format GGUF writers fall back
/// to: q5_0 for q4_k, q5_1 for q5_k, q8_0 for q6_k, iq4_nl for iq4_xs and nvfp4, and f16 where even 32 does not divide
/// them. Each matrix of nvfp4 has its scale in a tensor NAME.scale behind it (one value an expert); an embedding is
/// q8_0 there. Matrices in nvfp4 keep their blocks and scales. Hugging Face q and k rows are put into the GGUF pair
/// convention of the architecture, and llama3 RoPE scaling becomes the tensor rope_freqs.weight, so that other GGUF
/// readers compute the same. A GGUF input keeps its metadata. Ternary types are for the projections of the layers:
/// embedding and output matrix keep their formats. A BitNet model is written from its codes. Nothing is left behind on
/// failure. `progress` is told after each tensor. Matrices of less than 16 bits a weight go to another compressed
/// format where type.requantizes says so; else that is a usage failure. BitNet's codes stay as they are.
Result<Converted> convert_to_gguf(const std::string& in, const std::filesystem::path& out, const QuantizeType& type,
                                  const std::function<void(int done, int total, std::string_view tensor)>& progress);

/// Writes the directory `out`, which must not exist: config.json with a quantization_config, the tokenizer's files
/// unchanged, and model.safetensors, in which every matrix NAME.weight is NAME.qweight and NAME.scales (layout `ridge`
/// of io/packed.h). Tensors that are no matrices are copied, as are matrices whose rows 128 does not divide;
/// the latter are fallbacks. n_threads: as in QuantizeType. Errors: usage when `in` is no directory or `out` exists;
/// nothing is left behind.
Result<Converted> convert_to_int4(const std::string& in, const std::filesystem::path& out,
                                  const std::function<void(int done, int total, std::string_view tensor)>& progress,
                                  int n_threads = 0);

}  // namespace ridge
