// The Tokenizer on vocabularies small enough to reason about; published ones are in tokenizer_vocab_test.cpp.
#include "io/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

#include "base/rng.h"
#include "cases/tiny_tokenizer.h"

namespace ridge::io {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

Tokenizer made(TokenizerSpec spec) { return Tokenizer::make(std::move(spec)).or_throw(); }

std::vector<std::string> pieces(const Tokenizer& tokenizer, const Ids& ids) {
  std::vector<std::string> out;
  for (const int32_t id : ids) out.push_back(tokenizer.spec().pieces[size_t(id)]);
  return out;
}
std::vector<std::string> tokens(const Tokenizer& tokenizer, std::string_view text, bool parse_special = false) {
  return pieces(tokenizer, tokenizer.encode(text, false, parse_special));
}
using Pieces = std::vector<std::string>;

int32_t id_of(const TokenizerSpec& spec, std::string_view piece) {
  return int32_t(std::find(spec.pieces.begin(), spec.pieces.end(), piece) - spec.pieces.begin());
}

// --- merging ---

TEST(Bpe, MergesByRankThenFromTheLeft) {
  const Tokenizer bpe = made(tiny_bpe());
  EXPECT_EQ(tokens(bpe, "hello"), (Pieces{"hello"}));
  EXPECT_EQ(tokens(bpe, "helo"), (Pieces{"he", "l", "o"}));
  EXPECT_EQ(tokens(bpe, "a w"), (Pieces{"a", "\xC4\xA0w"}));
  EXPECT_EQ(tokens(bpe, "aaa"), (Pieces{"aaa"}));
  EXPECT_EQ(tokens(bpe, "aaaa"), (Pieces{"aa", "aa"}));  // rank before position: both pairs merge before "aa a" can
  EXPECT_EQ(tokens(bpe, "\xC3\xA9"), (Pieces{"\xC3\x83\xC2\xA9"}));
  EXPECT_EQ(tokens(bpe, ""), (Pieces{}));
}

TEST(Bpe, IgnoreMergesTakesAWholePreTokenFirst) {
  TokenizerSpec spec = tiny_bpe();
  add_token(spec, "ahe", TokenType::normal);  // no merge leads there
  EXPECT_EQ(tokens(made(spec), "ahe"), (Pieces{"a", "he"}));
  spec.ignore_merges = true;
  EXPECT_EQ(tokens(made(spec), "ahe"), (Pieces{"ahe"}));
  EXPECT_EQ(tokens(made(spec), "ahex"), (Pieces{"a", "he", "x"}));
}

TEST(Spm, MergesByScoreWithASpaceInFront) {
  const Tokenizer spm = made(tiny_spm());
  const std::string space(kSpmSpace);
  EXPECT_EQ(tokens(spm, "hello"), (Pieces{space + "hello"}));
  EXPECT_EQ(tokens(spm, "hell w"), (Pieces{space, "hell", space + "w"}));
  EXPECT_EQ(tokens(spm, "aaaa"), (Pieces{space, "aa", "aa"}));
  EXPECT_EQ(tokens(spm, "\xC3\xA9z"), (Pieces{space, "\xC3\xA9", "<0x7A>"}));
  EXPECT_EQ(tokens(spm, ""), (Pieces{}));
  EXPECT_EQ(tokens(spm, " "), (Pieces{space + space}));
}

TEST(Spm, AMergeListTakesThePlaceOfTheScores) {
  TokenizerSpec spec = tiny_spm();
  const std::string space(kSpmSpace);
  spec.merges = {space + " h", "l l", "h e"};
  EXPECT_EQ(tokens(made(spec), "hell"), (Pieces{space + "h", "e", "ll"}));
}

TEST(Spm, TextWithoutBytePiecesBecomesTheUnknownToken) {
  TokenizerSpec spec = tiny_spm();
  for (TokenType& type : spec.types)
    if (type == TokenType::byte) type = TokenType::unused;
  const std::string space(kSpmSpace);
  EXPECT_EQ(tokens(made(spec), "hz\xE4\xB8\x96h"), (Pieces{space + "h", "<unk>", "<unk>", "h"}));
}

/// The definition: find the best pair, merge it, look again.
Ids merge_slowly(const std::vector<std::pair<std::pair<int, int>, int>>& rules, Ids ids) {
  for (bool merged = true; std::exchange(merged, false);)
    for (const auto& [pair, result] : rules) {
      for (size_t i = 0; i + 1 < ids.size() && !merged; ++i)
        if (std::pair(ids[i], ids[i + 1]) == pair) {
          ids[i] = result;
          ids.erase(ids.begin() + ptrdiff_t(i) + 1);
          merged = true;
        }
      if (merged) break;
    }
  return ids;
}

TEST(Bpe, QueueMergesLikeTheDefinitionOnRandomRules) {
  Rng rng(11);
  for (int round = 0; round < 300; ++round) {
    RankMerger merger;
    std::vector<std::pair<std::pair<int, int>, int>> rules;
    for (int rule = 0; rule < 12; ++rule) {
      const int left = int(rng.next() % unsigned(3 + rule)), right = int(rng.next() % unsigned(3 + rule));
      if (std::ranges::find(rules, std::pair(left, right), [](const auto& r) { return r.first; }) != rules.end())
        continue;
      rules.push_back({{left, right}, 3 + rule});
      merger.add(left, right, 3 + rule);
    }
    Ids ids(rng.next() % 40);
    for (int32_t& id : ids) id = int32_t(rng.next() % 3);
    const Ids expected = merge_slowly(rules, ids);
    merger.merge(ids);
    ASSERT_EQ(ids, expected) << "round " << round;
  }
}

TEST(Spm, QueueMergesLikeTheDefinitionOnRandomPieces) {
  Rng rng(12);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> vocabulary = {"a", "b"};
    std::vector<float> scores = {0, 0};
    for (int i = 0; i < 14; ++i) {
      std::string piece;
      for (uint64_t left = 2 + rng.next() % 4; left > 0; --left) piece += "ab"[rng.next() % 2];
      if (std::ranges::find(vocabulary, piece) != vocabulary.end()) continue;
      vocabulary.push_back(piece);
      scores.push_back(float(rng.next() % 5));  // ties are common
    }
    PieceIds ids;
    for (size_t id = 0; id < vocabulary.size(); ++id) ids[vocabulary[id]] = int32_t(id);
    std::string text;
    for (uint64_t left = rng.next() % 30; left > 0; --left) text += "abc"[rng.next() % 3];

    std::vector<std::string> expected;
    for (const char c : text) expected.emplace_back(1, c);
    for (;;) {
      size_t best = expected.size();
      float best_score = -1;
      for (size_t i = 0; i + 1 < expected.size(); ++i)
        if (const auto found = ids.find(expected[i] + expected[i + 1]); found != ids.end())
          if (scores[size_t(found->second)] > best_score) best = i, best_score = scores[size_t(found->second)];
      if (best == expected.size()) break;
      expected[best] += expected[best + 1];
      expected.erase(expected.begin() + ptrdiff_t(best) + 1);
    }
    std::vector<std::string> actual;
    for (const auto& stretch : ScoreMerger(ids, scores, 8).merge(text)) actual.emplace_back(stretch.text);
    ASSERT_EQ(actual, expected) << "round " << round << ": " << text;
  }
}

TEST(Tokenizer, OneMebibyteWithoutABreakTakesNoQuadraticTime) {
  const auto start = std::chrono::steady_clock::now();
  for (const auto& spec : {tiny_bpe(), tiny_spm()}) {
    const Tokenizer tokenizer = made(spec);
    for (const std::string unit : {"a", "hello", "he", "l", " ", "\xC3\xA9", "\xFF"}) {
      std::string text;
      while (text.size() < (size_t(1) << 20)) text += unit;
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false, false)), text);
    }
  }
  // 14 MiB: about two seconds, some thirty under sanitizers; quadratic merging of one case would take hours.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(200));
}

// --- special tokens ---

TEST(Tokenizer, ControlTextIsOrdinaryTextUnlessParsed) {
  for (const auto& spec : {tiny_bpe(), tiny_spm()}) {
    const Tokenizer tokenizer = made(spec);
    const auto ordinary = tokenizer.encode("a</s>h", false, false);
    EXPECT_FALSE(std::ranges::any_of(ordinary, [&](int32_t id) { return tokenizer.is_control(id); }));
    const auto parsed = tokenizer.encode("a</s>h", false, true);
    EXPECT_EQ(std::ranges::count(parsed, *spec.eos), 1);
    EXPECT_EQ(tokenizer.decode(parsed, true), "a</s>h");
    EXPECT_EQ(tokenizer.decode(parsed), "ah");
  }
}

TEST(Tokenizer, NoMergeLeadsIntoAControlToken) {
  TokenizerSpec spec = tiny_bpe();
  spec.pieces[size_t(*spec.bos)] = "ss";
  spec.merges = {"s s"};
  EXPECT_EQ(tokens(made(spec), "ss"), (Pieces{"s", "s"}));

  TokenizerSpec spm = tiny_spm();
  add_token(spm, "<s", TokenType::normal, 1);
  EXPECT_EQ(tokens(made(spm), "<s>"), (Pieces{std::string(kSpmSpace), "<s", ">"}));
}

TEST(Tokenizer, UserDefinedTokensAlwaysMatchLongestFirst) {
  const Tokenizer bpe = made(tiny_bpe());
  EXPECT_EQ(tokens(bpe, "a<tool>b"), (Pieces{"a", "<tool>", "b"}));
  EXPECT_EQ(tokens(bpe, "<tool><tool>s<tool"), (Pieces{"<tool>", "<tool>s", "<", "t", "o", "o", "l"}));
  const Tokenizer spm = made(tiny_spm());
  const std::string space(kSpmSpace);
  EXPECT_EQ(tokens(spm, "h<tool>h"), (Pieces{space + "h", "<tool>", space + "h"}));
  EXPECT_EQ(spm.decode(spm.encode("h<tool>h <tool>", false, false)), "h<tool>h <tool>");
}

TEST(Tokenizer, BosAndEosGoAroundTheTextAsTheSpecSays) {
  TokenizerSpec spec = tiny_bpe();
  EXPECT_EQ(pieces(made(spec), made(spec).encode("a", true, false)), (Pieces{"a"}));
  spec.add_bos = spec.add_eos = true;
  const Tokenizer tokenizer = made(spec);
  EXPECT_EQ(pieces(tokenizer, tokenizer.encode("a", true, false)), (Pieces{"<s>", "a", "</s>"}));
  EXPECT_EQ(pieces(tokenizer, tokenizer.encode("", true, false)), (Pieces{"<s>", "</s>"}));
  EXPECT_EQ(pieces(tokenizer, tokenizer.encode("a", false, false)), (Pieces{"a"}));
}

TEST(Tokenizer, ControlAndUnknownPiecesShowOnlyOnRequest) {
  const Tokenizer spm = made(tiny_spm());
  EXPECT_EQ(spm.piece(*spm.spec().bos), "");
  EXPECT_EQ(spm.piece(*spm.spec().bos, true), "<s>");
  EXPECT_EQ(spm.piece(*spm.spec().unk), "");
  EXPECT_EQ(spm.piece(id_of(spm.spec(), "<0xFF>")), "\xFF");
  EXPECT_EQ(spm.piece(id_of(spm.spec(), std::string(kSpmSpace) + "hello")), " hello");
  EXPECT_EQ(spm.piece(-1), "");  // padding of the embedding
  EXPECT_EQ(spm.piece(spm.vocab_size()), "");
}

// --- round trip ---

TEST(Tokenizer, AnyBytesComeBackExactly) {
  Rng rng(5);
  const std::string_view parts[] = {"hello", " ",      "  ",   "aa", "\n", "\xC3\xA9",        "\xE2\x82",
                                    "\xFF",  "<tool>", "</s>", "'s", "7",  "\xF0\x9F\x98\x80"};
  for (const auto& spec : {tiny_bpe(), tiny_spm()}) {
    const Tokenizer tokenizer = made(spec);
    for (int round = 0; round < 3000; ++round) {
      std::string text;
      for (uint64_t left = rng.next() % 12; left > 0; --left) {
        const uint64_t pick = rng.next() % (std::size(parts) + 3);
        if (pick < std::size(parts)) text += parts[pick];
        else text += char(rng.next());
      }
      if (text.find(kSpmSpace) != std::string::npos) continue;
      ASSERT_EQ(tokenizer.decode(tokenizer.encode(text, true, false)), text);
      ASSERT_EQ(tokenizer.decode(tokenizer.encode(text, false, true), true), text);
    }
  }
}

TEST(Tokenizer, NfcComposesBeforeMergingAndLeavesBrokenTextAlone) {
  TokenizerSpec spec = tiny_bpe();
  const std::string decomposed = "e\xCC\x81", composed = "\xC3\xA9";
  EXPECT_EQ(made(spec).decode(made(spec).encode(decomposed, false, false)), decomposed);
  spec.nfc = true;
  const Tokenizer tokenizer = made(spec);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(decomposed, false, false)), composed);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(decomposed + "\xFF", false, false)), decomposed + "\xFF");
  std::string marks = "e";
  for (int i = 0; i < 100000; ++i) marks += i % 2 ? "\xCC\x81" : "\xCC\xA3";  // reordering these is quadratic
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(marks, false, false)), marks);
}

// --- hostile vocabularies ---

struct DamagedSpec {
  const char* name;
  std::function<void(TokenizerSpec&)> damage;
  const char* message;
  bool spm = false;
};

TEST(TokenizerMake, RefusesWithAReason) {
  const DamagedSpec cases[] = {
      {"zero tokens", [](auto& s) { s.pieces.clear(), s.types.clear(); }, "no tokens"},
      {"types of another length", [](auto& s) { s.types.pop_back(); }, "token types for"},
      {"scores of another length", [](auto& s) { s.scores.pop_back(); }, "scores for", true},
      {"scores without spm", [](auto& s) { s.scores.assign(s.pieces.size(), 0); }, "scores for"},
      {"NaN score", [](auto& s) { s.scores[7] = std::nanf(""); }, "score of token 7", true},
      {"1 MiB piece", [](auto& s) { s.pieces[260] = std::string(1 << 20, 'x'); }, "1048576 bytes"},
      {"type 7", [](auto& s) { s.types[5] = TokenType(7); }, "has type 7"},
      {"byte <0x-1>", [](auto& s) { s.pieces[3] = "<0x-1>"; }, "'<0x-1>'", true},
      {"byte <0xGG>", [](auto& s) { s.pieces[3] = "<0xGG>"; }, "'<0xGG>'", true},
      {"byte tokens in bpe", [](auto& s) { s.types[5] = TokenType::byte; }, "of type byte"},
      {"BOS past the end", [](auto& s) { s.bos = int32_t(s.pieces.size()); }, "the BOS token is"},
      {"negative EOS", [](auto& s) { s.eos = -2; }, "the EOS token is -2"},
      {"a negative end", [](auto& s) { s.ends = {-1}; }, "a token that ends a turn is -1"},
      {"an end past 2^24", [](auto& s) { s.ends = {1 << 24}; }, "a token that ends a turn is"},
      {"ends without order",
       [](auto& s) {
         s.ends = {5, 4};
       },
       "not in order"},
      {"padding past the end", [](auto& s) { s.pad = 1 << 20; }, "the padding token is"},
      {"add_bos without BOS", [](auto& s) { s.add_bos = true, s.bos.reset(); }, "names no BOS"},
      {"add_eos without EOS", [](auto& s) { s.add_eos = true, s.eos.reset(); }, "names no EOS"},
      {"merge of an unknown piece", [](auto& s) { s.merges.push_back("zz q"); }, "needs the piece 'zz'"},
      {"merge into an unknown piece", [](auto& s) { s.merges.push_back("z q"); }, "needs the piece 'zq'"},
      {"merge without a space", [](auto& s) { s.merges.push_back("he"); }, "expected two pieces"},
      {"empty merge", [](auto& s) { s.merges.push_back(""); }, "expected two pieces"},
      {"merge with an empty right side", [](auto& s) { s.merges.push_back("h "); }, "expected two pieces"},
      {"a byte nobody spells", [](auto& s) { s.pieces[65] = "gone"; }, "no token spells the byte 0x41"},
      {"no bytes and no unknown token", [](auto& s) { s.types[9] = TokenType::unused, s.unk.reset(); }, "0x06", true},
      {"pre-tokenizer with spm", [](auto& s) { s.pre = PreTokenizer::gpt2; }, "no pre-tokenizer", true},
      {"bpe without pre-tokenizer", [](auto& s) { s.pre = PreTokenizer::none; }, "needs a pre-tokenizer"},
  };
  for (const DamagedSpec& bad : cases) {
    TokenizerSpec spec = bad.spm ? tiny_spm() : tiny_bpe();
    bad.damage(spec);
    const auto made_from_bad = Tokenizer::make(std::move(spec));
    ASSERT_FALSE(made_from_bad) << bad.name;
    EXPECT_EQ(made_from_bad.error().kind, ErrorKind::bad_file);
    EXPECT_THAT(made_from_bad.error().message, HasSubstr(bad.message)) << bad.name;
  }
}

TEST(TokenizerMake, AcceptsWhatRealVocabulariesContain) {
  TokenizerSpec spec = tiny_bpe();
  const int32_t duplicate = add_token(spec, "hello", TokenType::normal);
  const int32_t empty = add_token(spec, "", TokenType::normal);
  add_token(spec, "", TokenType::user_defined);
  add_token(spec, "", TokenType::control);
  const Tokenizer tokenizer = made(spec);
  EXPECT_EQ(tokenizer.encode("hello", false, true), Ids{id_of(spec, "hello")});
  EXPECT_EQ(tokenizer.decode(Ids{duplicate, empty}), "hello");

  TokenizerSpec spm = tiny_spm();
  add_token(spm, "<0x41>", TokenType::byte);  // a second spelling of a byte
  spm.scores[260] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(made(spm).encode("A", false, false).back(), id_of(spm, "<0x41>"));
}

}  // namespace
}  // namespace ridge::io
