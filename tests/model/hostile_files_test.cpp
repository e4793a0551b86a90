// The small models of the reference data, damaged: cut off anywhere, without any one of their tensors, with sizes
// swapped. Each is refused with what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cases/reference_data.h"
#include "cases/temp_dir.h"
#include "io/json.h"
#include "model/weights.h"

namespace ridge {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

/// A model of the reference data that loads, its files in memory.
struct Known {
  std::string name, weights, gguf;  // gguf: empty where there is none
  Json config;
};

std::vector<Known> known_models(const fs::path& data) {
  std::vector<Known> models;
  for (const auto& entry : fs::directory_iterator(data / "parity/models")) {
    if (!entry.is_directory() || !load_model(entry.path().string())) continue;
    Known& model = models.emplace_back();
    model.name = entry.path().filename().string();
    model.weights = bytes_of(entry.path() / "model.safetensors");
    model.config = Json::parse(io::with_finite_numbers(bytes_of(entry.path() / "config.json")));
    for (const auto& file : fs::directory_iterator(entry.path()))
      if (file.path().extension() == ".gguf") model.gguf = bytes_of(file.path());
  }
  return models;
}

/// Why the directory of these two files is refused; "" when it loads.
std::string refusal(const Json& config, std::string_view weights) {
  const TempDir directory;
  write(directory.path() / "config.json", config.dump());
  write(directory.path() / "model.safetensors", weights);
  const auto model = load_model(directory.path().string());
  if (model) return "";
  EXPECT_EQ(model.error().kind, ErrorKind::bad_file) << model.error().message;
  return model.error().message;
}

std::string gguf_refusal(std::string_view gguf) {
  const TempDir directory;
  write(directory.path() / "m.gguf", gguf);
  const auto model = load_model((directory.path() / "m.gguf").string());
  if (model) return "";
  EXPECT_EQ(model.error().kind, ErrorKind::bad_file) << model.error().message;
  return model.error().message;
}

/// Scales of activations, which stay floats.
bool is_of_activations(std::string_view name) {
  return name.ends_with(".input_scale") || name.ends_with(".input_global_scale");
}

/// Tensors of towers of images and sound, of what joins them to the text model, of layers that predict further tokens,
/// and of K and V in layers that share those of others.
bool is_beside_the_text(std::string_view name, const Json& config) {
  const int n_layers = config.value("num_hidden_layers", 1 << 20);
  if (const auto text = config.find("text_config"); text != config.end()) {
    const int n = text->value("num_hidden_layers", 0), n_shared = text->value("num_kv_shared_layers", 0);
    for (int i = n - n_shared; i < n; ++i)
      for (const char* of : {"k_proj", "v_proj", "k_norm"})
        if (name == fmt::format("model.language_model.layers.{}.self_attn.{}.weight", i, of)) return true;
  }
  constexpr std::string_view kLayers = "model.layers.";
  if (name.starts_with(kLayers)) return std::atoi(name.data() + kLayers.size()) >= n_layers;
  return std::ranges::any_of(
      std::array{"model.visual.", "visual.", "vision_tower.", "multi_modal_projector.", "mtp.", "model.vision_tower.",
                 "model.audio_tower.", "model.embed_vision.", "model.embed_audio."},
      [&](std::string_view front) { return name.starts_with(front); });
}

class HostileFilesSlow : public testing::Test {
 protected:
  void SetUp() override {
    const auto data = reference_data();
    if (!data || !fs::exists(*data / "parity/models")) GTEST_SKIP() << "small models are not here (set RIDGE_DATA)";
    models_ = known_models(*data);
    EXPECT_GE(models_.size(), 13u);
  }
  std::vector<Known> models_;
};

TEST_F(HostileFilesSlow, ACutFileIsRefused) {
  for (const Known& model : models_)
    for (const double part : {0.0, 1e-4, 0.003, 0.02, 0.1, 0.37, 0.8, 0.999}) {
      const auto cut = [&](std::string_view bytes) { return bytes.substr(0, size_t(part * double(bytes.size()))); };
      EXPECT_NE(refusal(model.config, cut(model.weights)), "") << model.name << " " << part;
      if (model.gguf.empty()) continue;
      EXPECT_NE(gguf_refusal(cut(model.gguf)), "") << model.name << " " << part;
    }
}

TEST_F(HostileFilesSlow, AMissingTensorIsNamed) {
  for (const Known& model : models_) {
    uint64_t n_header = 0;
    std::memcpy(&n_header, model.weights.data(), 8);
    const Json header = Json::parse(std::string_view(model.weights).substr(8, n_header));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      std::string renamed = model.weights;
      renamed[renamed.find('"' + name + '"') + 1] = '?';
      const std::string why = refusal(model.config, renamed);
      // The output matrix of a model whose embedding serves as well is there without being read.
      if (why.empty() && model.config.value("tie_word_embeddings", false) && name == "lm_head.weight") continue;
      // The vision tower and the layers that predict further tokens are not part of the text model: nothing misses
      // them, and what their tensor is called now is a name that nothing knows.
      if (is_of_activations(name) || is_beside_the_text(name, model.config)) {
        EXPECT_THAT(why, testing::AnyOf("", testing::HasSubstr('?' + name.substr(1)))) << model.name;
        continue;
      }
      // Codes under another name lack scales: then the new name is what is named.
      EXPECT_THAT(
          why, testing::AllOf(testing::HasSubstr(name.substr(1, name.rfind('_') - 1)), testing::HasSubstr("missing")))
          << model.name;
    }
  }
}

TEST_F(HostileFilesSlow, SwappedSizesAreRefused) {
  const std::pair<const char*, const char*> swaps[] = {
      {"hidden_size", "intermediate_size"}, {"num_attention_heads", "hidden_size"},
      {"vocab_size", "hidden_size"},        {"num_experts", "moe_intermediate_size"},
      {"num_local_experts", "vocab_size"},  {"num_hidden_layers", "vocab_size"}};
  for (const Known& model : models_)
    for (const auto& [a, b] : swaps) {
      if (!model.config.contains(a) || !model.config.contains(b) || model.config[a] == model.config[b]) continue;
      Json config = model.config;
      std::swap(config[a], config[b]);
      EXPECT_NE(refusal(config, model.weights), "") << model.name << " " << a << " " << b;
    }
}

TEST_F(HostileFilesSlow, AbsurdMetadataIsRefused) {
  int n_refused = 0;
  for (const Known& model : models_)
    for (const char* key : {".block_count", ".embedding_length", ".feed_forward_length", ".attention.head_count",
                            ".attention.head_count_kv", ".attention.key_length", ".expert_count", ".expert_used_count",
                            ".expert_feed_forward_length", ".attention.sliding_window"}) {
      const size_t at = model.gguf.find(key);
      if (at == std::string::npos) continue;
      const size_t type_at = at + std::strlen(key), value_at = type_at + 4;
      uint32_t type = 0;
      std::memcpy(&type, model.gguf.data() + type_at, 4);
      if (type != 4) continue;  // u32: one number for all layers
      for (const uint32_t value : {0u, 1u << 31, ~0u}) {
        // A window of 0 is none.
        if (value == 0 && std::string_view(key) == ".attention.sliding_window") continue;
        if (std::memcmp(model.gguf.data() + value_at, &value, 4) == 0) continue;  // no experts, for example
        std::string gguf = model.gguf;
        std::memcpy(gguf.data() + value_at, &value, 4);
        EXPECT_NE(gguf_refusal(gguf), "") << model.name << " " << key << " = " << value;
        ++n_refused;
      }
    }
  EXPECT_GT(n_refused, 200);
}

}  // namespace
}  // namespace ridge
