// Models that two devices share, against the CPU's reference kernels and against one device.
#include <gmock/gmock.h>

#include <algorithm>
#include <string_view>

#include "base/metrics.h"
#include "cases/reference_data.h"
#include "engine/engine.h"
#include "gpu/device_data.h"
#include "gpu/device_query.h"
#include "gpu/model_data.h"
#include "lab/model/bench_check.h"

namespace ridge {
namespace {

class RanksCuda : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    if (gpu::query_devices().devices.size() < 2) GTEST_SKIP() << "one device is here";
  }
};
const LoadOptions kTwo{.device = "cuda:0,1", .rank_timeout_s = 20};

/// Ranks add the same products in another order, so the bounds are those of one device (model_cuda_test.cpp).
struct Shared {
  const char *spec, *k, *v;
  double bound;
  int n = 40;
  const char* devices = "cuda:0,1";
};
class RanksCudaModels : public RanksCuda, public testing::WithParamInterface<Shared> {};

TEST_P(RanksCudaModels, LogitsAreTheReferences) {
  const Shared& of = GetParam();
  const size_t n_needed = size_t(std::ranges::count(std::string_view(of.devices), ',')) + 1;
  if (gpu::query_devices().devices.size() < n_needed) GTEST_SKIP() << n_needed << " devices are needed";
  const Model cpu = Model::load(of.spec, {.n_threads = 2, .isa = "scalar"}),
              devices = Model::load(of.spec, {.device = of.devices, .rank_timeout_s = 20});
  EXPECT_THAT(devices.info().device, testing::StartsWith(of.devices));
  const auto tokens = tokens_of(of.n, cpu.info().vocab_size, 1);
  EXPECT_LT(compare(all_logits(devices, tokens, of.k, of.v), all_logits(cpu, tokens, of.k, of.v)).nmse, of.bound);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RanksCudaModels,
                         testing::Values(Shared{"synth:tiny@weights=f32", "f32", "f32", 1e-10},
                                         Shared{"synth:tiny-64@weights=f16", "rotor-3", "rotor-3", 2e-4, 150},
                                         Shared{"synth:tiny-64@weights=int4_g128", "q8_0", "q4_0", 2e-4},
                                         Shared{"synth:tiny-gemma@weights=f32", "f32", "f32", 1e-9, 90},
                                         Shared{"synth:tiny-gemma4@weights=f32", "f32", "f32", 1e-9, 90},
                                         Shared{"synth:tiny-experts@weights=f32", "f32", "f32", 1e-9},
                                         Shared{"synth:tiny-oss@weights=f32", "f32", "f32", 1e-9, 60},
                                         Shared{"synth:tiny-latent@weights=f32", "f32", "f32", 1e-9},
                                         Shared{"synth:tiny-delta@weights=f32", "f32", "f32", 1e-9, 60},
                                         Shared{"synth:tiny-bitnet", "f16", "f16", 1e-3}));

/// Pairs of four devices have a head of k and v together.
INSTANTIATE_TEST_SUITE_P(
    OfFour, RanksCudaModels,
    testing::Values(Shared{"synth:tiny@weights=f32", "f32", "f32", 1e-10, 40, "cuda:0,1,2,3"},
                    Shared{"synth:tiny-64@weights=f16", "rotor-3", "rotor-3", 2e-4, 150, "cuda:0,1,2,3"},
                    Shared{"synth:tiny-experts@weights=f32", "f32", "f32", 1e-9, 40, "cuda:0,1,2,3"}));

/// Benches fill caches with random rows: devices that have the same kv head have the same rows of it. Gemma 4's full
/// layers have fewer kv heads than the others, so that devices share heads of some layers alone.
TEST_F(RanksCuda, FilledCachesPassTheCheckOfBenches) {
  for (const char* path : {"synth:tiny@weights=f32", "synth:tiny-gemma4@weights=f32"}) {
    lab::BenchReference reference(path);
    for (const auto& [n, devices] : {std::pair<size_t, const char*>(2, "cuda:0,1"), {4, "cuda:0,1,2,3"}}) {
      if (gpu::query_devices().devices.size() < n) continue;
      const Model shared = Model::load(path, {.device = devices, .rank_timeout_s = 20});
      const lab::BenchCheck check = reference.compare(shared, {.kv = {}, .depth = 64}, 42, std::nullopt);
      EXPECT_TRUE(check.passed) << path << ", " << devices << ": " << check.nmse << ", " << check.what;
    }
  }
}

/// OLMo 2 norms all heads of q, and of k, together: devices add up the squares of theirs, of four two have the same
/// head of k. A float sum of squares moves a norm by less than 2^-22, its square is far below the bound of one device.
TEST_F(RanksCuda, NormsOfAllHeadsTogetherAreTheReferences) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const std::string path = (*data / "parity/models/olmo2").native();
  const Model cpu = Model::load(path, {.n_threads = 2, .isa = "scalar"}), one = Model::load(path, {.device = "cuda"});
  const auto tokens = tokens_of(60, cpu.info().vocab_size, 1);
  const std::vector<float> expected = all_logits(cpu, tokens, "f32", "f32"),
                           of_one = all_logits(one, tokens, "f32", "f32");
  for (const auto& [n, devices] : {std::pair<size_t, const char*>(2, "cuda:0,1"), {4, "cuda:0,1,2,3"}}) {
    if (gpu::query_devices().devices.size() < n) continue;
    const Model shared = Model::load(path, {.device = devices, .rank_timeout_s = 20});
    const std::vector<float> logits = all_logits(shared, tokens, "f32", "f32");
    EXPECT_LT(compare(logits, expected).nmse, 1e-8) << devices;
    EXPECT_LT(compare(logits, of_one).nmse, 1e-8) << devices;
  }
}

/// Steps that feed themselves on both devices: the text of one device, and what it leaves in the cache.
TEST_F(RanksCuda, SamplesOneDevicesTokens) {
  const char* spec = "synth:tiny@weights=f32";
  const Model one = Model::load(spec, {.device = "cuda"}), two = Model::load(spec, kTwo);
  const auto prompt = tokens_of(61, one.info().vocab_size, 1);
  SamplerOptions greedy, sampled;
  greedy.temperature = 0;
  sampled.seed = 7;
  for (const SamplerOptions& options : {greedy, sampled}) {
    std::vector<std::vector<int32_t>> generated;
    for (const Model* model : {&one, &two}) {
      Session session(*model, {.n_ctx = 100, .n_ubatch = 23, .k = {.format = "f32"}, .v = {.format = "f32"}});
      session.prefill(prompt);
      std::vector<int32_t>& tokens = generated.emplace_back();
      const auto take = [&](size_t n) {
        return [&tokens, n](int32_t token) {
          tokens.push_back(token);
          return tokens.size() < n;
        };
      };
      EXPECT_EQ(session.generate(options, prompt, 1000, take(5)), 5);
      EXPECT_EQ(session.n_past(), 65);
      session.decode(tokens.back());
      EXPECT_EQ(session.generate(options, prompt, 10, take(1000)), 10);
    }
    EXPECT_EQ(generated[0], generated[1]) << "temperature " << options.temperature;
  }
}

/// Sequences of a pool that two devices hold together: bytes that one device takes over, and steps of any mixture.
TEST_F(RanksCuda, SequencesMoveBetweenOneDeviceAndTwo) {
  const char* spec = "synth:tiny-64@layers=1@weights=f32";
  for (const char* format : {"f16", "rotor-3"}) {
    Engine one(spec, {.device = "cuda"}), two(spec, kTwo);
    const std::vector<KvLayerConfig> layers =
        layer_configs({.n_ctx = 256, .k = {.format = format}, .v = {.format = format}}, one.plan());
    const auto of_one = one.open_pool(layers, 12, 4), of_two = two.open_pool(layers, 12, 4);
    const auto outputs_one = one.backend().make_outputs(), outputs_two = two.backend().make_outputs();
    const auto run = [](Engine& engine, SequencePool& pool, Outputs& outputs, std::span<const SeqTokens> seqs,
                        std::span<const int32_t> tokens) {
      for (const SeqTokens& s : seqs) pool.reserve(s.seq, s.n_tokens).or_throw();
      engine.backend().run({.tokens = tokens, .seqs = seqs, .logits = LogitRows::all}, pool, outputs);
      const View2<const float> logits = outputs.logits();
      return std::vector<float>(logits.data, logits.data + logits.rows * logits.cols);
    };
    const SeqId a = of_two->open().or_throw(), b = of_two->open().or_throw();
    ASSERT_EQ(of_one->open().or_throw(), a);
    ASSERT_EQ(of_one->open().or_throw(), b);
    for (const auto& [n_a, n_b] : {std::pair(1, 20), {130, 1}, {1, 1}, {1, 1}, {1, 1}, {3, 2}, {1, 1}}) {
      const std::vector<SeqTokens> seqs{{a, n_a}, {b, n_b}};
      const auto tokens = tokens_of(n_a + n_b, 512, uint64_t(n_a));
      EXPECT_LT(
          compare(run(two, *of_two, *outputs_two, seqs, tokens), run(one, *of_one, *outputs_one, seqs, tokens)).nmse,
          2e-4)
          << format << ", " << n_a << " and " << n_b << " tokens";
    }
    const SequenceImage image = of_two->save(a);
    of_one->close(a);
    ASSERT_EQ(of_one->load(image).or_throw(), a);
    const SeqId back = of_two->load(of_one->save(a)).or_throw();
    const std::vector<SeqTokens> again{{back, 1}}, first{{a, 1}};
    const std::vector<int32_t> token{9};
    const auto expected = run(two, *of_two, *outputs_two, first, token);
    EXPECT_EQ(run(two, *of_two, *outputs_two, again, token), expected) << format << ": moved there and back";
    EXPECT_LT(compare(run(one, *of_one, *outputs_one, first, token), expected).nmse, 2e-4) << format;
  }
}

TEST_F(RanksCuda, WhatDevicesDoNotShareIsRefusedByName) {
  const auto message_of = [](const std::string& spec, const std::string& device) -> std::string {
    try {
      Model::load(spec, {.device = device});
    } catch (const Error& error) {
      return error.what();
    }
    return "loaded";
  };
  EXPECT_THAT(message_of("synth:tiny", "cuda:0,0"), testing::HasSubstr("names 0 twice"));
  EXPECT_THAT(message_of("synth:tiny", "cuda:0,99"), testing::HasSubstr("cuda:99 is not available"));
}

}  // namespace
}  // namespace ridge
