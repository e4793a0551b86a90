// Speculation: the same text as without, whatever is proposed; ends inside accepted tokens.
#include "engine/decode/decoder.h"

#include <fmt/chrono.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include "base/build_info.h"
#include "cases/golden_logits.h"
#include "cases/known_texts.h"
#include "cases/mtp_head.h"
#include "cases/paths.h"
#include "cases/reference_data.h"
#include "cases/sampled_text.h"
#include "cases/temp_dir.h"
#include "engine/engine.h"
#include "io/mapped_file.h"
#include "ridge/engine.h"

namespace ridge {
namespace {

const Model& tiny_target() {
  static const Model model = Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf");
  return model;
}
const Model& reference_target() {
  static const Model model = Model::load(RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf");
  return model;
}

struct Generated {
  GenerateResult result;
  std::vector<float> next;  // logits of one more token: what the cache holds
  int n_past = 0;
};

Generated generate_text(const Model& model, const SessionOptions& options, std::span<const int32_t> prompt,
                        const GenerateOptions& generation, Speculation* speculation) {
  Session session(model, options);
  session.speculate(speculation);
  Generated text{generate(session, model, prompt, generation, [](std::string_view) { return true; }), {}, 0};
  text.n_past = session.n_past();
  if (text.n_past < session.n_ctx()) {
    const std::span<const float> logits = session.decode(text.result.tokens.back());
    text.next.assign(logits.begin(), logits.end());
  }
  return text;
}

void expect_equal(const Generated& actual, const Generated& expected, const std::string& where) {
  EXPECT_EQ(actual.result.tokens, expected.result.tokens) << where;
  EXPECT_EQ(actual.result.text, expected.result.text) << where;
  EXPECT_EQ(actual.result.reason, expected.result.reason) << where;
  EXPECT_EQ(actual.n_past, expected.n_past) << where;
  EXPECT_EQ(actual.next, expected.next) << where << ": the cache differs";
}

/// The prompt and what follows it.
std::vector<int32_t> whole_text(std::span<const int32_t> prompt, const Generated& text) {
  std::vector<int32_t> whole(prompt.begin(), prompt.end());
  whole.insert(whole.end(), text.result.tokens.begin(), text.result.tokens.end());
  return whole;
}

SessionOptions session_of(const std::string& cache, bool centre, int n_ctx) {
  KvSideOptions side{.format = cache};
  if (centre) side.centre = true;
  return {.n_ctx = n_ctx, .k = side, .v = side};
}

const char* const kPrompts[] = {
    "The history of the city of Paris begins with",
    "The novel was first published in 1925 and was reprinted in 1931, 1934 and 1936. The novel was first published in",
    "In physics, energy is",
    "= = Career = = \n He played",
    "The river rises in the mountains and flows",
    "During the First World War the regiment",
    "It was released as a single in",
    "The species was first described by"};

struct Cache {
  const char* format;
  bool centre;
};

struct Coverage {
  std::vector<std::string> prompts;
  int n_tokens;
  std::string head;                   // file of an MTP head; empty: the model's own
  std::vector<const char*> of_draft;  // caches of the draft and of the head
  std::vector<Cache> caches{{"f16", false}, {"rotor-3", false}, {"rotor-3", true}};
  const Model* draft = nullptr;  // null: the model itself
  bool ignore_eos = false;
  uint64_t first_seed = 0;  // of the first prompt, counted on
};

std::vector<std::string> few_prompts(size_t n) { return {kPrompts, kPrompts + n}; }

/// Who proposed, the cache, the cache of the draft or of the head ("": none), the temperature.
using Combination = std::tuple<std::string, std::string, std::string, float>;
struct Tally {
  int64_t n_prompts = 0, n_tokens = 0, n_differing = 0, n_proposed = 0, n_accepted = 0;
};
using Tallies = std::map<Combination, Tally>;

int64_t count_differing(std::span<const int32_t> actual, std::span<const int32_t> expected) {
  const size_t n = std::max(actual.size(), expected.size());
  int64_t n_differing = 0;
  for (size_t i = 0; i < n; ++i) n_differing += i >= actual.size() || i >= expected.size() || actual[i] != expected[i];
  return n_differing;
}

/// Every proposer over the caches, greedy and sampled; the prompts and tokens of the coverage.
void expect_identical_texts(const Model& model, const Coverage& coverage, Tallies& tallies) {
  for (const auto& [cache, centre] : coverage.caches)
    for (const float temperature : {0.0f, 0.8f})
      for (size_t i = 0; i < coverage.prompts.size(); ++i) {
        const uint64_t seed = coverage.first_seed + i;
        const SessionOptions options = session_of(cache, centre, 512);
        const std::vector<int32_t> prompt = model.tokenize(coverage.prompts[i]);
        const GenerateOptions generation{
            .max_tokens = coverage.n_tokens,
            .ignore_eos = coverage.ignore_eos,
            .sampler = {.temperature = temperature, .repeat_penalty = seed % 2 == 1 ? 1.1f : 1.0f, .seed = seed}};
        const Generated plain = generate_text(model, options, prompt, generation, nullptr);
        const std::string of_target = std::string(cache) + (centre ? " centred" : "");
        const auto check = [&](std::unique_ptr<Proposer> proposer, int depth, const char* name, const char* of_draft) {
          Speculation speculation(std::move(proposer), depth, false);
          const Generated text = generate_text(model, options, prompt, generation, &speculation);
          expect_equal(text, plain,
                       fmt::format("{}, caches {} and {}, temperature {}, prompt {}", name, of_target, of_draft,
                                   temperature, seed));
          Tally& tally = tallies[{name, of_target, of_draft, temperature}];
          ++tally.n_prompts;
          tally.n_tokens += ssize(plain.result.tokens);
          tally.n_differing += count_differing(text.result.tokens, plain.result.tokens);
          tally.n_proposed += speculation.report().n_proposed;
          tally.n_accepted += speculation.report().n_accepted;
        };
        check(std::make_unique<KnownTexts>(whole_text(prompt, plain)), kMaxSpecDepth, "known text", "");
        check(make_lookup_proposer(), 5, "lookup", "");
        for (const char* of_draft : coverage.of_draft) {
          const SessionOptions own = session_of(of_draft, of_draft[0] == 'r', 512);
          check(draft_proposers(model, coverage.draft ? *coverage.draft : model, own)(), 3, "draft", of_draft);
          check(mtp_proposers(model, coverage.head, own)(), 3, "mtp", of_draft);
        }
      }
}
void expect_identical_texts(const Model& model, const Coverage& coverage) {
  Tallies tallies;
  expect_identical_texts(model, coverage, tallies);
  int64_t n_accepted = 0, n_rejected = 0;
  for (const auto& [combination, tally] : tallies) {
    n_accepted += tally.n_accepted;
    n_rejected += tally.n_proposed - tally.n_accepted;
  }
  EXPECT_GT(n_accepted, 0);
  EXPECT_GT(n_rejected, 0);
}

TEST(Speculation, TextsOfASmallModelAreIdentical) {
  const TempDir directory;
  expect_identical_texts(tiny_target(),
                         {few_prompts(2), 120, write_random_head(directory, tiny_target().info()), {"f16", "rotor-3"}});
}

const std::vector<Cache> kReferenceCaches{{"f16", false}, {"rotor-3", false}, {"rotor-3", true}, {"q8_0", false}};

#ifdef NDEBUG
TEST(Speculation, TextsOfTheReferenceModelAreIdentical) {
  expect_identical_texts(reference_target(), {few_prompts(2), 40, "", {"f16", "q8_0", "rotor-3"}, kReferenceCaches});
}
#endif
TEST(SpeculationSlow, TextsOfTheReferenceModelAreIdentical) {
  // Eight prompts take half a minute: one CI run takes three of them, `.ci/run all` every one.
  const size_t n_prompts = std::getenv("RIDGE_FEW_PROMPTS") ? 3 : 8;
  expect_identical_texts(reference_target(), {few_prompts(n_prompts), 128, "", {"rotor-3"}, kReferenceCaches});
}

/// Rows of the tallies, as results/checks/speculation-text.jsonl has them.
void write_rows(const std::string& path, const Tallies& tallies, const std::string& draft, const std::string& command) {
  std::ofstream file(path);
  for (const auto& [combination, tally] : tallies) {
    const auto& [proposer, kv, draft_kv, temperature] = combination;
    const Json row{{"kind", "speculation_text"},
                   {"build_commit", build_info().commit},
                   {"date", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))},
                   {"command", command},
                   {"model", "models/ridge-ref-q8_0.gguf"},
                   {"draft_model", proposer == "draft" ? draft : ""},
                   {"proposer", proposer},
                   {"kv", kv},
                   {"draft_kv", draft_kv},
                   {"temperature", std::round(temperature * 10) / 10.0},
                   {"prompts", tally.n_prompts},
                   {"tokens", tally.n_tokens},
                   {"differing_tokens", tally.n_differing},
                   {"proposed", tally.n_proposed},
                   {"accepted", tally.n_accepted}};
    file << row.dump() << '\n';
  }
  ASSERT_TRUE(file.good()) << path;
}

/// Hours of work: RIDGE_SPEC_PROMPTS=200 asks for 256 tokens behind so many prompts from the shipped text, by one
/// thread. RIDGE_SPEC_PART=3/12 takes every twelfth prompt from the fourth on, so that twelve processes share the work.
/// RIDGE_SPEC_ROWS=FILE has the counts, written again behind every prompt. ridge-bitnet is the draft where the
/// reference data is, else the model itself.
TEST(SpeculationSlow, TextsBehindManyPromptsAreIdentical) {
  const auto env = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value ? value : "");
  };
  const std::string wanted = env("RIDGE_SPEC_PROMPTS"), of = env("RIDGE_SPEC_PART"), rows = env("RIDGE_SPEC_ROWS");
  if (wanted.empty()) GTEST_SKIP() << "set RIDGE_SPEC_PROMPTS=200 to run it";
  const std::string text = io::read_text_file(RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt", 64 << 20).or_throw();
  const size_t n = std::stoul(wanted), length = 200;
  unsigned part = 0, n_parts = 1;
  if (!of.empty()) {
    ASSERT_EQ(std::sscanf(of.c_str(), "%u/%u", &part, &n_parts), 2) << "RIDGE_SPEC_PART is PART/PARTS, as 3/12";
    ASSERT_LT(part, n_parts);
  }
  const LoadOptions one_thread{.n_threads = 1};
  const Model model = Model::load(RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf", one_thread);
  std::optional<Model> draft;
  if (const auto data = reference_data()) draft = Model::load((*data / "models/ridge-bitnet").string(), one_thread);
  Coverage coverage{{""},
                    256,
                    "",
                    {"f16", "q8_0", "rotor-3"},
                    {{"f16", false}, {"q8_0", false}, {"rotor-3", false}},
                    draft ? &*draft : nullptr,
                    true};
  Tallies tallies;
  for (size_t i = part; i < n; i += n_parts) {
    const size_t at = text.find(' ', (text.size() - 4 * length) * i / n) + 1;
    coverage.prompts[0] = text.substr(at, text.find(' ', at + length) - at);
    coverage.first_seed = i;
    expect_identical_texts(model, coverage, tallies);
    if (!rows.empty())
      write_rows(rows, tallies, draft ? "ridge-bitnet" : "ridge-ref",
                 fmt::format("RIDGE_SPEC_PROMPTS={}{} test_engine --gtest_filter=SpeculationSlow.TextsBehindMany*",
                             wanted, of.empty() ? "" : " RIDGE_SPEC_PART=" + of));
  }
}

TEST(Speculation, AStopStringAndALimitEndTheTextInsideAcceptedTokens) {
  const SessionOptions options = session_of("rotor-3", false, 256);
  const std::vector<int32_t> prompt = tiny_target().tokenize("Once upon a time");
  GenerateOptions generation{.max_tokens = 40, .sampler = {.temperature = 0}};
  const Generated whole = generate_text(tiny_target(), options, prompt, generation, nullptr);
  ASSERT_EQ(whole.result.tokens.size(), 40u);
  for (int n = 1; n < 24; ++n) {
    GenerateOptions limited = generation;
    limited.max_tokens = n;
    GenerateOptions stopped = generation;
    stopped.stop = {whole.result.text.substr(size_t(2 * n), 3)};
    for (const GenerateOptions& each : {limited, stopped}) {
      Speculation speculation(std::make_unique<KnownTexts>(whole_text(prompt, whole)), kMaxSpecDepth, false);
      expect_equal(generate_text(tiny_target(), options, prompt, each, &speculation),
                   generate_text(tiny_target(), options, prompt, each, nullptr), fmt::format("ended at {}", n));
    }
  }
}

/// What a proposer was asked and shown; it proposes the text that it was told from token `from` on, and nonsense
/// before.
class Watched final : public Proposer {
 public:
  Watched(std::vector<int32_t> text, size_t from) : text_(std::move(text)), from_(from) {}
  std::vector<int32_t> propose(std::span<const int32_t> text, int n) override {
    asked.push_back(text.size());
    std::vector<int32_t> proposals;
    for (size_t i = text.size(); ssize(proposals) < n && i < text_.size(); ++i)
      proposals.push_back(text.size() < from_ ? (text_[i] + 1) % 8 : text_[i]);
    return proposals;
  }
  bool wants_hidden() const override { return true; }
  void observe(std::span<const int32_t> tokens, int first, View2<const float> hidden) override {
    EXPECT_EQ(hidden.rows, ssize(tokens));
    for (size_t i = 0; i < tokens.size(); ++i) seen.insert(size_t(first) + i);
    if (lost_) begins.push_back(size_t(first));
    lost_ = false;
  }
  void lose_track() override { lost_ = true; }

  std::vector<size_t> asked;   // lengths of the text
  std::set<size_t> seen;       // positions
  std::vector<size_t> begins;  // of what was observed behind lose_track()

 private:
  std::vector<int32_t> text_;
  size_t from_;
  bool lost_ = false;
};

/// Between tries the target leaves no hidden states and nobody asks the proposer, which hears of the gap before the
/// next try.
TEST(Speculation, APausedTextGoesOnWithoutItsProposer) {
  const SessionOptions options = session_of("f16", false, 2048);
  const std::vector<int32_t> prompt = tiny_target().tokenize("Once upon a time");
  const GenerateOptions generation{
      .max_tokens = 1500, .ignore_eos = true, .sampler = {.repeat_penalty = 1.2f, .seed = 3}};
  const Generated plain = generate_text(tiny_target(), options, prompt, generation, nullptr);
  const size_t n_prompt = prompt.size(), n_proposable = 300;
  auto made = std::make_unique<Watched>(whole_text(prompt, plain), n_proposable);
  Watched& proposer = *made;
  Speculation speculation(std::move(made), 4);
  expect_equal(generate_text(tiny_target(), options, prompt, generation, &speculation), plain, "watched");

  EXPECT_TRUE(proposer.seen.contains(0) && proposer.seen.contains(n_prompt - 1)) << "the prompt is read";
  std::vector<size_t> begins;
  for (const size_t at : proposer.seen)
    if (at > 0 && !proposer.seen.contains(at - 1)) begins.push_back(at);
  EXPECT_FALSE(begins.empty()) << "no pause";
  EXPECT_EQ(proposer.begins, begins);
  for (const size_t begin : begins) {  // what is heard is what stands in front of a try
    const auto next = std::ranges::find_if(proposer.asked, [&](size_t length) { return length > begin + 1; });
    if (next == proposer.asked.end()) continue;
    EXPECT_LE(*next - 1 - begin, size_t(kHeardPositions)) << begin;
  }
  // In front of every try the target ran positions that were seen, and one token that it has not run.
  for (const size_t length : proposer.asked)
    for (size_t at = length - 1 - std::min<size_t>(length - 1, kHeardPositions); at < length - 1; ++at)
      EXPECT_TRUE(proposer.seen.contains(at)) << at << " in front of " << length;
  EXPECT_GT(proposer.asked.back(), n_proposable) << "proposals are tried again";
  EXPECT_GT(speculation.report().n_accepted, 0);
}

TEST(Speculation, AnEndTokenEndsTheTextInsideAcceptedTokens) {
  const SessionOptions options = session_of("f16", false, 512);
  const std::vector<int32_t> prompt = tiny_target().tokenize("Once upon a time");
  int n_ended = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    // So hot that all tokens are about as likely: the end comes soon.
    const GenerateOptions generation{.sampler = {.temperature = 10, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed}};
    const Generated plain = generate_text(tiny_target(), options, prompt, generation, nullptr);
    n_ended += plain.result.reason == StopReason::end_token;
    std::vector<int32_t> told = whole_text(prompt, plain);
    told.insert(told.end(), 12, 100);  // proposals do not end with the text
    Speculation speculation(std::make_unique<KnownTexts>(told), kMaxSpecDepth, false);
    expect_equal(generate_text(tiny_target(), options, prompt, generation, &speculation), plain,
                 fmt::format("seed {}", seed));
  }
  EXPECT_GT(n_ended, 0) << "no text ended";
}

TEST(Speculation, AFullContextEndsTheTextInTheMiddleOfAStep) {
  for (const char* cache : {"f16", "rotor-3"})
    for (int n_prompt = 1; n_prompt <= 8; ++n_prompt) {
      const SessionOptions options = session_of(cache, false, 8);
      std::vector<int32_t> prompt = tiny_target().tokenize("Once upon a time there was a little girl");
      prompt.resize(size_t(n_prompt));
      const GenerateOptions generation{.sampler = {.temperature = 0}};
      const Generated plain = generate_text(tiny_target(), options, prompt, generation, nullptr);
      ASSERT_EQ(plain.result.reason, StopReason::context_full);
      Speculation told(std::make_unique<KnownTexts>(whole_text(prompt, plain)), kMaxSpecDepth, false);
      expect_equal(generate_text(tiny_target(), options, prompt, generation, &told), plain, "known text");
      Speculation drafted(draft_proposers(tiny_target(), tiny_target(), options)(), 4, false);
      expect_equal(generate_text(tiny_target(), options, prompt, generation, &drafted), plain, "draft");
    }
}

TEST(Speculation, ADraftServesOneTextAfterAnother) {
  const SessionOptions options = session_of("rotor-3", true, 256);
  Speculation speculation(draft_proposers(tiny_target(), tiny_target(), options)(), 4, false);
  for (const char* prompt : {"Once upon a time", "Once upon a hill", "A dog", "Once upon a time"}) {
    const std::vector<int32_t> tokens = tiny_target().tokenize(prompt);
    const GenerateOptions generation{.max_tokens = 100, .sampler = {.temperature = 0}};
    expect_equal(generate_text(tiny_target(), options, tokens, generation, &speculation),
                 generate_text(tiny_target(), options, tokens, generation, nullptr), prompt);
  }
  const SpecReport& report = speculation.report();
  EXPECT_GT(report.n_accepted, report.n_proposed * 9 / 10) << "a draft that is the target itself";
}

/// Texts that one decoder writes together, greedy: n tokens behind each prompt.
std::vector<std::vector<int32_t>> write_together(const Model& model, const std::vector<std::vector<int32_t>>& prompts,
                                                 int n, const ProposerMaker& make) {
  Engine& engine = model.engine();
  const auto layers = layer_configs(session_of("f16", false, 256), engine.plan());
  const auto pool =
      engine.open_pool(layers, pool_pages(layers, 256, int(prompts.size()), 256), int(prompts.size()), 256);
  Decoder decoder(engine.backend(), *pool, engine.plan().n_ids);
  std::vector<std::unique_ptr<Speculation>> speculations;
  std::vector<Text> texts;
  for (const std::vector<int32_t>& prompt : prompts) {
    texts.push_back({.seq = pool->open().or_throw(), .tokens = prompt, .sampler = {.temperature = 0}, .n_left = n});
    texts.back().on_token = [](int32_t) { return true; };
    if (!make) continue;
    speculations.push_back(std::make_unique<Speculation>(make(), 3, false));
    texts.back().speculation = speculations.back().get();
  }
  StepHooks hooks;
  std::vector<DecodeRow> rows;
  for (size_t i = 0; i < texts.size(); ++i)
    rows.push_back({.text = &texts[i], .tokens = prompts[i], .is_prompt = true});
  while (!rows.empty()) {
    decoder.step(rows, 256, hooks);
    rows.clear();
    for (Text& text : texts)
      if (!text.ended) rows.push_back(next_row(text));
  }
  std::vector<std::vector<int32_t>> written;
  for (const Text& text : texts) written.push_back(text.tokens);
  return written;
}

/// Proposers that share a cache run their model once for all texts of a step.
TEST(Speculation, DraftTokensOfSeveralTextsComeFromTheSamePasses) {
  const TempDir directory;
  const Model draft = Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf", {.n_threads = 1});
  const SessionOptions cache = session_of("rotor-3", true, 256);
  std::vector<std::vector<int32_t>> prompts;
  for (const char* text : {"Once upon a time", "A dog and a cat were friends. The dog", "The sun was hot", "Tom ran"})
    prompts.push_back(tiny_target().tokenize(text));
  const auto plain = write_together(tiny_target(), prompts, 60, {});
  EXPECT_EQ(
      write_together(tiny_target(), prompts, 60,
                     mtp_proposers(tiny_target(), write_random_head(directory, tiny_target().info()), cache, {}, 4)),
      plain);
  int n_passes = 0;
  draft.engine().backend().watch(nullptr, [&](int, Block block, View2<float>) { n_passes += block == Block::output; });
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(write_together(tiny_target(), {prompts[i]}, 60, draft_proposers(tiny_target(), draft, cache))[0],
              plain[i]);
  const int n_alone = std::exchange(n_passes, 0);
  EXPECT_EQ(write_together(tiny_target(), prompts, 60, draft_proposers(tiny_target(), draft, cache, 0, 4)), plain);
  EXPECT_LT(n_passes, n_alone / 3) << "four texts";
}

/// Even ids only, and an end after twenty.
class EvenTokens : public TokenRule {
 public:
  void mask(std::span<float> logits, int) override {
    for (size_t i = 1; i < logits.size(); i += 2) logits[i] = -INFINITY;
  }
  int32_t accept(int32_t token) override { return n_ += token % 2 == 0, token; }
  bool complete() const override { return n_ == 20; }

 private:
  int n_ = 0;
};

TEST(Speculation, ARuleHoldsWithDraftTokensAndWithout) {
  const std::vector<int32_t> prompt = tiny_target().tokenize("Once upon a time");
  const SessionOptions options = session_of("rotor-3", false, 256);
  for (const float temperature : {0.0f, 1.2f}) {
    GenerateOptions generation{.max_tokens = 50, .sampler = {.temperature = temperature, .seed = 5}};
    const auto generate_by_rule = [&](Speculation* speculation) {
      EvenTokens rule;
      generation.rule = &rule;
      return generate_text(tiny_target(), options, prompt, generation, speculation);
    };
    const Generated plain = generate_by_rule(nullptr);
    EXPECT_EQ(plain.result.tokens.size(), 20u);
    EXPECT_EQ(plain.result.reason, StopReason::end_token);
    for (const int32_t token : plain.result.tokens) EXPECT_EQ(token % 2, 0);
    Speculation speculation(std::make_unique<KnownTexts>(whole_text(prompt, plain)), 5, false);
    expect_equal(generate_by_rule(&speculation), plain, "known text");
    EXPECT_GT(speculation.report().n_accepted, 5);
  }
}

TEST(SpeculationSlow, TheHeadProposesWhatPyTorchComputes) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const Model model = Model::load((*data / "models/ridge-ref").string());
  const Json golden = read_json(RIDGE_SOURCE_DIR "/tests/golden/ridge-ref.golden.json");
  const auto ids = golden["ids"].get<std::vector<int32_t>>();
  const std::span<const int32_t> text = ids;
  std::unique_ptr<Proposer> mtp = mtp_proposers(model, "", session_of("f32", false, 512))();
  Proposer& head = *mtp;
  Speculation speculation(std::move(mtp), 1);
  Session session(model, session_of("f32", false, 512));
  session.speculate(&speculation);
  for (const Json& row : golden["mtp"]["top10"]) {
    const auto n = row["pos"].get<size_t>() + 1;  // positions in front of the draft token
    session.prefill(text.subspan(size_t(session.n_past()), n - size_t(session.n_past())));
    EXPECT_EQ(head.propose(text.first(n + 1), 1), (std::vector<int32_t>{row["ids"][0].get<int32_t>()})) << n;
  }
}

TEST(Speculation, AHeadBeginsWhereItFirstSeesTheText) {
  const TempDir directory;
  const SessionOptions options = session_of("f16", false, 64);
  const ProposerMaker make =
      mtp_proposers(tiny_target(), write_random_head(directory, tiny_target().info()), options, {}, 2);
  std::unique_ptr<Proposer> first = make(), second = make();
  Proposer &head = *first, &whole = *second;
  Speculation begins_late(std::move(first), 1), sees_all(std::move(second), 1);
  const std::vector<int32_t> text = tiny_target().tokenize("Once upon a time there was a girl");
  const std::span<const int32_t> tokens = text;
  Session session(tiny_target(), options), other(tiny_target(), options);
  session.prefill(tokens.first(3));
  session.speculate(&begins_late);
  session.prefill(tokens.subspan(3, 2));
  EXPECT_EQ(head.propose(tokens.first(6), 4).size(), 4u) << "it knows two positions";
  // From the begin on it proposes as a head that saw nothing else.
  session.reset();
  session.prefill(tokens.first(5));
  other.speculate(&sees_all);
  other.prefill(tokens.first(5));
  EXPECT_EQ(head.propose(tokens.first(6), 4), whole.propose(tokens.first(6), 4));
}

/// What a head proposes behind a text of which the model has run all but the last token.
std::vector<int32_t> proposed_by_head(const std::string& file, const SessionOptions& options, const MtpDrafts& drafts,
                                      std::span<const int32_t> text) {
  std::unique_ptr<Proposer> mtp = mtp_proposers(tiny_target(), file, options, drafts)();
  Proposer& head = *mtp;
  Speculation speculation(std::move(mtp), 1);
  Session session(tiny_target(), options);
  session.speculate(&speculation);
  session.prefill(text.first(text.size() - 1));
  return head.propose(text, 8);
}

/// Of the whole vocabulary's logits the head takes the likeliest one among the first, whatever their number.
TEST(Speculation, AHeadProposesAPartOfTheVocabulary) {
  const TempDir directory;
  const SessionOptions options = session_of("f16", false, 64);
  const std::vector<int32_t> text = tiny_target().tokenize("Once upon a time there was a girl");
  const std::string file = write_random_head(directory, tiny_target().info());
  const auto propose = [&](int vocab) { return proposed_by_head(file, options, {.vocab = vocab}, text); };
  const std::vector<int32_t> whole = propose(0);
  const int most = *std::ranges::max_element(whole);
  EXPECT_EQ(propose(tiny_target().info().vocab_size), whole);
  EXPECT_EQ(propose(most + 1), whole) << "all that it proposes is among these";
  for (const int vocab : {1, 37, 100, most}) {
    const std::vector<int32_t> part = propose(vocab);
    EXPECT_EQ(part.size(), whole.size());
    EXPECT_LT(*std::ranges::max_element(part), vocab);
  }
}

TEST(Speculation, ProposalsEndBelowTheLeastProbability) {
  const TempDir directory;
  const SessionOptions options = session_of("f16", false, 64);
  const std::vector<int32_t> text = tiny_target().tokenize("Once upon a time there was a girl");
  const std::string file = write_random_head(directory, tiny_target().info());
  const auto of_draft = [&](double p_min) {
    return draft_proposers(tiny_target(), tiny_target(), options, p_min)()->propose(text, 8).size();
  };
  const auto of_head = [&](double p_min) { return proposed_by_head(file, options, {.p_min = p_min}, text).size(); };
  EXPECT_EQ(of_draft(0), 8u);
  EXPECT_EQ(of_draft(1e-6), 8u);
  EXPECT_LT(of_draft(0.6), 8u);
  EXPECT_EQ(of_draft(1), 0u);
  EXPECT_EQ(of_head(1e-6), 8u);
  EXPECT_EQ(of_head(1), 0u);
}

TEST(Speculation, LookupGoesOnAsTheLongestEarlierPlaceDid) {
  const auto lookup = make_lookup_proposer();
  const auto propose = [&](std::vector<int32_t> text, int n) { return lookup->propose(text, n); };
  EXPECT_EQ(propose({1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 1, 2, 3, 4}, 2), (std::vector<int32_t>{5, 9})) << "four tokens";
  EXPECT_EQ(propose({9, 2, 3, 4, 5, 8, 2, 3, 4, 6, 1, 2, 3, 4}, 2), (std::vector<int32_t>{6, 1})) << "the newest";
  EXPECT_EQ(propose({7, 1, 2, 3, 1, 2, 3}, 7), (std::vector<int32_t>{1, 2, 3, 1, 2, 3, 1})) << "a loop goes on";
  EXPECT_EQ(propose({1, 2, 3, 9, 8, 2, 3}, 4), (std::vector<int32_t>{})) << "two tokens say little";
  EXPECT_EQ(propose({1}, 4), (std::vector<int32_t>{}));
}

/// The places are kept between steps: texts that grow, are cut, and give way to others, of few tokens, against a walk
/// over the whole text.
TEST(Speculation, LookupFindsWhatAWalkOverTheTextFinds) {
  const auto walk = [](const std::vector<int32_t>& text) {
    size_t length = 2, next = 0;
    for (size_t end = text.size() - 1; end > 0 && length < 16; --end) {
      size_t equal = 0;
      while (equal < std::min<size_t>(end, 16) && text[end - 1 - equal] == text[text.size() - 1 - equal]) ++equal;
      if (equal > length) length = equal, next = end;
    }
    return next;
  };
  Rng rng(7);
  size_t n_found = 0;
  for (const int n_kinds : {1, 2, 3, 6}) {
    const auto lookup = make_lookup_proposer();
    std::vector<int32_t> text{0};
    for (int step = 0; step < 2000; ++step) {
      const uint64_t what = rng.next() % 100;
      if (what == 0) text.resize(1 + rng.next() % text.size());
      if (what == 1)
        for (int32_t& token : text) token = int32_t(rng.next() % uint64_t(n_kinds));
      for (uint64_t more = 1 + rng.next() % 3; more > 0; --more)
        text.push_back(int32_t(rng.next() % uint64_t(n_kinds)));
      const size_t next = walk(text);
      const std::vector<int32_t> found = lookup->propose(text, 1);
      ASSERT_EQ(found.empty(), next == 0) << step;
      if (next > 0) {
        ASSERT_EQ(found[0], text[next]) << step;
      }
      n_found += next > 0;
    }
  }
  EXPECT_GT(n_found, 4000u);
}

std::string error_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "";
}

TEST(Speculation, RefusesADraftWithOtherTokensAndAWrongDepth) {
  const std::string other = error_of([] { draft_proposers(reference_target(), tiny_target(), {})(); });
  EXPECT_NE(other.find("must have the target's vocabulary"), std::string::npos) << other;
  EXPECT_NE(other.find("token 0 is"), std::string::npos) << other;
  const Model without = Model::load("synth:tiny");
  EXPECT_NE(error_of([&] { draft_proposers(tiny_target(), without, {})(); }).find("the draft model has no tokenizer"),
            std::string::npos);
  EXPECT_NE(error_of([] { Speculation(make_lookup_proposer(), 0); }).find("spec_depth is 0"), std::string::npos);
  EXPECT_NE(error_of([] { Speculation(make_lookup_proposer(), kMaxSpecDepth + 1); }).find("spec_depth"),
            std::string::npos);
}

TEST(Speculation, TextsOfModelsWithStatesAreIdentical) {
  const Model model = Model::load("synth:tiny-delta@mtp=1"), draft = Model::load("synth:tiny");
  std::vector<int32_t> prompt;
  for (int i = 0; i < 45; ++i) prompt.push_back((37 * (i % 9) + 11) % 512);
  SpecReport all;
  for (const auto& [cache, centre] : {std::pair("f16", false), {"q8_0", false}, {"rotor-3", false}, {"rotor-3", true}})
    for (const float temperature : {0.0f, 0.8f})
      for (const int n : {57, 60, 70}) {
        const SessionOptions options = session_of(cache, centre, 512);
        const SamplerOptions sampler{.temperature = temperature, .seed = uint64_t(n)};
        const SampledText plain = sample_text(model, options, sampler, prompt, n, nullptr);
        const auto check = [&](std::unique_ptr<Proposer> proposer, int depth, bool adaptive, const char* name) {
          Speculation speculation(std::move(proposer), depth, adaptive);
          const SampledText text = sample_text(model, options, sampler, prompt, n, &speculation);
          const std::string where = fmt::format("{}, cache {}, temperature {}, {} tokens", name, cache, temperature, n);
          EXPECT_EQ(text, plain) << where;
          all.n_accepted += speculation.report().n_accepted;
          all.n_proposed += speculation.report().n_proposed;
        };
        std::vector<int32_t> told = plain.tokens;
        told.insert(told.end(), 20, 7);  // proposals do not end with the text
        check(std::make_unique<KnownTexts>(told), kMaxSpecDepth, false, "known text");
        check(std::make_unique<KnownTexts>(told), kMaxSpecDepth, true, "known text, as many as pay");
        check(make_lookup_proposer(), 4, false, "lookup");
        check(draft_proposers(model, draft, session_of("f16", false, 512))(), 3, false, "draft");
        check(mtp_proposers(model, "", session_of("f16", false, 512))(), 3, false, "mtp");
      }
  EXPECT_GT(all.n_accepted, 500);
  EXPECT_GT(all.n_proposed, all.n_accepted);
}

TEST(SpeculationSlow, TextsOfQwensOwnHeadAreIdentical) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const Model model = Model::load((*data / "parity/models/qwen3_5_mtp").native());
  std::vector<int32_t> prompt;
  for (int i = 0; i < 20; ++i) prompt.push_back((7 * i * i + 3) % model.info().vocab_size);
  for (const float temperature : {0.0f, 0.8f}) {
    const SessionOptions options = session_of("f16", false, 128);
    const SamplerOptions sampler{.temperature = temperature, .seed = 3};
    const SampledText plain = sample_text(model, options, sampler, prompt, 40, nullptr);
    Speculation speculation(mtp_proposers(model, "", options)(), 2, false);
    const SampledText text = sample_text(model, options, sampler, prompt, 40, &speculation);
    EXPECT_EQ(text, plain);
    EXPECT_GT(speculation.report().n_proposed, 0);
  }
}

/// Short convolutions, Mamba2 and the delta rule of interleaved projections.
TEST(SpeculationSlow, TextsOfOtherStatesAreIdentical) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  for (const char* name : {"lfm2", "lfm2_moe", "granite_hybrid", "granite_hybrid_moe", "qwen3_next", "qwen3_5_moe"}) {
    const Model model = Model::load((*data / "parity/models" / name).native());
    std::vector<int32_t> prompt;
    for (int i = 0; i < 20; ++i) prompt.push_back((7 * i * i + 3) % model.info().vocab_size);
    for (const char* cache : {"f16", "q8_0", "rotor-3"})
      for (const float temperature : {0.0f, 0.8f}) {
        if (cache[0] != 'f' && model.info().head_dim % 32 != 0) continue;
        const SessionOptions options = session_of(cache, false, 128);
        const SamplerOptions sampler{.temperature = temperature, .seed = 3};
        const SampledText plain = sample_text(model, options, sampler, prompt, 60, nullptr);
        std::vector<int32_t> told = plain.tokens;
        told.insert(told.end(), 20, 7);
        Speculation speculation(std::make_unique<KnownTexts>(told), kMaxSpecDepth, false);
        EXPECT_EQ(sample_text(model, options, sampler, prompt, 60, &speculation), plain) << name << " " << cache;
        EXPECT_GT(speculation.report().n_accepted, 20) << name;
        EXPECT_GT(speculation.report().n_proposed, speculation.report().n_accepted) << name;
      }
  }
}

TEST(Speculation, RefusesADraftWithAState) {
  const Model target = Model::load("synth:tiny"), draft = Model::load("synth:tiny-delta");
  EXPECT_NE(error_of([&] { draft_proposers(target, draft, {.n_ctx = 64})(); }).find("keep a state"), std::string::npos);
}

TEST(Speculation, TheCacheOfAProposerTakesWhatWasSaid) {
  const Model model = Model::load("synth:tiny@mtp=1");
  for (const char* cache : {"f16", "q8_0", "rotor-3"})
    for (const int n_ctx : {100, 1000}) {
      const SessionOptions options = session_of(cache, cache[0] == 'r', n_ctx);
      const ProposerMaker draft = draft_proposers(model, model, options), head = mtp_proposers(model, "", options);
      EXPECT_EQ(draft()->bytes(), draft.bytes) << cache << " " << n_ctx;
      EXPECT_EQ(head()->bytes(), head.bytes) << cache << " " << n_ctx;
      EXPECT_GT(draft.bytes, head.bytes) << "two layers, and one";
    }
  EXPECT_EQ(ProposerMaker(make_lookup_proposer).bytes, 0);
}

TEST(Distribution, IsWhatTheSamplerSamplesFrom) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.5f, -4.0f, 2.9f, 0.5f};
  const std::vector<int32_t> recent = {1};
  for (const SamplerOptions& options : {SamplerOptions{.temperature = 0.7f, .top_k = 4, .repeat_penalty = 1.5f},
                                        SamplerOptions{.temperature = 1.5f, .top_k = 0, .top_p = 1, .min_p = 0}}) {
    const Distribution p = distribution_of(options, logits, recent);
    Sampler sampler(options, int(logits.size()));
    constexpr int kSamples = 20000;
    std::vector<int> count(logits.size()), own(logits.size());
    Rng rng(3);
    for (int i = 0; i < kSamples; ++i) {
      SamplerOptions next = options;
      next.seed = 7, next.n_sampled = uint64_t(i);
      Sampler one(next, int(logits.size()));
      one.accept(recent);
      ++count[size_t(one.sample(logits))];
      ++own[size_t(sample_from(p, rng))];
    }
    double sum = 0;
    for (size_t token = 0; token < logits.size(); ++token) {
      const double expected = probability_of(p, int32_t(token));
      const double five_sigma = 5 * std::sqrt(expected * (1 - expected) / kSamples);
      EXPECT_NEAR(double(count[token]) / kSamples, expected, five_sigma) << token;
      EXPECT_NEAR(double(own[token]) / kSamples, expected, five_sigma) << token;
      sum += expected;
    }
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

/// Tokens are as probable as without proposals, whatever the draft thinks, and more proposals hold.
TEST(Speculation, RejectionKeepsTheProbabilities) {
  const Model target = Model::load("synth:tiny", {.n_threads = 1}),
              draft = Model::load("synth:tiny@layers=1", {.n_threads = 1});
  const SessionOptions options = session_of("f16", false, 32);
  const std::vector<int32_t> prompt = {5, 17, 301, 44, 5, 17};
  SamplerOptions sampler{.temperature = 1.2f, .top_k = 6, .top_p = 1, .min_p = 0};
  Session plain(target, options), with(target, options);
  Speculation speculation(draft_proposers(target, draft, options)(), 2, false);
  speculation.reject();
  with.speculate(&speculation);
  constexpr int kTexts = 3000, kTokens = 4;  // the first one comes from the prompt's step
  std::map<std::pair<int, int32_t>, std::array<int, 2>> count;
  for (int i = 0; i < kTexts; ++i) {
    sampler.seed = uint64_t(i) + 1;
    for (Session* session : {&plain, &with}) {
      session->reset();
      session->prefill(prompt);
      int at = 0;
      session->generate(sampler, prompt, kTokens, [&](int32_t token) {
        // The second token only depends on the first; later ones are counted over all.
        ++count[{at++, token}][session == &with];
        return true;
      });
    }
  }
  EXPECT_GT(speculation.report().n_accepted, kTexts / 20);
  EXPECT_GT(speculation.report().n_proposed, speculation.report().n_accepted);
  int n_seen = 0;
  for (const auto& [place, n] : count) {
    const double mean = 0.5 * (n[0] + n[1]);
    if (place.first == 0) {
      EXPECT_EQ(n[0], n[1]) << "sampled from the prompt's step, exactly";
    } else if (mean > 50) {
      EXPECT_NEAR(n[0], n[1], 5 * std::sqrt(2 * mean)) << "token " << place.second << " at " << place.first;
      ++n_seen;
    }
  }
  EXPECT_GT(n_seen, 10);
}

TEST(Speculation, ForcedProposalsHoldAsOftenAsTheyShall) {
  const Model model = Model::load("synth:tiny@mtp=1");
  const SessionOptions options = session_of("rotor-3", false, 1200);
  std::vector<int32_t> prompt(10, 3);
  for (const double share : {0.0, 0.7, 1.0}) {
    Speculation speculation(mtp_proposers(model, "", options)(), 3, false);
    speculation.force(share, 5);
    Session session(model, options);
    session.speculate(&speculation);
    session.fill(100, 1);
    speculation.fill(std::vector<int32_t>(100, 3), 1);
    session.prefill(prompt);
    EXPECT_EQ(session.generate({.temperature = 0}, std::vector<int32_t>(110, 3), 1000, [](int32_t) { return true; }),
              1000);
    const SpecReport& report = speculation.report();
    EXPECT_NEAR(report.tokens_per_step(), 1 + share + share * share + share * share * share, 0.15) << share;
    EXPECT_EQ(report.n_steps + report.n_accepted, 999);
  }
}

TEST(Speculation, RefusesAHeadThatDoesNotFit) {
  EXPECT_NE(error_of([] { mtp_proposers(tiny_target(), "", {.n_ctx = 64})(); }).find("has no MTP head"),
            std::string::npos);
  const TempDir directory;
  const std::string path = write_random_head(directory, tiny_target().info(), "hnorm.weight");
  try {
    mtp_proposers(tiny_target(), path, {.n_ctx = 64})();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_file);
    EXPECT_NE(std::string(error.what()).find("hnorm.weight is missing"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ridge
