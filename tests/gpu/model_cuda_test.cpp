// Whole models on the device against the CPU's reference kernels.
#include <gmock/gmock.h>
#include <array>

#include "base/metrics.h"
#include "cases/paths.h"
#include "cases/reference_data.h"
#include "cases/temp_dir.h"
#include "engine/engine.h"
#include "gpu/device_data.h"
#include "gpu/launch_log.h"
#include "gpu/model_data.h"

namespace ridge {
namespace {

class ModelCuda : public OnDevice {};

TEST_F(ModelCuda, LogitsAreTheReferencesWithEveryCacheFormat) {
  for (const char* spec : {"synth:tiny@weights=f32", "synth:tiny@weights=q8_0", "synth:tiny@weights=bf16"}) {
    const Model cpu = Model::load(spec, {.n_threads = 2, .isa = "scalar"});
    const Model device = Model::load(spec, {.device = "cuda"});
    EXPECT_THAT(device.info().device, testing::StartsWith("cuda:0 "));
    const auto tokens = tokens_of(160, cpu.info().vocab_size, 1);
    std::vector<std::pair<std::string, std::string>> pairs = {{"f16", "rotor-3"}, {"rotor-3", "q8_0"}};
    for (const KvFormat& format : kv_formats()) pairs.emplace_back(format.name, format.name);
    for (const auto& [k, v] : pairs) {
      const auto expected = all_logits(cpu, tokens, k.c_str(), v.c_str());
      const auto got = all_logits(device, tokens, k.c_str(), v.c_str());
      // Float rounding on the way in moves a value across a rounding or coding boundary now and then: one step of one
      // element of one row. Exact formats see none of that.
      const double bound = k == "f32" && v == "f32" ? 1e-10 : k == "f16" && v == "f16" ? 1e-7 : 1e-4;
      EXPECT_LT(compare(got, expected).nmse, bound) << spec << " " << k << "/" << v;
    }
  }
}

/// head_dim 64 and every order of weights: decode is the recorded step over tiles, prefill the batch kernels.
TEST_F(ModelCuda, RecordedStepsAreTheReferences) {
  const std::pair<const char*, const char*> pairs[] = {
      {"f16", "f16"}, {"rotor-3", "rotor-3"}, {"q8_0", "q4_0"}, {"p8", "rotor-4"}, {"rotor-4", "bf16"}};
  for (const char* weights : {"f16", "bf16", "q8_0", "int4_g128", "q4_k", "q6_k", "f32"}) {
    const std::string spec = std::string("synth:tiny-64@weights=") + weights;
    const Model cpu = Model::load(spec, {.n_threads = 2, .isa = "scalar"});
    const Model device = Model::load(spec, {.device = "cuda"});
    const auto tokens = tokens_of(150, cpu.info().vocab_size, 1);
    for (const auto& [k, v] : pairs) {
      if (std::string_view(weights) != "int4_g128" && std::string_view(weights) != "f16" && k != pairs[1].first)
        continue;
      const auto expected = all_logits(cpu, tokens, k, v);
      const auto got = all_logits(device, tokens, k, v);
      // Activations of int4_g128 have 15 bits, those of bf16 weights 16; a coded element moves by a step now and then.
      const double bound = std::string_view(k) == "f16" ? 1e-6 : 2e-4;
      EXPECT_LT(compare(got, expected).nmse, bound) << spec << " " << k << "/" << v;
    }
  }
}

/// Sampling runs ahead of the host; what it leaves in the cache is what was handed on.
TEST_F(ModelCuda, SamplesTheCpusTokensAndForgetsTheSurplus) {
  const char* spec = "synth:tiny-64@weights=f16";
  const Model cpu = Model::load(spec, {.n_threads = 2, .isa = "scalar"}),
              device = Model::load(spec, {.device = "cuda"});
  const auto prompt = tokens_of(123, cpu.info().vocab_size, 1);
  SamplerOptions greedy, sampled;
  greedy.temperature = 0;
  sampled.seed = 7;
  for (const char* format : {"f16", "rotor-3"})
    for (const SamplerOptions& options : {greedy, sampled}) {
      // Codes that differ in an element now and then lead sampled text elsewhere.
      if (format == std::string_view("rotor-3") && options.temperature > 0) continue;
      std::vector<std::vector<int32_t>> generated;
      std::vector<std::vector<float>> after;
      for (const Model* model : {&cpu, &device}) {
        // A tile leaves rotor-3's window at 128 tokens; the surplus of the first call reaches beyond it.
        // Steps of more than kFewTokens would round activations once.
        Session session(*model, {.n_ctx = 160, .n_ubatch = 23, .k = {.format = format}, .v = {.format = format}});
        session.prefill(prompt);
        std::vector<int32_t>& tokens = generated.emplace_back();
        const auto take = [&](size_t n) {
          return [&tokens, n](int32_t token) {
            tokens.push_back(token);
            return tokens.size() < n;
          };
        };
        EXPECT_EQ(session.generate(options, prompt, 1000, take(5)), 5);
        EXPECT_EQ(session.n_past(), 127);
        const auto logits = session.decode(tokens.back());
        after.emplace_back(logits.begin(), logits.end());
        EXPECT_EQ(session.generate(options, prompt, 10, take(1000)), 10);
        // Until the context is full: the last token has no place any more.
        session.decode(tokens.back());
        EXPECT_EQ(session.generate(options, prompt, 1000, take(1000)), 160 - 138 + 1);
        EXPECT_EQ(session.n_past(), 160);
      }
      EXPECT_EQ(generated[0], generated[1]) << format << ", temperature " << options.temperature;
      EXPECT_LT(compare(after[1], after[0]).nmse, 1e-4) << format;
    }
}

TEST_F(ModelCuda, RecordedStepsOfTernaryModelsAreTheReferences) {
  const Model cpu = Model::load("synth:tiny-bitnet", {.n_threads = 2, .isa = "scalar"});
  const Model device = Model::load("synth:tiny-bitnet", {.device = "cuda"});
  const auto tokens = tokens_of(60, cpu.info().vocab_size, 1);
  EXPECT_LT(compare(all_logits(device, tokens, "f16", "f16"), all_logits(cpu, tokens, "f16", "f16")).nmse, 1e-3);
}

/// More tokens at a time than a decode step has: products that round activations, and int4_g128 weights, to f16.
TEST_F(ModelCuda, PromptsAreTheReferences) {
  for (const char* spec : {"synth:tiny-64@weights=int4_g128", "synth:tiny-64@weights=f16", "synth:tiny-64@weights=q4_k",
                           "synth:tiny-64@weights=bf16", "synth:tiny-bitnet"}) {
    const Model cpu = Model::load(spec, {.n_threads = 2, .isa = "scalar"});
    const Model device = Model::load(spec, {.device = "cuda"});
    const auto tokens = tokens_of(100, cpu.info().vocab_size, 1);
    const auto expected = all_logits(cpu, tokens, "f16", "f16"), got = all_logits(device, tokens, "f16", "f16", 75);
    // Each product adds a relative error of 2^-11 / sqrt(3) or, with rounded weights, 1.4 times as much. A value of a
    // ternary model that is near the border of two levels moves by a whole one.
    const double bound = device.info().arch.find("bitnet") == std::string::npos ? 5e-6 : 1e-3;
    EXPECT_LT(compare(got, expected).nmse, bound) << spec;
  }
}

/// A prompt's exact rows are in a ring that all caches of a model share. Rows of int8 that one cache left there are not
/// finite when they are read as f16, so the places that the other's prompt leaves free are cleared.
TEST_F(ModelCuda, PromptsAreTheSameBehindCachesOfOtherWindows) {
  const Model model = Model::load("synth:tiny-64@weights=f16", {.device = "cuda"});
  const auto tokens = tokens_of(96, model.info().vocab_size, 1);
  const auto last_logits = [&](const KvSideOptions& side, int n) {
    Session session(model, {.n_ctx = 96, .n_ubatch = 96, .k = side, .v = side});
    const auto row = session.prefill(std::span(tokens).first(size_t(n)));
    return std::vector<float>(row.begin(), row.end());
  };
  const KvSideOptions exact{.format = "q8_0", .window = 96, .sinks = 4};
  const auto expected = last_logits(exact, 75);
  last_logits({.format = "rotor-3"}, 96);  // its window's rows are int8
  EXPECT_EQ(last_logits(exact, 75), expected);
}

TEST_F(ModelCuda, AShippedModelGivesTheReferencesLogits) {
  const std::string path = RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf";
  const Model cpu = Model::load(path, {.n_threads = 0, .isa = "scalar"}),
              device = Model::load(path, {.device = "cuda"});
  const auto tokens = tokens_of(12, cpu.info().vocab_size, 2);
  EXPECT_LT(compare(all_logits(device, tokens, "f32", "f32"), all_logits(cpu, tokens, "f32", "f32")).nmse, 1e-9);
}

/// Latent rows behind a router of groups under a softmax.
TEST_F(ModelCuda, DeepSeekV2GivesTheReferencesLogits) {
  const std::string path = RIDGE_SOURCE_DIR "/tests/golden/deepseek-v2";
  const Model cpu = Model::load(path, {.n_threads = 2, .isa = "scalar"}),
              device = Model::load(path, {.device = "cuda"});
  const auto tokens = tokens_of(40, cpu.info().vocab_size, 3);
  EXPECT_LT(compare(all_logits(device, tokens, "f32", "f32"), all_logits(cpu, tokens, "f32", "f32")).nmse, 1e-8);
}

/// Tiny models of every architecture whose logits tests/engine/parity_test.cpp holds to other implementations'. Weights
/// in bf16 meet activations of 16 bits; a context beyond LongRoPE's border, and one within it.
TEST_F(ModelCuda, ModelsOfManyArchitecturesAreTheReferences) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  for (const char* name : {"mistral",        "llama3",
                           "mistral_swa",    "granite",
                           "phi3",           "phi3_longrope",
                           "olmo2",          "gemma3",
                           "qwen3_moe",      "qwen3_moe_dense",
                           "qwen2_moe",      "gpt_oss",
                           "gpt_oss_mxfp4",  "deepseek_v3",
                           "qwen3_next",     "qwen3_5",
                           "qwen3_5_moe",    "qwen3_5_mtp",
                           "mixtral",        "qwen3_vl",
                           "qwen2_5_vl",     "seed_oss",
                           "glm4_moe",       "glm4_moe_lite",
                           "minimax_m2",     "ernie4_5_moe",
                           "smollm3",        "exaone4",
                           "fp8_block",      "awq",
                           "nvfp4_ct",       "nvfp4_modelopt",
                           "cohere2",        "hunyuan_v1_dense",
                           "lfm2",           "lfm2_moe",
                           "granite_hybrid", "granite_hybrid_moe",
                           "nemotron_h",     "nemotron_h_moe",
                           "gemma4",         "gemma4_moe",
                           "gemma4_e",       "gptq"}) {
    const std::string path = (*data / "parity/models" / name).native();
    const Model cpu = Model::load(path, {.n_threads = 2, .isa = "scalar"}),
                device = Model::load(path, {.device = "cuda"});
    for (const int n : {24, 90}) {
      const auto tokens = tokens_of(n, cpu.info().vocab_size, uint64_t(n));
      const double error =
          compare(all_logits(device, tokens, "f32", "f32"), all_logits(cpu, tokens, "f32", "f32")).nmse;
      // Groups of experts round x to f16, 2^-12 of it. So gate and up are off by 2^-24 of their squares each, what
      // their slopes of 1.1 and 1 leave of both by 4.4 times that, and the product behind them adds 2^-24 of its own.
      const double bound = std::string_view(name) == "gpt_oss_mxfp4" ? 2 * 5.4 * 0x1p-24 : 1e-8;  // two layers
      EXPECT_LT(error, bound) << name << ", " << n << " tokens";
      RecordProperty(fmt::format("nmse_{}_{}", name, n), fmt::format("{:.1e}", error));
    }
  }
}

/// GiB that hold n experts of each layer whose experts are in host memory.
double cache_of(const std::string& path, const LoadOptions& options, int n) {
  const Model model = Model::load(path, options);
  Engine& engine = model.engine();
  int64_t bytes = 0;
  for (size_t i = 0; i < engine.plan().layers.size(); ++i) {
    if (!engine.plan().layers[i].experts.on_host) continue;
    const ExpertWeights& expert = engine.weights().layers[i].experts[0];
    for (const Linear* m : {&expert.gate, &expert.up, &expert.down})
      if (m->format) bytes += m->bytes();
  }
  return double(n * bytes + bytes / 2) / double(int64_t(1) << 30);
}

/// The router's choice goes to the host, the experts' sums come back: of one layer and of all, in recorded steps and in
/// prompts, where the device computes and the experts come to it. Gates and no gates, biases, a shared expert with and
/// without a gate, experts beside a dense feed-forward.
TEST_F(ModelCuda, ExpertsInHostMemoryAreTheReferences) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  for (const char* name : {"qwen3_moe", "qwen2_moe", "gpt_oss", "deepseek_v3", "nemotron_h_moe", "gemma4_moe"}) {
    const std::string path = (*data / "parity/models" / name).native();
    const Model cpu = Model::load(path, {.n_threads = 2});
    for (const int n_cpu_moe : {2, 999}) {
      const Model device = Model::load(path, {.device = "cuda", .n_threads = 2, .n_cpu_moe = n_cpu_moe});
      for (const int n : {24, 90}) {
        const auto tokens = tokens_of(n, cpu.info().vocab_size, uint64_t(n));
        const double error =
            compare(all_logits(device, tokens, "f32", "f32", n), all_logits(cpu, tokens, "f32", "f32")).nmse;
        EXPECT_LT(error, 1e-8) << name << ", " << n_cpu_moe << " layers, " << n << " tokens";
      }
    }
  }
}

/// Then the products are the device's: the bits are those of a model whose experts are all there. Experts of one layer
/// alone, which would share their place with no others, stay with the CPU.
TEST_F(ModelCuda, PromptsBringExpertsFromHostMemory) {
  for (const char* spec : {"synth:tiny-experts@layers=3@weights=int4_g128", "synth:tiny-experts@layers=3@weights=q8_0",
                           "synth:tiny-oss@weights=mxfp4"}) {
    const Model whole = Model::load(spec, {.device = "cuda"}),
                host = Model::load(spec, {.device = "cuda", .n_threads = 2, .n_cpu_moe = 2}),
                one = Model::load(spec, {.device = "cuda", .n_threads = 2, .n_cpu_moe = 1});
    const auto kernels_of = [](const Model& model) {
      return fmt::format("{}", fmt::join(Session(model, {.n_ctx = 64}).kernels(), " "));
    };
    EXPECT_THAT(kernels_of(host), testing::HasSubstr("experts=cpu+streamed")) << spec;
    EXPECT_THAT(kernels_of(one), testing::Not(testing::HasSubstr("streamed"))) << spec;
    const auto tokens = tokens_of(90, whole.info().vocab_size, 5);
    std::vector<float> bits[] = {all_logits(host, tokens, "f16", "f16", 90),
                                 all_logits(whole, tokens, "f16", "f16", 90)};
    for (auto& rows : bits) rows.resize(size_t(60 * whole.info().vocab_size));  // of the prompt; the others are steps
    EXPECT_EQ(bits[0], bits[1]) << spec;
  }
}

/// Sampling that runs ahead of the host, while a thread of the runtime computes experts, and where the device exchanges
/// some in the middle.
TEST_F(ModelCuda, ExpertsInHostMemorySampleTheCpusTokens) {
  const char* spec = "synth:tiny-experts@weights=f32";
  const LoadOptions all{.device = "cuda", .n_threads = 2, .n_cpu_moe = 2};
  LoadOptions with = all;
  with.moe_cache_gib = cache_of(spec, all, 3);
  const Model cpu = Model::load(spec, {.n_threads = 2, .isa = "scalar"}),
              device = Model::load(spec, {.device = "cuda", .n_threads = 2, .n_cpu_moe = 1}),
              none = Model::load(spec, {.device = "cuda", .n_threads = 2, .moe_device_gib = 0}),
              keeps = Model::load(spec, with);
  const auto prompt = tokens_of(30, cpu.info().vocab_size, 1);
  SamplerOptions greedy;
  greedy.temperature = 0;
  std::vector<std::vector<int32_t>> generated;
  for (const Model* model : {&cpu, &device, &none, &keeps}) {
    Session session(*model, {.n_ctx = 128, .k = {.format = "f32"}, .v = {.format = "f32"}});
    session.prefill(prompt);
    std::vector<int32_t>& tokens = generated.emplace_back();
    const int n = model == &cpu || model == &keeps ? 80 : 20;
    session.generate(greedy, prompt, n, [&](int32_t token) { return tokens.push_back(token), true; });
    EXPECT_EQ(ssize(tokens), n);
  }
  EXPECT_EQ(generated[3], generated[0]);
  generated[0].resize(20);
  EXPECT_EQ(generated[1], generated[0]);
  EXPECT_EQ(generated[2], generated[0]);
  EXPECT_GT(keeps.expert_hits().share(), 0.1);
}

/// A device and the CPU share the experts of a token: fewer than a token has, more, and all, from the first step behind
/// the prompt on. Rows and bricks, biases, two roles in one launch, experts beside a dense feed-forward and a
/// shared one.
TEST_F(ModelCuda, ExpertsInHostMemoryThatTheDeviceKeepsAreTheReferences) {
  for (const auto& [spec, bound] : {std::pair{"synth:tiny-experts@weights=f32@skew=1", 1e-10},
                                    {"synth:tiny-oss@weights=f32@skew=0.5", 1e-10},
                                    {"synth:tiny-gemma4-moe@weights=f32@layers=3", 1e-10},
                                    {"synth:tiny-nemotron-moe@weights=f32", 1e-10},
                                    {"synth:tiny-experts@weights=q8_0@skew=1", 1e-4},
                                    {"synth:tiny-delta-128@weights=int4_g128@skew=1", 1e-4}}) {
    const LoadOptions options{.device = "cuda", .n_threads = 2, .n_cpu_moe = 999};
    const Model host = Model::load(spec, options);
    const auto tokens = tokens_of(110, host.info().vocab_size, 5);
    const auto expected = all_logits(host, tokens, "f32", "f32");
    EXPECT_EQ(host.expert_hits().n_chosen, 0) << spec;
    double before = 0;
    for (const int n : {1, 4, 999}) {
      LoadOptions with = options;
      with.moe_cache_gib = cache_of(spec, options, n);
      const Model device = Model::load(spec, with);
      if (n < 999) EXPECT_EQ(device.info().n_cached_experts, n) << spec;
      const double error = compare(all_logits(device, tokens, "f32", "f32"), expected).nmse;
      EXPECT_LT(error, bound) << spec << ", " << n << " places";
      const double share = device.expert_hits().share();
      EXPECT_GT(share, before) << spec << ", " << n << " places";
      before = share;
    }
    EXPECT_GT(before, 0.35) << spec << ": all of the last 41 tokens, which are behind the first exchange";
  }
}

/// Each of two tokens has experts of its own: when the text goes over from one to the other, the second one's take the
/// places, in steps that were recorded before.
TEST_F(ModelCuda, ExpertsInHostMemoryThatAreChosenMoreOftenTakeThePlaces) {
  const char* spec = "synth:tiny-experts@layers=1@weights=f32";
  const LoadOptions options{.device = "cuda", .n_threads = 2, .n_cpu_moe = 1};
  LoadOptions with = options;
  with.moe_cache_gib = cache_of(spec, options, 2);
  const Model host = Model::load(spec, options), device = Model::load(spec, with);
  std::vector<int32_t> tokens(70, 3);
  tokens.insert(tokens.end(), 150, 8);
  std::vector<float> logits[2];
  std::vector<double> shares;  // of tokens up to the 61st, 70th, 196th and last
  ExpertHits before;
  for (const Model* model : {&host, &device}) {
    Session session(*model, {.n_ctx = 256, .k = {.format = "f32"}, .v = {.format = "f32"}});
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto row = session.decode(tokens[i]);
      logits[model == &device].insert(logits[model == &device].end(), row.begin(), row.end());
      if (model == &host || (i != 60 && i != 69 && i != 195 && i + 1 != tokens.size())) continue;
      const ExpertHits now = model->expert_hits();
      shares.push_back(ExpertHits{now.n_chosen - before.n_chosen, now.n_found - before.n_found}.share());
      before = now;
    }
  }
  EXPECT_LT(compare(logits[1], logits[0]).nmse, 1e-10);
  ASSERT_EQ(shares.size(), 4u);
  EXPECT_EQ(shares[0], 0) << "places are empty at first";
  EXPECT_GT(shares[1], 0.6) << "of the first token's experts, from the 64th step on";
  EXPECT_LT(shares[2], 0.2) << "the second token has other experts";
  EXPECT_GE(shares[3], 0.5) << "one of which, or both, took a place";
}

/// Then the host has nothing to do: experts that it could not multiply with are not asked for.
TEST_F(ModelCuda, ExpertsInHostMemoryThatTheDeviceKeepsAreNotTheHosts) {
  const char* spec = "synth:tiny-experts@layers=1@weights=q8_0";
  LoadOptions options{.device = "cuda", .n_threads = 2, .n_cpu_moe = 1};
  options.moe_cache_gib = cache_of(spec, options, 8);
  const Model model = Model::load(spec, options);
  Session session(model, {.n_ctx = 128});
  session.prefill(tokens_of(100, model.info().vocab_size, 1));
  session.decode(1);
  std::vector<ExpertWeights>& experts = model.engine().weights().layers[0].experts;
  for (ExpertWeights& expert : experts) expert.down.n_in += 32;
  const ExpertHits before = model.expert_hits();
  EXPECT_TRUE(std::isfinite(session.decode(1)[0]));
  for (ExpertWeights& expert : experts) expert.down.n_in -= 32;
  EXPECT_EQ(model.expert_hits().n_chosen, before.n_chosen + 2);
  EXPECT_EQ(model.expert_hits().n_found, before.n_found + 2);
}

/// What goes wrong on the host ends the step that asked for it, and no other.
TEST_F(ModelCuda, ErrorsOfExpertsInHostMemoryEndTheStep) {
  const Model model = Model::load("synth:tiny-experts@weights=f32", {.device = "cuda", .n_threads = 2, .n_cpu_moe = 1});
  Session session(model, {.n_ctx = 64});
  session.prefill(tokens_of(5, model.info().vocab_size, 1));
  auto& experts = const_cast<Weights&>(model.engine().weights()).layers[0].experts;
  for (ExpertWeights& expert : experts) expert.down.n_in += 32;
  EXPECT_THROW(session.decode(1), Error);
  for (ExpertWeights& expert : experts) expert.down.n_in -= 32;
  EXPECT_TRUE(std::isfinite(session.decode(1)[0]));
}

TEST_F(ModelCuda, ExpertsStayInHostMemoryOfOneGpuAlone) {
  const auto refused = [](const char* spec, const LoadOptions& options, const char* why) {
    try {
      Model::load(spec, options);
      ADD_FAILURE() << why << ": not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr(why));
    }
  };
  const char* spec = "synth:tiny-experts@weights=f32";
  refused(spec, {.device = "cpu", .n_cpu_moe = 1}, "on the CPU all experts are there");
  refused(spec, {.device = "cuda:0,1", .n_cpu_moe = 1}, "several GPUs hold all experts");
  refused("synth:tiny@weights=f32", {.device = "cuda", .n_cpu_moe = 1}, "no layer with experts");
  refused(spec, {.device = "cpu", .moe_cache_gib = 1}, "on the CPU all experts are there");
  refused(spec, {.device = "cuda", .moe_cache_gib = 1}, "all are on the GPU");
  refused(spec, {.device = "cuda", .n_cpu_moe = 1, .moe_cache_gib = 1e-9}, "one expert of each layer in host memory");
}

TEST_F(ModelCuda, WhatADeviceDoesNotComputeIsRefusedByName) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const auto message_of = [&](const char* name, int n_ctx, const std::string& device = "cuda",
                              const std::string& kv = "f16") {
    try {
      const Model model = Model::load((*data / "parity/models" / name).native(), {.device = device});
      const Session session(model, {.n_ctx = n_ctx, .k = {.format = kv}, .v = {.format = kv}});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message_of("glm_moe_dsa", 16), testing::HasSubstr("does not compute keys that queries choose"));
  EXPECT_THAT(message_of("gemma4_e", 16, "cuda", "rotor-3"), testing::HasSubstr("formats that keep no exact window"));
  EXPECT_EQ(message_of("gemma4_e", 16), "");
  if (gpu::query_devices().devices.size() > 1)
    for (const auto& [name, what] : {std::pair{"cohere2", "LayerNorm"},
                                     {"gemma4_e", "layers that share K and V"},
                                     {"hunyuan_v1_dense", "norms of q and k heads behind RoPE"},
                                     {"gemma4_moe", "experts beside a dense feed-forward"}})
      EXPECT_THAT(message_of(name, 16, "cuda:0,1"), testing::HasSubstr(what));
  for (const char* name : {"ministral3", "mistral4"}) {
    EXPECT_EQ(message_of(name, 16), "") << name;
    EXPECT_THAT(message_of(name, 17), testing::HasSubstr("a context of at most 16, or the CPU")) << name;
  }
}

/// An engine with a pool of sequences.
struct Running {
  Running(const std::string& spec, const LoadOptions& options, const char* k, const char* v, int n_slots = 12)
      : engine(spec, options),
        layers(layer_configs({.n_ctx = 512, .k = {.format = k}, .v = {.format = v}}, engine.plan())),
        pool(engine.open_pool(layers, 4 * n_slots, n_slots)),
        outputs(engine.backend().make_outputs()) {}

  SeqId open() { return pool->open().or_throw(); }
  std::vector<float> run(std::span<const int32_t> tokens, std::span<const SeqTokens> seqs,
                         LogitRows rows = LogitRows::all) {
    for (const SeqTokens& s : seqs) pool->reserve(s.seq, s.n_tokens).or_throw();
    engine.backend().run({.tokens = tokens, .seqs = seqs, .logits = rows}, *pool, *outputs);
    const View2<const float> logits = outputs->logits();
    return {logits.data, logits.data + logits.rows * logits.cols};
  }
  std::vector<float> run(int32_t token, SeqId seq) {
    const SeqTokens one{seq, 1};
    return run({&token, 1}, {&one, 1});
  }

  Engine engine;
  std::vector<KvLayerConfig> layers;
  std::unique_ptr<SequencePool> pool;
  std::unique_ptr<Outputs> outputs;
};

/// Sequences together, with rows of padding, and several tokens of each, as verifying steps have them.
TEST_F(ModelCuda, ExpertsInHostMemoryThatTheDeviceKeepsServeManySequences) {
  const char* spec = "synth:tiny-experts@weights=f32@skew=1";
  const LoadOptions options{.device = "cuda", .n_threads = 2, .n_cpu_moe = 999};
  LoadOptions with = options;
  with.moe_cache_gib = cache_of(spec, options, 3);
  Running host(spec, options, "f32", "f32"), device(spec, with, "f32", "f32");
  std::vector<SeqId> seqs;
  for (int i = 0; i < 9; ++i) {
    seqs.push_back(host.open());
    ASSERT_EQ(device.open(), seqs.back());
  }
  const auto step = [&](size_t n_seqs, int n, uint64_t seed) {
    std::vector<SeqTokens> batch;
    for (size_t i = 0; i < n_seqs; ++i) batch.push_back({seqs[i], n});
    const auto tokens = tokens_of(int(n_seqs) * n, 512, seed);
    EXPECT_LT(compare(device.run(tokens, batch), host.run(tokens, batch)).nmse, 1e-10)
        << n_seqs << " sequences, " << n << " tokens, " << seed;
  };
  step(1, 70, 1);
  for (uint64_t i = 0; i < 4; ++i) {
    step(9, 1, i);  // padded to 16 rows
    step(3, 4, i);
    step(2, 2, i);
  }
  // The prompt's tokens, those of steps, and none of rows of padding: two experts each, in two layers.
  const ExpertHits hits = device.engine.backend().expert_hits();
  EXPECT_EQ(hits.n_chosen, 4 * (70 + 4 * (9 + 12 + 4)));
  EXPECT_GT(hits.n_found, 200) << "half of those behind the prompt";
}

/// Steps of sequences that bring prompts, a few tokens or one; steps of one shape are queued, recorded and replayed.
class RaggedCuda : public ModelCuda {
 protected:
  static constexpr int64_t kVocab = 512;
  /// Rows of logits that are off by more than the bound.
  static int64_t rows_off(std::span<const float> got, std::span<const float> expected, double bound) {
    int64_t n = 0;
    for (size_t at = 0; at < got.size(); at += kVocab)
      n += compare(got.subspan(at, kVocab), expected.subspan(at, kVocab)).nmse >= bound ? 1 : 0;
    return n;
  }

  /// With experts, where two of them score nearly alike, rounding chooses: one row in fifty may have another expert.
  void check(const std::string& spec, const char* k, const char* v, double bound) {
    const bool has_experts = spec.find("experts") != spec.npos || spec.find("oss") != spec.npos;
    Running cpu(spec, {.n_threads = 2, .isa = "scalar"}, k, v), device(spec, {.device = "cuda"}, k, v);
    std::vector<SeqId> seqs;
    for (int s = 0; s < 3; ++s) {
      seqs.push_back(cpu.open());
      ASSERT_EQ(device.open(), seqs.back());
    }
    // 64 positions calibrate, at 128 a tile leaves a window of 96.
    const std::vector<std::array<int, 3>> steps = {
        {20, 1, 0}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {40, 3, 0}, {2, 30, 1}, {1, 1, 1},   {16, 1, 9},
        {45, 2, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {5, 1, 60}, {5, 1, 1},  {0, 100, 1}, {1, 1, 1}};
    Rng rng(3);
    double worst = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      std::vector<SeqTokens> batch;
      std::vector<int32_t> tokens;
      for (size_t s = 0; s < seqs.size(); ++s) {
        if (steps[i][s] == 0) continue;
        batch.push_back({seqs[s], steps[i][s]});
        for (int t = 0; t < steps[i][s]; ++t) tokens.push_back(int32_t(rng.next() % 512));
      }
      const LogitRows rows = i % 3 == 1 ? LogitRows::last : LogitRows::all;
      const auto expected = cpu.run(tokens, batch, rows), got = device.run(tokens, batch, rows);
      ASSERT_EQ(got.size(), expected.size());
      const double nmse = compare(got, expected).nmse;
      if (has_experts && nmse >= bound) {
        EXPECT_LE(rows_off(got, expected, bound), ssize(expected) / kVocab / 50) << spec << ", step " << i;
        continue;
      }
      EXPECT_LT(nmse, bound) << spec << ", " << k << "/" << v << ", step " << i;
      worst = std::max(worst, nmse);
    }
    RecordProperty(fmt::format("worst_{}_{}_{}", spec, k, v), std::to_string(worst / bound));
    // A sequence goes on where another device has left it.
    for (const SeqId seq : seqs) {
      const SequenceImage image = device.pool->save(seq);
      cpu.pool->close(seq);
      ASSERT_EQ(cpu.pool->load(image).or_throw(), seq);
      EXPECT_LT(compare(device.run(7, seq), cpu.run(7, seq)).nmse, bound) << "a sequence taken over";
    }
  }
};

/// Floats everywhere: both sides differ by orders of sums only. n_in terms a product, two layers.
TEST_F(RaggedCuda, StepsOverFloatRowsAreTheReferences) { check("synth:tiny@weights=f32", "f32", "f32", 1e-10); }

/// Rows that are coded, and half products in prompts' attention: each adds a relative error of 2^-11 / sqrt(3); a coded
/// element moves by a step where a float lies near a border.
TEST_F(RaggedCuda, StepsOverTilesAreTheReferences) {
  check("synth:tiny-64@layers=1@weights=f32", "f16", "f16", 5e-6);
  check("synth:tiny-64@layers=1@weights=f32", "rotor-3", "q4_0", 2e-4);
}

/// Windows, two ropes, norms around blocks and GeGLU; experts; sink logits, biases and experts; latent rows;
/// states and gated attention. A layer of each kind.
TEST_F(RaggedCuda, StepsOfOtherArchitecturesAreTheReferences) {
  for (const char* spec :
       {"synth:tiny-gemma@layers=6@weights=f32", "synth:tiny-experts@weights=f32", "synth:tiny-oss@weights=f32",
        "synth:tiny-biases@weights=f32", "synth:tiny-latent@weights=f32", "synth:tiny-delta@layers=2@weights=f32"})
    check(spec, "f32", "f32", 1e-10);
}

/// States beside a cache that calibrates and codes in the middle of steps.
TEST_F(RaggedCuda, StepsOfStatesBesideCodedRowsAreTheReferences) {
  check("synth:tiny-delta@layers=2@weights=f32", "rotor-3", "q4_0", 2e-4);
}

/// The same of weights in bricks and rows. A token whose choice of experts is close may take another one: the bound is
/// that of caches that are coded.
TEST_F(RaggedCuda, StepsOfPackedExpertsAreTheReferences) {
  for (const char* weights : {"f16", "q8_0"})
    for (const char* shape : {"tiny-experts", "tiny-oss"})
      check(fmt::format("synth:{}@layers=1@weights={}", shape, weights), "f16", "f16", 2e-4);
}

TEST_F(RaggedCuda, StepsOfPackedWeightsAreTheReferences) {
  for (const char* weights : {"int4_g128", "bf16", "q4_k"})
    check(std::string("synth:tiny-64@weights=") + weights, "q8_0", "rotor-4", 2e-4);
  check("synth:tiny-bitnet", "f16", "f16", 1e-3);
}

/// A step gives the same bits queued launch by launch, when it is recorded, replayed, and after larger ones have taken
/// more memory; so do forks, and sequences that went back.
TEST_F(ModelCuda, StepsAreTheSameBitsHoweverTheyRun) {
  Running device("synth:tiny-64@layers=1@weights=f32", {.device = "cuda"}, "rotor-3", "q8_0");
  const auto prompt = tokens_of(126, 512, 1);
  const SeqId a = device.open();
  const SeqTokens whole{a, int(prompt.size())};
  device.run(prompt, {&whole, 1});
  std::vector<SeqId> forks;
  for (int i = 0; i < 6; ++i) forks.push_back(device.pool->fork(a, whole.n_tokens).or_throw());
  const auto queued = device.run(3, a);
  EXPECT_EQ(device.run(3, forks[0]), queued) << "recorded";
  EXPECT_EQ(device.run(3, forks[1]), queued) << "replayed";
  // Across the border at which a tile leaves the window.
  const auto next = device.run(4, a);
  EXPECT_EQ(device.run(4, forks[0]), next) << "a tile that leaves";
  const auto after = device.run(5, a);
  // Many rows at once: buffers move.
  std::vector<SeqTokens> many;
  for (size_t i = 2; i < forks.size(); ++i) many.push_back({forks[i], 30});
  device.run(tokens_of(120, 512, 2), many);
  EXPECT_EQ(device.run(4, forks[1]), next) << "after a larger step";
  EXPECT_EQ(device.run(5, forks[0]), after);
  // Back over the border, and the same way again.
  ASSERT_TRUE(device.pool->trim(a, 126, TrimMode::exact).or_throw().exact);
  EXPECT_EQ(device.run(3, a), queued) << "after a way back";
  EXPECT_EQ(device.run(4, a), next) << "after a way back";
  device.pool->park(a);
  device.run(1, forks[1]);
  device.pool->unpark(a).or_throw();
  EXPECT_EQ(device.run(5, a), after) << "after a rest in host memory";
}

/// States move on where they are: however a step runs, in forks and checkpoints, after a reset and a rest in host
/// memory.
TEST_F(ModelCuda, StatesAreTheSameBitsHoweverTheyMove) {
  Running device("synth:tiny-delta@layers=2@weights=f32", {.device = "cuda"}, "f32", "f32");
  const auto prompt = tokens_of(40, 512, 1);
  const SeqTokens whole{device.open(), int(prompt.size())};
  const SeqId a = whole.seq;
  const auto of_prompt = device.run(prompt, {&whole, 1});
  const CheckpointId checkpoint = device.pool->checkpoint(a).or_throw();
  std::vector<SeqId> forks;
  for (int i = 0; i < 3; ++i) forks.push_back(device.pool->fork(a, whole.n_tokens).or_throw());
  const auto queued = device.run(3, a);
  EXPECT_EQ(device.run(3, forks[0]), queued) << "recorded";
  EXPECT_EQ(device.run(3, forks[1]), queued) << "replayed";
  const auto next = device.run(4, a);
  EXPECT_NE(next, queued);
  // Another step of two rows as one that was recorded: of one sequence, and of two.
  for (int turn = 0; turn < 3; ++turn) {
    const SeqId b = device.pool->open(checkpoint).or_throw(), c = device.pool->open(checkpoint).or_throw();
    const SeqTokens two{b, 2}, each[] = {{b, 1}, {c, 1}};
    const auto rows = device.run(std::array{3, 4}, {&two, 1});
    EXPECT_LT(compare(rows,
                      [&] {
                        auto both = queued;
                        both.insert(both.end(), next.begin(), next.end());
                        return both;
                      }())
                  .nmse,
              1e-10)
        << "turn " << turn;
    const auto last = device.run(std::array{5, 3}, each);
    EXPECT_LT(compare(std::vector(last.begin() + 512, last.end()), queued).nmse, 1e-10) << "turn " << turn;
    device.pool->close(b);
    device.pool->close(c);
  }
  device.pool->park(forks[0]);
  device.run(1, forks[2]);
  device.pool->unpark(forks[0]).or_throw();
  EXPECT_EQ(device.run(4, forks[0]), next) << "after a rest in host memory";
  const SeqId again = device.pool->open(checkpoint).or_throw();
  EXPECT_EQ(device.run(3, again), queued) << "from a checkpoint";
  EXPECT_FALSE(device.pool->trim(a, 41, TrimMode::exact)) << "a state does not go back";
  ASSERT_TRUE(device.pool->trim(a, 0, TrimMode::exact));
  EXPECT_EQ(device.run(prompt, {&whole, 1}), of_prompt) << "begins with zeros";
  const SeqId filled[] = {device.open(), device.open()};
  for (const SeqId seq : filled) device.pool->fill(seq, 200, 7).or_throw();
  const auto of_filled = device.run(3, filled[0]);
  EXPECT_TRUE(std::ranges::all_of(of_filled, [](float x) { return std::isfinite(x); }));
  EXPECT_NE(of_filled, device.run(3, device.open())) << "a filled state holds something";
  EXPECT_EQ(device.run(3, filled[1]), of_filled);
  // Token by token from zeros.
  ASSERT_TRUE(device.pool->trim(a, 0, TrimMode::exact));
  std::vector<float> one_by_one;
  for (const int32_t token : prompt) {
    const auto row = device.run(token, a);
    one_by_one.insert(one_by_one.end(), row.begin(), row.end());
  }
  EXPECT_LT(compare(one_by_one, of_prompt).nmse, 1e-10) << "a prompt is its tokens";
}

/// The kernels of one token that models with experts run, and those before them, which are there by name. An activation
/// of experts has 15 bits in place of 22: a product is off by some 3e-5 of its size, and so are the logits of two
/// layers, 1e-9 and little more when squared.
TEST_F(ModelCuda, TokensByExpertsAreThoseOfTheKernelsBefore) {
  const char* spec = "synth:tiny-delta-128@weights=int4_g128";
  const Model ours = Model::load(spec, {.device = "cuda"}),
              before = Model::load(spec, {.device = "cuda", .kernels = {"experts=bricks"}});
  const auto tokens = tokens_of(8, 512, 1);
  Session session(ours, {.n_ctx = 32, .k = {.format = "f16"}, .v = {.format = "f16"}}),
      other(before, {.n_ctx = 32, .k = {.format = "f16"}, .v = {.format = "f16"}});
  EXPECT_THAT(session.kernels(), testing::IsSupersetOf({"experts=ints+bricks+groups", "delta=parts+chunks"}));
  EXPECT_THAT(other.kernels(), testing::IsSupersetOf({"experts=bricks+groups"}));
  for (const int32_t token : tokens) {
    const auto logits = session.decode(token), expected = other.decode(token);
    EXPECT_LT(compare(logits, expected).nmse, 1e-8);
    EXPECT_FALSE(std::ranges::equal(logits, expected)) << "the same kernels ran";
  }
}

/// Sampling leaves no surplus behind, which a state could not forget; the state file is the CPU's.
TEST_F(ModelCuda, SamplingKeepsTheStatesOfWhatWasTaken) {
  const TempDir dir;
  const char* spec = "synth:tiny-delta@layers=2@weights=f32";
  const Model cpu = Model::load(spec, {.n_threads = 1, .isa = "scalar"}),
              device = Model::load(spec, {.device = "cuda"});
  const auto prompt = tokens_of(9, 512, 1);
  SamplerOptions greedy;
  greedy.temperature = 0;
  std::vector<int32_t> generated[2];
  std::vector<float> after[2];
  const auto take = [](std::vector<int32_t>& tokens, size_t n) {
    return [&tokens, n](int32_t token) {
      tokens.push_back(token);
      return tokens.size() < n;
    };
  };
  Session on_host(cpu, {.n_ctx = 64, .k = {.format = "f32"}, .v = {.format = "f32"}}),
      on_device(device, {.n_ctx = 64, .k = {.format = "f32"}, .v = {.format = "f32"}});
  EXPECT_THAT(on_device.kernels(), testing::Contains("delta=parts+chunks"));
  int i = 0;
  for (Session* session : {&on_host, &on_device}) {
    session->prefill(prompt);
    EXPECT_EQ(session->generate(greedy, prompt, 1000, take(generated[i], 6)), 6);
    EXPECT_EQ(session->n_past(), 14);
    const auto logits = session->decode(generated[i].back());
    after[i++].assign(logits.begin(), logits.end());
  }
  EXPECT_EQ(generated[1], generated[0]);
  EXPECT_LT(compare(after[1], after[0]).nmse, 1e-10);
  const std::string path = (dir / "state").native();
  on_device.save(path);
  on_host.restore(path);
  EXPECT_LT(compare(on_host.decode(1), on_device.decode(1)).nmse, 1e-10);
  on_host.save(path);
  on_device.restore(path);
  EXPECT_LT(compare(on_host.decode(2), on_device.decode(2)).nmse, 1e-10);
}

/// Steps of many sequences are filled up with rows of nobody; what a sequence gets does not depend on where it stands.
TEST_F(ModelCuda, SequencesDoNotSeeEachOther) {
  constexpr int kSeq = 9;  // padded to 16 rows
  Running device("synth:tiny-64@layers=1@weights=f32", {.device = "cuda"}, "f16", "f16");
  std::vector<SeqTokens> seqs, reversed;
  std::vector<int32_t> prompt;
  for (int s = 0; s < kSeq; ++s) {
    seqs.push_back({device.open(), s + 1});
    for (int i = 0; i <= s; ++i) prompt.push_back(31 * s + i);
  }
  device.run(prompt, seqs);
  for (SeqTokens& s : seqs) s.n_tokens = 1;
  reversed.assign(seqs.rbegin(), seqs.rend());
  const auto tokens = tokens_of(kSeq, 512, 4);
  const std::vector<int32_t> back(tokens.rbegin(), tokens.rend());
  const auto first = device.run(tokens, seqs);
  const auto rewind = [&] {
    for (int s = 0; s < kSeq; ++s) device.pool->trim(seqs[size_t(s)].seq, s + 1, TrimMode::exact).or_throw();
  };
  for (int turn = 0; turn < 3; ++turn) {
    rewind();
    const auto other = device.run(back, reversed);
    for (int s = 0; s < kSeq; ++s)
      ASSERT_TRUE(
          std::equal(first.begin() + s * 512, first.begin() + (s + 1) * 512, other.begin() + (kSeq - 1 - s) * 512))
          << "sequence " << s << ", turn " << turn;
  }
  rewind();
  for (int s = 0; s < kSeq; ++s) {
    const auto alone = device.run(tokens[size_t(s)], seqs[size_t(s)].seq);
    // Attention cut elsewhere, sums of float products in other orders.
    EXPECT_LT(compare(alone, std::vector(first.begin() + s * 512, first.begin() + (s + 1) * 512)).nmse, 1e-10) << s;
  }
}

/// Whoever watches sees every block's input, and may change it.
TEST_F(ModelCuda, BlocksCanBeWatched) {
  const char* spec = "synth:tiny@weights=f32";
  Running cpu(spec, {.n_threads = 2, .isa = "scalar"}, "f32", "f32"), device(spec, {.device = "cuda"}, "f32", "f32");
  const auto tokens = tokens_of(5, 512, 1);
  std::vector<std::vector<float>> seen[2], logits;
  int i = 0;
  for (Running* running : {&cpu, &device}) {
    running->engine.backend().watch({}, [&](int layer, Block block, View2<float> x) {
      seen[i].emplace_back(x.data, x.data + x.rows * x.cols);
      if (layer == 1 && block == Block::feed_forward) x(2, 3) += 10;
    });
    const SeqTokens seq{running->open(), 5};
    logits.push_back(running->run(tokens, {&seq, 1}));
    ++i;
  }
  ASSERT_EQ(seen[1].size(), 2 * size_t(cpu.engine.info().n_layers) + 1);
  for (size_t at = 0; at < seen[0].size(); ++at) EXPECT_LT(compare(seen[1][at], seen[0][at]).nmse, 1e-10) << at;
  EXPECT_LT(compare(logits[1], logits[0]).nmse, 1e-10);
}

/// What a profile is made of: the first step is queued launch by launch, the second recorded, the third replayed.
TEST_F(ModelCuda, StepsLogTheSameLaunchesHoweverTheyRun) {
  const Model model = Model::load("synth:tiny-64@weights=int4_g128", {.device = "cuda"});
  Session session(model, {.n_ctx = 64, .k = {.format = "f16"}, .v = {.format = "q8_0"}});
  const auto launches = [&](int32_t token) {
    gpu::LaunchLog log;
    const gpu::LogLaunches on(&log);
    session.decode(token);
    std::vector<std::string> texts;
    for (const gpu::LoggedLaunch& launch : log.launches) {
      EXPECT_GE(launch.op, 0) << launch.kernel << " belongs to no op";
      if (launch.op < 0) continue;
      const gpu::LoggedOp& op = log.ops[size_t(launch.op)];
      texts.push_back(fmt::format("{} {} {} {}", op.layer, op.op, op.what, launch.kernel));
    }
    return texts;
  };
  session.prefill(std::array{5, 6});  // takes the page, a launch of the pool's own
  const auto queued = launches(1);
  EXPECT_GT(queued.size(), size_t(5 * model.info().n_layers));
  EXPECT_EQ(std::count_if(queued.begin(), queued.end(), [](const auto& t) { return t.find(" embed ") != t.npos; }), 1)
      << "a profile cuts steps there";
  EXPECT_THAT(queued, testing::Contains(testing::HasSubstr("1 attention ")));
  EXPECT_EQ(launches(2), queued) << "recorded";
  EXPECT_EQ(launches(3), queued) << "replayed";
}

TEST_F(ModelCuda, RefusesWhatItDoesNotDo) {
  const auto refused = [](const std::string& spec, const LoadOptions& options, ErrorKind kind, const char* named) {
    try {
      Model::load(spec, options);
      ADD_FAILURE() << named << " is not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr(named));
    }
  };
  refused("synth:tiny", {.device = "cuda:77"}, ErrorKind::no_device, "cuda:77");
  refused("synth:tiny", {.device = "cuda", .isa = "avx2"}, ErrorKind::usage, "isa");
  refused("synth:tiny", {.device = "cuda", .kernels = {"gemv=ref"}}, ErrorKind::usage, "gemv");
  refused("synth:tiny-64@weights=tq2_0", {.device = "cuda"}, ErrorKind::usage, "tq2_0");
  const Model model = Model::load("synth:tiny", {.device = "cuda"});
  EXPECT_THROW(model.engine().backend().watch([](auto&&...) {}, {}), Error);
}

}  // namespace
}  // namespace ridge
