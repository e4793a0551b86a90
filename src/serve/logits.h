// Changes that a request makes to logits before a token is sampled, and log probabilities that it asks for.
#pragma once

#include "serve/request.h"

namespace ridge::serve {

/// Presence and frequency penalties of the generated tokens, then the bias. logits [vocab_size].
void apply_penalties(const GenerationRequest& request, std::span<const int32_t> generated, std::span<float> logits);

/// Logarithms of the probabilities of the token and of the n likeliest ones, best first, as the model gave them.
TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int n);

}  // namespace ridge::serve
