// The head of a model that proposes the token after the next one (MTP, "next-n"): of position t
//
//     x = join concat(norm(embedding of token t+1), norm(h_t)),   h_t: what the model's last layer gave
//     y = one layer over the x of positions 0 to t,               logits = output norm(y), of token t+2
//
// The embedding and the output matrix are the model's, unless the head's file has others. In heads of Qwen, DeepSeek
// and GLM, h_t is what the norm behind the model's last layer gave; the head's own y, which takes the place of h for
// further tokens, goes through the norm behind it likewise.
#pragma once

#include <optional>

#include "model/plan.h"
#include "model/weights.h"

namespace ridge {

struct MtpHead {
  Weights weights;          // the join, one layer, and the norm behind it
  bool after_norm = false;  // hidden states are those behind the model's norm, and the head's
  // The embedding and the output matrix are the head's own; else the model's.
  bool own_embedding = false, own_output = false;
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

/// The head in the model's own file: of Qwen3.5 and Qwen3-Next, with and without experts, and of plain layers mtp.* of
/// a Hugging Face directory; of DeepSeek-V3, GLM-4.x and others with their experts the layer behind the last one; of
/// their GGUF files the block behind the last one. Matrices are as the file has them. Nothing where there is no head.
Result<std::optional<MtpHead>> read_own_mtp_head(const Config& config, const Weights& model);

/// Reads the head of a model from a safetensors file. An empty path is the random head of a `synth:...@mtp=1` model, or
/// the head in the model's own file (mtp.* of a Hugging Face directory, the block behind the last one of a GGUF file),
/// else mtp.safetensors in the directory, whose layer must be plain (takes_plain_head()). The matrices of a head of its
/// own file get the format of the model's, where that has an encoder. All get panels as by pack_weights(). An embedding
/// or an output matrix in the model's file is the head's own unless its bytes are the model's. `model` must outlive the
/// head.
Result<MtpHead> load_mtp_head(CpuContext& context, const Config& config, const Weights& model, std::string path);

/// The plan of a model's head: its layer attends, and has experts where the model has any.
ModelPlan head_plan(const Config& config, const Weights& model);
/// Whether layers are plain: attention without biases or norms of heads, a dense feed-forward.
bool takes_plain_head(const Config& config);
/// Adds the tensors of a head's own file to a directory's, under the names that a head in the model's files has.
Status add_head_file(io::HfDirectory& directory, const std::filesystem::path& path);

}  // namespace ridge
