// The probes: what numbers mean, limits that hold, and caches that must fail them.
#include "lab/quality/probe.h"

#include "lab/quality/acceptance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cases/paths.h"

namespace ridge::lab {
namespace {

using testing::HasSubstr;

TEST(Agreement, OfEqualRowsIsWhole) {
  const std::vector<float> row{3, 1, 2, 0, -1, 5, 4, 0.5f, -3, 2.5f, 1.5f, -0.5f};
  const Agreement a = agreement(row, row);
  EXPECT_TRUE(a.same_top);
  EXPECT_DOUBLE_EQ(a.jaccard, 1);
  EXPECT_DOUBLE_EQ(a.mae, 0);
  EXPECT_NEAR(a.jsd, 0, 1e-15);
  // Logits that differ by a constant are the same distribution.
  std::vector<float> shifted = row;
  for (float& x : shifted) x += 8;
  EXPECT_NEAR(agreement(row, shifted).mae, 0, 1e-12);
  EXPECT_NEAR(agreement(row, shifted).jsd, 0, 1e-12);
}

TEST(Agreement, IsWhatTheFormulasSay) {
  // Two tokens, p = (1/4, 3/4) and q = (3/4, 1/4): both likeliest sets hold both.
  const float third = float(std::log(3.0));
  const Agreement a = agreement(std::vector<float>{0, third}, std::vector<float>{third, 0});
  EXPECT_FALSE(a.same_top);
  EXPECT_DOUBLE_EQ(a.jaccard, 1);
  EXPECT_NEAR(a.mae, std::log(3.0), 1e-6);
  // Each against the mean (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2.
  EXPECT_NEAR(a.jsd, 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-6);
  // Sets of ten that share five.
  std::vector<float> x(20, 0), y(20, 0);
  for (size_t i = 0; i < 10; ++i) x[i] = y[i + 5] = 10;
  EXPECT_NEAR(agreement(x, y).jaccard, 5.0 / 15, 1e-12);
  // Nothing in common: ln 2.
  EXPECT_NEAR(agreement(std::vector<float>{0, 800}, std::vector<float>{800, 0}).jsd, std::log(2.0), 1e-12);
  EXPECT_THROW(agreement(std::vector<float>{NAN, 1}, std::vector<float>{0, 1}), Error);
}

TEST(ProbeVerdicts, AreBeyondTwoErrors) {
  EXPECT_EQ(judge_share({0.95, 0.01}, 0.9), ProbeVerdict::pass);
  EXPECT_EQ(judge_share({0.91, 0.01}, 0.9), ProbeVerdict::none);
  EXPECT_EQ(judge_share({0.89, 0.01}, 0.9), ProbeVerdict::none);
  EXPECT_EQ(judge_share({0.85, 0.01}, 0.9), ProbeVerdict::fail);
}

AgreementStat stat_of(int n, double top1, double jaccard, double mae, double jsd) {
  AgreementStat stat;
  for (int i = 0; i < n; ++i) stat.add({i < top1 * n, jaccard, mae, jsd});
  return stat;
}

TEST(ProbeVerdicts, OneBrokenLimitFailsAProbe) {
  const ProbeBand band{"short", {128}, 0.90, 0.70, 0.20, 0.05};
  const auto verdict = [&](double top1, double jaccard, double mae, double jsd) {
    return judge_agreement(stat_of(400, top1, jaccard, mae, jsd), band, "p").verdict;
  };
  EXPECT_EQ(verdict(1, 0.9, 0.1, 0.01), ProbeVerdict::pass);
  EXPECT_EQ(verdict(0.8, 0.9, 0.1, 0.01), ProbeVerdict::fail);
  EXPECT_EQ(verdict(1, 0.6, 0.1, 0.01), ProbeVerdict::fail);
  EXPECT_EQ(verdict(1, 0.9, 0.3, 0.01), ProbeVerdict::fail);
  EXPECT_EQ(verdict(1, 0.9, 0.1, 0.06), ProbeVerdict::fail);
  EXPECT_EQ(verdict(0.905, 0.9, 0.1, 0.01), ProbeVerdict::none);
}

class ProbeRun : public testing::Test {
 protected:
  static const Model& model() {
    static const Model loaded = Model::load(RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf", {.n_threads = 1});
    return loaded;
  }
  static std::vector<ProbeResult> run(const char* list, ProbeLimits limits) {
    ProbeOptions options{.n_prompts = 2, .n_positions = 24, .n_generate = 12, .needle_trials = 2, .needle_depths = 1};
    options.limits = std::move(limits);
    options.candidates = parse_kv_list(list).or_throw();
    static const Corpus corpus = read_corpus(model(), RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt");
    std::vector<ProbeResult> results;
    run_probe(model(), corpus, options, {.on_result = [&](const ProbeResult& result) { results.push_back(result); }});
    return results;
  }
  static ProbeLimits limits() {
    ProbeLimits limits;
    limits.bands = {{"short", {64, 192}, 0.5, 0.4, 1, 0.2}, {"long", {8192}, 0.5, 0.4, 1, 0.2}};
    limits.needle_contexts = {160, 8192};
    return limits;
  }
  static const ProbeLine& line(const ProbeResult& result, const std::string& name) {
    for (const ProbeLine& line : result.lines)
      if (line.name == name) return line;
    throw std::runtime_error("no probe " + name);
  }
};

TEST_F(ProbeRun, F16AgreesWithItselfAndLengthsBeyondAreNotApplicable) {
  const auto results = run("f16", limits());
  ASSERT_EQ(results.size(), 1u);
  const ProbeLine& near = line(results[0], "next token, short, 192 tokens");
  EXPECT_EQ(near.verdict, ProbeVerdict::pass);
  EXPECT_THAT(near.says, HasSubstr("100.0 %, 1.000, 0.0000, 0.00000"));
  EXPECT_EQ(near.numbers["positions"], 48);
  for (const char* far : {"next token, long, 8192 tokens", "needles, 8192 tokens"}) {
    EXPECT_EQ(line(results[0], far).verdict, ProbeVerdict::not_applicable) << far;
    EXPECT_THAT(line(results[0], far).says, HasSubstr("trained for 4096")) << far;
  }
  for (const char* same : {"JSON canary", "code canary", "greedy text twice", "kept prefix or none"})
    EXPECT_EQ(line(results[0], same).verdict, ProbeVerdict::pass) << same;
  const Row row = columns_of(results[0]).fields(results[0]);
  EXPECT_THAT(probe_table({&row, 1}), HasSubstr("| next token, long, 8192 tokens | NOT APPLICABLE: "));
}

TEST_F(ProbeRun, ADestroyedCacheFails) {
  // rotor-3u stores no scales, and without a window every row is coded.
  const auto results = run("rotor-3u:window=0:sinks=0", limits());
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(line(results[0], "next token, short, 192 tokens").verdict, ProbeVerdict::fail);
  EXPECT_EQ(line(results[0], "JSON canary").verdict, ProbeVerdict::fail) << line(results[0], "JSON canary").says;
  // It is destroyed in the same way every time.
  EXPECT_EQ(line(results[0], "greedy text twice").verdict, ProbeVerdict::pass);
  EXPECT_EQ(line(results[0], "kept prefix or none").verdict, ProbeVerdict::pass);
}

TEST_F(ProbeRun, AcceptanceIsOfStepsAtTheSamePlaces) {
  ASSERT_TRUE(has_mtp_head(model()));
  ASSERT_FALSE(has_mtp_head(Model::load("synth:tiny")));
  EXPECT_TRUE(has_mtp_head(Model::load("synth:tiny@mtp=1")));
  const Corpus corpus = read_corpus(model(), RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt");
  ProbeOptions options{.n_prompts = 1, .n_positions = 4, .n_generate = 4};
  options.limits.bands.clear();
  options.limits.needle_contexts.clear();
  options.draft = {.type = "mtp", .why_not = {}, .open = [](const Model& target, int n_ctx) {
                     return mtp_proposers(target, "", {.n_ctx = n_ctx});
                   }};
  options.draft.n_texts = 4;
  options.draft.n_generate = 50;
  options.candidates = parse_kv_list("q8_0,f16,rotor-3u:window=0:sinks=0").or_throw();
  std::vector<ProbeLine> lines;
  run_probe(model(), corpus, options, {.on_result = [&](const ProbeResult& result) {
              lines.push_back(line(result, "draft acceptance, mtp, 4 a step"));
            }});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].verdict, ProbeVerdict::pass) << "q8_0 against itself";
  EXPECT_EQ(lines[0].numbers["lost"]["value"], 0);
  EXPECT_EQ(lines[0].numbers["steps"], 4 * 10) << "a place every five tokens";
  EXPECT_EQ(lines[0].numbers["proposed"], 4 * 10 * 4);
  const double of_q8 = lines[0].numbers["accepted"]["value"].get<double>();
  EXPECT_GT(of_q8, 0.3) << "the head was trained";
  EXPECT_NEAR(lines[1].numbers["accepted"]["value"].get<double>(), of_q8, 0.1);
  // Without scales nothing holds that q8_0 would write.
  EXPECT_EQ(lines[2].verdict, ProbeVerdict::fail) << lines[2].says;
  // No proposer is no failure, and neither is it a pass.
  options.draft = {.why_not = "the model has no MTP head"};
  options.candidates.resize(1);
  run_probe(model(), corpus, options, {.on_result = [&](const ProbeResult& result) {
              EXPECT_EQ(line(result, "draft acceptance").verdict, ProbeVerdict::not_applicable);
              EXPECT_THAT(line(result, "draft acceptance").says, HasSubstr("no MTP head"));
            }});
}

/// Proposes what is likeliest with another model's session: all of it holds.
class Oracle final : public Proposer {
 public:
  Oracle(const Model& model, const KvChoice& kv, int n_wrong)
      : session_(model, session_options(kv, 512, 0)), n_wrong_(n_wrong) {}
  std::vector<int32_t> propose(std::span<const int32_t> text, int n) override {
    session_.reset();
    std::span<const float> logits = session_.prefill(text);
    std::vector<int32_t> tokens;
    for (int i = 0; i < n; ++i) {
      tokens.push_back(int32_t(std::ranges::max_element(logits) - logits.begin()));
      if (i + n_wrong_ >= n) tokens.back() ^= 1;
      logits = session_.decode(tokens.back());
    }
    return tokens;
  }

 private:
  Session session_;
  int n_wrong_;
};

TEST_F(ProbeRun, AcceptanceCountsUpToTheFirstWrongDraftToken) {
  for (const char* name : {"stories", "tiny-delta"}) {
    // Of the second one layers keep states, of the newest lengths.
    const Model of =
        Model::load(name == std::string("stories") ? RIDGE_SOURCE_DIR "/models/stories260K.gguf" : "synth:tiny-delta",
                    {.n_threads = 1});
    Rng rng(3);
    std::vector<int32_t> prompt, text;
    for (int i = 0; i < 100; ++i) (i < 70 ? prompt : text).push_back(int32_t(rng.next() % 200) + 3);
    const KvChoice kv;
    AcceptanceRun run(of, kv, 100, 3);
    for (const int n_wrong : {0, 1, 3}) {
      Oracle oracle(of, kv, n_wrong);
      const auto steps = run.along(oracle, prompt, text);
      ASSERT_EQ(steps.size(), 8u);
      for (const AcceptanceStep& step : steps) {
        EXPECT_EQ(step.n_proposed, 3);
        EXPECT_EQ(step.n_accepted, 3 - n_wrong) << name;
      }
    }
  }
}

TEST_F(ProbeRun, AStopHandsNothingHalfOver) {
  ProbeOptions options{.n_prompts = 1, .n_positions = 4, .n_generate = 4};
  options.limits = limits();
  options.limits.needle_contexts = {};
  options.candidates = parse_kv_list("f16").or_throw();
  const Corpus corpus = read_corpus(model(), RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt");
  int n = 0;
  run_probe(model(), corpus, options, {.stop = [] { return true; }, .on_result = [&](const ProbeResult&) { ++n; }});
  EXPECT_EQ(n, 0);
  // Progress ends at its total.
  int64_t done = 0, total = 0;
  run_probe(model(), corpus, options, {.on_progress = [&](int64_t d, int64_t t) { done = d, total = t; }});
  EXPECT_EQ(done, total);
  EXPECT_GT(total, 0);
}

}  // namespace
}  // namespace ridge::lab
