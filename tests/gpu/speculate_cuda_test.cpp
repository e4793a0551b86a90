// Speculation on a device: the text of steps of one token, through every proposer and cache. The model's floats round
// otherwise in larger steps, by far less than its tokens are apart.
#include "engine/decode/decoder.h"

#include "cases/known_texts.h"
#include "cases/mtp_head.h"
#include "cases/own_mtp_head.h"
#include "cases/paths.h"
#include "engine/engine.h"
#include "gpu/device_data.h"

namespace ridge {
namespace {

class SpeculationCuda : public OnDevice {};

SessionOptions session_of(const std::string& cache, int n_ctx = 192) {
  return {.n_ctx = n_ctx, .k = {.format = cache}, .v = {.format = cache}};
}

struct Sampled {
  std::vector<int32_t> tokens;  // the prompt's too
  int n_past = 0;
  int32_t next = 0;  // the likeliest token behind one more step: what the cache holds
};

Sampled sample_text(const Model& model, const SessionOptions& options, const SamplerOptions& sampler,
                    std::span<const int32_t> prompt, int n, Speculation* speculation) {
  Session session(model, options);
  session.speculate(speculation);
  session.prefill(prompt);
  Sampled text{{prompt.begin(), prompt.end()}, 0, 0};
  const int n_sampled = session.generate(sampler, prompt, n, [&](int32_t token) {
    text.tokens.push_back(token);
    return true;
  });
  EXPECT_EQ(n_sampled, n);
  text.n_past = session.n_past();
  const std::span<const float> logits = session.decode(text.tokens.back());
  text.next = int32_t(std::ranges::max_element(logits) - logits.begin());
  return text;
}

TEST_F(SpeculationCuda, TextsAreThoseOfSingleTokens) {
  const TempDir directory;
  const Model model = Model::load("synth:tiny@layers=1@weights=f32", {.device = "cuda"});
  const std::string head = write_random_head(directory, model.info());
  const SamplerOptions greedy{.temperature = 0}, sampled{.temperature = 0.8f, .repeat_penalty = 1.1f, .seed = 5};
  struct Case {
    const char* cache;
    int n_prompt;
    SamplerOptions sampler;
    const char* of_draft;
  };
  // At 64 positions rotor-3's centre is set, at 128 a tile leaves its window.
  const Case cases[] = {{"f16", 20, greedy, "rotor-3"},
                        {"f16", 20, sampled, "f16"},
                        {"q8_0", 20, greedy, "q8_0"},
                        {"rotor-3", 50, greedy, "f16"},
                        {"rotor-3", 112, sampled, "rotor-3"}};
  constexpr int kTokens = 24;
  SpecReport all;
  for (const auto& [cache, n_prompt, sampler, of_draft] : cases) {
    std::vector<int32_t> prompt;
    for (int i = 0; i < n_prompt; ++i) prompt.push_back((37 * (i % 9) + 11) % 512);
    const Sampled plain = sample_text(model, session_of(cache), sampler, prompt, kTokens, nullptr);
    const auto check = [&, n_past = n_prompt, with = cache, of = sampler](std::unique_ptr<Proposer> proposer, int depth,
                                                                          const char* name) {
      Speculation speculation(std::move(proposer), depth, false);
      const Sampled text = sample_text(model, session_of(with), of, prompt, kTokens, &speculation);
      const std::string where = fmt::format("{} over {} behind {}, temperature {}", name, with, n_past, of.temperature);
      EXPECT_EQ(text.tokens, plain.tokens) << where;
      EXPECT_EQ(text.n_past, plain.n_past) << where;
      EXPECT_EQ(text.next, plain.next) << where;
      const SpecReport& report = speculation.report();
      EXPECT_EQ(report.n_steps + report.n_accepted, kTokens - 1) << where;
      all.n_accepted += report.n_accepted;
      all.n_proposed += report.n_proposed;
    };
    check(std::make_unique<KnownTexts>(plain.tokens), kMaxSpecDepth, "known text");
    check(make_lookup_proposer(), 4, "lookup");
    check(draft_proposers(model, model, session_of(of_draft), sampler.temperature > 0 ? 1e-6 : 0)(), 3, "draft");
    check(mtp_proposers(model, head, session_of(of_draft))(), 3, "mtp");
  }
  EXPECT_GT(all.n_accepted, 80);
  EXPECT_GT(all.n_proposed, all.n_accepted);
}

/// What two rounds of a text gave by forced acceptance: the text is the head's, so that its states are seen too.
struct Forced {
  std::vector<int32_t> tokens;
  std::vector<int> n_past;
  int32_t next = 0;
  SpecReport report;
};
struct ForcedCase {
  const char* cache;
  const char* of_head;
  int n_prompt, depth, n_ctx;
  SamplerOptions sampler;
  bool centre = false;
  int n_unseen = 0;  // tokens of the prompt that the head does not see
  int vocab = 0;     // MtpDrafts::vocab
};

/// Stops at token 13 of the first round, puts five tokens behind it, and goes on to the end of the context or 24
/// tokens.
Forced force_text(const Model& model, const std::string& head, const ForcedCase& c, double p_min) {
  Speculation speculation(
      mtp_proposers(model, head, session_of(c.of_head, c.n_ctx), {.p_min = p_min, .vocab = c.vocab})(), c.depth, false);
  speculation.force(0.75, 11);
  SessionOptions options = session_of(c.cache, c.n_ctx);
  options.k.centre = c.centre;
  Session session(model, options);
  std::vector<int32_t> prompt, known;
  for (int i = 0; i < c.n_prompt; ++i) prompt.push_back((37 * (i % 9) + 11) % model.info().vocab_size);
  if (c.n_unseen > 0) {
    known.assign(prompt.begin(), prompt.begin() + c.n_unseen);
    prompt.erase(prompt.begin(), prompt.begin() + c.n_unseen);
    session.prefill(known);
  }
  session.speculate(&speculation);
  Forced text;
  SamplerOptions sampler = c.sampler;
  for (const int n : {100, 24}) {
    session.prefill(prompt);
    known.insert(known.end(), prompt.begin(), prompt.end());
    const size_t before = text.tokens.size();
    session.generate(sampler, known, n, [&](int32_t token) {
      text.tokens.push_back(token);
      known.push_back(token);
      return text.tokens.size() != 13;
    });
    sampler.n_sampled += text.tokens.size() - before;
    text.n_past.push_back(session.n_past());
    prompt = {known.back(), 5, 6, 7, 8};
    known.pop_back();
  }
  text.report = speculation.report();
  if (session.n_past() < session.n_ctx()) {
    const std::span<const float> logits = session.decode(prompt[0]);
    text.next = int32_t(std::ranges::max_element(logits) - logits.begin());
  }
  return text;
}

/// Steps that a device queues ahead: proposals, acceptance, samples, places and both caches are those of the loop in
/// which the host goes between, for all depths, over ends of windows, of texts and of the context.
void expect_steps_of_the_host(const Model& model, const std::string& head, std::span<const ForcedCase> cases) {
  for (const ForcedCase& c : cases) {
    const std::string where = fmt::format("{} and {} behind {} by {}, temperature {}", c.cache, c.of_head, c.n_prompt,
                                          c.depth, c.sampler.temperature);
    // A bound of the probability that nothing is below is the host's to see.
    const Forced expected = force_text(model, head, c, 1e-30), text = force_text(model, head, c, 0);
    EXPECT_EQ(text.tokens, expected.tokens) << where;
    EXPECT_EQ(text.n_past, expected.n_past) << where;
    EXPECT_EQ(text.next, expected.next) << where;
    EXPECT_EQ(text.report.n_steps, expected.report.n_steps) << where;
    EXPECT_EQ(text.report.n_proposed, expected.report.n_proposed) << where;
    EXPECT_EQ(text.report.n_accepted, expected.report.n_accepted) << where;
    EXPECT_EQ(expected.report.n_ahead, 0);
    EXPECT_EQ(text.report.n_ahead < text.report.n_steps, c.centre) << where;
    EXPECT_GT(text.report.n_ahead, 0) << where;
  }
}

TEST_F(SpeculationCuda, StepsQueuedAheadAreThoseOfTheHost) {
  const TempDir directory;
  const Model model = Model::load("synth:tiny@layers=1@weights=f32", {.device = "cuda"});
  const std::string head = write_random_head(directory, model.info());
  const SamplerOptions greedy{.temperature = 0}, sampled{.temperature = 0.8f, .repeat_penalty = 1.1f, .seed = 5},
      looks_back_little{
          .temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1.5f, .repeat_last_n = 3};
  // At 64 positions the centre is set, at 96, 128 and 160 tiles leave their windows.
  const ForcedCase cases[] = {{"f16", "f16", 20, 1, 256, greedy},
                              {"q8_0", "f16", 20, 9, 256, sampled},
                              {"f16", "rotor-3", 70, 15, 256, looks_back_little},
                              {"rotor-3", "f16", 50, 3, 256, greedy, true},
                              {"rotor-3", "rotor-3", 150, 7, 256, sampled},
                              {"rotor-3", "q8_0", 112, 15, 150, greedy},
                              {"f16", "f16", 30, 5, 60, sampled},
                              {"f16", "f16", 40, 3, 256, greedy, false, 33},
                              {"f16", "f16", 24, 5, 256, sampled, false, 0, 100}};
  expect_steps_of_the_host(model, head, cases);
}

/// States of the newest lengths stand for what is taken back.
TEST_F(SpeculationCuda, StepsOfStatesQueuedAheadAreThoseOfTheHost) {
  const Model model = Model::load("synth:tiny-delta@layers=2@weights=f32@mtp=1", {.device = "cuda"});
  const ForcedCase cases[] = {{"f16", "f16", 20, 1, 64, {.temperature = 0}},
                              {"q8_0", "f16", 50, 9, 100, {.temperature = 0.8f, .seed = 5}},
                              {"f16", "q8_0", 30, 2, 60, {.temperature = 0}}};
  expect_steps_of_the_host(model, "", cases);
}

/// One of several texts that step together.
struct OneOfMany {
  int n_prompt, depth, n_tokens;  // depth 0: no draft tokens
  SamplerOptions sampler;
  double share = 0.75;  // of draft tokens that are accepted by chance; below 0: those that are right
  bool adaptive = false;
  bool on_host = false;  // sampled by a rule of the host
};
struct Written {
  std::vector<int32_t> tokens;
  int n_past = 0;
  int32_t next = 0;
  SpecReport report;
};
/// Stops what a device does by itself now and then, as requests do that come.
struct Interrupts : StepHooks {
  bool go_on() override { return ++n_asked % 23 != 0; }
  int n_asked = 0;
};
struct ManyTexts {
  std::vector<OneOfMany> texts;
  const char *cache = "f16", *of_head = "f16";
};

/// Writes the texts together. A bound of the probability that nothing is below is the host's to see.
std::vector<Written> write_many(const Model& model, const std::string& head, const ManyTexts& many, double p_min) {
  constexpr int kCtx = 256;
  Engine& engine = model.engine();
  const int n = int(many.texts.size());
  SessionOptions options = session_of(many.cache, kCtx);
  options.k.centre = false;
  const auto layers = layer_configs(options, engine.plan());
  const auto pool = engine.open_pool(layers, pool_pages(layers, kCtx, n, 512), SlotNumbers{n, n}, kCtx);
  const ProposerMaker make = mtp_proposers(model, head, session_of(many.of_head, kCtx), {.p_min = p_min}, n);
  Decoder decoder(engine.backend(), *pool, engine.plan().n_ids);
  std::vector<std::unique_ptr<Speculation>> speculations;
  std::vector<Text> texts;
  for (int i = 0; i < n; ++i) {
    const OneOfMany& of = many.texts[size_t(i)];
    Text& text = texts.emplace_back(Text{.seq = pool->open().or_throw(), .sampler = of.sampler, .n_left = of.n_tokens});
    for (int t = 0; t < of.n_prompt; ++t) text.tokens.push_back((37 * (t % 9) + 11 * i + 3) % model.info().vocab_size);
    text.on_token = [](int32_t) { return true; };
    std::unique_ptr<Speculation>& speculation = speculations.emplace_back();
    if (of.on_host)
      text.pick = [](std::span<const float> logits) {
        return int32_t(std::ranges::max_element(logits) - logits.begin());
      };
    if (of.depth == 0) continue;
    speculation = std::make_unique<Speculation>(make(), of.depth, of.adaptive);
    if (of.share >= 0) speculation->force(of.share, uint64_t(11 + i));
    text.speculation = speculation.get();
  }
  Interrupts hooks;
  std::vector<DecodeRow> rows;
  const std::vector<std::vector<int32_t>> prompts = [&] {
    std::vector<std::vector<int32_t>> all;
    for (const Text& text : texts) all.push_back(text.tokens);
    return all;
  }();
  for (size_t i = 0; i < texts.size(); ++i)
    rows.push_back({.text = &texts[i], .tokens = prompts[i], .is_prompt = true});
  while (!rows.empty()) {
    decoder.step(rows, 1 << 15, hooks);
    rows.clear();
    for (Text& text : texts)
      if (!text.ended) rows.push_back(next_row(text));
  }
  std::vector<Written> all;
  for (int i = 0; i < n; ++i) {
    Text& text = texts[size_t(i)];
    if (text.failure) std::rethrow_exception(text.failure);
    Written& written = all.emplace_back(Written{text.tokens, pool->length(text.seq), 0, {}});
    if (text.speculation) written.report = text.speculation->report();
    const SeqTokens last{text.seq, 1};
    pool->reserve(text.seq, 1).or_throw();
    engine.backend().run({.tokens = std::span(text.tokens).last(1), .seqs = {&last, 1}}, *pool, decoder.outputs());
    const std::span<const float> logits = decoder.outputs().logits().row(0);
    written.next = int32_t(std::ranges::max_element(logits) - logits.begin());
  }
  return all;
}

/// Several texts queued ahead: those of the host's steps, to the same counts. The cases have draft tokens of their own
/// numbers, ends of their own, and texts without draft tokens.
void expect_texts_of_the_host(const Model& model, const std::string& head, const ManyTexts& many) {
  const std::vector<Written> expected = write_many(model, head, many, 1e-30), all = write_many(model, head, many, 0);
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string where = fmt::format("text {} over {} and {}", i, many.cache, many.of_head);
    EXPECT_EQ(ssize(all[i].tokens), many.texts[i].n_prompt + many.texts[i].n_tokens) << where;
    EXPECT_EQ(all[i].tokens, expected[i].tokens) << where;
    EXPECT_EQ(all[i].n_past, expected[i].n_past) << where;
    EXPECT_EQ(all[i].next, expected[i].next) << where;
    EXPECT_EQ(all[i].report.n_steps, expected[i].report.n_steps) << where;
    EXPECT_EQ(all[i].report.n_proposed, expected[i].report.n_proposed) << where;
    EXPECT_EQ(all[i].report.n_accepted, expected[i].report.n_accepted) << where;
    EXPECT_EQ(expected[i].report.n_ahead, 0) << where;
    EXPECT_GE(all[i].report.n_ahead, all[i].report.n_steps * 3 / 4) << where << ": interrupts leave a few to the host";
  }
}

const SamplerOptions kGreedy{.temperature = 0}, kSampled{.temperature = 0.8f, .repeat_penalty = 1.1f, .seed = 5};

TEST_F(SpeculationCuda, ManyTextsQueuedAheadAreThoseOfTheHost) {
  const TempDir directory;
  const Model model = Model::load("synth:tiny@layers=1@weights=f32", {.device = "cuda"});
  const std::string head = write_random_head(directory, model.info());
  // At 96 and 128 positions tiles leave their windows.
  const ManyTexts cases[] = {
      {{{20, 1, 40, kGreedy}, {9, 4, 30, kSampled}, {60, 9, 40, kGreedy}, {17, 0, 25, kSampled}}},
      {{{110, 3, 30, kSampled}, {85, 15, 44, kGreedy}, {120, 0, 24, kGreedy}}, "rotor-3", "q8_0"},
      {{{70, 0, 30, kSampled}, {80, 2, 12, kSampled}, {71, 5, 31, kGreedy}}, "q8_0", "rotor-3"}};
  for (const ManyTexts& many : cases) expect_texts_of_the_host(model, head, many);
}

TEST_F(SpeculationCuda, ManyTextsOfStatesQueuedAheadAreThoseOfTheHost) {
  const Model model = Model::load("synth:tiny-delta@layers=2@weights=f32@mtp=1", {.device = "cuda"});
  expect_texts_of_the_host(model, "",
                           {{{20, 1, 24, kGreedy}, {33, 2, 19, kSampled}, {12, 0, 24, kGreedy}, {40, 9, 21, kGreedy}}});
}

/// As many as there may be, with as many draft tokens as the rows of a step allow.
TEST_F(SpeculationCuda, SixteenTextsAreQueuedAhead) {
  const Model model = Model::load("synth:tiny@layers=1@weights=f32@mtp=1", {.device = "cuda"});
  ManyTexts many;
  for (int i = 0; i < kMostDeviceTexts; ++i)
    many.texts.push_back({18 + i, i % 4, 10 + i % 3, i % 2 == 0 ? kGreedy : kSampled});
  expect_texts_of_the_host(model, "", many);
}

/// Draft tokens hold where they are what is sampled: texts are those without. One text needs the host for its tokens,
/// for as long as it lasts; one finds that draft tokens do not pay, and pauses while the others go on.
TEST_F(SpeculationCuda, ManyTextsAreThoseOfSingleTokens) {
  const Model model = Model::load("synth:tiny@layers=1@weights=f32@mtp=1", {.device = "cuda"});
  ManyTexts many{{{20, 3, 90, kGreedy, -1}, {31, 2, 90, kSampled, -1}, {12, 4, 90, kSampled, 0, true}}};
  for (const bool on_host : {false, true}) {
    if (on_host) many.texts.push_back({15, 2, 12, kGreedy, -1, false, true});
    ManyTexts without = many;
    for (OneOfMany& text : without.texts) text.depth = 0;
    const std::vector<Written> plain = write_many(model, "", without, 0), all = write_many(model, "", many, 0);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].tokens, plain[i].tokens) << i;
      EXPECT_EQ(all[i].n_past, plain[i].n_past) << i;
      EXPECT_EQ(all[i].next, plain[i].next) << i;
    }
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_GT(all[i].report.n_proposed, 2 * all[i].report.n_steps - 10) << i;
      EXPECT_GT(all[i].report.n_ahead, all[i].report.n_steps / 2) << i;
    }
    EXPECT_GT(all[2].report.n_ahead, 0);
    EXPECT_LT(all[2].report.n_proposed, all[2].report.n_steps / 2) << "none is accepted";
    if (on_host) EXPECT_EQ(all[3].report.n_ahead, 0);
  }
}

/// The head reads states behind norms, and has latent attention, experts and ends of its own.
TEST_F(SpeculationCuda, StepsOfExpertsQueuedAheadAreThoseOfTheHost) {
  const TempDir directory;
  write_with_head(RIDGE_SOURCE_DIR "/tests/golden/deepseek-v2", directory / "experts", false);
  const Model model = Model::load((directory / "experts").native(), {.device = "cuda"});
  const ForcedCase cases[] = {{"f16", "f16", 20, 3, 64, {.temperature = 0}}};
  expect_steps_of_the_host(model, "", cases);
}

/// Depths that follow what pays change from step to step.
TEST_F(SpeculationCuda, DepthsChangeBetweenStepsQueuedAhead) {
  for (const char* spec : {"synth:tiny@layers=1@weights=f32@mtp=1", "synth:tiny-delta@layers=2@weights=f32@mtp=1"}) {
    SCOPED_TRACE(spec);
    const Model model = Model::load(spec, {.device = "cuda"});
    std::vector<int32_t> prompt(20, 3);
    const Sampled plain = sample_text(model, session_of("f16"), {.temperature = 0}, prompt, 90, nullptr);
    Speculation speculation(mtp_proposers(model, "", session_of("f16"))(), 8);
    const Sampled text = sample_text(model, session_of("f16"), {.temperature = 0}, prompt, 90, &speculation);
    EXPECT_EQ(text.tokens, plain.tokens);
    EXPECT_EQ(text.n_past, plain.n_past);
    EXPECT_EQ(text.next, plain.next);
    // Behind a pause one step goes through the host. A pause and the positions heard behind it are 17 steps or more.
    EXPECT_GE(speculation.report().n_ahead, speculation.report().n_steps - 90 / (kHeardPositions + 1));
  }
}

/// States of the newest lengths are kept.
TEST_F(SpeculationCuda, TextsOfModelsWithStatesAreThoseOfSingleTokens) {
  const Model model = Model::load("synth:tiny-delta@layers=2@weights=f32@mtp=1", {.device = "cuda"});
  std::vector<int32_t> prompt;
  for (int i = 0; i < 20; ++i) prompt.push_back((37 * (i % 9) + 11) % 512);
  const SamplerOptions greedy{.temperature = 0};
  const Sampled plain = sample_text(model, session_of("f16"), greedy, prompt, 24, nullptr);
  SpecReport all;
  const auto check = [&](std::unique_ptr<Proposer> proposer, int depth, const char* name) {
    Speculation speculation(std::move(proposer), depth, false);
    const Sampled text = sample_text(model, session_of("f16"), greedy, prompt, 24, &speculation);
    EXPECT_EQ(text.tokens, plain.tokens) << name;
    EXPECT_EQ(text.next, plain.next) << name;
    all.n_accepted += speculation.report().n_accepted;
    all.n_proposed += speculation.report().n_proposed;
  };
  check(std::make_unique<KnownTexts>(plain.tokens), 6, "known text");
  check(mtp_proposers(model, "", session_of("q8_0"))(), 2, "mtp");
  EXPECT_GT(all.n_accepted, 10);
  EXPECT_GT(all.n_proposed, all.n_accepted);
}

/// The head on a device proposes what the CPU's head does.
TEST_F(SpeculationCuda, TheHeadProposesWhatTheCpusDoes) {
  const TempDir directory;
  const Model cpu = Model::load("synth:tiny@layers=1@weights=f32", {.n_threads = 1, .isa = "scalar"}),
              device = Model::load("synth:tiny@layers=1@weights=f32", {.device = "cuda"});
  const std::string file = write_random_head(directory, cpu.info());
  std::vector<int32_t> text;
  for (int i = 0; i < 50; ++i) text.push_back((53 * i * i + 7) % 512);
  for (const auto& [p_min, vocab] : {std::pair{0.0, 0}, {1e-9, 0}, {0.0, 100}, {1e-9, 100}}) {
    std::vector<std::vector<int32_t>> proposals;
    for (const Model* model : {&cpu, &device}) {
      auto mtp = mtp_proposers(*model, file, session_of("f32"), {.p_min = p_min, .vocab = vocab})();
      Proposer& head = *mtp;
      Speculation speculation(std::move(mtp), 1);
      Session session(*model, session_of("f32"));
      session.speculate(&speculation);
      std::vector<int32_t>& of_model = proposals.emplace_back();
      for (const int n : {30, 31, 33, 49}) {  // a prompt, and short steps
        session.prefill(std::span(text).subspan(size_t(session.n_past()), size_t(n - session.n_past())));
        for (const int32_t token : head.propose(std::span(text).first(size_t(n) + 1), 4)) of_model.push_back(token);
      }
      EXPECT_GT(head.bytes(), 0);
    }
    EXPECT_EQ(proposals[0].size(), 16u);
    EXPECT_EQ(proposals[1], proposals[0]);
    if (vocab > 0) EXPECT_LT(*std::ranges::max_element(proposals[0]), vocab);
    else EXPECT_GE(*std::ranges::max_element(proposals[0]), 100) << "a part of the vocabulary is no less";
  }
}

/// Rows sampled where they are: the host's tokens, more rows than samplers.
TEST_F(SpeculationCuda, RowsAreSampledAsOnTheHost) {
  Engine engine("synth:tiny@layers=1@weights=f32", {.device = "cuda"});
  const auto layers = layer_configs(session_of("f32"), engine.plan());
  const auto pool = engine.open_pool(layers, 2, 1);
  const auto outputs = engine.backend().make_outputs();
  const SeqTokens all{pool->open().or_throw(), 70};
  std::vector<int32_t> tokens;
  for (int i = 0; i < all.n_tokens; ++i) tokens.push_back((31 * i + 5) % 512);
  pool->reserve(all.seq, all.n_tokens).or_throw();
  engine.backend().run({.tokens = tokens, .seqs = {&all, 1}, .logits = LogitRows::all}, *pool, *outputs);
  std::vector<SamplerOptions> samplers;
  std::vector<std::vector<int32_t>> recent;
  std::vector<int32_t> expected;
  const View2<const float> logits = outputs->logits();
  for (int i = 0; i < all.n_tokens; ++i) {
    samplers.push_back({.temperature = i % 3 == 0 ? 0.0f : 0.9f,
                        .repeat_penalty = i % 2 == 0 ? 1.0f : 1.3f,
                        .seed = 9,
                        .n_sampled = uint64_t(i)});
    recent.push_back({tokens[size_t(i)], 7});
    Sampler sampler(samplers.back(), 512);
    sampler.accept(recent.back());
    expected.push_back(sampler.sample(logits.row(i)));
  }
  EXPECT_EQ(engine.backend().sample(*outputs, samplers, recent), expected);
}

}  // namespace
}  // namespace ridge
