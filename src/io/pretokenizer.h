// The text cuts that byte-level BPE makes before merging: hand-written equivalents of three published patterns.
//
// gpt-2:     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// llama-bpe: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
//            \s+(?!\S)|\s+
// qwen2:     llama-bpe with \p{N} in place of \p{N}{1,3}
//
// A regex engine would backtrack; these look at each character a bounded number of times, so time is linear in the
// text. Categories come from utf8proc (Unicode 15 in Debian 12; younger characters count as symbols). Bytes that are
// not UTF-8 count as symbols too: neither letter, number nor space.
#pragma once

#include <cstddef>
#include <string_view>

#include "io/tokenizer.h"

namespace ridge::io {

/// End of the pre-token that starts at `begin` < text.size(); always past `begin`. PreTokenizer::none takes it all.
size_t pretoken_end(PreTokenizer pre, std::string_view text, size_t begin);

/// The regular expression of a pre-tokenizer as tokenizer.json files write it ("" for none).
std::string_view pretokenizer_pattern(PreTokenizer pre);

}  // namespace ridge::io
