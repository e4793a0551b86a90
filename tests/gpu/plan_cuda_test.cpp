// What plans may ask of a layer, on the device against the CPU's reference kernels: tiny models whose plan is changed.
#include <gmock/gmock.h>

#include <deque>
#include <functional>

#include "base/metrics.h"
#include "engine/backend.h"
#include "engine/kv_options.h"
#include "gpu/device_data.h"

namespace ridge {
namespace {

std::vector<float> values_near(uint64_t seed, int64_t n, float centre, double spread) {
  std::vector<float> values = normal_floats(seed, n, spread);
  for (float& x : values) x += centre;
  return values;
}

class PlanCuda : public OnDevice {
 protected:
  using Change = std::function<void(ModelPlan&, Weights&)>;

  /// Logits of a prompt, of single tokens that are queued, recorded and replayed, and of a prompt behind them.
  static std::vector<float> logits_of(Backend& backend, const ModelPlan& plan, const char* format, int n_ctx) {
    const auto layers = layer_configs({.n_ctx = n_ctx, .k = {.format = format}, .v = {.format = format}}, plan);
    SequencePool pool(backend.open_memory(layers, {}, 8, 2), {});
    pool.set_n_ctx(n_ctx);
    const auto outputs = backend.make_outputs();
    const SeqId seq = pool.open().or_throw();
    std::vector<float> all;
    Rng rng(5);
    for (const int n : {37, 1, 1, 1, 1, 9, 20, 1}) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < n; ++i) tokens.push_back(int32_t(rng.next() % uint64_t(plan.vocab_size)));
      const SeqTokens one{seq, n};
      pool.reserve(seq, n).or_throw();
      backend.run({.tokens = tokens, .seqs = {&one, 1}, .logits = LogitRows::all}, pool, *outputs);
      const View2<const float> rows = outputs->logits();
      all.insert(all.end(), rows.data, rows.data + rows.rows * rows.cols);
    }
    return all;
  }

  /// The device's logits of a synthetic model with a changed plan, held to the CPU's.
  std::vector<float> check(const char* spec, const Change& change, double bound, const char* format = "f32",
                           int n_ctx = 512) {
    CpuContext context(2, Isa::scalar);
    LoadedModel model = make_synth_model(context, spec).or_throw();
    ModelPlan plan = make_plan(model.config);
    const auto unchanged = logits_of(*make_cpu_backend(context, plan, model.weights), plan, format, n_ctx);
    change(plan, model.weights);
    const auto expected = logits_of(*make_cpu_backend(context, plan, model.weights), plan, format, n_ctx);
    EXPECT_GT(compare(expected, unchanged).nmse, 100 * bound) << spec << ": the change shows";
    const auto got = logits_of(*make_cuda_backend(0, plan, model.weights, {}), plan, format, n_ctx);
    EXPECT_LT(compare(got, expected).nmse, bound) << spec << " over " << format;
    return got;
  }
};

// Bounds as RaggedCuda has them: floats everywhere differ by orders of sums, half products by 2^-11 / sqrt(3) each.
constexpr double kFloats = 1e-10, kF16 = 5e-6;

void set_multipliers(ModelPlan& plan, Weights&) {
  plan.embedding_scale = 0.7f;
  plan.logit_divisor = 3;
  for (LayerPlan& layer : plan.layers) {
    layer.residual_scale = 0.4f;
    layer.attention.scale *= 1.5f;
  }
}

TEST_F(PlanCuda, Multipliers) {
  check("tiny@weights=f32", set_multipliers, kFloats);
  check("tiny-64@layers=1@weights=f16", set_multipliers, kF16, "f16");
}

void set_norms(NormPlace place, ModelPlan& plan, Weights& weights) {
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    plan.layers[i].norms = place;
    weights.layers[i].attn_post_norm = values_near(2 * i, plan.d_model, 0.5f, 0.1);
    weights.layers[i].ffn_post_norm = values_near(2 * i + 1, plan.d_model, 0.5f, 0.1);
  }
}

TEST_F(PlanCuda, NormsBehindBlocks) {
  for (const NormPlace place : {NormPlace::after, NormPlace::both}) {
    const auto change = [&](ModelPlan& plan, Weights& weights) { set_norms(place, plan, weights); };
    check("tiny@weights=f32", change, kFloats);
    check("tiny-64@layers=1@weights=int4_g128", change, kF16, "f16");
  }
  check(
      "tiny@weights=f32",
      [](ModelPlan& plan, Weights& weights) {
        set_norms(NormPlace::both, plan, weights);
        set_multipliers(plan, weights);
      },
      kFloats);
}

TEST_F(PlanCuda, NormsOfAllHeadsTogether) {
  const auto change = [](ModelPlan& plan, Weights& weights) {
    for (size_t i = 0; i < plan.layers.size(); ++i) {
      AttentionPlan& a = plan.layers[i].attention;
      a.qk_norm = a.qk_norm_whole = true;
      weights.layers[i].q_norm = values_near(2 * i, a.q_dim(), 1, 0.2);
      weights.layers[i].k_norm = values_near(2 * i + 1, a.kv_dim(), 1, 0.2);
    }
  };
  check("tiny@weights=f32", change, kFloats);
  check("tiny-64@layers=1@weights=f16", change, kF16, "f16");
}

TEST_F(PlanCuda, BiasOfTheOutputProjection) {
  const auto change = [](ModelPlan& plan, Weights& weights) {
    for (size_t i = 0; i < plan.layers.size(); ++i) {
      plan.layers[i].attention.o_bias = true;
      weights.layers[i].o_bias = values_near(i, plan.d_model, 0, 0.3);
    }
  };
  check("tiny@weights=f32", change, kFloats);
  for (const char* spec : {"tiny-64@layers=1@weights=f16", "tiny-64@layers=1@weights=int4_g128"})
    check(spec, change, kF16, "f16");
}

TEST_F(PlanCuda, Activations) {
  for (const Activation activation : {Activation::relu2, Activation::gelu_tanh, Activation::clamped_swiglu}) {
    const auto change = [&](ModelPlan& plan, Weights&) {
      for (LayerPlan& layer : plan.layers) layer.dense.activation = activation;
    };
    check("tiny@weights=f32", change, kFloats);
    for (const char* spec : {"tiny-64@layers=1@weights=f16", "tiny-64@layers=1@weights=int4_g128"})
      check(spec, change, kF16, "f16");
  }
}

/// Two sequences that take each other's pages of sliding layers, in prompts and recorded steps, on a device whose pool
/// has no more pages than the bound; the CPU's has all it likes.
TEST_F(PlanCuda, PagesBehindWindowsAreTakenByOthers) {
  struct Pools {
    Pools(std::unique_ptr<Backend> of, const std::vector<KvLayerConfig>& layers, PageNumbers n_pages)
        : backend(std::move(of)), pool(backend->open_memory(layers, {}, n_pages, 2), {}) {
      for (SeqId& seq : seqs) seq = pool.open().or_throw();
    }
    std::vector<float> run(std::span<const int32_t> tokens, std::span<const int> of_each) {
      std::vector<SeqTokens> step;
      for (size_t i = 0; i < 2; ++i)
        if (of_each[i] > 0) step.push_back({seqs[i], of_each[i]});
      for (const SeqTokens& s : step) pool.reserve(s.seq, s.n_tokens).or_throw();
      backend->run({.tokens = tokens, .seqs = step, .logits = LogitRows::last}, pool, *outputs);
      const View2<const float> rows = outputs->logits();
      return {rows.data, rows.data + rows.rows * rows.cols};
    }
    std::unique_ptr<Backend> backend;
    SequencePool pool;
    std::unique_ptr<Outputs> outputs = backend->make_outputs();
    SeqId seqs[2] = {};
  };
  struct Case {
    const char *spec, *format;
    bool all;  // layers slide
    double bound;
  };
  for (const Case& c :
       {Case{"tiny@weights=f32", "f32", false, kFloats}, Case{"tiny-64@layers=2@weights=f32", "f16", false, kF16},
        Case{"tiny-64@layers=1@weights=f32", "rotor-3", true, 2e-4}}) {
    CpuContext context(2, Isa::scalar);
    LoadedModel model = make_synth_model(context, c.spec).or_throw();
    ModelPlan plan = make_plan(model.config);
    for (size_t i = 0; i < plan.layers.size(); ++i) plan.layers[i].attention.window = c.all || i == 0 ? 21 : 0;
    constexpr int kMost = 170, kContext = 512;
    auto layers = layer_configs({.n_ctx = kContext, .k = {.format = c.format}, .v = {.format = c.format}}, plan);
    for (KvLayerConfig& layer : layers) layer.k.policy.rounding = layer.v.policy.rounding = KvRounding::nearest;
    const PageNumbers bound = pool_pages(layers, kContext, 2, kMost);
    EXPECT_LT(bound.sliding, bound.full);
    Pools cpu(make_cpu_backend(context, plan, model.weights), layers, bound.full),
        device(make_cuda_backend(0, plan, model.weights, {}), layers, bound);
    Rng rng(11);
    const int steps[][2] = {{150, 1}, {3, 150}, {1, 1}, {1, 1}, {1, 1}, {110, 0}, {1, 140}, {1, 1}, {16, 1}, {1, 1}};
    for (const auto& of_each : steps) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < of_each[0] + of_each[1]; ++i)
        tokens.push_back(int32_t(rng.next() % uint64_t(plan.vocab_size)));
      const auto expected = cpu.run(tokens, of_each), got = device.run(tokens, of_each);
      EXPECT_LT(compare(got, expected).nmse, c.bound) << c.spec << ", step of " << of_each[0] << " and " << of_each[1];
      for (const SeqId seq : device.seqs)
        EXPECT_LE(ssize(device.pool.pages(seq, PageClass::sliding)), most_sliding_pages(layers));
    }
    // Back by 20, and on where the device has left it.
    const int n = device.pool.length(device.seqs[0]) - 20;
    for (Pools* pools : {&cpu, &device}) pools->pool.trim(pools->seqs[0], n, TrimMode::exact).or_throw();
    const SequenceImage image = device.pool.save(device.seqs[0]);
    cpu.pool.close(cpu.seqs[0]);
    cpu.seqs[0] = cpu.pool.load(image).or_throw();
    const std::vector<int32_t> tokens(33, 5);
    const int of_each[] = {33, 0};
    EXPECT_LT(compare(device.run(tokens, of_each), cpu.run(tokens, of_each)).nmse, c.bound) << c.spec << ", taken over";
  }
}

/// Every layer slides, or one of two; with sink logits; over rows, tiles and caches with exact rows.
TEST_F(PlanCuda, AttentionWindowsAndSinkLogits) {
  const auto change = [](ModelPlan& plan, Weights& weights) {
    for (size_t i = 0; i < plan.layers.size(); ++i) {
      AttentionPlan& a = plan.layers[i].attention;
      a.window = i == 0 ? 21 : 0;
      a.sink_logits = true;
      weights.layers[i].sink_logits = values_near(i, a.n_heads, 0, 2);
    }
  };
  check("tiny@weights=f32", change, kFloats);
  check("tiny-64@weights=f32", change, kF16, "f16");
  check("tiny-64@layers=1@weights=f32", change, 2e-4, "q4_0");  // a coded element moves by a step now and then
}

/// Experts in place of a feed-forward, with what models have beside them.
TEST_F(PlanCuda, Experts) {
  const char* of_format[] = {"tiny-experts@weights=f32", "tiny-oss@weights=f32"};
  for (const char* spec : of_format) {
    const auto change = [](ModelPlan& plan, Weights&) {
      for (LayerPlan& layer : plan.layers) layer.experts.rule.renormalised = !layer.experts.rule.renormalised;
    };
    check(spec, change, kFloats);
  }
  // Sigmoids with a bias of the choice, groups and a scale.
  check(
      "tiny-experts@weights=f32",
      [&](ModelPlan& plan, Weights& weights) {
        for (size_t i = 0; i < plan.layers.size(); ++i) {
          ExpertsPlan& e = plan.layers[i].experts;
          e.rule = {.n_used = 2, .renormalised = true, .sigmoid = true, .n_groups = 2, .n_groups_used = 1, .scale = 3};
          e.choice_bias = true;
          weights.layers[i].choice_bias = values_near(i, e.n_experts, 0, 0.2);
        }
      },
      kFloats);
  // A shared expert: the feed-forward of another model.
  CpuContext context(1, Isa::scalar);
  const LoadedModel dense = make_synth_model(context, "tiny@weights=f32").or_throw();
  for (const bool gated : {true, false})
    check(
        "tiny-experts@weights=f32",
        [&](ModelPlan& plan, Weights& weights) {
          for (size_t i = 0; i < plan.layers.size(); ++i) {
            LayerWeights& layer = weights.layers[i];
            layer.gate = dense.weights.layers[i].gate;
            layer.up = dense.weights.layers[i].up;
            layer.down = dense.weights.layers[i].down;
            if (gated) layer.shared_gate = values_near(i, plan.d_model, 0, 0.1);
            plan.layers[i].dense.d_ff = dense.config.d_ff;
            plan.layers[i].experts.shared = true;
            plan.layers[i].experts.shared_gate = gated;
          }
        },
        kFloats);
}

/// Latent attention, dense layers in front of experts; queries of two matrices or of one.
TEST_F(PlanCuda, LatentRows) {
  const auto scaled = [](ModelPlan& plan, Weights&) {
    for (LayerPlan& layer : plan.layers) layer.attention.scale *= 4;
  };
  check("tiny-latent@weights=f32", scaled, kFloats);
  const auto one_matrix = [](ModelPlan& plan, Weights& weights) {
    for (size_t i = 0; i < plan.layers.size(); ++i) {
      LatentPlan& l = plan.layers[i].latent;
      LayerWeights& layer = weights.layers[i];
      l.q_rank = 0;
      layer.q = weights.embedding;
      layer.q.n_out = int64_t(plan.layers[i].attention.n_heads) * l.query_dim();
      layer.q_a = layer.q_b = {};
    }
  };
  check("tiny-latent@weights=f32", one_matrix, kFloats);
  // A choice of experts that is close may be another one.
  check("tiny-latent@weights=f16", scaled, 2e-4, "f16");
  check("tiny-latent@weights=f32", scaled, 2e-4, "q8_0");
}

TEST_F(PlanCuda, KernelsHaveNames) {
  CpuContext context(1, Isa::scalar);
  for (const auto& [spec, name] : {std::pair{"tiny-oss@layers=1@weights=f32", "experts=rows"},
                                   {"tiny-oss@layers=1@weights=q8_0", "experts=bricks+groups"},
                                   {"tiny-latent@layers=1@weights=f32", "attention=rows-f16"}}) {
    const LoadedModel model = make_synth_model(context, spec).or_throw();
    const ModelPlan plan = make_plan(model.config);
    const auto layers = layer_configs({.n_ctx = 64}, plan);
    EXPECT_THAT(make_cuda_backend(0, plan, model.weights, {})->kernels(layers[0]), testing::Contains(name)) << spec;
  }
}

/// Experts as published models of MXFP4 have them.
TEST_F(PlanCuda, ExpertsInMxfp4) {
  const WeightFormat& format = *find_weight_format("mxfp4").or_throw();
  std::vector<std::vector<std::byte>> blocks;
  check(
      "tiny-oss@weights=f16",
      [&](ModelPlan&, Weights& weights) {
        Rng rng(3);
        for (LayerWeights& layer : weights.layers)
          for (ExpertWeights& expert : layer.experts)
            for (Linear* m : {&expert.gate, &expert.up, &expert.down}) {
              blocks.push_back(random_blocks(format, rng, 0.1, m->n_out * m->n_in));
              *m = {.format = &format, .n_out = m->n_out, .n_in = m->n_in, .rows = blocks.back().data()};
            }
      },
      kF16, "f16");
}

/// Random rows in the place of a matrix's; `kept` owns them.
Linear random_matrix(uint64_t seed, int64_t n_out, int64_t n_in, std::deque<std::vector<float>>& kept) {
  kept.push_back(normal_floats(seed, n_out * n_in, 0.1));
  return {.format = find_weight_format("f32").or_throw(),
          .n_out = n_out,
          .n_in = n_in,
          .rows = reinterpret_cast<const std::byte*>(kept.back().data())};
}

/// Keys and values of other widths than the model's, heads that share keys either way, convolutions of other lengths.
TEST_F(PlanCuda, ShapesOfTheDeltaRule) {
  for (const DeltaShape& shape : {DeltaShape{1, 3, 24, 40, 2}, {2, 4, 70, 8, 5, true}}) {
    std::deque<std::vector<float>> kept;
    const auto change = [&](ModelPlan& plan, Weights& weights) {
      plan.layers[0].delta = shape;
      LayerWeights& layer = weights.layers[0];
      DeltaWeights& d = layer.delta;
      d.qkv = random_matrix(1, shape.channels(), plan.d_model, kept);
      d.z = random_matrix(2, shape.values(), plan.d_model, kept);
      d.a = random_matrix(3, shape.n_value_heads, plan.d_model, kept);
      d.b = random_matrix(4, shape.n_value_heads, plan.d_model, kept);
      d.conv = normal_floats(5, shape.kernel * shape.channels(), 0.5);
      d.decay = std::vector<float>(size_t(shape.n_value_heads), -0.1f);
      d.dt_bias = normal_floats(6, shape.n_value_heads);
      d.norm = values_near(7, shape.value_dim, 1, 0.1);
      layer.o = random_matrix(8, plan.d_model, shape.values(), kept);
    };
    check("tiny-delta@layers=2@weights=f32", change, kFloats);
  }
}

/// Bricks; the rows of gates are sorted as they lie in the file. The change is that of the scores.
TEST_F(PlanCuda, PackedWeightsOfTheDeltaRule) {
  const auto change = [](ModelPlan& plan, Weights&) { plan.layers[1].attention.scale *= 4; };
  for (const char* weights : {"f16", "q8_0"})
    check(fmt::format("tiny-delta@layers=2@weights={}", weights).c_str(), change, kF16);
}

/// Over rows and tiles.
TEST_F(PlanCuda, GatesOfAttention) {
  std::deque<std::vector<float>> kept;
  const auto change = [&](ModelPlan& plan, Weights& weights) {
    LayerWeights& layer = weights.layers[0];
    AttentionPlan& a = plan.layers[0].attention;
    a.gate = a.qkv_bias = true;
    layer.q = random_matrix(1, a.q_rows(), plan.d_model, kept);
    layer.q_bias = normal_floats(2, a.q_rows());
    layer.k_bias = normal_floats(3, a.kv_dim());
    layer.v_bias = normal_floats(4, a.kv_dim());
  };
  check("tiny@weights=f32", change, kFloats);
  check("tiny-64@layers=1@weights=f32", change, kF16, "f16");
}

TEST_F(PlanCuda, WhatADeviceDoesNotRunIsRefusedByName) {
  const auto refused = [](const Change& change, const char* named) {
    CpuContext context(1, Isa::scalar);
    LoadedModel model = make_synth_model(context, "tiny-experts@layers=1@weights=f32").or_throw();
    ModelPlan plan = make_plan(model.config);
    change(plan, model.weights);
    try {
      make_cuda_backend(0, plan, model.weights, {});
      ADD_FAILURE() << named << " is not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr(named));
    }
  };
  refused([](ModelPlan& plan, Weights&) { plan.layers[0].attention.head_dim = 640; }, "head_dim up to 512");
  refused(
      [](ModelPlan& plan, Weights&) {
        plan.layers[0].mixer = MixerKind::latent;
        plan.layers[0].attention.head_dim = 800;
      },
      "latent rows up to 768");
  refused(
      [](ModelPlan& plan, Weights&) {
        AttentionPlan& a = plan.layers[0].attention;
        a.gate = a.qk_norm = a.qk_norm_whole = true;
      },
      "a norm of all query heads together");
  refused([](ModelPlan& plan, Weights&) { plan.layers[0].delta.key_dim = 257; }, "up to 256x256, this model has 257x");
  refused([](ModelPlan& plan, Weights&) { plan.layers[0].experts.rule.n_used = 33; },
          "1024 experts a layer and 32 a token");
  refused([](ModelPlan&, Weights& weights) { weights.layers[0].experts[3].up.scale = 2; },
          "experts of one format, shape and scale");
}

/// Of a device with as little shared memory as an AMD card has: what no block can hold is refused when caches are
/// opened.
TEST_F(PlanCuda, RowsThatDoNotFitInSharedMemoryAreRefusedByName) {
  if (gpu::most_shared_bytes() >= gpu::kAmpereSharedBytes) GTEST_SKIP() << "they fit";
  CpuContext context(1, Isa::scalar);
  const LoadedModel model = make_synth_model(context, "tiny-64@layers=1@weights=f32").or_throw();
  const ModelPlan plan = make_plan(model.config);
  const auto backend = make_cuda_backend(0, plan, model.weights, {});
  const auto message_of = [&](int head_dim, const char* format, bool latent = false) -> std::string {
    ModelPlan wide = plan;
    wide.layers[0].attention.head_dim = head_dim;
    if (latent) wide.layers[0].mixer = MixerKind::latent;
    const KvSideOptions side{.format = format, .rounding = "nearest"};
    try {
      backend->open_memory(layer_configs({.n_ctx = 64, .k = side, .v = side}, wide), {}, 1, 1);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message_of(128, "f16"), "");
  EXPECT_EQ(message_of(256, "q4_0"), "");
  EXPECT_THAT(message_of(256, "f16"), testing::HasSubstr("attention over rows of 256 values"));
  EXPECT_EQ(message_of(512, "f16"), "");
  EXPECT_THAT(message_of(512, "f32"), testing::HasSubstr("attention over rows of 512 values"));
  EXPECT_THAT(message_of(256, "rotor-3"), testing::HasSubstr("calibrate rows of 256 values"));
  EXPECT_EQ(message_of(576, "f16", true), "");
  EXPECT_THAT(message_of(576, "f32", true), testing::HasSubstr("attention over rows of 576 values"));
}

/// Rounding that kernels of wide rows do not know.
TEST_F(PlanCuda, WeightedRoundingOfWideLatentRowsIsRefusedByName) {
  CpuContext context(1, Isa::scalar);
  const LoadedModel model = make_synth_model(context, "tiny-latent@layers=1@weights=f32").or_throw();
  const ModelPlan plan = make_plan(model.config);
  ModelPlan wide = plan;
  wide.layers[0].attention.head_dim = 576;
  const auto backend = make_cuda_backend(0, plan, model.weights, {});
  const auto layers_of = [&](const char* rounding) {
    const KvSideOptions side{.format = "rotor-3", .rounding = rounding};
    return layer_configs({.n_ctx = 64, .k = side, .v = side}, wide);
  };
  EXPECT_NE(backend->open_memory(layers_of("nearest"), {}, 1, 1), nullptr);
  try {
    backend->open_memory(layers_of("weighted"), {}, 1, 1);
    ADD_FAILURE() << "weighted rounding of 576 values is not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr("rows of up to 256 values weighted"));
  }
}

/// Layers with a rope of their own, of other pairs; contexts beyond the border take the one for long ones.
TEST_F(PlanCuda, SeveralRopes) {
  const auto change = [](ModelPlan& plan, Weights&) {
    Rope rope = plan.ropes[0];
    for (double& frequency : rope.frequency) frequency *= 0.3;
    rope.magnitude = 1.2f;
    plan.ropes.push_back(rope);
    plan.long_context = 256;
    rope.frequency.resize(rope.frequency.size() / 2);
    plan.ropes.push_back(rope);
    plan.ropes.push_back(plan.ropes[0]);
    plan.layers[1].attention.rope = 2;
  };
  const auto in_short = check("tiny@weights=f32", change, kFloats, "f32", 256),
             in_long = check("tiny@weights=f32", change, kFloats, "f32", 257);
  EXPECT_GT(compare(in_long, in_short).nmse, 100 * kFloats) << "the context decides";
}

}  // namespace
}  // namespace ridge
