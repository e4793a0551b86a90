// What the tests of grammars share: vocabularies, a slow reference, walks.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "base/rng.h"
#include "grammar/constraint.h"
#include "grammar/gbnf.h"

namespace ridge::grammar {

inline size_t pick(Rng& rng, size_t n) { return size_t(rng.next() % n); }

/// All 256 bytes, then some words as vocabularies have them, two special tokens and the end token, in this order.
struct ToyVocabulary {
  std::vector<std::string> tokens;
  int32_t end = 0;
  std::shared_ptr<const Vocabulary> vocabulary;

  explicit ToyVocabulary(std::vector<std::string> words = {"ab",   "abc",      "ba",   "aa",          "aaaa",   "cab",
                                                           "bcb",  "\"a",      "\":",  "\",",         "\": \"", "{\"",
                                                           "\"}",  "}}",       "]}",   "[[",          "tr",     "true",
                                                           "ue",   "null",     " \"",  ", ",          "\n  ",   "12",
                                                           "0.",   "-1",       "e+",   "\\u",         "\\n",    "é",
                                                           "中文", "\xE4\xB8", "\xAD", "aaaaaaaaaaaa"}) {
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, char(byte)));
    tokens.insert(tokens.end(), words.begin(), words.end());
    tokens.insert(tokens.end(), {"", "", "</s>"});
    end = int32_t(tokens.size() - 1);
    vocabulary = std::make_shared<Vocabulary>(tokens, std::vector<int32_t>{end});
  }
};

inline bool accepts(const Grammar& grammar, std::string_view text) {
  Matcher matcher(grammar);
  Matcher::State state = matcher.start();
  for (const char c : text) state = matcher.after(state, uint8_t(c));
  return matcher.can_end(state);
}

/// All ends of texts of `e` that begin at `at`: what the automaton must agree with, by trying everything.
inline std::set<size_t> ends_of(const Grammar& grammar, Expr e, std::string_view text, size_t at) {
  const Node& node = grammar.nodes[e];
  std::set<size_t> ends;
  const auto add_all = [&](const std::set<size_t>& more) { ends.insert(more.begin(), more.end()); };
  const auto after_each = [&](const std::set<size_t>& starts, Expr next) {
    std::set<size_t> result;
    for (const size_t start : starts) result.merge(ends_of(grammar, next, text, start));
    return result;
  };
  switch (node.kind) {
    case Kind::bytes:
      if (at < text.size() && grammar.sets[node.first][uint8_t(text[at])]) ends.insert(at + 1);
      break;
    case Kind::literal: {
      const std::string_view literal = std::string_view(grammar.text).substr(node.first, node.count);
      if (text.substr(at, literal.size()) == literal) ends.insert(at + literal.size());
      break;
    }
    case Kind::sequence:
      ends = {at};
      for (uint32_t i = 0; i < node.count; ++i) ends = after_each(ends, grammar.child(node, i));
      break;
    case Kind::choice:
      for (uint32_t i = 0; i < node.count; ++i) add_all(ends_of(grammar, grammar.child(node, i), text, at));
      break;
    case Kind::repeat: {
      std::set<size_t> current{at};
      for (uint32_t n = 0; n <= node.max && n <= text.size() + node.min && !current.empty(); ++n) {
        if (n >= node.min) add_all(current);
        current = after_each(current, node.first);
      }
      break;
    }
    case Kind::rule: return ends_of(grammar, grammar.bodies[node.first], text, at);
  }
  return ends;
}

/// The mask by trying every token byte by byte.
inline std::vector<uint64_t> mask_by_trying(const Grammar& grammar, const Vocabulary& vocabulary,
                                            std::string_view text) {
  std::vector<uint64_t> mask(vocabulary.n_words());
  Matcher matcher(grammar);
  Matcher::State state = matcher.start();
  for (const char c : text) state = matcher.after(state, uint8_t(c));
  for (int32_t token = 0; token < int32_t(vocabulary.size()); ++token) {
    const std::string_view bytes = vocabulary.bytes(token);
    bool allowed = vocabulary.is_end(token) && matcher.can_end(state);
    if (!bytes.empty()) {
      matcher.start_work();
      Matcher::State next = state;
      for (size_t i = 0; i < bytes.size() && next != Matcher::kDead; ++i) next = matcher.after(next, uint8_t(bytes[i]));
      allowed = next != Matcher::kDead;
    }
    if (allowed) mask[size_t(token) / 64] |= uint64_t(1) << (token % 64);
  }
  return mask;
}

inline std::vector<int32_t> tokens_of(std::span<const uint64_t> mask) {
  std::vector<int32_t> tokens;
  for (size_t word = 0; word < mask.size(); ++word)
    for (uint64_t bits = mask[word]; bits != 0; bits &= bits - 1)
      tokens.push_back(int32_t(word * 64 + size_t(std::countr_zero(bits))));
  return tokens;
}

}  // namespace ridge::grammar
