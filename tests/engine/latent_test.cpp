// Latent attention: one row a token is K and V. What comes out is held by parity_test.cpp; here is what the cache makes
// of such rows. Batch invariance: invariance_test.cpp and ragged_test.cpp.
#include <gtest/gtest.h>

#include <cmath>

#include "cases/coded_caches.h"
#include "engine/kv_options.h"
#include "model/weights.h"

namespace ridge {
namespace {

const Model& latent() {
  static const Model model = Model::load("synth:tiny-latent@weights=f16", {.n_threads = 1});
  return model;
}

std::string refusal(const SessionOptions& options, const ModelPlan& plan) {
  try {
    layer_configs(options, plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "";
}

TEST(Latent, ARowIsHeldOnce) {
  constexpr int kWidth = 64 + 32, kLayers = 3;
  for (const KvFormat& format : kv_formats()) {
    SCOPED_TRACE(format.name);
    Session session(latent(), short_cache(std::string(format.name)));
    session.prefill(some_tokens(150));
    const KvReport report = session.kv_report();
    EXPECT_EQ(report.k.bytes_per_token, kLayers * format.row_bytes(kWidth));
    EXPECT_GT(report.k.held_bytes_4k, 0);
    EXPECT_EQ(report.v.bytes_per_token, 0);
    EXPECT_EQ(report.v.fixed_bytes, 0);
    EXPECT_EQ(report.v.held_bytes_4k, 0);
    EXPECT_EQ(report.v.bits_per_value, 0);
  }
}

TEST(Latent, CodedRowsStayCloseToExactOnes) {
  each_coded_error(latent(), [](const char* name, double nmse, double bound) {
    EXPECT_LT(nmse, bound) << name;
    EXPECT_GT(nmse, 0) << name;
  });
}

TEST(Latent, SavedRestoredAndCopiedCachesGoOnBitForBit) { expect_states_go_on(latent(), "ridge_latent_state.kv"); }

TEST(Latent, ShiftTurnsTheRopePartAlone) {
  // With one layer, rows depend on their own token and position only, so the cache of the shortened text is known.
  const Model model = Model::load("synth:tiny-latent@layers=1@weights=f32");
  const std::vector<int32_t> tokens = some_tokens(120);
  std::vector<int32_t> kept(tokens.begin(), tokens.begin() + 5);
  kept.insert(kept.end(), tokens.begin() + 45, tokens.end());
  for (const auto& [name, bound] : {std::pair{"f32", 1e-9}, {"f16", 1e-5}}) {
    Session shifted(model, short_cache(name)), fresh(model, short_cache(name));
    shifted.prefill(tokens);
    shifted.shift(5, 40);
    fresh.prefill(kept);
    EXPECT_LT(compare(decode(shifted, 7), decode(fresh, 7)).nmse, bound) << name;
  }
}

TEST(Latent, SidesThatDifferAndRowsThatDoNotFitAreRefusedByName) {
  Config config = synth_config("tiny-latent").or_throw();
  EXPECT_EQ(refusal(short_cache("rotor-3"), make_plan(config)), "");
  const std::string differs = refusal({.k = {.format = "q8_0"}, .v = {.format = "f16"}}, make_plan(config));
  EXPECT_NE(differs.find("V cannot have format f16, not q8_0"), std::string::npos) << differs;
  config.kv_rank = 40;
  config.head_dim = 72;
  for (const char* name : {"q8_0", "p8", "q4_0"}) {
    const std::string message = refusal(short_cache(name), make_plan(config));
    EXPECT_NE(message.find(fmt::format("K cache format {} needs head_dim to be a multiple of 32", name)),
              std::string::npos)
        << message;
  }
  EXPECT_EQ(refusal(short_cache("rotor-3"), make_plan(config)), "");
}

}  // namespace
}  // namespace ridge
