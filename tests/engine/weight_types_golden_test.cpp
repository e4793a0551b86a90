// Models in the weight types of GGUF files against logits that were computed elsewhere, in float32 with the decoded
// weights.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cases/golden_logits.h"
#include "cases/logit_bounds.h"
#include "cases/reference_data.h"
#include "cases/safetensors_data.h"

namespace ridge {
namespace {

/// Largest difference of a logit, all positions, in one batch and token by token.
double worst_logit(const std::filesystem::path& path, const LoadOptions& options, const std::vector<int32_t>& ids,
                   const std::vector<float>& golden) {
  const Model model = Model::load(path.string(), options);
  double worst = 0;
  for (const bool one_by_one : {false, true}) {
    const std::vector<float> logits = logits_of(model, ids, "f32", one_by_one);
    EXPECT_EQ(logits.size(), golden.size());
    for (size_t i = 0; i < std::min(logits.size(), golden.size()); ++i)
      worst = std::max(worst, double(std::abs(logits[i] - golden[i])));
  }
  return worst;
}

TEST(GoldenWeightTypes, LogitsEqualFloat32WithDecodedWeights) {
  const auto data = reference_data();
  if (!data || !std::filesystem::exists(*data / "parity/quants"))
    GTEST_SKIP() << "models in these types are not here (set RIDGE_DATA)";
  const std::filesystem::path directory = *data / "parity/quants";
  const auto tensors = read_safetensors(directory / "logits.safetensors");
  const auto ids = values_of<int32_t>(tensors.at("input_ids"));
  int n_models = 0;
  for (const auto& [name, bytes] : tensors) {
    if (name == "input_ids") continue;
    const std::vector<float> golden = values_of<float>(bytes);
    for (const char* isa : {"scalar", ""}) {
      // MXFP4 has a q8_0 embedding, which is its output matrix as well: with vectors that product rounds activations to 8
      // bits. A runtime that rounds them in every product is off by 0.29 here.
      const double of_vectors = name == "MXFP4" ? 0.1 : kFifteenBitBound;
      const double bound = *isa == 0 ? of_vectors : kFloatBound;
      const double worst = worst_logit(directory / (name + ".gguf"), {.isa = isa}, ids, golden);
      RecordProperty(name + (*isa ? "_scalar" : "_vectors"), fmt::format("{:.3g}", worst));
      EXPECT_LT(worst, bound) << name << " " << isa;
    }
    ++n_models;
  }
  EXPECT_EQ(n_models, 11);
}

}  // namespace
}  // namespace ridge
