// Steps that feed themselves, and the host that reads along.
#include "engine/decode/run_ahead.h"

#include "engine/engine.h"
#include "gpu/device_data.h"
#include "op/sample/sample_cuda.h"

namespace ridge {
namespace {

class RunAheadCuda : public OnDevice {};

TEST_F(RunAheadCuda, TheRingSaysWhatItHas) {
  gpu::TokenRing ring(1, 2);
  std::vector<int32_t> read(1);
  EXPECT_FALSE(ring.read(0, read));
  const auto publish = [&](int32_t token) {
    const gpu::Buffer on_device = up(std::vector<int32_t>{token});
    ring.publish(stream(), on_device.as<int32_t>());
    stream().synchronize();
  };
  for (const int32_t token : {8, 43, 24}) publish(token);
  EXPECT_THROW(ring.read(0, read), Error) << "overwritten";
  EXPECT_TRUE(ring.read(1, read));
  EXPECT_EQ(read[0], 43);
  EXPECT_TRUE(ring.read(2, read));
  EXPECT_FALSE(ring.read(3, read));
  ring.reset(stream());
  EXPECT_FALSE(ring.read(0, read));
  publish(26);
  EXPECT_TRUE(ring.read(0, read));
  EXPECT_EQ(read[0], 26);
  EXPECT_THROW(ring.read(0, std::span<int32_t>()), Error);
  EXPECT_THROW(gpu::TokenRing(0, 2), Error);
}

TEST_F(RunAheadCuda, GreedyStepsWriteTheRingThemselves) {
  constexpr int kSeq = 2, kVocab = 97, kSteps = 5;
  gpu::TokenRing ring(kSeq, 3);
  DeviceSampler sampler(kSeq, kVocab);
  for (int s = 0; s < kSeq; ++s) sampler.set(stream(), s, {.temperature = 0});
  const gpu::Buffer tokens(4 * kSeq);
  std::vector<int32_t> read(kSeq);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> rows(kSeq * kVocab);
    const int32_t a = 7 * step + 3, b = 96 - step;
    rows[size_t(a)] = rows[size_t(kVocab + b)] = 1;
    const gpu::Buffer logits = up(rows);
    sampler.sample(stream(), logits.as<float>(), tokens.as<int32_t>(), ring.view());
    stream().synchronize();
    ASSERT_TRUE(ring.read(step, read));
    EXPECT_EQ(read, (std::vector{a, b}));
    EXPECT_EQ(down(tokens.as<int32_t>(), kSeq), read);
  }
  gpu::TokenRing other(kSeq + 1, 3);
  EXPECT_THROW(sampler.sample(stream(), nullptr, tokens.as<int32_t>(), other.view()), Error);
}

/// Several sequences of different lengths sample by themselves, whatever the host is behind: the tokens of greedy steps
/// fed by the host, and a cache that goes back exactly.
TEST_F(RunAheadCuda, SamplesWhatPassesFedByTheHostSample) {
  Engine engine("synth:tiny@layers=1@weights=f32", {.device = "cuda"});
  const std::vector<KvLayerConfig> layers =
      layer_configs({.n_ctx = 128, .k = {.format = "f16"}, .v = {.format = "f16"}}, engine.plan());
  const std::vector<int> lengths = {3, 1, 20};
  const int n = int(lengths.size()), n_steps = 20;  // wraps around the ring
  for (const int depth : {1, 4}) {
    const auto pool = engine.open_pool(layers, 8, n);
    const auto outputs = engine.backend().make_outputs();
    std::vector<SeqTokens> seqs, one;
    std::vector<SeqId> ids;
    std::vector<int32_t> prompt;
    for (const int length : lengths) {
      ids.push_back(pool->open().or_throw());
      seqs.push_back({ids.back(), length});
      one.push_back({ids.back(), 1});
      for (int i = 0; i < length; ++i) prompt.push_back(5 * i + length);
    }
    const auto run = [&](std::span<const int32_t> tokens, std::span<const SeqTokens> of) {
      for (const SeqTokens& s : of) pool->reserve(s.seq, s.n_tokens).or_throw();
      engine.backend().run({.tokens = tokens, .seqs = of}, *pool, *outputs);
    };
    const auto greedy = [&] {
      const View2<const float> logits = outputs->logits();
      std::vector<int32_t> tokens;
      for (int64_t r = 0; r < logits.rows; ++r) {
        const float* const row = logits.row(r).data();
        tokens.push_back(int32_t(std::max_element(row, row + logits.cols) - row));
      }
      return tokens;
    };
    // Fed by the host first; then back to the prompt.
    run(prompt, seqs);
    std::vector<std::vector<int32_t>> expected{greedy()};
    for (int step = 1; step < n_steps; ++step) {
      run(expected.back(), one);
      expected.push_back(greedy());
    }
    for (size_t s = 0; s < ids.size(); ++s) {
      pool->reset(ids[s]);
      ASSERT_EQ(pool->length(ids[s]), 0);
    }
    run(prompt, seqs);
    const std::vector<SamplerOptions> samplers(size_t(n), SamplerOptions{.temperature = 0});
    const std::vector<std::vector<int32_t>> recent(static_cast<size_t>(n));
    {
      const auto sampling = engine.backend().start_sampling(ids, *pool, *outputs, samplers, recent);
      RunAhead loop(*sampling, n, depth);
      std::vector<std::vector<int32_t>> generated;
      loop.run([] { return true; },
               [&](std::span<const int32_t> tokens) {
                 generated.emplace_back(tokens.begin(), tokens.end());
                 return ssize(generated) < n_steps;
               });
      EXPECT_EQ(generated, expected) << depth << " steps ahead";
      EXPECT_EQ(loop.n_taken(), n_steps);
      EXPECT_EQ(loop.n_launched(), n_steps + depth - 1);
    }
    // The surplus is forgotten: the next step is the one that the host would have fed.
    for (size_t s = 0; s < ids.size(); ++s)
      ASSERT_TRUE(pool->trim(ids[s], lengths[s] + n_steps - 1, TrimMode::exact).or_throw().exact);
    run(expected.back(), one);
    const auto after = greedy();
    for (size_t s = 0; s < ids.size(); ++s) pool->trim(ids[s], lengths[s], TrimMode::exact).or_throw();
    for (const auto& tokens : expected) run(tokens, one);
    EXPECT_EQ(greedy(), after);
  }
}

}  // namespace
}  // namespace ridge
