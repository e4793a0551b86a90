// What must hold of a tokenizer that came out of untrusted bytes.
#pragma once

#include "fuzz/touch.h"
#include "io/tokenizer.h"

namespace ridge::io {

/// Encoding gives ids of the vocabulary without control tokens, decoding stays in bounds, and a spec survives GGUF.
inline void touch(const TokenizerSpec& spec, std::string_view text) {
  const auto tokenizer = Tokenizer::make(spec);
  if (!tokenizer) return touch(tokenizer);
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer->encode(text, false, parse_special);
    for (const int32_t id : ids) {
      RIDGE_CHECK(id >= 0 && id < tokenizer->vocab_size(), "token {}", id);
      // The unknown token stands for text, whatever type a file gives it.
      RIDGE_CHECK(parse_special || !tokenizer->is_control(id) || id == spec.unk, "control token {} from text", id);
      use(tokenizer->is_end(id));
    }
    use(tokenizer->decode(ids, true).size() + tokenizer->encode(text, true, parse_special).size());
  }
  Gguf gguf;
  gguf.metadata = tokenizer_metadata(spec);
  const auto again = tokenizer_spec_from_gguf(gguf, "again");
  RIDGE_CHECK(again.has_value(), "the spec was refused on the way back: {}", again.error().message);
  RIDGE_CHECK(*again == spec, "the spec changed on its way through GGUF metadata");
}

}  // namespace ridge::io
