// Caches whose layers differ: heads of two sizes, layers that read the rows of others, layers without rows. What comes
// out is held by parity_test.cpp; here is what the cache makes of such layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/coded_caches.h"
#include "engine/engine.h"
#include "engine/kv_options.h"

namespace ridge {
namespace {

/// KV heads of all layers together, of 32 values and of 64.
struct Shape {
  const char* spec;
  int n_heads_32, n_heads_64;
  /// Mean square of scores. Gemma 4's are products of normed rows that nothing divides: of up to 64 values of about 1.
  double scores2 = 1;
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.spec; }

class KindsOfCaches : public testing::TestWithParam<Shape> {
 protected:
  const Model model = Model::load(std::string("synth:") + GetParam().spec + "@weights=f16", {.n_threads = 1});
};
// Four sliding layers of two heads and two full ones of one; of two, and three layers that share; two that attend.
INSTANTIATE_TEST_SUITE_P(Shapes, KindsOfCaches,
                         testing::Values(Shape{"tiny-gemma4", 8, 2, 64}, Shape{"tiny-gemma4-moe", 8, 2, 64},
                                         Shape{"tiny-gemma4-e", 8, 4, 64}, Shape{"tiny-nemotron", 4, 0},
                                         Shape{"tiny-nemotron-moe", 4, 0}));

TEST_P(KindsOfCaches, BytesAreThoseOfTheRowsThatThereAre) {
  const auto& [spec, n_32, n_64, scores2] = GetParam();
  EXPECT_EQ(model.info().cached_values(), 2 * (32 * n_32 + 64 * n_64));
  for (const KvFormat& format : kv_formats()) {
    SCOPED_TRACE(format.name);
    const int64_t expected = n_32 * format.row_bytes(32) + n_64 * format.row_bytes(64);
    Session session(model, short_cache(std::string(format.name)));
    session.prefill(some_tokens(150));
    const KvReport report = session.kv_report();
    EXPECT_EQ(report.k.bytes_per_token, expected);
    EXPECT_EQ(report.v.bytes_per_token, expected);
    EXPECT_EQ(report.k.bits_per_value, 8.0 * double(expected) / (32 * n_32 + 64 * n_64));
  }
}

/// What a row's error does to a score grows with the scores; errors of half the logits' size or more bound nothing.
TEST_P(KindsOfCaches, CodedRowsStayCloseToExactOnes) {
  each_coded_error(model, [](const char* name, double nmse, double bound) {
    RecordProperty(fmt::format("nmse_{}", name), fmt::format("{:.1e}", nmse));
    if (bound * GetParam().scores2 < 0.5) {
      EXPECT_LT(nmse, bound * GetParam().scores2) << name;
    }
    EXPECT_GT(nmse, 0) << name;
  });
}

TEST_P(KindsOfCaches, SavedRestoredAndCopiedCachesGoOnBitForBit) {
  expect_states_go_on(model, fmt::format("ridge_{}_state.kv", GetParam().spec));
}

/// Formats whose groups no head fits are refused by name.
TEST(KindsOfHeads, AFormatMustFitTheHeadsOfEveryLayer) {
  Config config = synth_config("tiny-gemma4").or_throw();
  config.window_head_dim = 16;
  try {
    layer_configs({.k = {.format = "q8_0"}, .v = {.format = "q8_0"}}, make_plan(config));
    FAIL() << "blocks of 32 values in heads of 16";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), testing::HasSubstr("K cache format q8_0 needs head_dim to be a multiple of 32"));
  }
}

/// A step reads the rows of a layer once more for each layer that shares them.
TEST(KindsOfReaders, RowsAreReadByTheLayersThatShareThem) {
  const ModelPlan plan = make_plan(synth_config("tiny-gemma4-e").or_throw());
  const std::vector<KvLayerConfig> layers = layer_configs({.k = {.format = "f16"}, .v = {.format = "f16"}}, plan);
  std::vector<int> readers, heads;
  for (const KvLayerConfig& layer : layers) readers.push_back(layer.n_readers), heads.push_back(layer.n_kv_heads);
  EXPECT_EQ(readers, (std::vector<int>{1, 1, 1, 1, 3, 2, 1, 1, 1}));
  EXPECT_EQ(heads, (std::vector<int>{2, 2, 2, 2, 2, 2, 0, 0, 0}));
  EXPECT_EQ(KvLayout(layers[5], KvSide::k, false).step_bytes(10), 2 * 10 * 2 * 64 * 2) << "two readers, heads of 64";
}

}  // namespace
}  // namespace ridge
