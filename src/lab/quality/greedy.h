// Prompts out of a text, and the greedy text behind one.
#pragma once

#include "lab/quality/engine_timelines.h"

namespace ridge::lab {

/// `n` runs of `length` tokens, evenly spread over the text, each beginning with BOS when there is one. Fails when the
/// text is shorter than that.
Result<std::vector<std::vector<int32_t>>> pick_prompts(std::span<const int32_t> text, int n, int length,
                                                       std::optional<int32_t> bos);

/// The n greedy tokens after `prompt`, which has two tokens at least. Throws Error where logits are not finite.
std::vector<int32_t> greedy_tokens(Timeline& timeline, std::span<const int32_t> prompt, int n);

}  // namespace ridge::lab
