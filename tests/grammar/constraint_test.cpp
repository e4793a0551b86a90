// Masks against trying every token, and what a constraint promises.
#include "grammar/constraint.h"

#include "grammar/json_schema.h"
#include "helpers.h"

namespace ridge::grammar {
namespace {

constexpr const char* kGrammars[] = {
    "root ::= \"ab\" | \"abc\" \"a\"? | [a-c]{3,7}",
    "root ::= [a-z]*",
    "root ::= (\"a\" | \"aa\" | \"ba\")* \"c\"",
    "root ::= value\nvalue ::= object | array | string | \"true\" | \"null\"\nobject ::= \"{\" (string \":\" \" \"? "
    "value (\",\" string \":\" value)*)? \"}\"\n"
    "array ::= \"[\" (value (\",\" \" \"? value)*)? \"]\"\nstring ::= \"\\\"\" char* \"\\\"\"\nchar ::= "
    "[^\"\\\\\\x00-\\x1F] | \"\\\\\" [\"nu]\n",
    "root ::= \"(\" root \")\" | \"[[\" root \"]\" \"]\" | [ab]{2,20} | x\nx ::= \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"",
    "root ::= list\nlist ::= .{0,3} \"\\n\" list | [^a]+ | \"a\" list"};

TEST(Vocabulary, NodesSpellTokens) {
  const ToyVocabulary toy;
  const Vocabulary& vocabulary = *toy.vocabulary;
  std::vector<std::string> spelled(vocabulary.size());
  std::string path;
  for (uint32_t node = 1; node < vocabulary.n_nodes(); ++node) {
    path.resize(vocabulary.depth(node) - 1);
    path += char(vocabulary.byte(node));
    EXPECT_GT(vocabulary.end(node), node);
    for (const int32_t token : vocabulary.tokens(node)) spelled[size_t(token)] = path;
  }
  for (size_t id = 0; id + 3 < toy.tokens.size(); ++id) EXPECT_EQ(spelled[id], toy.tokens[id]);
  EXPECT_EQ(spelled[size_t(toy.end)], "");  // an end token's bytes are no text
  EXPECT_EQ(vocabulary.longest(), 12u);
}

TEST(Constraint, MaskIsWhatTryingEveryTokenGives) {
  const ToyVocabulary toy;
  Rng rng(7);
  size_t compared = 0;
  for (const char* gbnf : kGrammars) {
    auto grammar = parse_gbnf(gbnf);
    ASSERT_TRUE(grammar) << grammar.error().message;
    // A cache of a single byte keeps one piece at a time: masks must not depend on what is cached.
    for (const size_t cache : {size_t(1), kMaskCacheBytes}) {
      const auto compiled = CompiledGrammar::make(*grammar, toy.vocabulary, cache).or_throw();
      for (int walk = 0; walk < 20; ++walk) {
        Constraint constraint(compiled);
        std::string text;
        for (int step = 0; step < 30; ++step) {
          const auto mask = constraint.mask();
          ASSERT_EQ(std::vector<uint64_t>(mask.begin(), mask.end()), mask_by_trying(*grammar, *toy.vocabulary, text))
              << gbnf << "\n"
              << text;
          ++compared;
          const std::vector<int32_t> allowed = tokens_of(mask);
          ASSERT_FALSE(allowed.empty());
          const int32_t token = allowed[pick(rng, allowed.size())];
          ASSERT_TRUE(constraint.accept(token));
          if (token == toy.end) break;
          text += toy.tokens[size_t(token)];
        }
      }
    }
  }
  EXPECT_GT(compared, 2000u);
}

/// A random expression of GBNF with bounded repetitions inside each other, wide sets and narrow ones.
std::string random_part(Rng& rng, int depth) {
  constexpr const char* kParts[] = {"[a-c]", "[a-z]", ".", "\"ab\"", "\"a\"", "[^b]", "[\\x20-\\x7E]", "small"};
  const auto bounds = [&] {
    const size_t min = pick(rng, 4), max = min + 1 + pick(rng, 12);
    const std::string first = "{" + std::to_string(min);
    return first + (pick(rng, 4) == 0 ? ",}" : pick(rng, 3) == 0 && min > 0 ? "}" : "," + std::to_string(max) + "}");
  };
  if (depth == 0 || pick(rng, 4) == 0) return std::string(kParts[pick(rng, std::size(kParts))]) + bounds();
  std::string text = "(";
  const size_t n = 1 + pick(rng, 3);
  const char* between = pick(rng, 2) == 0 ? " | " : " ";
  for (size_t i = 0; i < n; ++i) text += (i > 0 ? between : "") + random_part(rng, depth - 1);
  return text + ")" + (pick(rng, 2) == 0 ? bounds() : "");
}

TEST(Constraint, RandomBoundedRepetitionsHaveTheMasksOfTryingEveryToken) {
  const ToyVocabulary toy(
      {"aa", "ab", "abc", "aaaa", "abab", "ca", "xyz", "a b", "bbbbbb", "aaaaaaaaaaaa", "zz", "ac", "é"});
  Rng rng(23);
#ifdef NDEBUG
  constexpr int kRounds = 150;
#else
  constexpr int kRounds = 30;  // under sanitizers a round takes a second
#endif
  int walked = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::string gbnf = "root ::= " + random_part(rng, 2) + " \"c\"? tail\ntail ::= " + random_part(rng, 1) +
                             " \";\"\nsmall ::= [a-f] | \"xy\"\n";
    const auto grammar = parse_gbnf(gbnf);
    if (!grammar) continue;  // long repetitions of what may be empty
    const auto compiled = CompiledGrammar::make(*grammar, toy.vocabulary).or_throw();
    if (round % 2 == 0) compiled->prepare(std::chrono::milliseconds(2));
    for (int walk = 0; walk < 3; ++walk) {
      Constraint constraint(compiled);
      std::string text;
      for (int step = 0; step < 12; ++step) {
        std::vector<uint64_t> expected;
        try {
          expected = mask_by_trying(*grammar, *toy.vocabulary, text);
        } catch (const TooAmbiguous&) {
          break;
        }
        const auto mask = constraint.mask();
        ASSERT_EQ(std::vector<uint64_t>(mask.begin(), mask.end()), expected) << gbnf << "\n" << text;
        const std::vector<int32_t> allowed = tokens_of(mask);
        const int32_t token = allowed[pick(rng, allowed.size())];
        ASSERT_TRUE(constraint.accept(token));
        if (token == toy.end) break;
        text += toy.tokens[size_t(token)];
        ++walked;
      }
    }
  }
  EXPECT_GT(walked, 8 * kRounds);
}

TEST(Constraint, MaskNearTheDeepestNesting) {
  const ToyVocabulary toy({"((((", "))))", "(((((((((((((((((((((", "a))", "aaaaaaa"});
  const auto grammar = parse_gbnf("root ::= \"(\" root \")\" | text\ntext ::= [a-z]+");
  ASSERT_TRUE(grammar);
  const auto compiled = CompiledGrammar::make(*grammar, toy.vocabulary).or_throw();
  Constraint constraint(compiled);
  std::string text;
  while (constraint.accept('(')) {
    text += '(';
    const auto mask = constraint.mask();
    ASSERT_EQ(std::vector<uint64_t>(mask.begin(), mask.end()), mask_by_trying(*grammar, *toy.vocabulary, text))
        << text.size();
  }
  EXPECT_GT(text.size(), 200u);
}

TEST(Constraint, AcceptTakesWhatTheMaskHasAndNothingElse) {
  const ToyVocabulary toy;
  const auto grammar = parse_gbnf(kGrammars[3]);
  ASSERT_TRUE(grammar);
  Constraint constraint(CompiledGrammar::make(*grammar, toy.vocabulary).or_throw());
  const std::string text = "{\"a\":[true,\"";
  for (const char c : text) ASSERT_TRUE(constraint.accept(uint8_t(c)));
  const std::vector<int32_t> allowed = tokens_of(constraint.mask());
  for (int32_t token = -1; token <= int32_t(toy.tokens.size()); ++token) {
    Constraint copy = constraint;
    EXPECT_EQ(copy.accept(token), std::ranges::binary_search(allowed, token)) << token;
  }
  EXPECT_FALSE(constraint.finished());
  for (const char c : std::string_view("\"]}")) ASSERT_TRUE(constraint.accept(uint8_t(c)));
  EXPECT_TRUE(constraint.finished());
  EXPECT_EQ(tokens_of(constraint.mask()), std::vector<int32_t>{toy.end});
  EXPECT_TRUE(constraint.accept(toy.end));
  EXPECT_TRUE(constraint.finished());
  EXPECT_TRUE(tokens_of(constraint.mask()).empty());
  EXPECT_FALSE(constraint.accept(toy.end));
}

TEST(Constraint, MaskToEndLeadsToTheEndInAsManyBytes) {
  const ToyVocabulary toy;
  Rng rng(11);
  for (const char* gbnf : kGrammars) {
    const auto grammar = parse_gbnf(gbnf);
    ASSERT_TRUE(grammar);
    const auto compiled = CompiledGrammar::make(*grammar, toy.vocabulary).or_throw();
    for (int walk = 0; walk < 30; ++walk) {
      Constraint constraint(compiled);
      std::string text;
      const auto take = [&](const std::vector<int32_t>& allowed) {
        const int32_t token = allowed[pick(rng, allowed.size())];
        EXPECT_TRUE(constraint.accept(token));
        if (token != toy.end) text += toy.tokens[size_t(token)];
        return token != toy.end;
      };
      bool open = true;
      for (int step = 0; open && step < walk; ++step) open = take(tokens_of(constraint.mask()));
      if (!open) continue;
      const size_t length = text.size() + constraint.bytes_to_end();
      while (open) {
        const std::vector<int32_t> allowed = tokens_of(constraint.mask_to_end()), all = tokens_of(constraint.mask());
        ASSERT_FALSE(allowed.empty()) << text;
        ASSERT_TRUE(std::ranges::includes(all, allowed));
        open = take(allowed);
      }
      EXPECT_EQ(text.size(), length);
      EXPECT_TRUE(accepts(*grammar, text)) << text;
    }
  }
}

TEST(Constraint, LongAnswersKeepTheirMemory) {
  const ToyVocabulary toy;
  const auto grammar = parse_gbnf("root ::= [ab]{0,400000} \"c\"");
  ASSERT_TRUE(grammar);
  const auto compiled = CompiledGrammar::make(*grammar, toy.vocabulary).or_throw();
  Constraint constraint(compiled);
  for (int i = 0; i < 100000; ++i) ASSERT_TRUE(constraint.accept(i % 2 ? 'a' : 'b'));
  EXPECT_EQ(constraint.bytes_to_end(), 1u);
  const auto mask = constraint.mask();
  EXPECT_EQ(std::vector<uint64_t>(mask.begin(), mask.end()),
            mask_by_trying(*grammar, *toy.vocabulary, std::string(100000, 'a')));
  EXPECT_LT(compiled->cache_bytes(), 100000u);
}

TEST(Constraint, VocabularyWithoutABytesIsRefused) {
  std::vector<std::string> tokens{"a", "b", "ab", "</s>"};
  const auto vocabulary = std::make_shared<Vocabulary>(tokens, std::vector<int32_t>{3});
  const auto make = [&](std::string_view gbnf) {
    const auto compiled = CompiledGrammar::make(parse_gbnf(gbnf).or_throw(), vocabulary);
    return compiled ? std::string("accepted") : compiled.error().message;
  };
  EXPECT_EQ(make("root ::= [a-z]+ \"ab\""), "accepted");
  EXPECT_NE(make("root ::= \"abc\"").find("no token for the byte 0x63"), std::string::npos);
  EXPECT_NE(make("root ::= [x-z]").find("no token for the byte 0x78"), std::string::npos);
}

}  // namespace
}  // namespace ridge::grammar
