// The DeepSeek-V2 checkpoint of tests/golden/deepseek-v2 with both of its routers, and the GGUF file of it, against
// transformers' logits.
#include <gtest/gtest.h>

#include <fstream>

#include "cases/golden_logits.h"
#include "cases/paths.h"
#include "cases/temp_dir.h"
#include "model/weights.h"

namespace ridge {
namespace {

const std::filesystem::path kSource = RIDGE_SOURCE_DIR "/tests/golden/deepseek-v2";

/// A directory of the checkpoint whose config.json says `changed`.
void write_directory(const std::filesystem::path& to, const Json& changed) {
  Json config = read_json(kSource / "config.json");
  config.update(changed);
  std::ofstream(to / "config.json") << config;
  std::filesystem::copy_file(kSource / "model.safetensors", to / "model.safetensors");
}

TEST(DeepseekV2, LogitsEqualTransformersWithEitherRouter) {
  const Json golden = read_json(kSource / "golden.json");
  const auto ids = golden["ids"].get<std::vector<int32_t>>();
  for (const char* method : {"greedy", "group_limited_greedy"}) {
    const TempDir dir;
    write_directory(dir.path(), {{"topk_method", method}});
    std::vector<float> expected;
    for (const Json& row : golden[method])
      for (const float logit : row.get<std::vector<float>>()) expected.push_back(logit);
    const Model model = Model::load(dir.path().native());
    for (const bool one_by_one : {false, true}) {
      const std::vector<float> logits = logits_of(model, ids, "f32", one_by_one);
      ASSERT_EQ(logits.size(), expected.size());
      double worst = 0;
      for (size_t i = 0; i < logits.size(); ++i) worst = std::max(worst, double(std::abs(logits[i] - expected[i])));
      EXPECT_LT(worst, 1e-4) << method << (one_by_one ? " one by one" : "");
    }
  }
}

TEST(DeepseekV2, AnotherRouterIsRefusedByName) {
  const std::pair<Json, const char*> cases[] = {
      {{{"topk_method", "noaux_tc"}}, "topk_method is 'noaux_tc' (supported: group_limited_greedy)"},
      {{{"scoring_func", "sigmoid"}}, "scoring_func is 'sigmoid' (supported: softmax)"},
      {{{"norm_topk_prob", true}}, "norm_topk_prob is true (supported with a softmax: false)"}};
  for (const auto& [changed, expected] : cases) {
    const TempDir dir;
    write_directory(dir.path(), changed);
    const auto model = load_model(dir.path().native());
    ASSERT_FALSE(model) << changed;
    EXPECT_NE(model.error().message.find(expected), std::string::npos) << model.error().message;
  }
}

}  // namespace
}  // namespace ridge
