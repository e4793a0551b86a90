// A checkpoint of one layer, made tensor by tensor, for tests of packed matrices.
#pragma once

#include <cstring>
#include <map>
#include <tuple>

#include "base/f16.h"
#include "cases/guarded.h"
#include "cases/temp_dir.h"
#include "io/packed.h"
#include "io/safetensors.h"
#include "model/weights.h"

namespace ridge {

inline const WeightFormat& kF16 = *weight_format_of_gguf(1);

/// A one-layer llama directory of 128 channels and two heads, made tensor by tensor.
class Checkpoint {
 public:
  explicit Checkpoint(int d_ff = 256) : d_ff_(d_ff) {}

  std::map<std::string, std::pair<io::SafetensorsSpec, std::vector<std::byte>>> tensors;
  std::string quantization_config;  ///< the value, or "" for none

  template <class T>
  void add(const std::string& name, const WeightFormat& format, std::vector<int64_t> shape,
           const std::vector<T>& data) {
    std::vector<std::byte> bytes(data.size() * sizeof(T));
    std::memcpy(bytes.data(), data.data(), bytes.size());
    tensors[name] = {{name, &format, std::move(shape)}, std::move(bytes)};
  }
  void add_f16(const std::string& name, std::vector<int64_t> shape, uint64_t seed) {
    int64_t n = 1;
    for (const int64_t dim : shape) n *= dim;
    std::vector<uint16_t> f16;
    for (const float x : random_floats(seed, n)) f16.push_back(f32_to_f16(0.1f * x));
    add(name, kF16, std::move(shape), f16);
  }
  /// Embedding and norms, which no checkpoint packs.
  void add_rest() {
    add_f16("model.embed_tokens.weight", {16, 128}, 100);
    add_f16("model.norm.weight", {128}, 101);
    add_f16("model.layers.0.input_layernorm.weight", {128}, 102);
    add_f16("model.layers.0.post_attention_layernorm.weight", {128}, 103);
  }
  /// Names and shapes of the seven projections.
  std::vector<std::tuple<std::string, int64_t, int64_t>> matrices() const {
    const std::string layer = "model.layers.0.";
    return {{layer + "self_attn.q_proj", 128, 128}, {layer + "self_attn.k_proj", 128, 128},
            {layer + "self_attn.v_proj", 128, 128}, {layer + "self_attn.o_proj", 128, 128},
            {layer + "mlp.gate_proj", d_ff_, 128},  {layer + "mlp.up_proj", d_ff_, 128},
            {layer + "mlp.down_proj", 128, d_ff_}};
  }
  std::string write(const TempDir& directory) const {
    std::string config = R"({"model_type":"llama","hidden_size":128,"num_hidden_layers":1,"num_attention_heads":2,)"
                         R"("vocab_size":16,"max_position_embeddings":64,"tie_word_embeddings":true,)"
                         R"("intermediate_size":)" +
                         std::to_string(d_ff_);
    if (!quantization_config.empty()) config += ",\"quantization_config\":" + quantization_config;
    directory.write("config.json", config + "}");
    std::vector<io::SafetensorsSpec> specs;
    std::vector<const std::vector<std::byte>*> bytes;
    for (const auto& [name, tensor] : tensors) {
      specs.push_back(tensor.first);
      bytes.push_back(&tensor.second);
    }
    io::write_safetensors(directory / "model.safetensors", specs, [&](size_t i, const io::SafetensorsSink& sink) {
      return sink(*bytes[i]);
    }).or_throw();
    return directory.path().native();
  }

 private:
  int d_ff_;
};

/// What loading the checkpoint says, "" when it loads.
inline std::string message_of(const Checkpoint& c) {
  const TempDir directory;
  const Result<LoadedModel> model = load_model(c.write(directory));
  if (model) return "";
  EXPECT_EQ(model.error().kind, ErrorKind::bad_file);
  return model.error().message;
}

}  // namespace ridge
