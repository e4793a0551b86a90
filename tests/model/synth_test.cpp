// Plans of synthetic models: what a specification makes of a shape.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "model/weights.h"

namespace ridge {
namespace {

TEST(SynthPlan, AHeadOfItsOwnChangesOnlyTheOutputMatrix) {
  for (const char* shape : {"tiny-bitnet", "tiny"}) {
    const SynthPlan plain = plan_synth_model(shape).or_throw();
    const SynthPlan own = plan_synth_model(std::string(shape) + "@head=q8_0").or_throw();
    EXPECT_FALSE(own.config.tied_output);
    EXPECT_EQ(own.head_format().name, "q8_0");
    EXPECT_EQ(own.format, plain.format);
    const int64_t values = int64_t(plain.config.vocab_size) * plain.config.d_model;
    const auto bytes = [&](const WeightFormat& f) { return f.row_bytes(values); };
    EXPECT_EQ(own.decode_matrix_bytes() - bytes(own.head_format()),
              plain.decode_matrix_bytes() - bytes(plain.head_format()))
        << shape;
  }
}

TEST(SynthPlan, RefusesHeadsThatCannotBe) {
  EXPECT_NE(plan_synth_model("tiny@head=nope").error().message.find("nope"), std::string::npos);
  EXPECT_NE(plan_synth_model("tiny-bitnet@head=i2_s").error().message.find("cannot be i2_s"), std::string::npos);
  EXPECT_NE(plan_synth_model("tiny@tail=1").error().message.find("head=FORMAT"), std::string::npos);
}

TEST(SynthPlan, AnMtpHeadIsOneLayerMoreBehindAJoin) {
  CpuContext context(1, Isa::scalar);
  for (const char* shape : {"tiny", "tiny-delta", "tiny-64"}) {
    const LoadedModel plain = make_synth_model(context, shape).or_throw(),
                      with = make_synth_model(context, std::string(shape) + "@mtp=1").or_throw();
    EXPECT_EQ(plain.weights.head, nullptr);
    EXPECT_EQ(with.weights.n_params, plain.weights.n_params) << "the model's";
    const Weights& head = *with.weights.head;
    const int64_t d = with.config.d_model;
    EXPECT_EQ(head.join.n_out, d);
    EXPECT_EQ(head.join.n_in, 2 * d);
    ASSERT_EQ(head.layers.size(), 1u);
    EXPECT_EQ(head.layers[0].q.n_out, with.weights.layers.back().q.n_out);
    EXPECT_EQ(head.layers[0].down.n_in, with.weights.layers.back().down.n_in);
    EXPECT_EQ(ssize(head.output_norm), d);
  }
  EXPECT_NE(plan_synth_model("tiny@mtp=2").error().message.find("not 0 or 1"), std::string::npos);
  EXPECT_NE(plan_synth_model("tiny-delta@layers=3@mtp=1").error().message.find("keeps a state"), std::string::npos);
}

/// Shares of the choices that the first experts of eight have, two a row of random values.
TEST(SynthPlan, SkewMakesChoicesOfExpertsUneven) {
  CpuContext context(1, Isa::scalar);
  double before = 0;
  for (const char* skew : {"0", "0.5", "1", "2"}) {
    const LoadedModel model =
        make_synth_model(context, fmt::format("tiny-experts@skew={}", skew), SynthMatrices::rows).or_throw();
    const Linear& router = model.weights.layers[1].router;
    const auto* const w = reinterpret_cast<const float*>(router.rows);
    Rng rng(7);
    std::vector<float> x(static_cast<size_t>(router.n_in));
    std::vector<double> scores(static_cast<size_t>(router.n_out));
    int n_first = 0;
    for (int row = 0; row < 1000; ++row) {
      for (float& value : x) value = float(rng.normal());
      for (size_t e = 0; e < scores.size(); ++e)
        scores[e] = std::inner_product(x.begin(), x.end(), w + e * x.size(), 0.0);
      for (int used = 0; used < model.config.n_experts_used; ++used) {
        const auto best = std::ranges::max_element(scores);
        n_first += best - scores.begin() < 2;
        *best = -1e9;
      }
    }
    const double share = n_first / 2000.0;
    EXPECT_GT(share, before + 0.05) << skew;
    before = share;
  }
  EXPECT_GT(before, 0.42) << "an expert whose score is below 0 is not chosen";
  EXPECT_NE(plan_synth_model("tiny-experts@skew=x").error().message.find("not a number from 0 to 4"),
            std::string::npos);
}

TEST(SynthPlan, AMixGivesSomeMatricesItsBetterFormat) {
  CpuContext context(1, Isa::scalar);
  const SynthPlan plan = plan_synth_model("tiny-64@layers=8@weights=q4_k_m").or_throw();
  const Weights w = make_synth_model(context, "tiny-64@layers=8@weights=q4_k_m").or_throw().weights;
  std::string better;
  for (const LayerWeights& layer : w.layers) {
    EXPECT_EQ(layer.q.format->name, "q4_k");
    EXPECT_EQ(layer.gate.format->name, "q4_k");
    EXPECT_EQ(layer.v.format, layer.down.format);
    better += layer.v.format->name == "q6_k" ? '6' : '4';
  }
  EXPECT_EQ(better, "64464466");  // the first and the last eighth, every third between
  EXPECT_EQ(w.embedding.format->name, "q6_k") << "it is the output matrix, too";
  EXPECT_EQ(plan.decode_matrix_bytes(), decode_matrix_bytes(w, 0));
  const SynthPlan same = plan_synth_model("tiny-64@layers=8@weights=q4_k").or_throw();
  EXPECT_LT(same.decode_matrix_bytes(), plan.decode_matrix_bytes());
  const Weights shared = make_synth_model(context, "tiny-64@layers=8@weights=q4_k_m@shared=1").or_throw().weights;
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(shared.layers[i].down.format, w.layers[i].down.format) << i;
}

TEST(SynthPlan, LayersThatAreOneInMemoryCountAsMany) {
  CpuContext context(1, Isa::scalar);
  for (const std::string shape : {"tiny@layers=6", "tiny-delta@layers=6", "tiny-latent@layers=4"}) {
    const LoadedModel apart = make_synth_model(context, shape).or_throw(),
                      shared = make_synth_model(context, shape + "@shared=1").or_throw();
    EXPECT_EQ(shared.weights.n_params, apart.weights.n_params) << shape;
    EXPECT_EQ(shared.weights.stored_bytes, apart.weights.stored_bytes) << shape;
    EXPECT_EQ(decode_matrix_bytes(shared.weights, 2), decode_matrix_bytes(apart.weights, 2)) << shape;
    EXPECT_LT(shared.weights.buffers.size(), apart.weights.buffers.size()) << shape;
    EXPECT_EQ(shared.weights.layers.size(), apart.weights.layers.size());
    EXPECT_EQ(shared.weights.layers[3].o.rows, shared.weights.layers[1].o.rows) << shape;
  }
  EXPECT_NE(plan_synth_model("tiny@shared=yes").error().message.find("shared=yes is not 0 or 1"), std::string::npos);
}

TEST(SynthPlan, LayersOfSeveralKindsAreCounted) {
  CpuContext context(1, Isa::scalar);
  for (const std::string shape : {"tiny-gemma4", "tiny-gemma4-moe", "tiny-gemma4-e", "tiny-nemotron-moe"}) {
    const LoadedModel apart = make_synth_model(context, shape).or_throw(),
                      shared = make_synth_model(context, shape + "@shared=1").or_throw();
    EXPECT_EQ(shared.weights.n_params, apart.weights.n_params) << shape;
    EXPECT_EQ(shared.weights.stored_bytes, apart.weights.stored_bytes) << shape;
    EXPECT_EQ(plan_synth_model(shape).or_throw().decode_matrix_bytes(), decode_matrix_bytes(apart.weights, 2)) << shape;
  }
  EXPECT_NE(plan_synth_model("tiny-gemma4-e@layers=5").error().message.find("leaves layer"), std::string::npos);
  EXPECT_NE(plan_synth_model("tiny-nemotron@layers=3").error().message.find("leaves no layer"), std::string::npos);
}

TEST(SynthPlan, RowsForSlicesArePackedLater) {
  CpuContext context(1, detect_isa());
  LoadedModel rows = make_synth_model(context, "tiny@weights=q8_0", SynthMatrices::rows).or_throw();
  for_each_matrix(rows.weights, [](const Linear& m, std::string_view name) {
    EXPECT_TRUE(m.rows) << name;
    EXPECT_FALSE(m.panels) << name;
  });
  pack_weights(context, rows.weights);
  drop_unread_rows(rows.weights);
  int64_t packed = rows.weights.embedding.bytes(), held = 0;
  for_each_matrix(rows.weights, [&](const Linear& m, std::string_view name) {
    EXPECT_EQ(m.panels != nullptr, packed_bytes(m, context.isa) > 0) << name;
    EXPECT_NE(m.panels != nullptr, m.rows != nullptr) << name;
    packed += m.panels ? packed_bytes(m, context.isa) : &m == &rows.weights.output ? 0 : m.bytes();
  });
  for (const AlignedBuffer& buffer : rows.weights.buffers) held += buffer.bytes();
  EXPECT_EQ(held, packed);
}

TEST(SynthPlan, TheLargestShapeHasTheParametersThatItsNameSays) {
  const SynthPlan all = plan_synth_model("llama-3.1-405b@weights=q8_0").or_throw();
  const double weights = double(all.decode_matrix_bytes()) / 34 * 32 + double(all.config.vocab_size) * 16384;
  EXPECT_NEAR(weights / 1e9, 405.8, 0.1);
}

/// All weights of a shape, its embedding beside its head, in billions.
double billions_of(const char* shape) {
  Config c = plan_synth_model(shape).or_throw().config;
  c.n_experts_used = c.n_experts;  // all that there are
  const SynthPlan all{.config = c, .format = find_weight_format("q8_0").or_throw()};
  return (double(all.decode_matrix_bytes()) / 34 * 32 + double(c.vocab_size) * c.d_model) / 1e9;
}

TEST(SynthPlan, ShapesOfExpertsHaveTheParametersOfTheirModels) {
  for (const auto& [shape, billions] : {std::pair("gpt-oss-120b", 116.8), {"glm-4.7-flash", 29.9}})
    EXPECT_NEAR(billions_of(shape), billions, 0.2) << shape;
}

TEST(SynthPlan, HybridShapesHaveTheParametersThatTheirNamesSay) {
  for (const auto& [shape, billions] : {std::pair("qwen3.6-27b", 27), {"qwen3.6-35b-a3b", 35}}) {
    const Config c = plan_synth_model(shape).or_throw().config;
    EXPECT_NEAR(billions_of(shape), billions, 0.5) << shape;
    EXPECT_EQ(c.n_layers / c.n_cached_layers(), 4);
  }
  EXPECT_FALSE(plan_synth_model("qwen3.6-27b@layers=3")) << "no layer would attend";
}

}  // namespace
}  // namespace ridge
