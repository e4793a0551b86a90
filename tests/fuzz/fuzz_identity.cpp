// Fuzz target of identify(): a model that differs in one byte of a matrix or vector, or in one number of its
// configuration, has another identity, whatever its architecture. Byte 0 chooses the model, byte 1 what changes, the
// others say how.
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "io/json.h"
#include "model/arch/arch.h"
#include "model/identity.h"

namespace {

using namespace ridge;

constexpr const char* kShapes[] = {"tiny@weights=f32", "tiny-biases",      "tiny-gemma", "tiny-oss",
                                   "tiny-latent",      "tiny-index",       "tiny-delta", "tiny-bitnet",
                                   "tiny-gemma4-e",    "tiny-nemotron-moe"};

struct Made {
  explicit Made(const char* shape) : model(make_synth_model(context, shape, SynthMatrices::rows).or_throw()) {
    id = identify(model.config, model.weights).of_short;
    for_each_matrix(model.weights, [&](Linear& m, std::string_view) {
      if (m.rows) parts.emplace_back(const_cast<std::byte*>(m.rows), size_t(m.bytes()));
    });
    for_each_vector(model.weights, [&](const std::vector<float>& values) {
      if (!values.empty())
        parts.emplace_back(std::as_writable_bytes(std::span(const_cast<std::vector<float>&>(values))));
    });
  }
  CpuContext context{1};
  LoadedModel model;
  uint64_t id = 0;
  std::vector<std::span<std::byte>> parts;
};

void change_a_byte(Made& made, uint32_t number, uint8_t change) {
  const std::span<std::byte> part = made.parts[number % made.parts.size()];
  std::byte& byte = part[number / made.parts.size() * 0x9E3779B1u % part.size()];
  byte ^= std::byte(change);
  RIDGE_CHECK(identify(made.model.config, made.model.weights).of_short != made.id, "byte {} of part {} says nothing",
              &byte - part.data(), number % made.parts.size());
  byte ^= std::byte(change);
}

/// Numbers that change results in every model that has them. Of a configuration that is taken.
constexpr const char* kFields[] = {"rms_norm_eps",        "rope_theta",           "max_position_embeddings",
                                   "hidden_size",         "num_hidden_layers",    "num_attention_heads",
                                   "num_key_value_heads", "intermediate_size",    "attention_multiplier",
                                   "residual_multiplier", "embedding_multiplier", "logits_scaling"};
constexpr const char* kConfig =
    R"({"model_type":"granite","architectures":["GraniteForCausalLM"],"hidden_act":"silu","vocab_size":512,"rms_norm_eps":1e-5,
    "rope_theta":10000,"max_position_embeddings":256,"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":2,"intermediate_size":128,"attention_multiplier":0.125,"residual_multiplier":0.5,
    "embedding_multiplier":12,"logits_scaling":8})";

void change_a_field(uint8_t which, uint32_t number, bool whole) {
  static const io::Json before = io::Json::parse(kConfig);
  static const Made any(kShapes[0]);  // the same weights for all configurations
  const auto identity = [](const Config& config) { return identify(config, any.model.weights).of_short; };
  static const uint64_t id = identity(config_from_hf(before.dump(), "fuzz").or_throw());
  const char* const field = kFields[which % std::size(kFields)];
  float real = 0;
  std::memcpy(&real, &number, sizeof real);
  if (!whole && !std::isfinite(real)) return;
  io::Json after = before;
  after[field] = whole ? io::Json(number % 100'000) : io::Json(real);
  const Result<Config> config = config_from_hf(after.dump(), "fuzz");
  if (!config) return;
  const bool same = float(after[field].get<double>()) == float(before[field].get<double>());
  RIDGE_CHECK((identity(*config) == id) == same, "{} of {} says nothing", field, after[field].dump());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 7) return 0;
  uint32_t number = 0;
  std::memcpy(&number, data + 2, sizeof number);
  if (data[1] % 2 == 1) {
    change_a_field(data[0], number, data[6] % 2 == 1);
    return 0;
  }
  static std::unique_ptr<Made> made[std::size(kShapes)];
  std::unique_ptr<Made>& one = made[data[0] % std::size(kShapes)];
  if (!one) one = std::make_unique<Made>(kShapes[data[0] % std::size(kShapes)]);
  if (data[6] != 0) change_a_byte(*one, number, data[6]);
  return 0;
}
