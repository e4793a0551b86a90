// The head of a model that proposes the token after the next one (MTP, "next-n"): of position t
//
//     x = join concat(norm(embedding of token t+1), norm(h_t)),   h_t: what the model's last layer gave
//     y = one layer over the x of positions 0 to t,               logits = output norm(y), of token t+2
//
// The embedding and the output matrix are the model's. In Qwen3.5 h_t is what the norm behind the model's last layer
// gave.
#pragma once

#include <optional>

#include "model/weights.h"

namespace ridge {

struct MtpHead {
  Weights weights;          // the join, one layer, and the norm behind it
  bool after_norm = false;  // hidden states are those behind the model's norm, and the head's
  bool own_ends = false;    // the file has an embedding or an output matrix of the head's, which nothing reads
};

/// How a file calls the tensors of a model or of a head.
enum class FileNames : uint8_t {
  gguf,
  directory,  ///< a Hugging Face directory
  under_mtp,  ///< a head in such a directory: mtp.*, its layers mtp.layers.*
  head_file,  ///< a head in a file of its own
};
/// A tensor of a head in such files, by its name in a directory; `layer` counts the head's layers.
std::string head_name(FileNames names, std::string_view name, int layer);

/// The head in the model's own file, of the architectures that `ridge quantize` keeps heads of: Qwen3.5 and Qwen3-Next,
/// with and without experts, and plain layers (mtp.* of a Hugging Face directory), DeepSeek-V3 (the layer behind the
/// last one), and of their GGUF files the block behind the last one. Matrices are as the file has them. Nothing where
/// there is no head.
Result<std::optional<MtpHead>> read_own_mtp_head(const Config& config, const Weights& model);

/// Reads the head of a model from a safetensors file. An empty path is the random head of a `synth:...@mtp=1` model, or
/// the head in the model's own file (mtp.* of a Hugging Face directory, the block behind the last one of a GGUF file),
/// else mtp.safetensors in the directory. But for qwen35 and synth: models, layers must be plain (takes_plain_head()).
/// The matrices of a head of its own file get the format of the model's, where that has an encoder. All get panels as
/// by pack_weights(). `model` must outlive the head.
Result<MtpHead> load_mtp_head(CpuContext& context, const Config& config, const Weights& model, std::string path);

/// Whether layers are plain: attention without biases or norms of heads, a dense feed-forward.
bool takes_plain_head(const Config& config);
/// Adds the tensors of a head's own file to a directory's, under the names that a head in the model's files has.
Status add_head_file(io::HfDirectory& directory, const std::filesystem::path& path);

}  // namespace ridge
