// A choice of keys by an index: what its rows cost, and that they go where the others go. What comes out is held by
// parity_test.cpp; batch invariance by invariance_test.cpp and ragged_test.cpp.
#include <gtest/gtest.h>

#include "cases/coded_caches.h"

namespace ridge {
namespace {

constexpr const char* kModel = "synth:tiny-index@weights=f16";

TEST(KeyIndex, ItsRowsAreFloatsWhateverTheCacheIs) {
  constexpr int kWidth = 48, kLayers = 3;
  const Model model = Model::load(kModel);
  for (const KvFormat& format : kv_formats()) {
    Session session(model, short_cache(std::string(format.name)));
    session.prefill(some_tokens(150));
    EXPECT_EQ(session.kv_report().v.bytes_per_token, kLayers * kWidth * (format.name == "f32" ? 4 : 2)) << format.name;
  }
}

TEST(KeyIndex, SavedRestoredAndCopiedCachesGoOnBitForBit) {
  expect_states_go_on(Model::load(kModel), "ridge_index_state.kv");
}

TEST(KeyIndex, AShiftTurnsItsKeysToo) {
  // With one layer, rows depend on their own token and position only, so the cache of the shortened text is known.
  const Model model = Model::load("synth:tiny-index@layers=1@weights=f32");
  const std::vector<int32_t> tokens = some_tokens(120);
  std::vector<int32_t> kept(tokens.begin(), tokens.begin() + 5);
  kept.insert(kept.end(), tokens.begin() + 45, tokens.end());
  Session shifted(model, short_cache("f32")), fresh(model, short_cache("f32"));
  shifted.prefill(tokens);
  shifted.shift(5, 40);
  fresh.prefill(kept);
  EXPECT_LT(compare(decode(shifted, 7), decode(fresh, 7)).nmse, 1e-9);
}

}  // namespace
}  // namespace ridge
