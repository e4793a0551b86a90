// The evaluation of a real model: the shipped stories260K.
#include "lab/quality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/temp_dir.h"
#include "lab/quality_report.h"

namespace ridge::lab {
namespace {

constexpr const char* kModel = RIDGE_SOURCE_DIR "/models/stories260K.gguf";
constexpr const char* kStory =
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big "
    "red ball. She wanted to play with it, but it was too high. Her mom said, \"Lily, let's go to the park.\" Lily was "
    "sad "
    "and didn't know what to do. She said, \"I want to play with your ball, but I can't find it.\" Lily was sad and "
    "didn't "
    "know what to do. She said, \"I'm sorry, Lily. I didn't know what to do.\" Lily didn't want to help her mom, so "
    "she "
    "said, \"I'm sorry, mom. I didn't know what to do.\" ";

class Quality : public testing::Test {
 protected:
  Quality() : model_(Model::load(kModel, {.n_threads = 2})) {
    dir_.write("story.txt", kStory);
    corpus_ = read_corpus(model_, (dir_ / "story.txt").native());
  }
  EvalResult run(EvalPath path, bool against_base, std::vector<KvChoice> candidates, EvalHooks hooks = {}) {
    return evaluate(model_, corpus_,
                    {.n_ctx = 64,
                     .n_ubatch = 16,
                     .path = path,
                     .against_base = against_base,
                     .base = {},
                     .candidates = std::move(candidates)},
                    hooks);
  }

  Model model_;
  TempDir dir_;
  Corpus corpus_;
};

TEST_F(Quality, CorpusIsHashedAndStartsWithBos) {
  EXPECT_EQ(corpus_.bytes, int64_t(std::string_view(kStory).size()));
  EXPECT_EQ(corpus_.tokens.front(), model_.bos());
  EXPECT_NE(corpus_.xxh64, 0u);
}

TEST_F(Quality, AStoryIsPlausibleToAStoryModel) {
  const EvalResult result = run(EvalPath::prefill, false, {{}});
  const double ppl = result.candidates[0].scores.ppl.ppl().value;
  EXPECT_GT(ppl, 1.2);
  EXPECT_LT(ppl, 6);  // guessing would be 512
  EXPECT_GT(result.bits_per_byte(result.candidates[0]), 0.2);
  EXPECT_EQ(result.candidates[0].scores.ppl.count(), int64_t(result.windows.n_chunks) * 31);
}

TEST_F(Quality, BothPathsAgreeAndF16IsItsOwnControl) {
  for (const EvalPath path : {EvalPath::prefill, EvalPath::decode}) {
    const EvalResult result = run(path, true, {{}});
    const PairMeans m = result.candidates[0].scores.pair.means();
    EXPECT_EQ(m.kld.value, 0) << eval_path_name(path);
    EXPECT_EQ(m.same_top.value, 1);
  }
  const double prefill = run(EvalPath::prefill, false, {{}}).candidates[0].scores.ppl.ppl().value;
  const double decode = run(EvalPath::decode, false, {{}}).candidates[0].scores.ppl.ppl().value;
  EXPECT_NEAR(prefill / decode, 1, 1e-3);
}

TEST_F(Quality, CompressedCachesDivergeALittleAndInOrder) {
  // stories260K's heads are 8 wide, narrower than any format's group.
  const Model model = Model::load(RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf", {.n_threads = 2});
  const Corpus corpus = read_corpus(model, RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt");
  EvalOptions options;
  options.n_ctx = 256;
  options.max_chunks = 2;
  options.path = EvalPath::prefill;
  options.against_base = true;
  options.candidates = parse_kv_list("f16,q8_0,rotor-3:window=0:sinks=0").or_throw();
  const EvalResult result = evaluate(model, corpus, options, {});
  const auto kld = [&](size_t i) { return result.candidates[i].scores.pair.means().kld.value; };
  EXPECT_EQ(kld(0), 0);
  EXPECT_GT(kld(1), 0);
  EXPECT_LT(kld(1), 0.01);
  EXPECT_GT(kld(2), 3 * kld(1));
  EXPECT_LT(kld(2), 0.5);
}

TEST_F(Quality, AStopKeepsTheFinishedChunks) {
  int chunks = 0;
  EvalHooks hooks;
  hooks.on_chunk = [&](const EvalResult& so_far) { chunks = so_far.chunks_done; };
  hooks.stop = [&] { return chunks >= 1; };
  const EvalResult result = run(EvalPath::decode, false, {{}}, hooks);
  EXPECT_EQ(result.chunks_done, 1);
  EXPECT_FALSE(result.complete());
  EXPECT_EQ(result.candidates[0].scores.ppl.count(), 31);
}

TEST_F(Quality, ProgressEndsAtItsTotal) {
  int64_t done = 0, total = 0;
  EvalHooks hooks;
  hooks.on_progress = [&](int64_t steps, int64_t all) { done += steps, total = all; };
  run(EvalPath::prefill, true, {{}}, hooks);
  EXPECT_EQ(done, total);
  EXPECT_GT(total, 0);
}

TEST_F(Quality, RowsHoldWhatMakesFiguresComparable) {
  const EvalResult result = run(EvalPath::prefill, true, {{}});
  const Row row = to_row(result, result.candidates[0]);
  for (const char* field : {"corpus_xxh64", "n_ctx", "chunks", "bos_rule", "path", "kv", "base", "tokens_scored"})
    EXPECT_TRUE(row.contains(field)) << field;
  EXPECT_EQ(row["kld"]["percentiles"].size(), kKldQuantiles.size());
  EXPECT_EQ(row["delta_p"]["percentiles"].size(), kDeltaPQuantiles.size());
}

TEST_F(Quality, ReportUsesTheKnownLabels) {
  const EvalResult result = run(EvalPath::prefill, true, {{}});
  const std::string text = kld_text(result.candidates[0]);
  for (const char* label :
       {"Mean PPL(Q) ", "Mean PPL(base) ", "Cor(ln(PPL(Q)), ln(PPL(base))):", "Mean ln(PPL(Q)/PPL(base)) ",
        "Mean PPL(Q)/PPL(base) ", "Mean PPL(Q)-PPL(base) ", "Mean    KLD:", "Maximum KLD:", "99.9%   KLD:",
        "Median  KLD:", "0.1%    KLD:", "Minimum KLD:", "Mean    Δp:", "75.0%   Δp:", "RMS Δp    :", "Same top p:"})
    EXPECT_THAT(text, testing::HasSubstr(label));
  EXPECT_THAT(markdown_table(result), testing::HasSubstr("| f16 | none | 16 |"));
}

TEST_F(Quality, AShortTextIsRefused) {
  dir_.write("short.txt", "One day");
  const Corpus corpus = read_corpus(model_, (dir_ / "short.txt").native());
  EvalOptions options;
  options.n_ctx = 64;
  options.candidates.emplace_back();
  EXPECT_THROW(evaluate(model_, corpus, options, {}), Error);
}

}  // namespace
}  // namespace ridge::lab
