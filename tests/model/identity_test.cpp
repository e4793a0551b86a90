// The identity of a model changes with everything that changes its results.
#include "model/identity.h"

#include <gtest/gtest.h>

#include <functional>

namespace ridge {
namespace {

struct Made {
  CpuContext context{1};
  LoadedModel model;

  explicit Made(const std::string& shape)
      : model(make_synth_model(context, shape + "@weights=f32", SynthMatrices::rows).or_throw()) {}
  uint64_t id(int64_t whole_bytes = ModelIdentity::kWholeBytes) const {
    return identify(model.config, model.weights, whole_bytes).of_short;
  }
};

TEST(Identity, ChangesWithEveryField) {
  Made made("tiny");
  const uint64_t before = made.id();
  const std::function<void(Config&)> changes[] = {
      [](Config& c) { c.arch = "mistral"; },
      [](Config& c) { c.n_heads = 2; },
      [](Config& c) { c.n_ids = 3; },
      [](Config& c) { c.n_ctx_train += 1; },
      [](Config& c) { c.rms_eps *= 2; },
      [](Config& c) { c.rope_theta *= 2; },
      [](Config& c) { c.rope_dim -= 2; },
      [](Config& c) { c.rope_pairs = RopePairs::interleaved; },
      [](Config& c) { c.rope_scaling.kind = RopeScaling::Kind::linear; },
      [](Config& c) { c.rope_scaling.factor = 2; },
      [](Config& c) { c.rope_scaling.original_context = 7; },
      [](Config& c) { c.rope_scaling.attention_factor = 2; },
      [](Config& c) { c.rope_scaling.score_factor = 2; },
      [](Config& c) { c.rope_scaling.beta_fast = 2; },
      [](Config& c) { c.rope_scaling.truncate = false; },
      [](Config& c) { c.rope_scaling.beta_slow = 2; },
      [](Config& c) { c.rope_scaling.low_freq_factor = 2; },
      [](Config& c) { c.rope_scaling.high_freq_factor = 2; },
      [](Config& c) { c.rope_scaling.short_factors = {1}; },
      [](Config& c) { c.rope_scaling.long_factors = {1}; },
      [](Config& c) { c.qkv_bias = true; },
      [](Config& c) { c.o_bias = true; },
      [](Config& c) { c.mlp_bias = true; },
      [](Config& c) { c.sink_logits = true; },
      [](Config& c) { c.qk_norm = true; },
      [](Config& c) { c.qk_norm_whole = true; },
      [](Config& c) { c.norms = NormPlace::both; },
      [](Config& c) { c.window = 2; },
      [](Config& c) { c.window_period = 2; },
      [](Config& c) { c.window_rope_theta = 2; },
      [](Config& c) { c.kv_rank = 2; },
      [](Config& c) { c.q_rank = 2; },
      [](Config& c) { c.nope_dim = 2; },
      [](Config& c) { c.value_dim = 2; },
      [](Config& c) { c.n_experts = 2; },
      [](Config& c) { c.n_experts_used = 2; },
      [](Config& c) { c.d_ff_expert = 2; },
      [](Config& c) { c.d_ff_shared = 2; },
      [](Config& c) { c.expert_biases = true; },
      [](Config& c) { c.experts_renormalised = true; },
      [](Config& c) { c.sigmoid_router = true; },
      [](Config& c) { c.choice_bias = true; },
      [](Config& c) { c.qk_norm_after_rope = true; },
      [](Config& c) { c.layer_norm = true; },
      [](Config& c) { c.nope_period = 4; },
      [](Config& c) { c.conv_kernel = 3; },
      [](Config& c) { c.window_head_dim = 8; },
      [](Config& c) { c.window_kv_heads = 4; },
      [](Config& c) { c.full_layers = {1}; },
      [](Config& c) { c.full_k_is_v = true; },
      [](Config& c) { c.v_norm = true; },
      [](Config& c) { c.layer_scale = true; },
      [](Config& c) { c.logit_cap = 30; },
      [](Config& c) { c.dense_beside = true; },
      [](Config& c) { c.shared_kv_layers = 1; },
      [](Config& c) { c.ff_layers = {1}; },
      [](Config& c) { c.ungated = true; },
      [](Config& c) { c.wide_sharing = true; },
      [](Config& c) { c.d_layer_input = 16; },
      [](Config& c) { c.state_layers = {0}; },
      [](Config& c) { c.position_scale = 0.1f; },
      [](Config& c) { c.n_expert_groups = 2; },
      [](Config& c) { c.n_groups_used = 2; },
      [](Config& c) { c.expert_scale = 2; },
      [](Config& c) { c.dense_layers = {1}; },
      [](Config& c) { c.delta.n_key_heads = 2; },
      [](Config& c) { c.delta.keys_cycle = true; },
      [](Config& c) { c.delta_period = 2; },
      [](Config& c) { c.attention_gate = true; },
      [](Config& c) { c.rope_sections = {1}; },
      [](Config& c) { c.attention_scale = 2; },
      [](Config& c) { c.embedding_scale = 2; },
      [](Config& c) { c.residual_scale = 2; },
      [](Config& c) { c.logit_divisor = 2; },
      [](Config& c) { c.tied_output = false; },
      [](Config& c) { c.activation = Activation::relu2; },
      [](Config& c) { c.sub_norm = true; },
      [](Config& c) { c.ternary = true; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    Config other = made.model.config;
    changes[i](other);
    EXPECT_NE(identify(other, made.model.weights).of_short, before) << "change " << i;
  }
  made.model.config.name = "another";
  EXPECT_EQ(made.id(), before) << "a name changes nothing";
}

TEST(Identity, ChangesWithEveryVector) {
  for (const char* shape : {"tiny-biases", "tiny-gemma", "tiny-oss", "tiny-latent", "tiny-index", "tiny-delta",
                            "tiny-bitnet", "tiny-gemma4-moe", "tiny-gemma4-e", "tiny-nemotron-moe"}) {
    CpuContext context(1);
    LoadedModel model = make_synth_model(context, shape, SynthMatrices::rows).or_throw();
    const uint64_t before = identify(model.config, model.weights).of_short;
    int n = 0;
    for_each_vector(model.weights, [&](const std::vector<float>& values) {
      if (values.empty()) return;
      float& last = const_cast<float&>(values.back());
      const float was = last;
      last += 1;
      EXPECT_NE(identify(model.config, model.weights).of_short, before) << shape << " vector " << n;
      last = was;
      ++n;
    });
    EXPECT_GE(n, 2 * model.config.n_layers) << shape;
  }
}

TEST(Identity, ChangesWithEveryByteOfAMatrix) {
  Made made("tiny");
  const uint64_t before = made.id();
  int n = 0;
  for_each_matrix(made.model.weights, [&](Linear& m, std::string_view name) {
    for (const int64_t at : {int64_t(0), int64_t(5000), m.bytes() / 2, m.bytes() - 1}) {
      std::byte& byte = const_cast<std::byte&>(m.rows[std::min(at, m.bytes() - 1)]);
      byte ^= std::byte(1);
      EXPECT_NE(made.id(), before) << name << " byte " << at;
      byte ^= std::byte(1);
    }
    m.scale *= 2;
    EXPECT_NE(made.id(), before) << name << "'s scale";
    m.scale /= 2;
    ++n;
  });
  EXPECT_GT(n, 10);
  EXPECT_EQ(made.id(), before);
}

/// Of large models blocks are read: any change of a whole stride shows, the first and last bytes always.
TEST(Identity, OfLargeModelsReadsBlocksAllOverEachMatrix) {
  CpuContext context(1);
  LoadedModel model = make_synth_model(context, "tiny@weights=f32", SynthMatrices::rows).or_throw();
  AlignedBuffer rows(int64_t(8) << 18);
  std::fill_n(rows.data(), rows.bytes(), std::byte(1));
  Linear& m = model.weights.layers[0].down;
  m = {.format = m.format, .n_out = rows.bytes() / 4 / 64, .n_in = 64, .rows = rows.data()};
  const auto id = [&] { return identify(model.config, model.weights, 0).of_short; };
  const uint64_t before = id();
  for (int64_t stride = 0; stride < 8; ++stride) {
    std::fill_n(rows.data() + (stride << 18), 1 << 18, std::byte(2));
    EXPECT_NE(id(), before) << stride;
    std::fill_n(rows.data() + (stride << 18), 1 << 18, std::byte(1));
  }
  for (const int64_t at : {int64_t(0), rows.bytes() - 1}) {
    rows.data()[at] = std::byte(2);
    EXPECT_NE(id(), before) << at;
    rows.data()[at] = std::byte(1);
  }
  EXPECT_EQ(id(), before);
  EXPECT_NE(identify(model.config, model.weights).of_short, before) << "in whole";
}

TEST(Identity, OfLongRopeDependsOnTheContext) {
  Made made("tiny");
  EXPECT_EQ(identify(made.model.config, made.model.weights).of(1),
            identify(made.model.config, made.model.weights).of(1 << 20));
  made.model.config.rope_scaling.original_context = 512;
  made.model.weights.long_rope_factors = {1, 2};
  const ModelIdentity identity = identify(made.model.config, made.model.weights);
  EXPECT_EQ(identity.of(1), identity.of(512));
  EXPECT_NE(identity.of(512), identity.of(513));
}

}  // namespace
}  // namespace ridge
