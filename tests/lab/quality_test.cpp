// The evaluation of a real model: the shipped stories260K.
#include "lab/quality/quality.h"
#include "cases/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/temp_dir.h"
#include "lab/quality/quality_report.h"

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
  static EvalOptions pair_options(const char* list) {
    EvalOptions options;
    options.n_ctx = 64;
    options.against_base = true;
    options.candidates = parse_kv_list(list).or_throw();
    return options;
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
  const EvalResult result = run(EvalPath::prefill, false, {{}}, hooks);
  EXPECT_EQ(result.chunks_done, 1);
  EXPECT_FALSE(result.complete());
  EXPECT_EQ(result.candidates[0].scores.ppl.count(), 31);
  // The decode path has eight chunks side by side.
  chunks = 0;
  EvalOptions options;
  options.n_ctx = 16;
  options.path = EvalPath::decode;
  options.candidates = {{}};
  const EvalResult by_eight = evaluate(model_, corpus_, options, hooks);
  EXPECT_GT(by_eight.windows.n_chunks, 8);
  EXPECT_EQ(by_eight.chunks_done, 8);
  EXPECT_FALSE(by_eight.complete());
  EXPECT_EQ(by_eight.candidates[0].scores.ppl.count(), 8 * 7);
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
  const std::string text = kld_text(to_row(result, result.candidates[0]));
  for (const char* label :
       {"Mean PPL(Q) ", "Mean PPL(base) ", "Cor(ln(PPL(Q)), ln(PPL(base))):", "Mean ln(PPL(Q)/PPL(base)) ",
        "Mean PPL(Q)/PPL(base) ", "Mean PPL(Q)-PPL(base) ", "Mean    KLD:", "Maximum KLD:", "99.9%   KLD:",
        "Median  KLD:", "0.1%    KLD:", "Minimum KLD:", "Mean    Δp:", "75.0%   Δp:", "RMS Δp    :", "Same top p:"})
    EXPECT_THAT(text, testing::HasSubstr(label));
  EXPECT_THAT(eval_table({{to_row(result, result.candidates[0])}}), testing::HasSubstr("| f16 | none | 16 |"));
}

TEST_F(Quality, ASavedBaseComparesAsTheRunItReplaces) {
  EvalOptions options = pair_options("f32,rotor-3");
  options.save_base = (dir_ / "base.kld").native();
  const EvalResult run = evaluate(model_, corpus_, options, {});
  const auto file = io::KlBaseFile::open(options.save_base).or_throw();
  EXPECT_EQ(file.base().shape.n_rows(), run.candidates[0].scores.pair.count());
  const Corpus corpus = base_corpus(model_, file);
  EXPECT_EQ(corpus.tokens,
            std::vector<int32_t>(corpus_.tokens.begin(), corpus_.tokens.begin() + run.windows.n_chunks * 64));
  options.save_base.clear();
  options.base_file = &file;
  options.candidates.emplace_back();  // f16, the control
  const EvalResult again = evaluate(model_, corpus, options, {});
  for (size_t i = 0; i < 2; ++i) {
    const PairMeans a = run.candidates[i].scores.pair.means(), b = again.candidates[i].scores.pair.means();
    EXPECT_EQ(a.ppl.value, b.ppl.value);
    // Half a step of 16/65535 a token at most in the likelihoods; the divergence feels its square and the cut tail.
    EXPECT_NEAR(a.ppl_base.value / b.ppl_base.value, 1, 0.5 * 16 / 65535);
    EXPECT_NEAR(a.kld.value, b.kld.value, 5e-6);
  }
  EXPECT_NEAR(again.candidates[2].scores.pair.means().kld.value, 0, 5e-6);
  EXPECT_EQ(to_row(again, again.candidates[0])["base"], "file base.kld");
}

TEST_F(Quality, ABaseOfAnotherVocabularyIsRefused) {
  io::KlBaseWriter writer(dir_ / "other.kld");
  const io::KlBaseShape shape{.n_ctx = 4, .n_vocab = 2, .n_chunks = 1};
  writer.create(shape, std::vector<int32_t>(4)).or_throw();
  writer.add(std::vector<std::byte>(size_t(shape.row_bytes()))).or_throw();
  writer.commit().or_throw();
  EXPECT_THROW(base_corpus(model_, io::KlBaseFile::open(dir_ / "other.kld").or_throw()), Error);
}

TEST_F(Quality, AStoppedRunLeavesNoBaseFile) {
  EvalOptions options = pair_options("f16");
  options.save_base = (dir_ / "base.kld").native();
  EvalHooks hooks;
  hooks.stop = [] { return true; };
  evaluate(model_, corpus_, options, hooks);
  EXPECT_THAT(dir_.names(), testing::ElementsAre("story.txt"));
}

TEST_F(Quality, TheCurveIsInRowsAndText) {
  EvalOptions options = pair_options("f16");
  options.whole_curve = true;
  const EvalResult result = evaluate(model_, corpus_, options, {});
  const Row parts = to_row(result, result.candidates[0])["kld_by_position"];
  ASSERT_EQ(parts.size(), size_t(kCurveParts));
  EXPECT_EQ(parts[0]["from"], 0);
  EXPECT_EQ(parts[15]["to"], 64);
  EXPECT_EQ(parts[3]["count"], 4 * result.windows.n_chunks);
  EXPECT_THAT(curve_text({{to_row(result, result.candidates[0])}}), testing::HasSubstr("60 to 63"));
}

TEST_F(Quality, EffectiveBitsCountWindowAndSinks) {
  const EvalResult result = run(EvalPath::prefill, true, {{}});
  EXPECT_EQ(result.effective_bits_4k(result.candidates[0]), 16);
  // rotor-3 by its policy: 4 f16 sinks, 3996 rows of 3.125 bits, 96 of 8.125 bits.
  const ModelInfo& m = result.model;
  CandidateResult rotor = result.candidates[0];
  const double values = double(m.n_layers) * m.n_kv_heads * m.head_dim;
  rotor.cache.k.held_bytes_4k = rotor.cache.v.held_bytes_4k =
      int64_t(values / 8 * (4 * 16 + 3996 * 3.125 + 96 * 8.125));
  EXPECT_NEAR(result.effective_bits_4k(rotor), 3.2549, 1e-3);
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
