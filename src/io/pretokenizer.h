// The text cuts that BPE makes before merging, by the names that GGUF files have for them.
//
// A pre-tokenizer is a list of stages. A stage is one published regular expression: its leftmost matches and the text
// between them become pieces, and the next stage cuts each of those on its own (Hugging Face: a Sequence of Splits that
// are Isolated). Categories come from utf8proc (Unicode 15 in Debian 12; younger characters count as unassigned). Bytes
// that are not UTF-8 count as unassigned too: neither letter, number, punctuation nor space.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "io/tokenizer.h"

namespace ridge::io {

/// Calls `take` with the pre-tokens of `text` in order; none is empty, joined they are the text. PreTokenizer::none
/// gives the text as one piece. Time is linear in the text.
void cut_text(PreTokenizer pre, std::string_view text, const std::function<void(std::string_view)>& take);

/// The regular expressions of a pre-tokenizer as tokenizer.json files write them, a stage each; empty for none.
std::span<const std::string_view> pretokenizer_stages(PreTokenizer pre);

struct PreTokenizerName {
  std::string_view name;  ///< tokenizer.ggml.pre
  PreTokenizer pre;
};
/// Every name that is known; the first of a pre-tokenizer is the one to write.
std::span<const PreTokenizerName> pretokenizer_names();

}  // namespace ridge::io
