// Recorded steps that feed themselves, and the host that reads along.
#include "engine/graph_steps.h"
#include "engine/token_stream.h"
#include "gpu/device_data.h"
#include "gpu/fake_step.h"
#include "op/sample/sample_cuda.h"

namespace ridge {
namespace {

constexpr int kVocab = kFakeVocab;
int32_t after(int32_t token) { return (5 * token + 3) % kVocab; }

class RunAheadCuda : public OnDevice {};

TEST_F(RunAheadCuda, TokensComeInOrderFromThePublishedRing) {
  constexpr int kSeq = 3;
  for (const int depth : {1, 2, 4}) {
    gpu::TokenRing ring(kSeq, 4);
    std::vector<int32_t> expected = {1, 20, 50};
    const gpu::Buffer tokens = up(expected);
    const gpu::Graph graph(stream(), [&] {
      fake_draw(stream(), kSeq, tokens.as<int32_t>());
      ring.publish(stream(), tokens.as<int32_t>());
    });
    GraphSteps steps(stream(), graph, ring);
    RunAhead loop(steps, kSeq, depth);
    for (const int64_t n_steps : {30, 1, 7}) {  // wraps around the ring, and goes on
      const auto result = loop.run(n_steps, [&](std::span<const int32_t> some) {
        for (int32_t& token : expected) token = after(token);
        EXPECT_EQ(std::vector(some.begin(), some.end()), expected);
        return true;
      });
      EXPECT_EQ(result.n_taken, n_steps);
      EXPECT_EQ(result.n_launched, n_steps);
    }
  }
}

TEST_F(RunAheadCuda, GreedyStepsWriteTheRingThemselves) {
  constexpr int kSeq = 2;
  gpu::TokenRing ring(kSeq, 3);
  DeviceSampler sampler(kSeq, kVocab);
  for (int s = 0; s < kSeq; ++s) sampler.set(stream(), s, {.temperature = 0});
  const gpu::Buffer tokens = up(std::vector<int32_t>{4, 9});
  const gpu::Buffer logits(4 * kSeq * kVocab);
  const gpu::Graph graph(stream(), [&] {
    fake_step(stream(), kSeq, tokens.as<int32_t>(), logits.as<float>());
    sampler.sample(stream(), logits.as<float>(), tokens.as<int32_t>(), ring.view());
  });
  GraphSteps steps(stream(), graph, ring);
  RunAhead loop(steps, kSeq, 3);
  int32_t a = 4, b = 9;
  loop.run(20, [&](std::span<const int32_t> some) {
    a = after(a), b = after(b);
    EXPECT_TRUE(some[0] == a && some[1] == b);
    return true;
  });
  gpu::TokenRing other(kSeq + 1, 3);
  EXPECT_THROW(sampler.sample(stream(), logits.as<float>(), tokens.as<int32_t>(), other.view()), Error);
}

TEST_F(RunAheadCuda, TextStopsAndSurplusStepsAreForgotten) {
  // From 1 on: 8, 43, 24, 26, 36, 86, 45 ...; a piece is the id in brackets.
  const auto generate = [&](GenerateOptions options, int32_t end) {
    gpu::TokenRing ring(1, 4);
    const gpu::Buffer token = up(std::vector<int32_t>{1});
    const gpu::Graph graph(stream(), [&] {
      fake_draw(stream(), 1, token.as<int32_t>());
      ring.publish(stream(), token.as<int32_t>());
    });
    GraphSteps steps(stream(), graph, ring);
    GenerateResult result;
    const TokenStream::OnText on_text = [](std::string_view) { return true; };
    TokenStream text(
        {.piece = [](int32_t id) { return fmt::format("[{}]", id); }, .is_end = [=](int32_t id) { return id == end; }},
        options, on_text, result);
    RunAhead loop(steps, 1, 4);
    const auto run = loop.run(1000, [&](std::span<const int32_t> some) { return text.push(some[0]); });
    text.finish();
    EXPECT_EQ(run.n_taken, int64_t(result.tokens.size()));
    EXPECT_EQ(run.n_launched, run.n_taken + 3);
    return result;
  };
  const GenerateResult ended = generate({}, 36);
  EXPECT_EQ(ended.reason, StopReason::end_token);
  EXPECT_EQ(ended.text, "[8][43][24][26]");
  const GenerateResult stopped = generate({.stop = {"6][3"}}, -1);
  EXPECT_EQ(stopped.reason, StopReason::stop_string);
  EXPECT_EQ(stopped.text, "[8][43][24][2");
  const GenerateResult full = generate({.max_tokens = 2}, -1);
  EXPECT_EQ(full.reason, StopReason::max_tokens);
  EXPECT_EQ(full.text, "[8][43]");
}

TEST_F(RunAheadCuda, TheRingSaysWhatItHas) {
  gpu::TokenRing ring(1, 2);
  const gpu::Buffer token = up(std::vector<int32_t>{1});
  std::vector<int32_t> read(1);
  EXPECT_FALSE(ring.read(0, read));
  for (int step = 0; step < 3; ++step) {
    fake_draw(stream(), 1, token.as<int32_t>());
    ring.publish(stream(), token.as<int32_t>());
  }
  stream().synchronize();
  EXPECT_THROW(ring.read(0, read), Error) << "overwritten";
  EXPECT_TRUE(ring.read(1, read));
  EXPECT_EQ(read[0], after(after(1)));
  EXPECT_TRUE(ring.read(2, read));
  EXPECT_FALSE(ring.read(3, read));
  ring.reset(stream());
  EXPECT_FALSE(ring.read(0, read));
  ring.publish(stream(), token.as<int32_t>());
  stream().synchronize();
  EXPECT_TRUE(ring.read(0, read));
  EXPECT_EQ(read[0], after(after(after(1))));
  EXPECT_THROW(ring.read(0, std::span<int32_t>()), Error);
  EXPECT_THROW(gpu::TokenRing(0, 2), Error);
}

}  // namespace
}  // namespace ridge
