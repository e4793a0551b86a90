// Models in the weight types of GGUF files against logits that were computed elsewhere, in float32 with the decoded
// weights.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cases/golden_logits.h"
#include "cases/logit_bounds.h"
#include "cases/reference_data.h"
#include "cases/safetensors_data.h"
#include "op/cpu.h"

namespace ridge {
namespace {

/// The largest difference that the README of the reference data shows for a runtime that rounds activations to 8 bits.
constexpr double kWeightTypesBound = 0.44;

/// Largest difference of a logit, all positions, in one batch and token by token.
double worst_logit(const std::string& path, const LoadOptions& options, const std::vector<int32_t>& ids,
                   const std::vector<float>& golden) {
  const Model model = Model::load(path, options);
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
    ++n_models;
    const std::vector<float> golden = values_of<float>(bytes);
    const std::string path = (directory / (name + ".gguf")).string();
    const auto measure = [&](const char* kernels, const LoadOptions& options) {
      const double worst = worst_logit(path, options, ids, golden);
      RecordProperty(name + "_" + kernels, fmt::format("{:.3g}", worst));
      return worst;
    };
    EXPECT_LT(measure("scalar", {.isa = "scalar"}), kFloatBound) << name;
    if (detect_isa() == Isa::scalar) continue;
    const double fifteen_bits = measure("vectors", {});
    EXPECT_LT(fifteen_bits, kWeightTypesBound / 128) << name;
    // The second plane is 128 times finer; half of that allows for where the largest difference falls.
    const std::string one_plane = fmt::format("panel-1plane-{}", isa_name(detect_isa()));
    const double eight_bits = measure("one_plane", {.kernels = {"gemv=" + one_plane, "gemm=" + one_plane}});
    EXPECT_LT(eight_bits, kWeightTypesBound) << name;
    EXPECT_LT(fifteen_bits, eight_bits / 64) << name;
  }
  EXPECT_EQ(n_models, 11);
}

}  // namespace
}  // namespace ridge
