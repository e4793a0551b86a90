// Fuzz target of grammars. The first byte says what the rest is: 0 GBNF, 1 a JSON Schema. Any text gives a grammar or a
// reason; a grammar's text is ended by the shortest way from wherever the walk has come, as bytes_to_end() said.
#include <algorithm>

#include "grammar/constraint.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"

namespace {

using namespace ridge;
using namespace ridge::grammar;

/// Nesting and duplicate names are the business of the reader of requests.
bool is_deep(std::string_view text) {
  int depth = 0, deepest = 0;
  for (const char c : text) {
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    deepest = std::max(deepest, depth);
  }
  return deepest > 200;
}

Result<Grammar> grammar_of(uint8_t kind, std::string_view text) {
  if (kind % 2 == 0) return parse_gbnf(text);
  const Json schema = is_deep(text) ? Json() : Json::parse(text, nullptr, false);
  if (schema.is_discarded()) return fail(ErrorKind::usage, "no JSON");
  return grammar_of_schema(schema);
}

std::shared_ptr<const Vocabulary> vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, char(byte)));
  tokens.insert(tokens.end(), {"\"a", "\": ", "aa", "ab", "abc", "{\"", "}}", "[[", "11", "true", "é", "\xE4\xB8", ""});
  return std::make_shared<Vocabulary>(tokens, std::vector<int32_t>{int32_t(tokens.size() - 1)});
}

bool has(std::span<const uint64_t> mask, int32_t token) { return (mask[size_t(token) / 64] >> (token % 64) & 1) != 0; }

/// The first token of the mask from `from` on, around the end.
int32_t token_from(std::span<const uint64_t> mask, int32_t size, int32_t from) {
  for (int32_t i = 0; i < size; ++i)
    if (has(mask, (from + i) % size)) return (from + i) % size;
  RIDGE_CHECK(false, "no token may follow");
}

void walk(Constraint& constraint, const Vocabulary& words, std::string_view choices) {
  const auto size = int32_t(words.size());
  for (size_t i = 0; i < std::min<size_t>(choices.size(), 24); ++i) {
    const int32_t token = token_from(constraint.mask(), size, int32_t(uint8_t(choices[i])) * 7 % size);
    RIDGE_CHECK(constraint.accept(token), "token {} of the mask is refused", token);
    if (words.is_end(token)) return;
  }
  for (uint32_t left = constraint.bytes_to_end(), n = 0; n < 64; ++n) {
    const int32_t token = token_from(constraint.mask_to_end(), size, 0);
    RIDGE_CHECK(has(constraint.mask(), token), "token {} leads to the end and is not allowed", token);
    RIDGE_CHECK(constraint.accept(token), "token {} to the end is refused", token);
    if (words.is_end(token)) return;
    left -= uint32_t(words.bytes(token).size());
    RIDGE_CHECK(constraint.bytes_to_end() == left, "{} bytes to the end, not {}", constraint.bytes_to_end(), left);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const auto words = vocabulary();
  const std::string_view text{reinterpret_cast<const char*>(data) + 1, size - 1};
  auto grammar = grammar_of(data[0], text);
  if (!grammar) {
    RIDGE_CHECK(!grammar.error().message.empty() && grammar.error().message.size() < 1000,
                "a failure without a message, or with a long one");
    return 0;
  }
  const auto compiled = CompiledGrammar::make(std::move(*grammar), words);
  if (!compiled) return 0;
  try {
    Constraint constraint(*compiled);
    walk(constraint, *words, text);
  } catch (const TooAmbiguous&) {
    // A text ends here, with that error.
  }
  return 0;
}
