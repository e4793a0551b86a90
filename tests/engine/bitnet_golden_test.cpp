// ridge-bitnet against its golden values, int8 activations loosely (their rounding is discontinuous), float tightly.
#include <gtest/gtest.h>

#include "cases/golden_logits.h"
#include "cases/reference_data.h"
#include "cases/temp_dir.h"
#include "model/convert.h"
#include "model/weights.h"

namespace ridge {
namespace {

struct Reference {
  std::string path;
  Json golden;
  std::vector<int32_t> ids;
};

std::optional<Reference> ridge_bitnet() {
  const auto data = reference_data();
  if (!data) return std::nullopt;
  const std::filesystem::path path = *data / "models/ridge-bitnet";
  Json golden = read_json(path / "golden.json");
  auto ids = golden["ids"].get<std::vector<int32_t>>();
  return Reference{path.string(), std::move(golden), std::move(ids)};
}

TEST(BitnetGoldenSlow, FloatActivationsEqualTheReference) {
  const auto r = ridge_bitnet();
  if (!r) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const Model model = Model::load(r->path, {.float_activations = true});
  for (const bool one_by_one : {false, true}) {
    const Difference d = against_golden(model, r->golden["float_activations"], r->ids, "f32", one_by_one);
    EXPECT_LT(d.logit, 5e-5);
    EXPECT_LT(d.nll, 5e-5);
    EXPECT_NEAR(d.mean_nll, r->golden["float_activations"]["mean_nll"].get<double>(), 2e-6);
  }
}

TEST(BitnetGoldenSlow, Int8ActivationsAreWithinTheSpreadOfImplementations) {
  const auto r = ridge_bitnet();
  if (!r) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  for (const Isa each : isas()) {
    const std::string isa(isa_name(each));
    const Model model = Model::load(r->path, {.isa = isa});
    EXPECT_EQ(model.info().weight_format, "i2_s");
    const Difference d = against_golden(model, r->golden, r->ids, "f32", false);
    EXPECT_LT(d.logit, 0.3) << isa;
    EXPECT_NEAR(d.mean_nll, r->golden["mean_nll"].get<double>(), 0.01) << isa;
  }
  const Model model = Model::load(r->path);
  const Difference d = against_golden(model, r->golden, r->ids, "f16", true);
  EXPECT_LT(d.logit, 0.3);
  EXPECT_NEAR(d.mean_nll, r->golden["mean_nll"].get<double>(), 0.01);
}

TEST(BitnetGoldenSlow, ATernaryGgufComputesTheSameButForItsFp16Scales) {
  const auto r = ridge_bitnet();
  if (!r) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const TempDir directory;
  const std::string path = (directory.path() / "tq2_0.gguf").string();
  convert_to_gguf(r->path, path, find_quantize_type("tq2_0").or_throw(), nullptr).or_throw();
  const Model model = Model::load(path), in_float = Model::load(path, {.float_activations = true});
  EXPECT_EQ(model.info().weight_format, "tq2_0");
  const Difference d = against_golden(model, r->golden, r->ids, "f32", false);
  EXPECT_LT(d.logit, 0.3);
  EXPECT_NEAR(d.mean_nll, r->golden["mean_nll"].get<double>(), 0.01);
  // Each of 56 scales is off by at most 2^-11, which moves logits of up to 20 by some hundredths.
  const Difference rounded = against_golden(in_float, r->golden["float_activations"], r->ids, "f32", false);
  EXPECT_LT(rounded.logit, 0.05);
  EXPECT_GT(rounded.logit, 0);
}

TEST(BitnetGoldenSlow, TokenizerAndGreedyTokensAreThoseOfTheReference) {
  const auto r = ridge_bitnet();
  if (!r) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const Model model = Model::load(r->path);
  for (const Json& test : r->golden["tokenizer_tests"])
    EXPECT_EQ(model.tokenize(test["text"].get<std::string>(), false), test["ids"].get<std::vector<int32_t>>());
  for (const Json& entry : r->golden["greedy"]) {
    const auto prompt = entry["prompt_ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(model.tokenize(entry["prompt"].get<std::string>()), prompt);
    // The closest top-2 gap (0.017) is inside the spread of correct implementations: only the start is sure to agree.
    auto expected = entry["output_ids"].get<std::vector<int32_t>>();
    expected.resize(8);
    Session session(model, {.n_ctx = 64, .k = {.format = "f32"}, .v = {.format = "f32"}});
    const GenerateResult result = generate(session, model, prompt, {.max_tokens = 8, .sampler = {.temperature = 0}},
                                           [](std::string_view) { return true; });
    EXPECT_EQ(result.tokens, expected) << entry["prompt"];
  }
}

/// The packed checkpoint of tests/golden/bitnet-packed as a directory whose config.json says `quantization`.
struct PackedBitnet {
  TempDir directory;
  const std::filesystem::path source = RIDGE_SOURCE_DIR "/tests/golden/bitnet-packed";
  explicit PackedBitnet(const Json& quantization) {
    Json config = read_json(source / "config.json");
    config["quantization_config"] = quantization;
    std::ofstream(directory.path() / "config.json") << config;
    std::filesystem::copy_file(source / "model.safetensors", directory.path() / "model.safetensors");
  }
  std::string message() const {
    const auto model = load_model(directory.path().string());
    return model ? "" : model.error().message;
  }
};

Json packed_by(const char* linear_class) {
  return {{"quant_method", "bitnet"}, {"linear_class", linear_class}, {"quantization_mode", "offline"}};
}

TEST(PackedBitnet, LogitsEqualTransformersWithEitherScale) {
  for (const char* linear_class : {"autobitlinear", "bitlinear"}) {
    const PackedBitnet packed(packed_by(linear_class));
    const Json golden = read_json(packed.source / "golden.json");
    const auto ids = golden["ids"].get<std::vector<int32_t>>();
    std::vector<float> expected;
    for (const Json& row : golden[linear_class])
      for (const float logit : row.get<std::vector<float>>()) expected.push_back(logit);
    for (const char* isa : {"scalar", ""}) {
      const Model model = Model::load(packed.directory.path().string(), {.isa = isa});
      EXPECT_EQ(model.info().weight_format, "i2_s");
      for (const bool one_by_one : {false, true}) {
        const std::vector<float> logits = logits_of(model, ids, "f32", one_by_one);
        ASSERT_EQ(logits.size(), expected.size());
        double worst = 0;
        for (size_t i = 0; i < logits.size(); ++i) worst = std::max(worst, double(std::abs(logits[i] - expected[i])));
        EXPECT_LT(worst, 1e-4) << linear_class << " " << isa << (one_by_one ? " one by one" : "");
      }
    }
  }
}

TEST(PackedBitnet, WhatTheConfigurationOrTheFileMayNotSayIsRefused) {
  const std::pair<Json, const char*> cases[] = {
      {{{"quant_method", "bitnet"}, {"use_rms_norm", true}}, "use_rms_norm is true, expected false"},
      {{{"quant_method", "bitnet"}, {"linear_class", "other"}}, "linear_class is \"other\""},
      {{{"linear_class", "autobitlinear"}, {"quantization_mode", 3}, {"quant_method", "bitnet"}},
       "quantization_mode is 3"},
      {{{"quant_method", "bitnet"}, {"linear_class", "autobitlinear"}, {"quantization_mode", "online"}},
       "is [32, 128], expected [128, 128]"},
      {"text", "quantization_config is not an object"},
  };
  for (const auto& [quantization, expected] : cases)
    EXPECT_NE(PackedBitnet(quantization).message().find(expected), std::string::npos)
        << quantization << " " << PackedBitnet(quantization).message();

  const PackedBitnet packed(packed_by("autobitlinear"));
  const std::filesystem::path path = packed.directory.path() / "model.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t n_header = 0;
  file.read(reinterpret_cast<char*>(&n_header), 8);
  std::string header(size_t(n_header), ' ');
  file.read(header.data(), std::streamsize(n_header));
  const auto first_byte = Json::parse(header)["model.layers.0.mlp.up_proj.weight"]["data_offsets"][0].get<int64_t>();
  file.seekp(std::streamoff(8 + n_header) + first_byte + 5);
  file.put(char(0x30));
  file.close();
  EXPECT_NE(packed.message().find("model.layers.0.mlp.up_proj.weight has a code of 3 in row 128 column 5"),
            std::string::npos)
      << packed.message();
}

}  // namespace
}  // namespace ridge
