// Which experts stay in host memory, and what they take there.
#include "model/expert_place.h"

#include <gmock/gmock.h>

#include "ridge/error.h"

namespace ridge {
namespace {

struct Placed {
  explicit Placed(const char* spec) : model(make_synth_model(context, spec, SynthMatrices::rows).or_throw()) {}

  /// Of each layer, whether its experts are on the host.
  std::vector<bool> on_host(const ExpertPlace& place) {
    plan = make_plan(model.config);
    place_experts(place, model.weights, plan);
    std::vector<bool> layers;
    for (const LayerPlan& layer : plan.layers) layers.push_back(layer.experts.on_host);
    return layers;
  }
  int64_t bytes_of(size_t layer) const {
    int64_t bytes = 0;
    for (const ExpertWeights& expert : model.weights.layers[layer].experts)
      bytes += expert.gate.bytes() + expert.up.bytes() + expert.down.bytes();
    return bytes;
  }

  CpuContext context{2};
  LoadedModel model;
  ModelPlan plan;
};

constexpr double kGib = double(int64_t(1) << 30);

TEST(ExpertPlace, LayersFromTheFirst) {
  Placed placed("tiny-experts@layers=3@weights=q8_0");
  EXPECT_EQ(placed.on_host({.n_cpu_moe = 1}), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(placed.on_host({.n_cpu_moe = 999}), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(placed.on_host({.n_cpu_moe = 0}), (std::vector<bool>{false, false, false}));
}

TEST(ExpertPlace, LayersThatLeaveSoManyBytesForTheDevice) {
  Placed placed("tiny-experts@layers=3@weights=q8_0");
  const auto one = double(placed.bytes_of(0));
  EXPECT_EQ(placed.on_host({.device_gib = 3 * one / kGib}), (std::vector<bool>{false, false, false}));
  EXPECT_EQ(placed.on_host({.device_gib = (3 * one - 1) / kGib}), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(placed.on_host({.device_gib = 1.5 * one / kGib}), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(placed.on_host({.device_gib = 0}), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(placed.on_host({.n_cpu_moe = 2, .device_gib = (3 * one - 1) / kGib}),
            (std::vector<bool>{true, true, false}))
      << "what either asks for";
}

/// The same number of experts of each layer on the host, as many as fit.
TEST(ExpertPlace, ACacheHoldsAsManyExpertsOfEachLayerOnTheHost) {
  Placed placed("tiny-experts@layers=3@weights=q8_0");
  const auto one = double(placed.bytes_of(0)) / placed.model.config.n_experts;
  const auto cached = [&](ExpertPlace place, double experts) {
    place.cache_gib = experts * one / kGib;
    placed.on_host(place);
    std::vector<int> layers;
    for (const LayerPlan& layer : placed.plan.layers) layers.push_back(layer.experts.n_cached);
    return layers;
  };
  EXPECT_EQ(cached({.n_cpu_moe = 2}, 4), (std::vector<int>{2, 2, 0}));
  EXPECT_EQ(cached({.n_cpu_moe = 2}, 5.9), (std::vector<int>{2, 2, 0}));
  EXPECT_EQ(cached({.device_gib = 0}, 1000), (std::vector<int>{8, 8, 8})) << "no more than there are";
  EXPECT_EQ(cached({.n_cpu_moe = 2}, 0), (std::vector<int>{0, 0, 0}));
  const auto refused = [&](const ExpertPlace& place, double experts) -> std::string {
    try {
      cached(place, experts);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refused({}, 4), testing::HasSubstr("all are on the GPU"));
  EXPECT_THAT(refused({.n_cpu_moe = 2}, 1.9), testing::HasSubstr("one expert of each layer in host memory takes"));
}

/// The number counts layers, also those without experts.
TEST(ExpertPlace, LayersWithoutExpertsCount) {
  Placed placed("tiny-latent@weights=f16");
  const auto layers = placed.on_host({.n_cpu_moe = 2});
  ASSERT_GE(layers.size(), 2u);
  EXPECT_FALSE(layers[0]) << "dense";
  EXPECT_TRUE(layers[1]);
}

TEST(ExpertPlace, ModelsWithoutExpertsAreRefused) {
  Placed placed("tiny@weights=f16");
  try {
    placed.on_host({.n_cpu_moe = 1});
    ADD_FAILURE() << "a dense model is not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), testing::HasSubstr("no layer with experts"));
  }
}

TEST(ExpertPlace, BytesAndPanelsAreThoseOfTheLayersOnTheHost) {
  Placed placed("tiny-experts@layers=2@weights=int4_g128");
  placed.on_host({.n_cpu_moe = 1});
  Weights& weights = placed.model.weights;
  const HostExpertBytes bytes = host_expert_bytes(placed.plan, weights, placed.context.isa);
  EXPECT_EQ(bytes.n_layers, 1);
  EXPECT_EQ(bytes.step * placed.model.config.n_experts, placed.bytes_of(0) * placed.model.config.n_experts_used);
  pack_host_experts(placed.context, placed.plan, weights);
  int64_t held = 0;
  for (const ExpertWeights& expert : weights.layers[0].experts)
    for (const Linear* m : {&expert.gate, &expert.up, &expert.down}) {
      const int64_t panels = packed_bytes(*m, placed.context.isa);
      EXPECT_EQ(m->panels != nullptr, panels > 0);
      held += panels > 0 ? panels : m->bytes();
    }
  EXPECT_EQ(bytes.memory, held);
  EXPECT_EQ(weights.layers[1].experts[0].up.panels, nullptr) << "of a layer that is on the device";
  EXPECT_EQ(weights.layers[0].q.panels, nullptr) << "no expert";
}

}  // namespace
}  // namespace ridge
