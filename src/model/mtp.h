// The head of a model that guesses the token after the next one (MTP, "next-n"): of position t
//
//     x = join concat(norm(embedding of token t+1), norm(h_t)),   h_t: what the model's last layer gave
//     y = one layer over the x of positions 0 to t,               logits = output norm(y), of token t+2
//
// The embedding and the output matrix are the model's.
#pragma once

#include "model/weights.h"

namespace ridge {

struct MtpHead {
  std::vector<float> embedding_norm, hidden_norm;  // [d_model]
  Linear join;                                     // [d_model, 2 d_model]
  Weights weights;                                 // one layer, and the norm behind it
};

/// Reads the head of a model from a safetensors file; an empty path is mtp.safetensors in the model's Hugging Face
/// directory. The model's layers must be plain: attention without biases or norms of heads, a dense feed-forward. Its
/// matrices get the format of the model's, where that has an encoder, and panels as by pack_weights(). `model` must outlive
/// the head.
Result<MtpHead> load_mtp_head(CpuContext& context, const Config& config, const Weights& model, std::string path);

}  // namespace ridge
