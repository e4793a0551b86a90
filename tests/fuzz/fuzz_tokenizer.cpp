// Fuzz target of the tokenizers. Bytes that begin with "GGUF" are a vocabulary file: any give a tokenizer or a reason.
// Other bytes are text for a fixed vocabulary that the first byte chooses: they must come back exactly, in any chunks.
#include <algorithm>

#include "cases/tiny_tokenizer.h"
#include "fuzz/touch_tokenizer.h"
#include "io/text.h"

namespace {

using namespace ridge;
using namespace ridge::io;

void try_vocabulary(std::string_view file) {
  const auto gguf = parse_gguf(std::as_bytes(std::span(file)), "fuzz");
  if (!gguf) return;
  const auto spec = tokenizer_spec_from_gguf(*gguf, "fuzz");
  if (spec) touch(*spec, file.substr(file.size() - std::min<size_t>(file.size(), 64)));
  else touch(spec);
}

Tokenizer fixed(bool spm, bool other_order) {
  TokenizerSpec spec = spm ? tiny_spm() : tiny_bpe();
  if (spm && other_order) spec.merges = {"a a", "l l", "h e"};
  if (!spm) spec.pre = other_order ? PreTokenizer::llama_bpe : PreTokenizer::gpt2;
  spec.ignore_merges = !spm && other_order;
  return Tokenizer::make(spec).or_throw();
}

void try_text(uint8_t choice, std::string_view text) {
  static const Tokenizer tokenizers[] = {fixed(false, false), fixed(false, true), fixed(true, false),
                                         fixed(true, true)};
  const Tokenizer& tokenizer = tokenizers[choice % 4];
  const bool spm = tokenizer.spec().model == TokenizerModel::spm;
  const bool lossless = !spm || text.find(kSpmSpace) == text.npos;
  for (const bool parse_special : {false, true}) {
    const std::string back = tokenizer.decode(tokenizer.encode(text, false, parse_special), true);
    RIDGE_CHECK(!lossless || back == text, "{} came back as {}", in_quotes(text), in_quotes(back));
  }
}

void try_stream(uint8_t choice, std::string_view text) {
  Utf8Stream whole, chunks;
  std::string expected = whole.push(text), got;
  expected += whole.finish();
  const size_t step = 1 + choice / 4 % 8;
  for (size_t begin = 0; begin < text.size(); begin += step) {
    const std::string part = chunks.push(text.substr(begin, step));
    RIDGE_CHECK(valid_utf8(part), "a chunk is not whole: {}", in_quotes(part));
    got += part;
  }
  got += chunks.finish();
  RIDGE_CHECK(got == expected, "chunks gave {}, expected {}", in_quotes(got), in_quotes(expected));
  RIDGE_CHECK(!valid_utf8(text) || got == text, "valid text was changed: {}", in_quotes(got));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.starts_with("GGUF")) {
    try_vocabulary(bytes);
  } else if (size > 0) {
    try_text(data[0], bytes.substr(1));
    try_stream(data[0], bytes.substr(1));
  }
  return 0;
}
