// Real models against reference logits computed elsewhere (tests/golden/README.md and the reference data's SOURCE).
// "Slow" suites run in optimised builds only: sanitizers would turn their seconds into minutes.
#include <gtest/gtest.h>

#include "cases/golden_logits.h"
#include "cases/paths.h"
#include "cases/reference_data.h"
#include "cases/temp_dir.h"
#include "model/convert.h"

namespace ridge {
namespace {

Difference against_ridge_ref(const Model& model, const char* kv, bool one_by_one) {
  const Json golden = read_json(RIDGE_SOURCE_DIR "/tests/golden/ridge-ref.golden.json");
  return against_golden(model, golden, golden["ids"], kv, one_by_one);
}

// float32 in another order of summation moves these logits (up to 20) by about 2e-5; 1e-4 leaves room for other ISAs.
constexpr double kFloatBound = 1e-4;

TEST(GoldenSlow, RidgeRefHfDirectoryEqualsPyTorch) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const Model model = Model::load((*data / "models/ridge-ref").string());
  for (const bool one_by_one : {false, true}) {
    const Difference d = against_ridge_ref(model, "f32", one_by_one);
    EXPECT_LT(d.logit, kFloatBound);
    EXPECT_LT(d.nll, kFloatBound);
  }
  // An fp16 cache: 2^-11 relative on every K and V.
  EXPECT_LT(against_ridge_ref(model, "f16", true).logit, 6e-3);
}

TEST(GoldenSlow, RidgeRefF16GgufEqualsPyTorch) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const TempDir directory;
  const std::filesystem::path path = directory.path() / "f16.gguf";
  convert_to_gguf((*data / "models/ridge-ref").string(), path, *find_weight_format("f16").or_throw(), nullptr)
      .or_throw();
  const Model model = Model::load(path.string());
  for (const bool one_by_one : {false, true}) {
    const Difference d = against_ridge_ref(model, "f32", one_by_one);
    EXPECT_LT(d.logit, kFloatBound);
    EXPECT_LT(d.nll, kFloatBound);
  }
}

TEST(GoldenSlow, RidgeRefGreedyTokensEqualPyTorch) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const Model model = Model::load((*data / "models/ridge-ref").string());
  const Json golden = read_json(RIDGE_SOURCE_DIR "/tests/golden/ridge-ref.golden.json");
  for (const Json& entry : golden["greedy"]) {
    const auto prompt = entry["prompt_ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(model.tokenize(entry["prompt"].get<std::string>()), prompt);
    const auto expected = entry["output_ids"].get<std::vector<int32_t>>();
    Session session(model, {.n_ctx = 512, .k = {.format = "f32"}, .v = {.format = "f32"}});
    const GenerateResult result =
        generate(session, model, prompt, {.max_tokens = int(expected.size()), .sampler = {.temperature = 0}},
                 [](std::string_view) { return true; });
    EXPECT_EQ(result.tokens, expected) << entry["prompt"];
  }
}

TEST(GoldenSlow, ShippedQ8ModelStaysCloseToItsSource) {
  const Model model = Model::load(RIDGE_SOURCE_DIR "/models/ridge-ref-q8_0.gguf");
  const double golden = read_json(RIDGE_SOURCE_DIR "/tests/golden/ridge-ref.golden.json")["mean_nll"];
  for (const bool one_by_one : {false, true})
    for (const char* kv : {"f16", "q8_0", "rotor-3"}) {
      const Difference d = against_ridge_ref(model, kv, one_by_one);
      // 8-bit weights and activations move the mean NLL of this text by a few thousandths, rotor-3 by a little more.
      EXPECT_NEAR(d.mean_nll, golden, 0.02) << kv;
      EXPECT_GT(d.nll, 0) << "an exact match would mean that the cache or the weights were not quantised";
    }
}

/// models/golden.json: the first story of two small models by others, NumPy float64.
Difference against_first_story(const Model& model, const Json& golden) {
  const Json& story = golden["first_story"];
  auto ids = story["ids"].get<std::vector<int32_t>>();
  const auto nll = story["nll"].get<std::vector<double>>();
  ids.resize(nll.size() + 1);  // truncated to the model's context there
  std::vector<TopLogits> top;
  for (size_t t = 0; t < nll.size(); ++t) top.push_back({int(t), story["top5"][t], story["top5_logits"][t]});
  return difference(logits_of(model, ids, "f32", false), model.info().vocab_size, ids, nll, top);
}

TEST(Golden, Stories260kEqualsNumpy) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const Json golden = read_json(*data / "models/golden.json")["models"]["stories260K"];
  const Model model = Model::load(RIDGE_SOURCE_DIR "/models/stories260K.gguf");
  const Difference d = against_first_story(model, golden);
  EXPECT_LT(d.logit, 5e-5);
  EXPECT_LT(d.nll, 5e-5);
}

TEST(Golden, Tiny1mEqualsNumpy) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  // Its config.json is not Hugging Face's form: the same numbers under the field names of LlamaConfig.
  const TempDir directory;
  std::filesystem::create_symlink(*data / "models/tiny1m/tiny1m.safetensors", directory.path() / "model.safetensors");
  std::ofstream(directory.path() / "config.json")
      << R"({"model_type":"llama","hidden_size":128,"num_hidden_layers":4,"num_attention_heads":2,"num_key_value_heads":2,)"
      << R"("head_dim":64,"intermediate_size":352,"vocab_size":512,"max_position_embeddings":256,"rms_norm_eps":1e-6,)"
      << R"("rope_theta":10000.0,"tie_word_embeddings":false})";
  const Model model = Model::load(directory.path().string());
  const Difference d = against_first_story(model, read_json(*data / "models/golden.json")["models"]["tiny1m"]);
  EXPECT_LT(d.logit, 5e-5);
  EXPECT_LT(d.nll, 5e-5);
}

}  // namespace
}  // namespace ridge
