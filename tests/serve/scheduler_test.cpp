#include "serve/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <set>

#include "base/rng.h"
#include "cases/costly_proposer.h"
#include "cases/known_texts.h"
#include "cases/mtp_head.h"
#include "cases/paths.h"

namespace ridge::serve {
namespace {

/// What a request got, for tests that wait.
class Heard : public Listener {
 public:
  Wish on_text(std::string_view text, std::span<const TokenLogprob> logprobs) override {
    const std::lock_guard lock(mutex_);
    text_ += text;
    logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
    ++n_calls_;
    changed_.notify_all();
    return listens_ ? Wish::more : Wish::gone;
  }
  void on_end(FinishReason reason, const Usage& usage, const RequestError& error) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "a request ends once";
    ended_ = true;
    reason_ = reason, usage_ = usage, error_ = error.message;
    changed_.notify_all();
  }
  void wait() {
    wait_for([this] { return ended_; });
  }
  void wait_for_text() {
    wait_for([this] { return n_calls_ > 0 || ended_; });
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    listens_ = false;
  }

  std::string text_, error_;
  std::vector<TokenLogprob> logprobs_;
  FinishReason reason_ = FinishReason::failed;
  Usage usage_;

 private:
  void wait_for(const std::function<bool()>& what) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(120), what)) << "nothing came in two minutes";
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false, listens_ = true;
  int n_calls_ = 0;
};

class SchedulerTest : public testing::Test {
 protected:
  static Engine& engine() {
    static Engine* const kEngine = new Engine(RIDGE_SOURCE_DIR "/models/stories260K.gguf", {});
    return *kEngine;
  }
  static SchedulerOptions options(const std::string& kv, int n_ctx = 512) {
    return {.pool = {.kv = parse_kv_choice(kv).or_throw(),
                     .n_ctx = n_ctx,
                     .max_seqs = 8,
                     .n_checkpoints = 24,
                     .checkpoint_every = 128,
                     .kv_bytes = int64_t(64) << 20,
                     .swap_bytes = int64_t(64) << 20,
                     .batch_tokens = 256,
                     .max_stall_seconds = 0.05},
            .max_queue = 64,
            .max_pools = 2};
  }
  static GenerationRequest request(std::vector<int32_t> prompt, int max_tokens, float temperature = 0.8f,
                                   uint64_t seed = 1) {
    GenerationRequest r;
    r.prompt = std::move(prompt);
    r.options.max_tokens = max_tokens;
    r.options.ignore_eos = true;
    r.options.sampler = {.temperature = temperature, .seed = seed};
    return r;
  }
  static std::vector<int32_t> random_prompt(uint64_t seed, int n) {
    Rng rng(seed);
    std::vector<int32_t> tokens = {1};
    while (ssize(tokens) < n) tokens.push_back(int32_t(3 + rng.next() % 500));
    return tokens;
  }
  static std::shared_ptr<Heard> send(Scheduler& scheduler, GenerationRequest r) {
    auto heard = std::make_shared<Heard>();
    const auto id = scheduler.submit(std::move(r), heard);
    EXPECT_TRUE(id) << id.error().message;
    return heard;
  }
  static PoolReport report(Scheduler& scheduler) {
    PoolReport report;
    EXPECT_TRUE(scheduler.inspect([&](Scheduler& s) { report = s.runners().begin()->second->pool().report(); }));
    return report;
  }
  static void expect_nothing_held(Scheduler& scheduler) {
    const PoolReport r = report(scheduler);
    EXPECT_EQ(r.sequences, 0);
    EXPECT_EQ(r.n_slots - r.slots_free, r.checkpoints) << "slots of closed sequences come back";
    EXPECT_EQ(r.n_pages - r.pages_free, r.pages_of_checkpoints) << "pages of closed sequences come back";
    if (const auto& s = r.sliding) {
      EXPECT_EQ(s->n_pages - s->pages_free, s->pages_of_checkpoints) << "those of sliding layers too";
    }
  }
};

TEST_F(SchedulerTest, ATextIsGeneratesText) {
  // The same prompt by the session's own loop.
  Model model = Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf");
  Session session(model, session_options(parse_kv_choice("rotor-3").or_throw(), 512, 0));
  const std::vector<int32_t> prompt = model.tokenize("Once upon a time");
  GenerateOptions o{.max_tokens = 80, .ignore_eos = true, .sampler = {.seed = 7}};
  const GenerateResult expected = generate(session, model, prompt, o, [](std::string_view) { return true; });

  Scheduler scheduler(engine(), options("rotor-3"));
  const auto heard = send(scheduler, request(prompt, 80, 0.8f, 7));
  heard->wait();
  EXPECT_EQ(heard->text_, expected.text);
  EXPECT_EQ(heard->reason_, FinishReason::length);
  EXPECT_EQ(heard->usage_.n_generated, 80);
  EXPECT_EQ(heard->usage_.n_prompt, int(prompt.size()));
}

TEST_F(SchedulerTest, AloneAndInACrowdTheTextIsTheSame) {
  for (const char* kv : {"f16", "rotor-3"}) {
    std::vector<std::string> alone;
    {
      Scheduler scheduler(engine(), options(kv));
      for (int i = 0; i < 20; ++i) {
        const auto heard = send(scheduler, request(random_prompt(uint64_t(i), 5 + 17 * i), 40, 0.8f, uint64_t(i)));
        heard->wait();
        alone.push_back(heard->text_);
      }
    }
    Scheduler scheduler(engine(), options(kv));
    std::vector<std::shared_ptr<Heard>> all;
    for (int i = 0; i < 20; ++i)
      all.push_back(send(scheduler, request(random_prompt(uint64_t(i), 5 + 17 * i), 40, 0.8f, uint64_t(i))));
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->wait();
      EXPECT_EQ(all[i]->text_, alone[i]) << kv << " request " << i;
    }
    expect_nothing_held(scheduler);
  }
}

TEST_F(SchedulerTest, ASharedPrefixIsComputedOnce) {
  const std::vector<int32_t> shared = random_prompt(99, 300);
  std::vector<std::string> alone(6);
  for (const bool together : {false, true}) {
    Scheduler scheduler(engine(), options("rotor-3"));
    std::vector<std::shared_ptr<Heard>> all;
    for (int i = 0; i < 6; ++i) {
      std::vector<int32_t> prompt = shared;
      const std::vector<int32_t> tail = random_prompt(uint64_t(i), 20);
      prompt.insert(prompt.end(), tail.begin() + 1, tail.end());
      all.push_back(send(scheduler, request(prompt, 20, 0.8f, 5)));
      if (!together) all.back()->wait();
    }
    int cached = 0;
    for (int i = 0; i < 6; ++i) {
      all[size_t(i)]->wait();
      cached += all[size_t(i)]->usage_.n_cached;
      if (together) {
        EXPECT_EQ(all[size_t(i)]->text_, alone[size_t(i)]);
      } else {
        alone[size_t(i)] = all[size_t(i)]->text_;
      }
    }
    // Together the prefix is known to be shared while it is computed; one after the other the nearest checkpoint
    // serves.
    EXPECT_GE(cached, 5 * (together ? 300 : 256));
    scheduler.inspect([&](Scheduler& s) {
      EXPECT_EQ(s.totals().cached_tokens, cached);
      EXPECT_EQ(s.totals().prompt_tokens, 6 * 319 - cached);
    });
  }
}

TEST_F(SchedulerTest, TheSamePromptAgainComputesOneToken) {
  Scheduler scheduler(engine(), options("rotor-3"));
  const auto first = send(scheduler, request(random_prompt(1, 200), 30));
  first->wait();
  const auto second = send(scheduler, request(random_prompt(1, 200), 30));
  second->wait();
  EXPECT_EQ(second->usage_.n_cached, 199);
  EXPECT_EQ(second->text_, first->text_);
}

/// A state cannot go back to where two prompts part: the sequence begins at a checkpoint and computes the rest.
TEST_F(SchedulerTest, AModelWithStatesReusesPrefixesWithoutATrace) {
  Engine delta("synth:tiny-delta", {});
  const std::vector<int32_t> shared = random_prompt(99, 300);
  std::vector<std::vector<int32_t>> prompts;
  for (const int n_shared : {300, 300, 200, 300}) {
    std::vector<int32_t> prompt(shared.begin(), shared.begin() + n_shared);
    const std::vector<int32_t> tail = random_prompt(prompts.size(), 20);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    prompts.push_back(std::move(prompt));
  }
  prompts.push_back(prompts[1]);  // once more
  std::vector<std::string> fresh;
  for (const std::vector<int32_t>& prompt : prompts) {
    Scheduler scheduler(delta, options("f16"));
    const auto heard = send(scheduler, request(prompt, 20, 0));
    heard->wait();
    EXPECT_EQ(heard->usage_.n_cached, 0);
    fresh.push_back(heard->text_);
  }
  Scheduler scheduler(delta, options("f16"));
  const int cached[] = {0, 256, 128, 256, 256};  // the checkpoint behind a whole prompt cannot go back by a token
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto heard = send(scheduler, request(prompts[i], 20, 0));
    heard->wait();
    EXPECT_EQ(heard->text_, fresh[i]) << "request " << i;
    EXPECT_NE(heard->text_, "");
    EXPECT_EQ(heard->usage_.n_cached, cached[i]) << "request " << i;
  }
  expect_nothing_held(scheduler);
}

TEST_F(SchedulerTest, WhenPagesEndTheYoungestWaitAndNobodyNotices) {
  SchedulerOptions small = options("f16", 384);
  small.max_pools = 1;
  small.pool.checkpoint_every = 100000;
  std::vector<std::string> alone;
  for (const bool crowd : {false, true}) {
    small.pool.kv_bytes = int64_t(1) << 30;
    if (crowd) {  // four pages: one sequence of 384 tokens and a little
      Totals totals;
      PoolRunner runner(engine(), small.pool, totals);
      const KvMemory& memory = runner.pool().memory();
      small.pool.kv_bytes = 4 * memory.page_bytes() + memory.n_slots() * memory.slot_bytes();
    }
    Scheduler scheduler(engine(), small);
    std::vector<std::shared_ptr<Heard>> all;
    for (int i = 0; i < 6; ++i)
      all.push_back(send(scheduler, request(random_prompt(uint64_t(i), 30), 300, 1.0f, uint64_t(i))));
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->wait();
      EXPECT_EQ(all[i]->reason_, FinishReason::length) << all[i]->error_;
      if (!crowd) alone.push_back(all[i]->text_);
      EXPECT_EQ(all[i]->text_, alone[i]);
    }
    scheduler.inspect([&](Scheduler& s) { EXPECT_EQ(s.totals().parked > 0, crowd); });
    expect_nothing_held(scheduler);
  }
}

/// Pages of two kinds, of which either may end first: checkpoints go, the youngest wait, and the texts stay.
TEST_F(SchedulerTest, SlidingLayersDivideTheBytesAndNobodyNotices) {
  for (const char* model : {"synth:tiny-gemma@weights=q8_0", "synth:tiny-oss@weights=f16"}) {
    Engine sliding(model, {.n_threads = 2});
    SchedulerOptions o = options("f16", 480);
    o.max_pools = 1;
    const auto layers = layer_configs(session_options(o.pool.kv, o.pool.n_ctx, 0), sliding.plan());
    const PageNumbers one = pool_pages(layers, o.pool.n_ctx, 1, o.pool.batch_tokens);
    const auto memory = sliding.open_host_memory(layers, 1, 1);
    const auto bytes = [&](double n) {
      return 32 * memory->slot_bytes() + int64_t(n * double(one.full * memory->page_bytes(PageClass::full) +
                                                            one.sliding * memory->page_bytes(PageClass::sliding)));
    };
    const std::vector<int32_t> shared = random_prompt(99, 200);
    std::vector<std::string> alone;
    for (const double room : {32.0, 1.0, 1.7}) {
      o.pool.kv_bytes = bytes(room);
      Scheduler scheduler(sliding, o);
      std::vector<std::shared_ptr<Heard>> all;
      for (int i = 0; i < 6; ++i) {
        std::vector<int32_t> prompt(shared.begin(), shared.begin() + (i % 2 == 0 ? 200 : 40));
        const std::vector<int32_t> tail = random_prompt(uint64_t(i), 30);
        prompt.insert(prompt.end(), tail.begin(), tail.end());
        all.push_back(send(scheduler, request(prompt, 220, 1.0f, uint64_t(i))));
      }
      for (size_t i = 0; i < all.size(); ++i) {
        all[i]->wait();
        EXPECT_EQ(all[i]->reason_, FinishReason::length) << all[i]->error_;
        if (room == 32) alone.push_back(all[i]->text_);
        EXPECT_EQ(all[i]->text_, alone[i]) << model << ", request " << i << ", room for " << room;
      }
      const PoolReport r = report(scheduler);
      ASSERT_TRUE(r.sliding);
      EXPECT_LE(r.n_pages * r.page_bytes + r.sliding->n_pages * r.sliding->page_bytes + r.n_slots * r.slot_bytes,
                o.pool.kv_bytes);
      EXPECT_GE(r.n_pages, one.full);
      EXPECT_GE(r.sliding->n_pages, one.sliding);
      expect_nothing_held(scheduler);
    }
    o.pool.kv_bytes = bytes(1) - 1;
    Totals totals;
    EXPECT_THROW(PoolRunner(sliding, o.pool, totals), Error);
  }
}

TEST_F(SchedulerTest, ClientsThatLeaveFreeTheirSequences) {
  Scheduler scheduler(engine(), options("rotor-3"));
  std::vector<std::shared_ptr<Heard>> all;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 30; ++i) {
    all.push_back(std::make_shared<Heard>());
    ids.push_back(*scheduler.submit(request(random_prompt(uint64_t(i), 100), 400), all.back()));
  }
  all[0]->wait_for_text();
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 2 == 0) all[i]->leave();
    if (i % 3 != 0 || i % 2 != 0) scheduler.cancel(ids[i]);
  }
  for (const auto& heard : all) {
    heard->wait();
    EXPECT_EQ(heard->reason_, FinishReason::cancelled);
  }
  expect_nothing_held(scheduler);
}

TEST_F(SchedulerTest, RefusesWhatItCannotDo) {
  SchedulerOptions o = options("f16");
  o.max_queue = 2;
  o.pool.max_seqs = 1;
  Scheduler scheduler(engine(), o);
  auto other = request(random_prompt(1, 10), 5);
  other.kv = "nothing";
  EXPECT_FALSE(scheduler.submit(std::move(other), std::make_shared<Heard>()));
  std::vector<std::shared_ptr<Heard>> all;
  int refused = 0;
  for (int i = 0; i < 12; ++i) {
    all.push_back(std::make_shared<Heard>());
    const auto id = scheduler.submit(request(random_prompt(uint64_t(i), 100), 300), all.back());
    if (!id) {
      EXPECT_EQ(id.error().kind, ErrorKind::no_memory);
      all.pop_back();
      ++refused;
    }
  }
  EXPECT_GE(refused, 8);
  for (const auto& heard : all) heard->wait();
}

TEST_F(SchedulerTest, PoolsOfSeveralFormatsTakeTurns) {
  Scheduler scheduler(engine(), options("f16"));
  std::vector<std::shared_ptr<Heard>> all;
  for (int i = 0; i < 8; ++i) {
    GenerationRequest r = request(random_prompt(3, 90), 60);
    r.kv = i % 2 == 0 ? "" : "rotor-3";
    all.push_back(send(scheduler, std::move(r)));
  }
  for (const auto& heard : all) heard->wait();
  EXPECT_EQ(all[0]->text_, all[2]->text_);
  EXPECT_EQ(all[1]->text_, all[3]->text_);
  GenerationRequest third = request(random_prompt(3, 90), 1);
  third.kv = "rotor-4";
  const auto refused = scheduler.submit(std::move(third), std::make_shared<Heard>());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("--kv-pools"));
}

TEST_F(SchedulerTest, PenaltiesBiasAndLogprobsAreTheirDefinitions) {
  Scheduler scheduler(engine(), options("f16"));
  GenerationRequest r = request(random_prompt(4, 12), 24, 0);
  r.n_top_logprobs = 3;
  const auto plain = send(scheduler, std::move(r));
  plain->wait();
  ASSERT_EQ(plain->logprobs_.size(), 24u);
  for (const TokenLogprob& t : plain->logprobs_) {
    ASSERT_EQ(t.top.size(), 3u);
    EXPECT_EQ(t.top[0].first, t.token) << "greedy text takes the likeliest";
    EXPECT_FLOAT_EQ(t.top[0].second, t.logprob);
    EXPECT_GE(t.top[0].second, t.top[1].second);
    EXPECT_LE(std::exp(t.top[0].second) + std::exp(t.top[1].second) + std::exp(t.top[2].second), 1.0001f);
  }
  r = request(random_prompt(4, 12), 24, 0);
  r.n_top_logprobs = 0;
  r.logit_bias = {{plain->logprobs_[0].token, -100.0f}};
  const auto biased = send(scheduler, std::move(r));
  biased->wait();
  for (const TokenLogprob& t : biased->logprobs_) EXPECT_NE(t.token, plain->logprobs_[0].token);
  r = request(random_prompt(4, 12), 24, 0);
  r.n_top_logprobs = 0;
  r.presence_penalty = 1000;
  const auto unlike = send(scheduler, std::move(r));
  unlike->wait();
  std::set<int32_t> seen;
  for (const TokenLogprob& t : unlike->logprobs_) EXPECT_TRUE(seen.insert(t.token).second) << "no token comes twice";
}

/// Even ids only, and an end after ten.
class EvenTokens : public TokenRule {
 public:
  void mask(std::span<float> logits, int) override {
    for (size_t i = 1; i < logits.size(); i += 2) logits[i] = -INFINITY;
  }
  int32_t accept(int32_t token) override {
    n_ += token % 2 == 0;
    return token;
  }
  bool complete() const override { return n_ == 10; }

 private:
  int n_ = 0;
};

TEST_F(SchedulerTest, AConstraintHolds) {
  Scheduler scheduler(engine(), options("f16"));
  GenerationRequest r = request(random_prompt(5, 12), 50, 1.5f);
  r.n_top_logprobs = 0;
  r.constraint = std::make_unique<EvenTokens>();
  const auto heard = send(scheduler, std::move(r));
  heard->wait();
  EXPECT_EQ(heard->reason_, FinishReason::stop);
  ASSERT_EQ(heard->logprobs_.size(), 10u);
  for (const TokenLogprob& t : heard->logprobs_) EXPECT_EQ(t.token % 2, 0);
}

class LeavesAtTheThird final : public Heard {
 public:
  Wish on_text(std::string_view text, std::span<const TokenLogprob> logprobs) override {
    Heard::on_text(text, logprobs);
    return ++n_ < 3 ? Wish::more : Wish::gone;
  }

 private:
  int n_ = 0;
};

/// Requests of all kinds: greedy, sampled, with a penalty, with logits on the host.
GenerationRequest varied(GenerationRequest r, int i) {
  if (i % 3 == 0) r.options.sampler.temperature = 0;
  if (i % 4 == 1) r.options.sampler.repeat_penalty = 1.1f;
  if (i % 4 == 2) r.frequency_penalty = 0.5f;
  return r;
}

/// The proposers of one kind, and how many draft tokens they must have right in all.
struct Proposers {
  const char* name;
  ProposerMaker make;
  int64_t least_accepted = 0;
};

/// Requests 0 to n - 1, always with draft tokens and where they pay, twice: the second time prompts come from the
/// cache. The last one asks for none. Texts are those without.
class SpeculationTest : public SchedulerTest {
 protected:
  static void expect_texts_as_without(const Model& model, int n, const std::function<GenerationRequest(int)>& ask,
                                      std::vector<Proposers> all_proposers) {
    const auto send_all = [&](Scheduler& scheduler, bool tell) {
      std::vector<std::shared_ptr<Heard>> all;
      for (int i = 0; i < n; ++i) {
        GenerationRequest r = varied(ask(i), i);
        if (tell) r.n_top_logprobs = 0;
        if (i == n - 1) r.speculative = false;
        all.push_back(send(scheduler, std::move(r)));
      }
      for (const auto& heard : all) heard->wait();
      return all;
    };
    std::vector<std::vector<int32_t>> texts;
    all_proposers.push_back({"known texts", [&] { return std::make_unique<KnownTexts>(texts); }, 50});
    for (const char* kv : {"f16", "rotor-3"}) {
      Scheduler plain(model.engine(), options(kv));
      const auto expected = send_all(plain, true);
      texts.clear();
      for (int i = 0; i < n; ++i) {
        texts.push_back(ask(i).prompt);
        for (const TokenLogprob& t : expected[size_t(i)]->logprobs_) texts.back().push_back(t.token);
      }
      for (const auto& [name, make, least_accepted] : all_proposers)
        for (const bool adaptive : {false, true}) {
          SchedulerOptions o = options(kv);
          o.pool.proposers = make;
          o.pool.spec_depth = 5;
          o.pool.spec_adaptive = adaptive;
          Scheduler scheduler(model.engine(), o);
          int64_t n_accepted = 0;
          for (const int round : {0, 1}) {
            const auto heard = send_all(scheduler, false);
            for (size_t i = 0; i < heard.size(); ++i) {
              EXPECT_EQ(heard[i]->text_, expected[i]->text_)
                  << name << " " << kv << " request " << i << " round " << round;
              EXPECT_EQ(heard[i]->usage_.n_generated, expected[i]->usage_.n_generated);
              EXPECT_LE(heard[i]->usage_.n_accepted, heard[i]->usage_.n_proposed);
              n_accepted += heard[i]->usage_.n_accepted;
            }
            EXPECT_EQ(heard.back()->usage_.n_proposed, 0) << "it asked for none";
          }
          if (!adaptive) {
            EXPECT_GE(n_accepted, least_accepted) << name;
          }
          scheduler.inspect([&](Scheduler& s) { EXPECT_EQ(s.totals().accepted_tokens, n_accepted); });
          expect_nothing_held(scheduler);
        }
    }
  }
};

TEST_F(SpeculationTest, LeavesEveryText) {
  // One thread: two models' threads that wait for each other on a busy machine take minutes.
  const Model model = Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf", {.n_threads = 1});
  const TempDir directory;
  const auto cache = session_options(parse_kv_choice("rotor-3").or_throw(), 512, 0);
  const auto ask = [](int i) { return request(random_prompt(uint64_t(i), 5 + 17 * i), 60, 0.8f, uint64_t(i)); };
  expect_texts_as_without(model, 10, ask,
                          {{"lookup", make_lookup_proposer, 1},
                           {"draft", draft_proposers(model, model, cache, 0, 8), 50},
                           {"mtp", mtp_proposers(model, write_random_head(directory, model.info()), cache, {}, 8)}});
}

/// Slots keep states of several lengths; prefixes are kept and found as without.
TEST_F(SpeculationTest, LeavesEveryTextOfAModelWithStates) {
  const Model model = Model::load("synth:tiny-delta@mtp=1", {.n_threads = 1});
  const auto cache = session_options(parse_kv_choice("q8_0").or_throw(), 512, 0);
  const auto ask = [](int i) { return request(random_prompt(uint64_t(i), 5 + 37 * i), 30 + 3 * i, 0.8f, uint64_t(i)); };
  expect_texts_as_without(model, 6, ask, {{"mtp", mtp_proposers(model, "", cache, {}, 8)}});
}

/// By rejection sampling every token of a draft that is the model itself is taken. Greedy texts are those without draft
/// tokens.
TEST_F(SchedulerTest, RejectionSamplingTakesWhatIsAsProbable) {
  static const Model model = Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf", {.n_threads = 1});
  const auto cache = session_options(parse_kv_choice("f16").or_throw(), 512, 0);
  SchedulerOptions o = options("f16");
  Scheduler plain(model.engine(), o);
  const auto greedy = send(plain, request(random_prompt(6, 40), 50, 0));
  greedy->wait();
  o.pool.proposers = draft_proposers(model, model, cache, 0, 8);
  o.pool.spec_depth = 4;
  o.pool.spec_adaptive = false;
  for (const bool together : {false, true}) {
    o.pool.spec_rejects = true;
    Scheduler scheduler(model.engine(), o);
    std::vector<std::shared_ptr<Heard>> all;
    for (int i = 0; i < 7; ++i) {
      all.push_back(send(scheduler, request(random_prompt(uint64_t(i), 40), 50, i == 6 ? 0 : 1.2f, uint64_t(i))));
      if (!together) all.back()->wait();
    }
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->wait();
      EXPECT_EQ(all[i]->reason_, FinishReason::length) << all[i]->error_;
      EXPECT_EQ(all[i]->usage_.n_generated, 50);
      if (i == 6) continue;
      EXPECT_GT(all[i]->usage_.n_proposed, 30) << i;
      EXPECT_GE(all[i]->usage_.n_accepted, all[i]->usage_.n_proposed - 4) << "all, but for those behind the end";
    }
    EXPECT_EQ(all[6]->text_, greedy->text_);
    expect_nothing_held(scheduler);
  }
  o.pool.spec_rejects = false;
  Scheduler exact(model.engine(), o);
  const auto heard = send(exact, request(random_prompt(0, 40), 50, 1.2f, 0));
  heard->wait();
  EXPECT_LT(heard->usage_.n_accepted, heard->usage_.n_proposed / 2) << "samples are seldom the likeliest token";
}

TEST_F(SchedulerTest, EndsInsideAcceptedTokens) {
  const std::vector<int32_t> prompt = random_prompt(3, 30);
  const auto ask = [&](Scheduler& scheduler, int max_tokens, const std::string& stop) {
    GenerationRequest r = request(prompt, max_tokens, 0);
    if (!stop.empty()) r.options.stop = {stop};
    r.n_top_logprobs = 0;
    const auto heard = send(scheduler, std::move(r));
    heard->wait();
    return heard;
  };
  SchedulerOptions o = options("rotor-3", 96);  // 66 tokens behind the prompt fill the context
  Scheduler plain(engine(), o);
  const auto whole = ask(plain, -1, "");
  ASSERT_EQ(whole->usage_.n_generated, 66);
  std::vector<std::vector<int32_t>> texts(1, prompt);
  for (const TokenLogprob& t : whole->logprobs_) texts[0].push_back(t.token);
  texts[0].insert(texts[0].end(), 20, 7);  // proposals do not end with the text
  o.pool.proposers = [&] { return std::make_unique<KnownTexts>(texts); };
  o.pool.spec_depth = kMaxSpecDepth;
  o.pool.spec_adaptive = false;
  Scheduler scheduler(engine(), o);
  const auto full = ask(scheduler, -1, "");
  EXPECT_EQ(full->text_, whole->text_);
  EXPECT_EQ(full->reason_, FinishReason::length);
  EXPECT_EQ(full->usage_.n_generated, 66);
  for (int n = 1; n < 20; ++n) {
    const auto limited = ask(scheduler, n, ""), limited_plain = ask(plain, n, "");
    EXPECT_EQ(limited->text_, limited_plain->text_) << n;
    EXPECT_EQ(limited->usage_.n_generated, n);
    const std::string stop = whole->text_.substr(size_t(2 * n), 3);
    const auto stopped = ask(scheduler, -1, stop), stopped_plain = ask(plain, -1, stop);
    EXPECT_EQ(stopped->text_, stopped_plain->text_) << stop;
    EXPECT_EQ(stopped->reason_, FinishReason::stop);
    EXPECT_EQ(stopped->usage_.n_generated, stopped_plain->usage_.n_generated);
    EXPECT_EQ(stopped->logprobs_.size(), stopped_plain->logprobs_.size()) << "nothing is sampled behind the end";
  }
  // A client that leaves is found gone in the middle of a step.
  const auto gone = std::make_shared<LeavesAtTheThird>();
  ASSERT_TRUE(scheduler.submit(request(prompt, 60, 0), gone));
  gone->wait();
  EXPECT_EQ(gone->reason_, FinishReason::cancelled);
  EXPECT_EQ(gone->usage_.n_generated, 3);
  expect_nothing_held(scheduler);
}

TEST_F(SchedulerTest, ProposalsParkNobodyAndSurviveParking) {
  SchedulerOptions small = options("f16", 384);
  small.max_pools = 1;
  small.pool.checkpoint_every = 100000;
  std::vector<std::string> alone;
  for (const bool crowd : {false, true}) {
    if (crowd) {  // four pages: one sequence of 384 tokens and a little
      Totals totals;
      PoolRunner runner(engine(), small.pool, totals);
      const KvMemory& memory = runner.pool().memory();
      small.pool.kv_bytes = 4 * memory.page_bytes() + memory.n_slots() * memory.slot_bytes();
      small.pool.proposers = make_lookup_proposer;
      small.pool.spec_depth = kMaxSpecDepth;
      small.pool.spec_adaptive = false;
    }
    Scheduler scheduler(engine(), small);
    std::vector<std::shared_ptr<Heard>> all;
    for (int i = 0; i < 4; ++i) all.push_back(send(scheduler, request(random_prompt(uint64_t(i), 30), 300, 0)));
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->wait();
      if (!crowd) alone.push_back(all[i]->text_);
      EXPECT_EQ(all[i]->text_, alone[i]);
      if (crowd) {
        EXPECT_GT(all[i]->usage_.n_accepted, 0);
      }
    }
    scheduler.inspect([&](Scheduler& s) { EXPECT_EQ(s.totals().parked > 0, crowd); });
    expect_nothing_held(scheduler);
  }
}

/// Where proposals do not pay texts go on without their proposers, which observe no more of them.
TEST_F(SchedulerTest, PausedTextsLeaveNoHiddenStates) {
  SchedulerOptions o = options("rotor-3", 384);
  std::vector<std::string> plain;
  int n_seen = 0;
  for (const bool speculates : {false, true}) {
    if (speculates) {
      o.pool.proposers = [&] { return std::make_unique<CostlyProposer>(20, n_seen); };
      o.pool.spec_depth = 4;
    }
    Scheduler scheduler(engine(), o);
    std::vector<std::shared_ptr<Heard>> all;
    for (int i = 0; i < 2; ++i) all.push_back(send(scheduler, request(random_prompt(uint64_t(i), 30), 240, 0)));
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->wait();
      if (!speculates) plain.push_back(all[i]->text_);
      EXPECT_EQ(all[i]->text_, plain[i]);
      EXPECT_EQ(all[i]->usage_.n_proposed > 0, speculates);
    }
    expect_nothing_held(scheduler);
  }
  EXPECT_GE(n_seen, 2) << "the prompts";
  EXPECT_LT(n_seen, 240) << "half of all steps";
}

TEST_F(SchedulerTest, SpeculationThatIsNotThereIsRefused) {
  Scheduler scheduler(engine(), options("f16"));
  GenerationRequest r = request(random_prompt(1, 10), 4);
  r.speculative = true;
  const auto refused = scheduler.submit(std::move(r), std::make_shared<Heard>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().field, "speculative");
}

/// A text for whose proposer the cache has no room is written without.
TEST_F(SchedulerTest, TextsBeyondTheProposersCacheGoOnWithout) {
  const Model model = Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf", {.n_threads = 1});
  SchedulerOptions o = options("f16");
  o.pool.proposers = draft_proposers(model, model, session_options(parse_kv_choice("f16").or_throw(), 512, 0), 0, 2);
  o.pool.spec_depth = 3;
  o.pool.spec_adaptive = false;
  Scheduler scheduler(model.engine(), o);
  std::vector<std::shared_ptr<Heard>> all;
  for (int i = 0; i < 3; ++i) all.push_back(send(scheduler, request(random_prompt(1, 60), 40, 0)));
  int n_with = 0;
  for (const auto& heard : all) {
    heard->wait();
    EXPECT_EQ(heard->text_, all[0]->text_);
    n_with += heard->usage_.n_proposed > 0;
  }
  EXPECT_GE(n_with, 2);
  const auto later = send(scheduler, request(random_prompt(1, 60), 40, 0));
  later->wait();
  EXPECT_GT(later->usage_.n_proposed, 0) << "a text that ends gives its place back";
}

/// What is said of the pool's bytes includes the caches of proposers, of all sequences that run at a time.
TEST_F(SchedulerTest, CachesOfProposersArePartOfTheBytes) {
  const Model model = Model::load("synth:tiny@mtp=1");
  const ProposerMaker make = mtp_proposers(model, "", session_options(parse_kv_choice("f16").or_throw(), 512, 0));
  SchedulerOptions o = options("f16");
  o.max_pools = 1;
  o.pool.kv_bytes = int64_t(6) << 20;
  Totals totals;
  PoolRunner plain(model.engine(), o.pool, totals);
  o.pool.proposers = make;
  PoolRunner runner(model.engine(), o.pool, totals);
  const PoolReport with = runner.pool().report(), without = plain.pool().report();
  EXPECT_EQ(o.pool.proposer_bytes(), 8 * make()->bytes());
  EXPECT_LE(with.allocated_bytes + o.pool.proposer_bytes(), o.pool.kv_bytes + with.page_bytes);
  EXPECT_LT(with.n_pages, without.n_pages);
  EXPECT_GE(with.n_pages + 1, without.n_pages - int(o.pool.proposer_bytes() / with.page_bytes));
  o.pool.kv_bytes = o.pool.proposer_bytes();
  try {
    PoolRunner(model.engine(), o.pool, totals);
    ADD_FAILURE() << "no room for pages";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::no_memory);
    EXPECT_THAT(error.what(), testing::HasSubstr("of proposers"));
  }
}

TEST_F(SchedulerTest, StopsUnderLoad) {
  for (const double patience : {0.0, 60.0}) {
    Scheduler scheduler(engine(), options("rotor-3"));
    std::vector<std::shared_ptr<Heard>> all;
    for (int i = 0; i < 12; ++i) all.push_back(send(scheduler, request(random_prompt(uint64_t(i), 40), 100)));
    all[0]->wait_for_text();
    scheduler.stop(patience);
    for (const auto& heard : all) heard->wait();
    EXPECT_EQ(all.back()->reason_, patience > 0 ? FinishReason::length : FinishReason::cancelled);
    EXPECT_FALSE(scheduler.submit(request({1}, 1), std::make_shared<Heard>()));
    EXPECT_FALSE(scheduler.inspect([](Scheduler&) {}));
  }
}

TEST_F(SchedulerTest, WhatALookThrowsIsTheAskers) {
  Scheduler scheduler(engine(), options("f16"));
  EXPECT_THROW(scheduler.inspect([](Scheduler&) { throw Error(ErrorKind::failure, "no counts"); }), Error);
  EXPECT_EQ(scheduler.failure(), "");
  const auto heard = send(scheduler, request(random_prompt(1, 10), 5));
  heard->wait();
  EXPECT_EQ(heard->reason_, FinishReason::length);
}

/// Closes the oldest sequence at its first text, so that the next use of the pool fails.
class Saboteur : public Heard {
 public:
  Saboteur(Scheduler& scheduler, bool cancels) : scheduler_(scheduler), cancels_(cancels) {}
  Wish on_text(std::string_view text, std::span<const TokenLogprob> logprobs) override {
    PoolRunner& runner = *scheduler_.runners().begin()->second;
    const Job& job = *runner.jobs()[0];
    runner.pool().close(job.text.seq);
    if (cancels_) scheduler_.cancel(job.id);
    return Heard::on_text(text, logprobs);
  }

 private:
  Scheduler& scheduler_;
  const bool cancels_;
};

/// A request whose proposer cannot be made ends alone; its job, slot and pages are given back.
TEST_F(SchedulerTest, AProposerThatFailsEndsItsOwnRequest) {
  SchedulerOptions o = options("f16");
  int n_made = 0;
  o.pool.proposers = [&]() -> std::unique_ptr<Proposer> {
    if (++n_made == 2) throw_error(ErrorKind::failure, "no proposer today");
    return make_lookup_proposer();
  };
  o.pool.spec_depth = 2;
  Scheduler scheduler(engine(), o);
  for (const bool fails : {false, true, false}) {
    const auto heard = send(scheduler, request(random_prompt(1, 20), 8));
    heard->wait();
    EXPECT_EQ(heard->reason_, fails ? FinishReason::failed : FinishReason::length) << heard->error_;
    if (fails) {
      EXPECT_EQ(heard->error_, "no proposer today");
    }
  }
  expect_nothing_held(scheduler);
}

TEST_F(SchedulerTest, AFailureEndsEveryRequestAndIsSaid) {
  // In a step, and while a request that was cancelled is taken out.
  for (const bool cancels : {false, true}) {
    Scheduler scheduler(engine(), options("rotor-3"));
    const auto first = std::make_shared<Saboteur>(scheduler, cancels);
    const auto second = std::make_shared<Heard>();
    std::vector<Scheduler::Submission> both;
    both.push_back({request(random_prompt(1, 80), 300), first});
    both.push_back({request(random_prompt(2, 80), 300), second});
    ASSERT_TRUE(scheduler.submit(std::move(both)));
    first->wait();
    second->wait();
    EXPECT_EQ(first->reason_, cancels ? FinishReason::cancelled : FinishReason::failed);
    EXPECT_EQ(second->reason_, FinishReason::failed);
    EXPECT_THAT(second->error_, testing::HasSubstr("is not open"));
    EXPECT_EQ(scheduler.failure(), second->error_);
    EXPECT_FALSE(scheduler.submit(request({1}, 1), std::make_shared<Heard>()));
    EXPECT_TRUE(scheduler.inspect([](Scheduler& s) { EXPECT_TRUE(s.runners().begin()->second->jobs().empty()); }));
  }
}

}  // namespace
}  // namespace ridge::serve
