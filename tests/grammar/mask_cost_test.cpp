// Masks over a real vocabulary of 151,936 tokens: the same as by trying every token, and what they cost.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "cases/paths.h"
#include "grammar/json_schema.h"
#include "helpers.h"
#include "io/tokenizer.h"

namespace ridge::grammar {
namespace {

struct Qwen2 {
  io::Tokenizer tokenizer;
  std::vector<std::string> tokens;
  std::shared_ptr<const Vocabulary> vocabulary;
};

const Qwen2& qwen2() {
  static const Qwen2 made = [] {
    const std::string path = RIDGE_SOURCE_DIR "/models/vocab/qwen2.gguf";
    const io::GgufFile file = io::open_gguf(path).or_throw();
    Qwen2 result{io::Tokenizer::make(io::tokenizer_spec_from_gguf(file.gguf, path).or_throw()).or_throw(), {}, {}};
    std::vector<int32_t> ends;
    for (int32_t id = 0; id < result.tokenizer.vocab_size(); ++id) {
      result.tokens.push_back(result.tokenizer.piece(id));
      if (result.tokenizer.is_end(id)) ends.push_back(id);
    }
    result.vocabulary = std::make_shared<Vocabulary>(result.tokens, ends);
    return result;
  }();
  return made;
}

constexpr const char* kOrder = R"({
  "type": "object",
  "properties": {
    "id": {"type": "string", "format": "uuid"},
    "customer": {"$ref": "#/$defs/person"},
    "items": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {
      "name": {"type": "string", "maxLength": 40}, "price": {"type": "number", "minimum": 0},
      "count": {"type": "integer", "minimum": 1, "maximum": 99},
      "tags": {"type": "array", "items": {"enum": ["new", "used", "sale"]}}},
      "required": ["name", "price"], "additionalProperties": false}},
    "note": {"type": "string"},
    "contacts": {"type": "array", "items": {"$ref": "#/$defs/person"}}},
  "required": ["id", "customer", "items"], "additionalProperties": false,
  "$defs": {"person": {"type": "object", "properties": {"name": {"type": "string"}, "email": {"type": "string", "format": "email"},
    "friend": {"$ref": "#/$defs/person"}}, "required": ["name"], "additionalProperties": false}}})";

constexpr const char* kOrderText =
    R"({"id": "123e4567-e89b-12d3-a456-426614174000", "customer": {"name": "Zoë O'Neill-Šimek", "email": "zoe@example.org", "friend": {"name": "李雷"}}, "items": [)"
    R"({"name": "A wooden chair, painted blue", "price": 129.95, "count": 4, "tags": ["new", "sale"]},)"
    "\n    "
    R"({"name": "Table", "price": 310}], "note": "Please ring twice; the door is at the back of the house.\nThank you!", "contacts": [{"name": "Ann"}, {"name": "Bob \"B\" Smith"}]})";

constexpr const char* kJsonGbnf = R"(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)";

struct CostCase {
  const char* name;
  Grammar grammar;
};

std::vector<CostCase> cases() {
  return {{"schema", grammar_of_schema(Json::parse(kOrder)).or_throw()},
          {"any object", any_json_object().or_throw()},
          {"gbnf json", parse_gbnf(kJsonGbnf).or_throw()},
          {"gbnf prose",
           parse_gbnf("root ::= (sentence \"\\n\"?)+\nsentence ::= \" \"? [A-Z] [a-z, ]* \". \"").or_throw()}};
}

TEST(MaskCostSlow, MasksOverQwen2AreWhatTryingEveryTokenGives) {
  for (auto& [name, grammar] : cases()) {
    const auto compiled = CompiledGrammar::make(grammar, qwen2().vocabulary).or_throw();
    Constraint constraint(compiled);
    const std::string text =
        name == std::string_view("gbnf prose") ? "Hello, this is text. And more. \nYes" : kOrderText;
    std::string read;
    int n = 0;
    for (const int32_t token : qwen2().tokenizer.encode(text, false, false)) {
      if (n++ % 9 == 0) {
        const auto mask = constraint.mask();
        ASSERT_EQ(std::vector<uint64_t>(mask.begin(), mask.end()), mask_by_trying(grammar, *qwen2().vocabulary, read))
            << name << ": " << read;
      }
      ASSERT_TRUE(constraint.accept(token)) << name << ": " << read << " then " << qwen2().tokens[size_t(token)];
      read += qwen2().tokens[size_t(token)];
    }
    EXPECT_TRUE(constraint.can_end() || name == std::string_view("gbnf prose")) << name;
  }
}

/// Lengths, repetitions and patterns with bounds near and far: walks for many counts at once.
TEST(MaskCostSlow, SampledTextsOfBoundedRepetitionsHaveTheMasksOfTryingEveryToken) {
  constexpr const char* kSchemas[] = {
      R"({"type": "string", "minLength": 3, "maxLength": 9})",
      R"({"type": "string", "minLength": 12})",
      R"({"type": "array", "minItems": 2, "maxItems": 4, "items": {"type": "string", "maxLength": 6}})",
      R"({"type": "string", "pattern": "^[A-Za-z ]{2,12}( [a-z]{1,5}){0,3}[0-9]{4}$"})",
      R"({"type": "array", "items": {"type": "string", "format": "email"}})",
      R"({"type": "array", "items": {"type": "integer", "minimum": 17, "maximum": 120034}})"};
  Rng rng(3);
  for (const char* schema : kSchemas) {
    const Grammar grammar = grammar_of_schema(Json::parse(schema)).or_throw();
    const auto compiled = CompiledGrammar::make(grammar, qwen2().vocabulary).or_throw();
    for (int document = 0; document < 4; ++document) {
      Constraint constraint(compiled);
      std::string read;
      for (int step = 0; step < 6; ++step) {
        const auto mask = constraint.mask();
        ASSERT_EQ(std::vector<uint64_t>(mask.begin(), mask.end()), mask_by_trying(grammar, *qwen2().vocabulary, read))
            << schema << ": " << read;
        const std::vector<int32_t> allowed = tokens_of(mask);
        const int32_t token = allowed[pick(rng, allowed.size())];
        ASSERT_TRUE(constraint.accept(token));
        if (qwen2().vocabulary->is_end(token)) break;
        read += qwen2().tokens[size_t(token)];
      }
    }
  }
}

class Times {
 public:
  void add(std::chrono::steady_clock::duration time) {
    us_.push_back(std::chrono::duration<double, std::micro>(time).count());
  }
  double at(double part) {
    std::sort(us_.begin(), us_.end());
    return us_[size_t(part * double(us_.size() - 1))];
  }
  size_t size() const { return us_.size(); }

 private:
  std::vector<double> us_;
};

struct Cost {
  Times first, steady, accepts;  // of the first document, of all but the first `warm`, of all
};

/// Documents of at most 100 tokens, sampled at infinite temperature, or all the tokens of a text.
Cost measure(const std::shared_ptr<const CompiledGrammar>& compiled, int documents, int warm,
             const std::vector<int32_t>& text) {
  Cost cost;
  Rng rng(1);
  for (int document = 0; document < documents; ++document) {
    Constraint constraint(compiled);
    for (size_t n = 0; n < (text.empty() ? 100 : text.size()); ++n) {
      const auto start = std::chrono::steady_clock::now();
      const auto mask = constraint.mask();
      const auto end = std::chrono::steady_clock::now();
      if (document == 0) cost.first.add(end - start);
      if (document >= warm) cost.steady.add(end - start);
      int32_t token = text.empty() ? 0 : text[n];
      if (text.empty()) {
        const std::vector<int32_t> allowed = tokens_of(mask);
        token = allowed[pick(rng, allowed.size())];
      }
      const auto before = std::chrono::steady_clock::now();
      EXPECT_TRUE(constraint.accept(token));
      cost.accepts.add(std::chrono::steady_clock::now() - before);
      if (qwen2().vocabulary->is_end(token)) break;
    }
  }
  return cost;
}

/// Prints one row a grammar and kind of documents. Infinite temperature is the hardest case: whatever can be reached
/// is. Fails where a mask allows nothing or forbids what belongs to the text, never on a time.
TEST(MaskCostSlow, WhatMasksCost) {
  if (!std::getenv("RIDGE_MASK_COST")) GTEST_SKIP() << "a measurement: set RIDGE_MASK_COST=1";
  std::printf(
      "grammar      documents    masks   first p50 p99 max us   steady p50 p99 max us   accept p50 p99 us   cache "
      "KiB   prepare ms\n");
  for (auto& [name, grammar] : cases()) {
    for (const bool drawn : {false, true}) {
      const bool is_prose = name == std::string_view("gbnf prose");
      if (is_prose && !drawn) continue;
      const auto compiled = CompiledGrammar::make(grammar, qwen2().vocabulary).or_throw();
      const auto start = std::chrono::steady_clock::now();
      compiled->prepare();
      Times prepare;
      prepare.add(std::chrono::steady_clock::now() - start);
      std::vector<int32_t> text;
      if (!drawn) text = qwen2().tokenizer.encode(kOrderText, false, false);
      Cost cost = measure(compiled, 60, drawn ? 30 : 1, text);
      std::printf("%-12s %-9s %8zu %11.1f %.1f %.1f %12.1f %.1f %.1f %11.1f %.1f %11zu %12.1f\n", name,
                  drawn ? "drawn" : "written", cost.steady.size(), cost.first.at(0.5), cost.first.at(0.99),
                  cost.first.at(1), cost.steady.at(0.5), cost.steady.at(0.99), cost.steady.at(1), cost.accepts.at(0.5),
                  cost.accepts.at(0.99), compiled->cache_bytes() / 1024, prepare.at(1) / 1000);
      EXPECT_GT(cost.steady.size(), 0u) << name;
    }
  }
}

}  // namespace
}  // namespace ridge::grammar
