// Tiny random models of many architectures against logits that other implementations computed (see the README of the
// reference data's models): Hugging Face directories and their GGUF twins, prompts and single tokens.
#include <gtest/gtest.h>

#include "cases/golden_logits.h"
#include "cases/logit_bounds.h"
#include "cases/reference_data.h"
#include "cases/safetensors_data.h"
#include "cases/temp_dir.h"
#include "io/safetensors.h"
#include "model/convert.h"
#include "model/weights.h"

namespace ridge {
namespace {

struct GoldenFile {
  std::string ids = "input_ids", logits = "logits", greedy = "greedy_ids";
};
struct ParityCase {
  std::string name;
  GoldenFile golden = {};                                ///< of the Hugging Face directory
  std::string gguf = "";                                 ///< the twin's file; empty: there is none
  std::optional<GoldenFile> gguf_golden = std::nullopt;  ///< where the GGUF file means something else
  bool is_written = false;                               ///< as GGUF, without a twin
};
void PrintTo(const ParityCase& c, std::ostream* out) { *out << c.name << " " << c.golden.logits; }

class Parity : public testing::TestWithParam<ParityCase> {
 protected:
  void SetUp() override {
    const auto data = reference_data();
    if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
    directory_ = *data / "parity/models" / GetParam().name;
    tensors_ = read_safetensors(directory_ / "golden.safetensors");
  }
  template <class T>
  std::vector<T> tensor(const std::string& name) const {
    return values_of<T>(tensors_.at(name));
  }
  /// The largest difference from the golden logits, as one prompt or token by token.
  void expect_golden(const Model& model, const GoldenFile& golden, double bound = logit_bound(GetParam().name)) const {
    const std::vector<int32_t> ids = tensor<int32_t>(golden.ids);
    const std::vector<float> expected = tensor<float>(golden.logits);
    const std::vector<int32_t> greedy = golden.greedy.empty() ? std::vector<int32_t>() : tensor<int32_t>(golden.greedy);
    const SessionOptions options{
        .n_ctx = int(ids.size() + greedy.size()), .n_ubatch = 20, .k = {.format = "f32"}, .v = {.format = "f32"}};
    for (const bool one_by_one : {false, true}) {
      Session session(model, options);
      std::vector<float> all;
      if (one_by_one)
        for (const int32_t id : ids) {
          const auto row = session.decode(id);
          all.insert(all.end(), row.begin(), row.end());
        }
      else
        session.prefill(ids, [&](int, int n, const float* rows) {
          all.insert(all.end(), rows, rows + int64_t(n) * model.info().vocab_size);
        });
      ASSERT_EQ(all.size(), expected.size());
      double worst = 0;
      for (size_t i = 0; i < all.size(); ++i) worst = std::max(worst, std::abs(double(all[i]) - expected[i]));
      EXPECT_LT(worst, bound) << (one_by_one ? "token by token" : "as a prompt");
      EXPECT_GT(worst, 0) << "the golden itself";
      std::vector<int32_t> written;
      std::span<const float> row(all.data() + all.size() - size_t(model.info().vocab_size),
                                 size_t(model.info().vocab_size));
      while (written.size() < greedy.size()) {
        written.push_back(int32_t(std::ranges::max_element(row) - row.begin()));
        row = session.decode(written.back());
      }
      EXPECT_EQ(written, greedy);
    }
  }

  std::filesystem::path directory_;

 private:
  std::map<std::string, std::vector<std::byte>> tensors_;
};

TEST_P(Parity, HfDirectory) { expect_golden(Model::load(directory_.native()), GetParam().golden); }

TEST_P(Parity, ScalarKernelsRoundNothing) {
  expect_golden(Model::load(directory_.native(), {.isa = "scalar"}), GetParam().golden, kFloatBound);
}

TEST_P(Parity, GgufTwin) {
  if (GetParam().gguf.empty()) GTEST_SKIP() << "there is no GGUF twin";
  expect_golden(Model::load((directory_ / GetParam().gguf).native()),
                GetParam().gguf_golden.value_or(GetParam().golden));
}

/// What `ridge quantize` writes of the directory means the same.
TEST_P(Parity, WrittenGguf) {
  const TempDir dir;
  const std::filesystem::path path = dir / "written.gguf";
  const auto written = convert_to_gguf(directory_.native(), path, *find_weight_format("f32").or_throw(), nullptr);
  if (GetParam().gguf.empty() && !GetParam().is_written) {
    ASSERT_FALSE(written) << "there is no GGUF form of it";
    return;
  }
  ASSERT_TRUE(written) << written.error().message;
  expect_golden(Model::load(path.native()), GetParam().golden);
}

/// The model as the text model inside another, as published directories of Gemma 3 and Mistral Small 3 have it.
class Nested : public Parity {
 protected:
  /// Writes a directory whose tensors are called as `outside` says, beside some of a vision tower, and whose
  /// configuration is in text_config without the keys that mean transformers' defaults.
  void write(const std::filesystem::path& to, bool outside) const {
    std::filesystem::create_directory(to);
    Json text = read_json(directory_ / "config.json");
    for (const char* key : {"tie_word_embeddings", "rope_local_base_freq", "hidden_activation",
                            "sliding_window_pattern", "max_position_embeddings", "rms_norm_eps", "architectures"})
      if (key != std::string("rms_norm_eps") || text[key] == 1e-6) text.erase(key);
    if (GetParam().name == "gemma3") text.erase("rope_theta");
    const Json config{{"model_type", GetParam().name == "gemma3" ? "gemma3" : "mistral3"},
                      {"text_config", text},
                      {"vision_config", {{"hidden_size", 16}}}};
    std::ofstream(to / "config.json") << config;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(directory_ / name, to / name);
    const io::HfDirectory model = io::open_hf_directory(directory_).or_throw();
    std::vector<io::SafetensorsSpec> specs;
    for (const io::Tensor& t : model.tensors) {
      const bool in_model = t.name.starts_with("model.");
      specs.push_back({outside    ? "language_model." + t.name
                       : in_model ? "model.language_model." + t.name.substr(6)
                                  : t.name,
                       t.format, t.shape});
    }
    const size_t n_text = specs.size();
    const std::string front = outside ? "" : "model.";
    for (const char* name :
         {"vision_tower.patch_embed.weight", "multi_modal_projector.linear.weight", "visual.norm.weight"})
      specs.push_back({front + name, *find_weight_format("f32"), {2}});
    io::write_safetensors(to / "model.safetensors", specs, [&](size_t i, const io::SafetensorsSink& sink) {
      return sink(i < n_text ? model.tensors[i].data : std::as_bytes(std::span("1234567", 8)));
    }).or_throw();
  }
};

TEST_P(Nested, LoadsAndIsWrittenAsItsTextModel) {
  for (const bool outside : {false, true}) {
    const TempDir dir;
    write(dir / "model", outside);
    const Model model = Model::load((dir / "model").native());
    expect_golden(model, {});
    EXPECT_EQ(model.info().n_params, Model::load(directory_.native()).info().n_params) << "of the text model";
    const auto written =
        convert_to_gguf((dir / "model").native(), dir / "written.gguf", *find_weight_format("f32").or_throw(), nullptr);
    ASSERT_TRUE(written) << written.error().message;
    expect_golden(Model::load((dir / "written.gguf").native()), {});
  }
}
INSTANTIATE_TEST_SUITE_P(Models, Nested, testing::Values(ParityCase{"gemma3"}, ParityCase{"mistral"}),
                         [](const auto& of) { return of.param.name; });

/// Checkpoints whose matrices are packed (io/packed.h).
ParityCase packed(const char* name, const char* gguf = "") { return {name, {}, gguf, std::nullopt, true}; }

/// A checkpoint in the format that its matrices have after loading: the same blocks.
TEST(PackedParity, AWrittenCheckpointHasTheBlocksThatLoadingMade) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const std::string directory = (*data / "parity/models/awq").native();
  const TempDir dir;
  const WeightFormat& q5_0 = *find_weight_format("q5_0").or_throw();
  const auto written = convert_to_gguf(directory, dir / "written.gguf", q5_0, nullptr);
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(written->n_requantized, 0);
  const LoadedModel before = load_model(directory).or_throw(),
                    after = load_model((dir / "written.gguf").native()).or_throw();
  EXPECT_NE(before.packing, "");
  EXPECT_EQ(after.packing, "");
  for (size_t i = 0; i < before.weights.layers.size(); ++i)
    for (Linear LayerWeights::*m : {&LayerWeights::q, &LayerWeights::o, &LayerWeights::up, &LayerWeights::down}) {
      const Linear &a = before.weights.layers[i].*m, &b = after.weights.layers[i].*m;
      ASSERT_EQ(a.format, b.format);
      EXPECT_EQ(std::memcmp(a.rows, b.rows, size_t(a.bytes())), 0) << i;
    }
  // Sorted columns go back to their places, which is a second rounding in any format but floats.
  const auto sorted = convert_to_gguf((*data / "parity/models/gptq").native(), dir / "sorted.gguf", q5_0, nullptr);
  ASSERT_FALSE(sorted);
  EXPECT_NE(sorted.error().message.find("compressed already"), std::string::npos) << sorted.error().message;
}

TEST(PackedParity, AWrittenCheckpointOfNvfp4KeepsBlocksAndScales) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  for (const char* name : {"nvfp4_ct", "nvfp4_modelopt"}) {
    const std::string directory = (*data / "parity/models" / name).native();
    const TempDir dir;
    const auto written =
        convert_to_gguf(directory, dir / "written.gguf", *find_weight_format("nvfp4").or_throw(), nullptr);
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_EQ(written->n_requantized, 0);
    const LoadedModel before = load_model(directory).or_throw(),
                      after = load_model((dir / "written.gguf").native()).or_throw();
    for (size_t i = 0; i < before.weights.layers.size(); ++i)
      for (Linear LayerWeights::*m : {&LayerWeights::o, &LayerWeights::up, &LayerWeights::down}) {
        const Linear &a = before.weights.layers[i].*m, &b = after.weights.layers[i].*m;
        ASSERT_EQ(a.format, b.format);
        EXPECT_NE(a.scale, 1);
        EXPECT_EQ(a.scale, b.scale);
        EXPECT_EQ(std::memcmp(a.rows, b.rows, size_t(a.bytes())), 0) << name << " " << i;
      }
  }
}

const GoldenFile kShort{.ids = "input_ids_short", .logits = "logits_short", .greedy = ""};
INSTANTIATE_TEST_SUITE_P(
    Models, Parity,
    testing::Values(
        ParityCase{"mistral", {}, "model-bf16.gguf"}, ParityCase{"llama3", {}, "model-bf16.gguf"},
        ParityCase{"mistral_swa", {}, "model-f32.gguf", GoldenFile{.logits = "logits_no_window", .greedy = ""}},
        ParityCase{"granite", {}, "model-bf16.gguf"}, ParityCase{"phi3", {}, "model-bf16.gguf"},
        ParityCase{"phi3_longrope", {}, "model-bf16.gguf"}, ParityCase{"phi3_longrope", kShort, "model-bf16.gguf"},
        ParityCase{"olmo2", {}, "model-bf16.gguf"}, ParityCase{"gemma3", {}, "model-bf16.gguf"},
        ParityCase{"qwen3_moe", {}, "model-bf16.gguf"}, ParityCase{"qwen3_moe_dense"},
        ParityCase{"qwen2_moe", {}, "model-bf16.gguf"}, ParityCase{"qwen3_5", {}, "model-f32.gguf"},
        ParityCase{"qwen3_5_moe", {}, "model-bf16.gguf"}, ParityCase{"qwen3_5_mtp", {}, "model-bf16.gguf"},
        ParityCase{"qwen3_next", {}, "model-bf16.gguf"},
        ParityCase{"gpt_oss", {}, "model-bf16.gguf", GoldenFile{.logits = "logits_truncate", .greedy = ""}},
        ParityCase{"gpt_oss_mxfp4", {}, "model-bf16.gguf"}, ParityCase{"deepseek_v3", {}, "model-bf16.gguf"},
        ParityCase{"deepseek_v32", {}, "", std::nullopt, true}, ParityCase{"glm_moe_dsa", {}, "model-bf16.gguf"},
        ParityCase{"mixtral", {}, "model-bf16.gguf"}, ParityCase{"qwen3_vl", {}, "model-bf16.gguf"},
        ParityCase{"qwen2_5_vl", {}, "model-bf16.gguf"}, ParityCase{"seed_oss", {}, "model-bf16.gguf"},
        ParityCase{"glm4_moe", {}, "model-bf16.gguf"}, ParityCase{"glm4_moe_lite", {}, "model-bf16.gguf"},
        ParityCase{"minimax_m2", {}, "model-bf16.gguf"}, ParityCase{"ernie4_5_moe", {}, "model-bf16.gguf"},
        ParityCase{"smollm3", {}, "model-bf16.gguf"}, ParityCase{"exaone4", {}, "model-bf16.gguf"},
        ParityCase{"hunyuan_v1_dense", {}, "model-bf16.gguf"}, ParityCase{"ministral3", {}, "model-bf16.gguf"},
        ParityCase{"cohere2", {}, "model-bf16.gguf"}, ParityCase{"lfm2", {}, "model-bf16.gguf"},
        ParityCase{"lfm2_moe", {}, "model-bf16.gguf"}, ParityCase{"granite_hybrid", {}, "model-bf16.gguf"},
        ParityCase{"granite_hybrid_moe", {}, "model-bf16.gguf"}, packed("fp8_block"), packed("awq"), packed("gptq"),
        packed("nvfp4_ct"), packed("nvfp4_modelopt", "model-bf16.gguf"), ParityCase{"gemma4", {}, "model-bf16.gguf"},
        ParityCase{"gemma4_moe", {}, "model-bf16.gguf"}, ParityCase{"gemma4_e", {}, "model-bf16.gguf"},
        ParityCase{"nemotron_h", {}, "model-bf16.gguf"}, ParityCase{"nemotron_h_moe", {}, "model-bf16.gguf"},
        ParityCase{"mistral4", {}, "model-bf16.gguf", GoldenFile{.logits = "logits_no_position_scale", .greedy = ""}}),
    [](const auto& of) { return of.param.name + (of.param.golden.ids == "input_ids" ? "" : "_short"); });

}  // namespace
}  // namespace ridge
