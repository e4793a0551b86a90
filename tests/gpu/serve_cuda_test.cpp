// Requests on a device: the scheduler's texts with proposals are those without.
#include <condition_variable>

#include "cases/costly_proposer.h"
#include "gpu/device_data.h"
#include "serve/scheduler.h"

namespace ridge::serve {
namespace {

class ServeCuda : public OnDevice {};

class Heard : public Listener {
 public:
  Wish on_text(std::string_view text, std::span<const TokenLogprob>) override {
    text_ += text;
    return Wish::more;
  }
  void on_end(FinishReason reason, const Usage& usage, const RequestError& error) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(reason, FinishReason::length) << error.message;
    usage_ = usage;
    ended_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::minutes(5), [this] { return ended_; }));
  }
  std::string text_;
  Usage usage_;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
};

SchedulerOptions options_with(const ProposerMaker& make, bool adaptive = false) {
  return {.pool = {.kv = parse_kv_choice("f16").or_throw(),
                   .n_ctx = 128,
                   .max_seqs = 3,
                   .checkpoint_every = 64,
                   .kv_bytes = int64_t(8) << 20,
                   .batch_tokens = 64,
                   .max_stall_seconds = 1,
                   .proposers = make,
                   .spec_depth = 3,
                   .spec_adaptive = adaptive},
          .max_queue = 8};
}

/// Three requests with a penalty, logits on the host, and neither; the last one beside a prompt of its own length.
std::vector<std::shared_ptr<Heard>> texts_of(Engine& engine, const ProposerMaker& make, bool adaptive = false,
                                             int n_tokens = 14) {
  Scheduler scheduler(engine, options_with(make, adaptive));
  std::vector<std::shared_ptr<Heard>> all;
  std::vector<Scheduler::Submission> submissions;
  for (int i = 0; i < 3; ++i) {
    GenerationRequest request;
    for (int t = 0; t < 9 + 7 * i; ++t) request.prompt.push_back((31 * (t % 5) + 17 * i + 3) % 512);
    request.options = {
        .max_tokens = n_tokens, .ignore_eos = true, .sampler = {.temperature = 0.5f * float(i), .seed = 4}};
    if (i == 0) request.options.sampler.repeat_penalty = 1.2f;
    if (i == 1) request.frequency_penalty = 0.5f;
    all.push_back(std::make_shared<Heard>());
    submissions.push_back({std::move(request), all.back()});
  }
  // The second one needs logits: alone, so that the others are sampled on the device.
  auto second = std::move(submissions[1]);
  submissions.erase(submissions.begin() + 1);
  EXPECT_TRUE(scheduler.submit(std::move(submissions)));
  all[0]->wait();
  all[2]->wait();
  EXPECT_TRUE(scheduler.submit(std::move(second.request), second.listener));
  all[1]->wait();
  scheduler.inspect([&](Scheduler& s) { EXPECT_EQ(s.runners().begin()->second->pool().report().sequences, 0); });
  return all;
}

TEST_F(ServeCuda, SpeculationLeavesEveryText) {
  // A draft must not keep states.
  const char* const kSpecs[] = {"synth:tiny@layers=1@weights=f32@mtp=1", "synth:tiny-delta@layers=2@weights=f32@mtp=1"};
  for (const char* spec : kSpecs) {
    const Model model = Model::load(spec, {.device = "cuda"});
    const auto plain = texts_of(model.engine(), {});
    const ProposerMaker lookup = make_lookup_proposer;
    const ProposerMaker head = mtp_proposers(model, "", {.n_ctx = 128}, {}, 3);
    std::vector<const ProposerMaker*> makers{&lookup, &head};
    ProposerMaker draft;
    if (spec == kSpecs[0]) draft = draft_proposers(model, model, {.n_ctx = 128}, 0, 3), makers.push_back(&draft);
    for (const ProposerMaker* make : makers) {
      const auto with = texts_of(model.engine(), *make);
      for (size_t i = 0; i < with.size(); ++i) {
        EXPECT_EQ(with[i]->text_, plain[i]->text_) << spec << ", request " << i;
        EXPECT_EQ(with[i]->usage_.n_generated, 14);
        if (make != &lookup) {
          EXPECT_GT(with[i]->usage_.n_proposed, 0) << i;
        }
      }
    }
  }
}

/// The device proposes for one request alone, verifies and goes on by itself, to the text of the host's loop.
TEST_F(ServeCuda, OneRequestProposesWithoutTheHost) {
  const Model model = Model::load("synth:tiny@layers=1@weights=f32@mtp=1", {.device = "cuda"});
  const ProposerMaker head = mtp_proposers(model, "", {.n_ctx = 128}, {}, 3);
  std::vector<std::string> plain;
  for (const bool proposes : {false, true}) {
    Scheduler scheduler(model.engine(), options_with(proposes ? head : ProposerMaker()));
    for (int i = 0; i < 3; ++i) {
      GenerationRequest request;
      for (int t = 0; t < 12 + i; ++t) request.prompt.push_back((31 * (t % 5) + 17 * i + 3) % 512);
      request.options = {.max_tokens = 20, .ignore_eos = true, .sampler = {.temperature = 0.4f * float(i), .seed = 4}};
      const auto heard = std::make_shared<Heard>();
      ASSERT_TRUE(scheduler.submit(std::move(request), heard));
      heard->wait();
      if (!proposes) plain.push_back(heard->text_);
      EXPECT_EQ(heard->text_, plain[size_t(i)]) << i;
      EXPECT_EQ(heard->usage_.n_generated, 20);
      EXPECT_EQ(heard->usage_.n_proposed > 0, proposes);
    }
    scheduler.inspect([&](Scheduler& s) {
      EXPECT_GT(s.totals().steps_ahead, 3 * 4) << "20 tokens take five steps or more";
      EXPECT_EQ(s.runners().begin()->second->pool().report().sequences, 0);
    });
  }
}

/// Several requests at once do so too, to the texts of the host's loop, one of which asks for no draft tokens. One that
/// needs the host for its tokens lets the others go on by themselves when it has ended.
TEST_F(ServeCuda, RequestsProposeTogetherWithoutTheHost) {
  const Model model = Model::load("synth:tiny@layers=1@weights=f32@mtp=1", {.device = "cuda"});
  const ProposerMaker head = mtp_proposers(model, "", {.n_ctx = 128}, {}, 3);
  std::vector<std::string> plain;
  for (const bool proposes : {false, true}) {
    Scheduler scheduler(model.engine(), options_with(proposes ? head : ProposerMaker()));
    std::vector<Scheduler::Submission> submissions;
    std::vector<std::shared_ptr<Heard>> all;
    for (int i = 0; i < 4; ++i) {  // the last one waits for a place
      GenerationRequest request;
      for (int t = 0; t < 12 + i; ++t) request.prompt.push_back((31 * (t % 5) + 17 * i + 3) % 512);
      request.options = {.max_tokens = i == 2 ? 6 : 40 + i,
                         .ignore_eos = true,
                         .sampler = {.temperature = 0.4f * float(i), .seed = 4}};
      if (i == 1) request.speculative = false;
      if (i == 2) request.frequency_penalty = 0.5f;
      all.push_back(std::make_shared<Heard>());
      submissions.push_back({std::move(request), all.back()});
    }
    EXPECT_TRUE(scheduler.submit(std::move(submissions)));
    for (const auto& heard : all) heard->wait();
    for (size_t i = 0; i < all.size(); ++i) {
      if (!proposes) plain.push_back(all[i]->text_);
      EXPECT_EQ(all[i]->text_, plain[i]) << i;
      EXPECT_EQ(all[i]->usage_.n_proposed > 0, proposes && i != 1) << i;
    }
    scheduler.inspect([&](Scheduler& s) {
      const Totals& totals = s.totals();
      EXPECT_GT(totals.steps_ahead, 15) << "behind the one that needs the host";
      EXPECT_EQ(s.runners().begin()->second->pool().report().sequences, 0);
    });
  }
}

/// While texts are paused the device samples ahead as without proposers, which observe no more of the texts.
TEST_F(ServeCuda, PausedTextsAreSampledAhead) {
  const Model model = Model::load("synth:tiny@layers=1@weights=f32@mtp=1", {.device = "cuda"});
  constexpr int kTokens = 50;
  int n_seen = 0;
  const ProposerMaker make = [&] { return std::make_unique<CostlyProposer>(300, n_seen); };
  const auto plain = texts_of(model.engine(), {}, true, kTokens), with = texts_of(model.engine(), make, true, kTokens);
  for (size_t i = 0; i < with.size(); ++i) {
    EXPECT_EQ(with[i]->text_, plain[i]->text_) << i;
    EXPECT_GT(with[i]->usage_.n_proposed, 0) << i;
  }
  EXPECT_GE(n_seen, 3) << "the prompts";
  EXPECT_LT(n_seen, 3 * kTokens / 2) << "half of all steps";
}

/// Two devices that share the model, the head whole on the first one: the texts of one device, with proposals and
/// without.
TEST_F(ServeCuda, TwoDevicesWriteTheTextsOfOne) {
  if (gpu::query_devices().devices.size() < 2) GTEST_SKIP() << "one device is here";
  const char* const spec = "synth:tiny@weights=f32@mtp=1";
  const Model one = Model::load(spec, {.device = "cuda"});
  const auto expected = texts_of(one.engine(), {});
  for (const int n_stages : {1, 2}) {
    const Model two = Model::load(spec, {.device = "cuda:0,1", .n_stages = n_stages});
    const ProposerMaker lookup = make_lookup_proposer, head = mtp_proposers(two, "", {.n_ctx = 128}, {}, 3);
    for (const ProposerMaker& make : {ProposerMaker(), lookup, head}) {
      const auto texts = texts_of(two.engine(), make);
      for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(texts[i]->text_, expected[i]->text_) << "request " << i << ", stages: " << n_stages;
        EXPECT_EQ(texts[i]->usage_.n_generated, 14);
      }
    }
  }
}

}  // namespace
}  // namespace ridge::serve
