// Hugging Face config.json -> Config.
#include "io/json.h"
#include "model/arch/arch.h"

namespace ridge {
namespace {

/// Typed access to a JSON object with messages that name the field.
class Fields {
 public:
  Fields(const io::Json& json, std::string_view where) : json_(json), where_(where) {}

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  const io::Json& at(const char* key) const { return json_[key]; }
  Result<int> integer(const char* key) const {
    if (!has(key)) return bad_file("{}: field {} is missing", where_, key);
    const io::Json& value = json_[key];
    if (!value.is_number_integer() || value < 0 || value > (1 << 30))
      return bad_file("{}: field {} is {}, expected an integer from 0 to 2^30", where_, key, value.dump());
    return value.get<int>();
  }
  Result<int> integer_or(const char* key, int fallback) const {
    return has(key) ? integer(key) : Result<int>(fallback);
  }
  Result<float> number_or(const char* key, float fallback) const {
    if (!has(key)) return fallback;
    if (!json_[key].is_number())
      return bad_file("{}: field {} is {}, expected a number", where_, key, json_[key].dump());
    return json_[key].get<float>();
  }
  Result<bool> flag_or(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!json_[key].is_boolean())
      return bad_file("{}: field {} is {}, expected true or false", where_, key, json_[key].dump());
    return json_[key].get<bool>();
  }
  Result<std::string> text_or(const char* key, std::string fallback) const {
    if (!has(key)) return fallback;
    if (!json_[key].is_string())
      return bad_file("{}: field {} is {}, expected a string", where_, key, json_[key].dump());
    return json_[key].get<std::string>();
  }

 private:
  const io::Json& json_;
  std::string_view where_;
};

Result<RopeScaling> rope_scaling(const Fields& f, int n_ctx_train, std::string_view where) {
  RopeScaling s;
  // Both spellings in use: "rope_type" and, older, "type".
  RIDGE_TRY(const std::string old_type, f.text_or("type", "default"));
  RIDGE_TRY(const std::string type, f.text_or("rope_type", old_type));
  if (type == "default") return s;
  if (type == "linear") s.kind = RopeScaling::Kind::linear;
  else if (type == "yarn") s.kind = RopeScaling::Kind::yarn;
  else if (type == "llama3") s.kind = RopeScaling::Kind::llama3;
  else
    return bad_file("{}: rope_scaling type '{}' is not supported (there are: default, linear, yarn, llama3)", where,
                    type);
  RIDGE_TRY(s.factor, f.number_or("factor", 1.0f));
  RIDGE_TRY(s.original_context, f.integer_or("original_max_position_embeddings", n_ctx_train));
  RIDGE_TRY(s.attention_factor, f.number_or("attention_factor", 0.0f));
  RIDGE_TRY(s.beta_fast, f.number_or("beta_fast", s.beta_fast));
  RIDGE_TRY(s.beta_slow, f.number_or("beta_slow", s.beta_slow));
  RIDGE_TRY(s.low_freq_factor, f.number_or("low_freq_factor", s.low_freq_factor));
  RIDGE_TRY(s.high_freq_factor, f.number_or("high_freq_factor", s.high_freq_factor));
  return s;
}

}  // namespace

Result<Config> config_from_hf(std::string_view config_json, std::string_view where) {
  RIDGE_TRY(const io::Json json, io::parse_json(config_json, where));
  if (!json.is_object()) return bad_file("{}: expected a JSON object", where);
  const Fields f(json, where);
  RIDGE_TRY(const std::string type, f.text_or("model_type", ""));
  const Arch* arch = nullptr;
  std::string known;
  for (const Arch& a : arch_list()) {
    const bool by_class = !f.has("model_type") && f.has("architectures") && f.at("architectures").is_array() &&
                          !f.at("architectures").empty() && f.at("architectures")[0] == a.hf_class;
    if (a.hf_type.empty()) continue;  // a second name of a GGUF architecture
    if (a.hf_type == type || by_class) arch = &a;
    known += (known.empty() ? "" : ", ") + std::string(a.hf_type);
  }
  if (!arch) return bad_file("{}: model_type '{}' is not supported (there are: {})", where, type, known);

  Config c;
  c.arch = arch->same_as.empty() ? arch->name : arch->same_as;
  RIDGE_TRY(c.n_layers, f.integer("num_hidden_layers"));
  RIDGE_TRY(c.d_model, f.integer("hidden_size"));
  RIDGE_TRY(c.d_ff, f.integer("intermediate_size"));
  RIDGE_TRY(c.n_heads, f.integer("num_attention_heads"));
  if (c.n_heads < 1) return bad_file("{}: num_attention_heads is {}, expected 1 or more", where, c.n_heads);
  RIDGE_TRY(c.n_kv_heads, f.integer_or("num_key_value_heads", c.n_heads));
  RIDGE_TRY(c.head_dim, f.integer_or("head_dim", c.d_model / c.n_heads));
  RIDGE_TRY(c.vocab_size, f.integer("vocab_size"));
  RIDGE_TRY(c.n_ctx_train, f.integer("max_position_embeddings"));
  RIDGE_TRY(c.rms_eps, f.number_or("rms_norm_eps", 1e-6f));
  RIDGE_TRY(c.rope_theta, f.number_or("rope_theta", 10000.0f));
  RIDGE_TRY(c.tied_output, f.flag_or("tie_word_embeddings", false));
  RIDGE_TRY(c.qkv_bias, f.flag_or("attention_bias", arch->qkv_bias));
  RIDGE_TRY(const bool mlp_bias, f.flag_or("mlp_bias", false));
  RIDGE_TRY(const bool sliding, f.flag_or("use_sliding_window", false));
  RIDGE_TRY(const std::string activation, f.text_or("hidden_act", std::string(activation_name(arch->activation))));
  if (mlp_bias) return bad_file("{}: mlp_bias is true (not supported)", where);
  if (sliding) return bad_file("{}: use_sliding_window is true (not supported)", where);
  RIDGE_TRY(const int window, arch->windowed ? f.integer_or("sliding_window", 0) : Result<int>(0));
  if (window > 0)
    return bad_file("{}: sliding_window is {} (not supported; models that have null there are)", where, window);
  const Result<Activation> known_activation = find_activation(activation);
  if (!known_activation) return bad_file("{}: hidden_act {}", where, known_activation.error().message);
  c.activation = *known_activation;
  if (arch->bitnet && f.has("quantization_config") && f.at("quantization_config").is_object()) {
    const Fields quantization(f.at("quantization_config"), where);
    RIDGE_TRY(const std::string mode, quantization.text_or("quantization_mode", "offline"));
    if (mode != "online")
      return bad_file(
          "{}: quantization_mode '{}' is not supported (packed weights; use the directory with bf16 master "
          "weights, mode 'online')",
          where, mode);
  }
  // transformers 5 writes rope_parameters in place of rope_scaling and rope_theta.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!f.has(key)) continue;
    if (!f.at(key).is_object()) return bad_file("{}: field {} is not an object", where, key);
    const Fields scaling(f.at(key), where);
    RIDGE_TRY(c.rope_scaling, rope_scaling(scaling, c.n_ctx_train, where));
    RIDGE_TRY(c.rope_theta, scaling.number_or("rope_theta", c.rope_theta));
  }
  c.rope_dim = c.head_dim;
  c.rope_pairs = RopePairs::halves;
  c.qk_norm = arch->qk_norm;
  c.sub_norm = c.ternary = arch->bitnet;
  RIDGE_TRY_STATUS(check_config(c, where));
  return c;
}

}  // namespace ridge
