// Hugging Face config.json -> Config.
#include <algorithm>
#include <cmath>

#include "io/json.h"
#include "model/arch/arch.h"
#include "model/arch/keys.h"

namespace ridge {
namespace {

/// Typed access to a JSON object with messages that name the field, which keeps account of the fields that were read.
class Fields {
 public:
  Fields(const io::Json& json, std::string_view where) : json_(json), where_(where) {}

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  const io::Json& at(const char* key) const {
    read_.insert(key);
    return json_[key];
  }
  Result<int> integer(const char* key) const {
    if (!has(key)) return bad_file("{}: field {} is missing", where_, key);
    const io::Json& value = at(key);
    if (!value.is_number_integer() || value < 0 || value > (1 << 30))
      return bad_file("{}: field {} is {}, expected an integer from 0 to 2^30", where_, key, value.dump());
    return value.get<int>();
  }
  Result<int> integer_or(const char* key, int fallback) const {
    return has(key) ? integer(key) : Result<int>(fallback);
  }
  Result<float> number_or(const char* key, float fallback) const {
    if (!has(key)) return fallback;
    const io::Json& value = at(key);
    if (!value.is_number()) return bad_file("{}: field {} is {}, expected a number", where_, key, value.dump());
    return value.get<float>();
  }
  Result<bool> flag_or(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    const io::Json& value = at(key);
    if (!value.is_boolean()) return bad_file("{}: field {} is {}, expected true or false", where_, key, value.dump());
    return value.get<bool>();
  }
  Result<std::string> text_or(const char* key, std::string fallback) const {
    if (!has(key)) return fallback;
    const io::Json& value = at(key);
    if (!value.is_string()) return bad_file("{}: field {} is {}, expected a string", where_, key, value.dump());
    return value.get<std::string>();
  }
  /// Refuses a value that differs from what other fields say.
  Status same(const char* key, int value) const {
    RIDGE_TRY(const int found, integer_or(key, value));
    if (found == value) return {};
    return bad_file("{}: {} is {}, other fields say {} (not supported)", where_, key, found, value);
  }
  const std::set<std::string, std::less<>>& read() const { return read_; }

 private:
  const io::Json& json_;
  std::string_view where_;
  mutable std::set<std::string, std::less<>> read_;
};

/// LongRoPE's factors of one kind; their number is checked where the size of a head is known.
Result<std::vector<float>> long_factors(const Fields& f, const char* key, std::string_view where) {
  std::vector<float> factors;
  if (!f.has(key) || !f.at(key).is_array()) return bad_file("{}: rope_scaling's {} is not a list", where, key);
  for (const io::Json& value : f.at(key)) {
    if (!value.is_number() || !(value.get<float>() > 0))
      return bad_file("{}: rope_scaling's {} holds {}, expected positive numbers", where, key, value.dump());
    factors.push_back(value.get<float>());
  }
  return factors;
}

Result<RopeScaling> rope_scaling(const Fields& f, int n_ctx_train, int original_context, std::string_view where) {
  RopeScaling s;
  // Both spellings in use: "rope_type" and, older, "type".
  RIDGE_TRY(const std::string old_type, f.text_or("type", "default"));
  RIDGE_TRY(const std::string type, f.text_or("rope_type", old_type));
  if (type == "default" || type == "mrope") return s;  // sections of positions in images, which texts do not have
  if (type == "dynamic" && f.has("alpha")) return s;   // a larger base (config_from_hf)
  if (type == "linear") s.kind = RopeScaling::Kind::linear;
  else if (type == "proportional") s.kind = RopeScaling::Kind::proportional;
  else if (type == "yarn") s.kind = RopeScaling::Kind::yarn;
  else if (type == "llama3") s.kind = RopeScaling::Kind::llama3;
  else if (type == "longrope" || type == "su") s.kind = RopeScaling::Kind::longrope;
  else
    return bad_file(
        "{}: rope_scaling type '{}' is not supported (there are: default, linear, proportional, yarn, llama3, "
        "longrope)",
        where, type);
  RIDGE_TRY(s.factor, f.number_or("factor", 1.0f));
  if (s.kind == RopeScaling::Kind::linear || s.kind == RopeScaling::Kind::proportional) return s;
  RIDGE_TRY(s.original_context, f.integer_or("original_max_position_embeddings", original_context));
  if (s.kind == RopeScaling::Kind::llama3) {
    RIDGE_TRY(s.low_freq_factor, f.number_or("low_freq_factor", s.low_freq_factor));
    RIDGE_TRY(s.high_freq_factor, f.number_or("high_freq_factor", s.high_freq_factor));
    return s;
  }
  RIDGE_TRY(s.attention_factor, f.number_or("attention_factor", 0.0f));
  if (s.kind == RopeScaling::Kind::yarn) {
    RIDGE_TRY(s.beta_fast, f.number_or("beta_fast", s.beta_fast));
    RIDGE_TRY(s.truncate, f.flag_or("truncate", true));
    RIDGE_TRY(s.beta_slow, f.number_or("beta_slow", s.beta_slow));
  }
  if (s.kind == RopeScaling::Kind::longrope) {
    RIDGE_TRY(s.short_factors, long_factors(f, "short_factor", where));
    RIDGE_TRY(s.long_factors, long_factors(f, "long_factor", where));
    const double factor = double(n_ctx_train) / std::max(1, s.original_context);
    if (s.attention_factor == 0)
      s.attention_factor = factor > 1 ? float(std::sqrt(1 + std::log(factor) / std::log(s.original_context))) : 1;
  }
  return s;
}

/// The experts of Ernie 4.5: softmax scores, chosen with a bias.
Status read_moe_experts(const Fields& f, Config& c, std::string_view where) {
  RIDGE_TRY(c.n_experts, f.integer("moe_num_experts"));
  RIDGE_TRY(c.n_experts_used, f.integer("moe_k"));
  RIDGE_TRY(c.d_ff_expert, f.integer("moe_intermediate_size"));
  RIDGE_TRY(const int n_shared, f.integer_or("moe_num_shared_experts", 0));
  c.set_shared_experts(n_shared);
  c.experts_renormalised = true;
  RIDGE_TRY(const int first, f.integer_or("moe_layer_start_index", 1));
  RIDGE_TRY_STATUS(f.same("moe_layer_end_index", c.n_layers - 1));
  RIDGE_TRY_STATUS(f.same("moe_layer_interval", 1));
  c.set_dense_in_front(first);
  RIDGE_TRY(const bool bias, f.flag_or("moe_use_aux_free", true));
  if (!bias) return bad_file("{}: moe_use_aux_free is false (not supported)", where);
  return {};
}

/// The experts of DeepSeek-V2 and V3, and of models that took them over.
Status read_grouped_experts(const Fields& f, const Arch& arch, Config& c, std::string_view where) {
  if (arch.experts_as_moe) return read_moe_experts(f, c, where);
  RIDGE_TRY(c.n_experts, f.integer("n_routed_experts"));
  if (c.n_experts < 1) return bad_file("{}: n_routed_experts is {}, expected 1 or more", where, c.n_experts);
  RIDGE_TRY(c.n_experts_used, f.integer("num_experts_per_tok"));
  RIDGE_TRY(c.d_ff_expert, f.integer("moe_intermediate_size"));
  RIDGE_TRY(const int n_shared, f.integer_or("n_shared_experts", 0));
  c.set_shared_experts(n_shared);
  RIDGE_TRY(c.experts_renormalised, f.flag_or("norm_topk_prob", arch.experts_renormalised));
  // V2's own code and transformers differ there.
  if (c.experts_renormalised && !arch.experts_renormalised)
    return bad_file("{}: norm_topk_prob is true (supported with a softmax: false)", where);
  const std::string_view scores = arch.sigmoid_router ? "sigmoid" : "softmax";
  const std::string_view groups = arch.sigmoid_router ? "noaux_tc" : "group_limited_greedy";
  RIDGE_TRY(const std::string scoring, f.text_or("scoring_func", std::string(scores)));
  RIDGE_TRY(const std::string method, f.text_or("topk_method", arch.sigmoid_router ? "noaux_tc" : "greedy"));
  const bool greedy = !arch.sigmoid_router && method == "greedy";  // the best experts, whatever their groups
  if (scoring != scores) return bad_file("{}: scoring_func is '{}' (supported: {})", where, scoring, scores);
  if (method != groups && !greedy) return bad_file("{}: topk_method is '{}' (supported: {})", where, method, groups);
  RIDGE_TRY(const int n_groups, f.integer_or("n_group", 1));
  RIDGE_TRY(const int n_used, f.integer_or("topk_group", 1));
  c.n_expert_groups = greedy ? 1 : n_groups;
  c.n_groups_used = greedy ? 1 : n_used;
  RIDGE_TRY(c.expert_scale, f.number_or("routed_scaling_factor", 1.0f));
  RIDGE_TRY(const int n_dense, f.integer_or("first_k_dense_replace", 0));
  c.set_dense_in_front(n_dense);
  RIDGE_TRY(const int every, f.integer_or("moe_layer_freq", 1));
  if (every != 1) return bad_file("{}: moe_layer_freq is {} (supported: 1)", where, every);
  return {};
}

/// The widths of latent attention.
Status read_latent(const Fields& f, const Arch& arch, Config& c, std::string_view where) {
  RIDGE_TRY(c.kv_rank, f.integer("kv_lora_rank"));
  RIDGE_TRY(c.q_rank, f.integer_or("q_lora_rank", 0));
  RIDGE_TRY(c.nope_dim, f.integer("qk_nope_head_dim"));
  RIDGE_TRY(c.rope_dim, f.integer("qk_rope_head_dim"));
  RIDGE_TRY(c.value_dim, f.integer("v_head_dim"));
  RIDGE_TRY_STATUS(f.same("qk_head_dim", c.nope_dim + c.rope_dim));
  RIDGE_TRY(const bool interleaved, f.flag_or("rope_interleave", true));
  if (!interleaved) return bad_file("{}: rope_interleave is false (not supported)", where);
  if (c.qkv_bias) return bad_file("{}: attention_bias is true (not supported with latent attention)", where);
  if (c.kv_rank < 1 || c.kv_rank > 1024 || c.rope_dim > 1024)
    return bad_file("{}: kv_lora_rank is {}, qk_rope_head_dim {}, expected 1 to 1024", where, c.kv_rank, c.rope_dim);
  c.n_kv_heads = 1;
  c.head_dim = c.kv_rank + c.rope_dim;
  if (!arch.indexed) return {};
  RIDGE_TRY(c.index_heads, f.integer("index_n_heads"));
  RIDGE_TRY(c.index_dim, f.integer("index_head_dim"));
  RIDGE_TRY(c.index_top_k, f.integer("index_topk"));
  if (c.index_top_k < 1) return bad_file("{}: index_topk is {}, expected 1 or more", where, c.index_top_k);
  const bool own = arch.index_pairs == RopePairs::interleaved;
  RIDGE_TRY(const bool index_interleaved, f.flag_or("indexer_rope_interleave", own));
  if (index_interleaved != own)
    return bad_file("{}: indexer_rope_interleave is {} (not supported)", where, index_interleaved);
  return {};
}

/// YaRN's magnitude as the quotient of two, where a file has both.
Status read_magnitudes(const Fields& f, RopeScaling& s) {
  if (s.kind != RopeScaling::Kind::yarn) return {};
  RIDGE_TRY(const float magnitude, f.number_or("mscale", 0.0f));
  RIDGE_TRY(const float of_scores, f.number_or("mscale_all_dim", 0.0f));
  if (s.attention_factor == 0 && magnitude != 0 && of_scores != 0)
    s.attention_factor = yarn_magnitude(s.factor, magnitude) / yarn_magnitude(s.factor, of_scores);
  return {};
}

/// YaRN of latent attention stretches the scores in place of cosines and sines.
Status read_score_factor(const Fields& f, RopeScaling& s, std::string_view where) {
  if (s.kind != RopeScaling::Kind::yarn) return {};
  RIDGE_TRY(const float magnitude, f.number_or("mscale", 0.0f));
  RIDGE_TRY(const float of_scores, f.number_or("mscale_all_dim", 0.0f));
  if (magnitude != of_scores || !(magnitude > 0) || s.attention_factor != 0)
    return bad_file("{}: YaRN with mscale {}, mscale_all_dim {}, attention_factor {} (supported: two equal mscales)",
                    where, magnitude, of_scores, s.attention_factor);
  s.attention_factor = 1;
  s.score_factor = 0.1f * of_scores;
  return {};
}

Status read_experts(const Fields& f, const Arch& arch, Config& c, std::string_view where) {
  if (arch.grouped_experts) return read_grouped_experts(f, arch, c, where);
  const char* const count = arch.gpt_oss || arch.block_sparse || arch.mamba ? "num_local_experts" : "num_experts";
  RIDGE_TRY(c.n_experts, f.integer(count));
  if (c.n_experts < 1) return bad_file("{}: {} is {}, expected 1 or more", where, count, c.n_experts);
  RIDGE_TRY(c.n_experts_used, f.integer(arch.gemma4 ? "top_k_experts" : "num_experts_per_tok"));
  RIDGE_TRY_STATUS(f.same("experts_per_token", c.n_experts_used));
  RIDGE_TRY_STATUS(f.same("num_local_experts", c.n_experts));
  RIDGE_TRY(c.d_ff_expert,
            f.integer(arch.gpt_oss || arch.block_sparse || arch.mamba ? "intermediate_size" : "moe_intermediate_size"));
  RIDGE_TRY(const float limit, f.number_or("swiglu_limit", 7.0f));
  if (limit != 7) return bad_file("{}: swiglu_limit is {} (supported: 7)", where, limit);
  RIDGE_TRY(c.d_ff_shared, f.integer_or("shared_expert_intermediate_size", arch.gemma4 ? c.d_ff : 0));
  RIDGE_TRY(const std::string scoring, f.text_or("scoring_func", arch.sigmoid_router ? "sigmoid" : "softmax"));
  if ((scoring == "sigmoid") != arch.sigmoid_router || (scoring != "sigmoid" && scoring != "softmax"))
    return bad_file("{}: scoring_func is '{}' (not supported)", where, scoring);
  RIDGE_TRY(const bool choice_bias,
            f.flag_or(arch.short_conv ? "use_expert_bias" : "use_routing_bias", arch.choice_bias));
  if (choice_bias != arch.choice_bias)
    return bad_file("{}: use_routing_bias is {} (not supported)", where, choice_bias);
  RIDGE_TRY(c.experts_renormalised, f.flag_or("norm_topk_prob", arch.experts_renormalised));
  RIDGE_TRY(c.expert_scale, f.number_or("routed_scaling_factor", 1.0f));
  RIDGE_TRY(const int every, f.integer_or("decoder_sparse_step", 1));
  RIDGE_TRY(const int n_dense, f.integer_or("num_dense_layers", 0));
  const io::Json none = io::Json::array();
  const io::Json& dense = f.has("mlp_only_layers") ? f.at("mlp_only_layers") : none;
  if (!dense.is_array()) return bad_file("{}: mlp_only_layers is not a list", where);
  for (int i = 0; i < c.n_layers; ++i)
    if (i < n_dense || every < 1 || (i + 1) % every != 0 || std::ranges::count(dense, io::Json(i)) > 0)
      c.dense_layers.push_back(i);
  return {};
}

Status read_delta(const Fields& f, Config& c, std::string_view where) {
  RIDGE_TRY(c.delta.n_key_heads, f.integer("linear_num_key_heads"));
  RIDGE_TRY(c.delta.n_value_heads, f.integer("linear_num_value_heads"));
  RIDGE_TRY(c.delta.key_dim, f.integer("linear_key_head_dim"));
  RIDGE_TRY(c.delta.value_dim, f.integer("linear_value_head_dim"));
  RIDGE_TRY(c.delta.kernel, f.integer("linear_conv_kernel_dim"));
  RIDGE_TRY(c.delta_period, f.integer_or("full_attention_interval", 4));
  RIDGE_TRY(const bool gate, f.flag_or("attn_output_gate", true));
  if (!gate) return bad_file("{}: attn_output_gate is false (not supported)", where);
  if (c.delta.n_key_heads < 1 || c.delta_period < 1)
    return bad_file("{}: linear_num_key_heads is {}, full_attention_interval {}: expected 1 or more", where,
                    c.delta.n_key_heads, c.delta_period);
  if (!f.has("layer_types")) return {};
  const io::Json& types = f.at("layer_types");
  if (!types.is_array() || ssize(types) != c.n_layers)
    return bad_file("{}: layer_types is not a list of {} layers", where, c.n_layers);
  int full = 0;
  while (full < c.n_layers && types[size_t(full)] == "linear_attention") ++full;
  c.delta_period = full + 1;
  for (int i = 0; i < c.n_layers; ++i)
    if (types[size_t(i)] != (c.has_delta(i) ? "linear_attention" : "full_attention"))
      return bad_file("{}: layer_types has {} at layer {} (supported: a period of linear layers, the last one full)",
                      where, types[size_t(i)].dump(), i);
  return {};
}

/// The period of layers that slide: a number, or a letter a layer, L of one that slides, and G of the last one.
Status read_window_pattern(const Fields& f, const Arch& arch, Config& c, std::string_view where) {
  constexpr const char* kPattern = "sliding_window_pattern";
  if (!f.has(kPattern) || !f.at(kPattern).is_string()) {
    RIDGE_TRY(c.window_period, f.integer_or(kPattern, arch.window_period));
    return {};
  }
  RIDGE_TRY(const std::string letters, f.text_or(kPattern, ""));
  if (letters.empty() || letters.find_first_not_of('L') != letters.size() - 1 || letters.back() != 'G')
    return bad_file("{}: {} is '{}' (supported: L of sliding layers, and a G behind them)", where, kPattern, letters);
  c.window_period = int(letters.size());
  return {};
}

/// LFM2's own names of fields, in the names of the others.
void use_lfm_names(io::Json& json) {
  // block_ff_dim counts where both widths are there, as in transformers.
  for (const auto& [from, to] : {std::pair("norm_eps", "rms_norm_eps"),
                                 {"tie_embedding", "tie_word_embeddings"},
                                 {"block_ff_dim", "intermediate_size"}})
    if (json.contains(from)) {
      json[to] = json[from];
      json.erase(from);
    }
}

/// The layers that keep a state, where a list has the kind of each.
Status read_state_layers(const Fields& f, Config& c, std::string_view state, std::string_view attention,
                         std::string_view where) {
  if (!f.has("layer_types")) return bad_file("{}: layer_types is missing", where);
  const io::Json& types = f.at("layer_types");
  for (int i = 0; i < c.n_layers; ++i) {
    if (!types.is_array() || ssize(types) != c.n_layers || (types[size_t(i)] != state && types[size_t(i)] != attention))
      return bad_file("{}: layer_types is {} (supported: {} and {} of {} layers)", where, types.dump(), state,
                      attention, c.n_layers);
    if (types[size_t(i)] == state) c.state_layers.push_back(i);
  }
  return {};
}

/// The layers that have short convolutions, and the width of the feed-forward, which may follow from another one.
Status read_short_conv(const Fields& f, Config& c, std::string_view where) {
  RIDGE_TRY(c.conv_kernel, f.integer("conv_L_cache"));
  RIDGE_TRY(const bool bias, f.flag_or("conv_bias", false));
  RIDGE_TRY(const bool rope, f.flag_or("use_pos_enc", true));
  RIDGE_TRY(const bool swiglu, f.flag_or("block_use_swiglu", true));
  if (bias || !rope || !swiglu)
    return bad_file("{}: conv_bias {}, use_pos_enc {}, block_use_swiglu {} (supported: false, true, true)", where, bias,
                    rope, swiglu);
  for (const char* key : {"conv_dim", "conv_dim_out", "block_dim"}) RIDGE_TRY_STATUS(f.same(key, c.d_model));
  if (f.has("full_attn_idxs") && !f.has("layer_types")) {
    const io::Json& attending = f.at("full_attn_idxs");
    for (const io::Json& i : attending)
      if (!i.is_number_integer() || i < 0 || i >= c.n_layers)
        return bad_file("{}: full_attn_idxs holds {}, expected 0 to {}", where, i.dump(), c.n_layers - 1);
    for (int i = 0; i < c.n_layers; ++i)
      if (std::ranges::count(attending, io::Json(i)) == 0) c.state_layers.push_back(i);
  } else {
    RIDGE_TRY_STATUS(read_state_layers(f, c, "conv", "full_attention", where));
  }
  RIDGE_TRY(const bool adjust, f.flag_or("block_auto_adjust_ff_dim", false));
  RIDGE_TRY(const float times, f.number_or("block_ffn_dim_multiplier", 1.0f));
  RIDGE_TRY(const int multiple, f.integer_or("block_multiple_of", 256));
  if (!adjust) return {};
  if (multiple < 1 || !(times > 0 && times <= 64))
    return bad_file("{}: block_multiple_of is {}, block_ffn_dim_multiplier {}", where, multiple, times);
  const auto width = int64_t(double(times) * double(2 * int64_t(c.d_ff) / 3));
  c.d_ff = int(std::min<int64_t>((width + multiple - 1) / multiple * multiple, 1 << 30));
  return {};
}

/// Granite 4's layers of Mamba2, and the width of the feed-forward that every token takes.
Status read_mamba(const Fields& f, Config& c, std::string_view where) {
  RIDGE_TRY(c.mamba.n_heads, f.integer("mamba_n_heads"));
  RIDGE_TRY(c.mamba.n_groups, f.integer_or("mamba_n_groups", 1));
  RIDGE_TRY(c.mamba.state_dim, f.integer("mamba_d_state"));
  RIDGE_TRY(c.mamba.kernel, f.integer_or("mamba_d_conv", 4));
  RIDGE_TRY(const int expand, f.integer_or("mamba_expand", 2));
  if (c.mamba.n_heads < 1 || expand < 1 || int64_t(expand) * c.d_model % c.mamba.n_heads != 0)
    return bad_file("{}: mamba_expand {} times hidden_size {} does not fit mamba_n_heads {}", where, expand, c.d_model,
                    c.mamba.n_heads);
  c.mamba.head_dim = int(int64_t(expand) * c.d_model / c.mamba.n_heads);
  if (f.has("mamba_d_head") && !f.at("mamba_d_head").is_string())
    RIDGE_TRY_STATUS(f.same("mamba_d_head", c.mamba.head_dim));
  RIDGE_TRY(const bool conv_bias, f.flag_or("mamba_conv_bias", true));
  RIDGE_TRY(const bool proj_bias, f.flag_or("mamba_proj_bias", false));
  if (!conv_bias || proj_bias)
    return bad_file("{}: mamba_conv_bias {}, mamba_proj_bias {} (supported: true, false)", where, conv_bias, proj_bias);
  RIDGE_TRY_STATUS(read_state_layers(f, c, "mamba", "attention", where));
  if (c.state_layers.empty()) c.mamba = {};
  RIDGE_TRY(const std::string positions, f.text_or("position_embedding_type", "nope"));
  if (positions != "nope" && positions != "rope")
    return bad_file("{}: position_embedding_type is '{}' (supported: nope, rope)", where, positions);
  if (positions == "nope") c.nope_period = 1;
  RIDGE_TRY(const int shared, f.integer("shared_intermediate_size"));
  (c.n_experts > 0 ? c.d_ff_shared : c.d_ff) = shared;
  return {};
}

constexpr const char* kBlockPattern = "hybrid_override_pattern";

/// Nemotron-H's layers, a letter each: M of Mamba2, * of attention, - of a feed-forward, E of experts.
Status read_one_block(const Fields& f, Config& c, std::string_view where) {
  RIDGE_TRY(const std::string letters, f.text_or(kBlockPattern, ""));
  if (ssize(letters) != c.n_layers || letters.find_first_not_of("M*-E") != std::string::npos)
    return bad_file("{}: {} is '{}', expected a letter of M, *, - and E for each of {} layers", where, kBlockPattern,
                    letters, c.n_layers);
  for (int i = 0; i < c.n_layers; ++i) {
    const char letter = letters[size_t(i)];
    if (letter == 'M') c.state_layers.push_back(i);
    if (letter == '-' || letter == 'E') c.ff_layers.push_back(i);
    if (letter == '-' && c.n_experts > 0) c.dense_layers.push_back(i);
  }
  if (c.state_layers.empty() || c.ff_layers.empty())
    return bad_file("{}: {} is '{}' (supported: with Mamba2 and feed-forwards)", where, kBlockPattern, letters);
  RIDGE_TRY(c.mamba.n_heads, f.integer("mamba_num_heads"));
  RIDGE_TRY(c.mamba.head_dim, f.integer("mamba_head_dim"));
  RIDGE_TRY(c.mamba.n_groups, f.integer("n_groups"));
  RIDGE_TRY(c.mamba.state_dim, f.integer("ssm_state_size"));
  RIDGE_TRY(c.mamba.kernel, f.integer("conv_kernel"));
  RIDGE_TRY(const bool conv_bias, f.flag_or("use_conv_bias", true));
  RIDGE_TRY(const bool proj_bias, f.flag_or("mamba_proj_bias", false));
  RIDGE_TRY(const std::string activation, f.text_or("mamba_hidden_act", "silu"));
  if (!conv_bias || proj_bias || activation != "silu")
    return bad_file("{}: use_conv_bias {}, mamba_proj_bias {}, mamba_hidden_act '{}' (supported: true, false, silu)",
                    where, conv_bias, proj_bias, activation);
  if (f.has("time_step_limit")) {
    const io::Json& limit = f.at("time_step_limit");
    const bool free = limit.is_array() && limit.size() == 2 && limit[0].is_number() && limit[1].is_number() &&
                      limit[0] == 0 && limit[1].get<double>() > 1e30;
    if (!free) return bad_file("{}: time_step_limit is {} (supported: 0 to Infinity)", where, limit.dump());
  }
  if (c.n_experts > 0) {
    RIDGE_TRY(const int n_shared, f.integer_or("n_shared_experts", 0));
    if (n_shared > 1) return bad_file("{}: n_shared_experts is {} (supported: 0, 1)", where, n_shared);
    RIDGE_TRY(const int width, f.integer_or("moe_shared_expert_intermediate_size", c.d_ff_shared));
    c.d_ff_shared = n_shared * width;
  }
  RIDGE_TRY(const float other_eps, f.number_or("rms_norm_eps", c.rms_eps));
  if (other_eps != c.rms_eps)
    return bad_file("{}: rms_norm_eps is {}, layer_norm_epsilon {} (supported: equal ones)", where, other_eps,
                    c.rms_eps);
  c.nope_period = 1;
  return {};
}

/// The layers that slide, where a list names each layer's kind.
Status use_layer_types(const Fields& f, Config& c, std::string_view where) {
  if (!f.has("layer_types")) return {};
  const io::Json& types = f.at("layer_types");
  std::vector<bool> slides;
  for (const io::Json& type : types) {
    if (type != "sliding_attention" && type != "full_attention")
      return bad_file("{}: layer_types has {} (supported: sliding_attention, full_attention)", where, type.dump());
    slides.push_back(type == "sliding_attention");
  }
  if (!types.is_array() || ssize(types) != c.n_layers)
    return bad_file("{}: layer_types is not a list of {} layers", where, c.n_layers);
  c.set_sliding(slides);
  return {};
}

/// Gemma 4's heads of both kinds of layers.
Status read_gemma4(const Fields& f, Config& c, std::string_view where) {
  if (!f.has("layer_types")) return bad_file("{}: layer_types is missing", where);
  RIDGE_TRY(const bool k_is_v, f.flag_or("attention_k_eq_v", false));
  RIDGE_TRY(const int full_dim, f.integer_or("global_head_dim", c.head_dim));
  RIDGE_TRY(const int full_heads, f.integer_or("num_global_key_value_heads", c.n_kv_heads));
  if (full_dim != c.head_dim) c.window_head_dim = std::exchange(c.head_dim, full_dim);
  if (k_is_v && full_heads != c.n_kv_heads) c.window_kv_heads = std::exchange(c.n_kv_heads, full_heads);
  c.full_k_is_v = k_is_v;
  RIDGE_TRY(c.shared_kv_layers, f.integer_or("num_kv_shared_layers", 0));
  RIDGE_TRY(c.wide_sharing, f.flag_or("use_double_wide_mlp", false));
  RIDGE_TRY(c.d_layer_input, f.integer_or("hidden_size_per_layer_input", 0));
  if (c.shared_kv_layers == 0) c.wide_sharing = false;
  if (c.d_layer_input > 0) RIDGE_TRY_STATUS(f.same("vocab_size_per_layer_input", c.vocab_size));
  RIDGE_TRY(c.logit_cap, f.number_or("final_logit_softcapping", 0.0f));
  return {};
}

/// Layers that attend without RoPE, where config.json lists them: those that GGUF files of the architecture mean.
Status check_nope(const Fields& f, const Config& c, std::string_view where) {
  RIDGE_TRY_STATUS(f.same("no_rope_layer_interval", c.nope_period));
  if (!f.has("no_rope_layers")) return {};
  const io::Json& listed = f.at("no_rope_layers");  // 1 of a layer with RoPE
  for (int i = 0; i < c.n_layers; ++i)
    if (!listed.is_array() || ssize(listed) != c.n_layers || listed[size_t(i)] != (c.has_rope(i) ? 1 : 0))
      return bad_file("{}: no_rope_layers is {} (supported: 0 in every layer of number {} and none else)", where,
                      listed.dump(), c.nope_period);
  return {};
}

/// Which matrices have biases. `attention_bias` is that of q, k, v and the output, where an architecture has no rule of
/// its own for q, k and v.
Status read_biases(const Fields& f, const Arch& arch, Config& c, std::string_view where) {
  RIDGE_TRY(const bool own, f.flag_or("qkv_bias", arch.qkv_bias));
  RIDGE_TRY(c.qkv_bias, f.flag_or("attention_bias", own));
  RIDGE_TRY(c.mlp_bias, f.flag_or("mlp_bias", false));
  const bool with_output = arch.gpt_oss || !arch.qkv_bias;
  c.o_bias = c.qkv_bias && with_output && (arch.gpt_oss || f.has("attention_bias"));
  if (arch.fused && c.qkv_bias) return bad_file("{}: attention_bias is true (not supported)", where);
  if ((arch.fused || arch.experts || arch.one_block) && c.mlp_bias)
    return bad_file("{}: mlp_bias is true (not supported)", where);
  return {};
}

/// Checks the fields beside the text_config of a model that also reads images: none of them may change the text's
/// model.
Status check_outer(const io::Json& outer, const io::Json& text, std::string_view where) {
  std::set<std::string, std::less<>> inner = {"text_config"};
  for (const auto& [key, value] : text.items()) inner.insert(key);
  for (const KeyRow& row : config_field_rows())
    if (row.use == KeyUse::used) inner.emplace(row.name);
  return check_config_fields(outer, "", inner, nullptr, where);
}

/// Whether a model has experts, of a type that has rows with them and without.
Result<bool> has_experts(const Fields& f, const Arch& arch) {
  if (arch.gemma4) return f.flag_or("enable_moe_block", false);
  if (arch.one_block) {
    RIDGE_TRY(const std::string letters, f.text_or(kBlockPattern, ""));
    return letters.find('E') != std::string::npos;
  }
  if (!arch.mamba) return arch.experts;
  RIDGE_TRY(const int n_experts, f.integer_or("num_local_experts", 0));
  return n_experts > 0;
}

/// The configuration of the text model: `json` itself, or the text_config of a model that also reads images.
Result<io::Json> text_of(io::Json json, std::string_view where) {
  std::string known;
  for (const Arch& a : arch_list()) {
    if (a.hf_outer.empty() || !json.contains("model_type") || json["model_type"] != a.hf_outer) continue;
    if (!json.contains("text_config") && json.contains("hidden_size")) {  // as older files of such models have it
      json["model_type"] = a.hf_type;
      return json;
    }
    if (!json.contains("text_config") || !json["text_config"].is_object())
      return bad_file("{}: text_config is not an object", where);
    io::Json text = json["text_config"];
    if (!text.contains("model_type")) text["model_type"] = a.hf_type;
    known += (known.empty() ? "" : ", ") + std::string(a.hf_type);
    if (text["model_type"] != a.hf_type) continue;
    RIDGE_TRY_STATUS(check_outer(json, text, where));
    if (constexpr const char* kTied = "tie_word_embeddings"; !text.contains(kTied) && json.contains(kTied))
      text[kTied] = json[kTied];
    return text;
  }
  if (known.empty()) return json;
  return bad_file("{}: text_config has model_type {} (supported in {}: {})", where,
                  json["text_config"].value("model_type", io::Json()).dump(), json["model_type"].dump(), known);
}

}  // namespace

Result<Config> config_from_hf(std::string_view config_json, std::string_view where, std::vector<std::string>* unknown) {
  RIDGE_TRY(io::Json json, io::parse_json(config_json, where));
  if (!json.is_object()) return bad_file("{}: expected a JSON object", where);
  RIDGE_TRY(json, text_of(std::move(json), where));
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
  RIDGE_TRY(const bool experts, has_experts(f, *arch));
  for (const Arch& a : arch_list())
    if (a.hf_type == arch->hf_type && a.experts == experts) arch = &a;
  const io::Json defaults = io::Json::parse(arch->hf_defaults);
  for (const auto& [key, value] : defaults.items())
    if (!json.contains(key)) json[key] = value;

  if (arch->short_conv) use_lfm_names(json);
  Config c;
  RIDGE_TRY(c.n_layers, f.integer("num_hidden_layers"));
  // Before anything is made for each layer.
  if (c.n_layers < 1 || c.n_layers > kMaxLayers)
    return bad_file("{}: n_layers is {}, expected 1 to {}", where, c.n_layers, kMaxLayers);
  RIDGE_TRY(c.d_model, f.integer("hidden_size"));
  RIDGE_TRY(c.d_ff,
            f.integer(arch->experts && !f.has("intermediate_size") ? "moe_intermediate_size" : "intermediate_size"));
  RIDGE_TRY(c.n_heads, f.integer("num_attention_heads"));
  if (c.n_heads < 1) return bad_file("{}: num_attention_heads is {}, expected 1 or more", where, c.n_heads);
  RIDGE_TRY(c.n_kv_heads, f.integer_or("num_key_value_heads", c.n_heads));
  RIDGE_TRY(c.head_dim, f.integer_or("head_dim", c.d_model / c.n_heads));
  RIDGE_TRY(c.vocab_size, f.integer("vocab_size"));
  RIDGE_TRY(c.n_ctx_train, f.integer("max_position_embeddings"));
  RIDGE_TRY(c.rms_eps, f.number_or(arch->layer_norm  ? "layer_norm_eps"
                                   : arch->one_block ? "layer_norm_epsilon"
                                                     : "rms_norm_eps",
                                   1e-6f));
  RIDGE_TRY(c.rope_theta, f.number_or("rope_theta", 10000.0f));
  RIDGE_TRY(c.tied_output, f.flag_or("tie_word_embeddings", false));
  RIDGE_TRY_STATUS(read_biases(f, *arch, c, where));
  RIDGE_TRY(const bool qk_norm, f.flag_or("use_qk_norm", arch->qk_norm));
  RIDGE_TRY(const bool sliding, f.flag_or("use_sliding_window", false));
  // Between tokens of an image alone.
  const bool of_images = f.has("use_bidirectional_attention") && f.at("use_bidirectional_attention") == "vision";
  RIDGE_TRY(const bool both_ways, of_images ? Result<bool>(false) : f.flag_or("use_bidirectional_attention", false));
  const char* const activation_key = arch->one_block              ? "mlp_hidden_act"
                                     : f.has("hidden_activation") ? "hidden_activation"
                                                                  : "hidden_act";
  RIDGE_TRY(const std::string activation, f.text_or(activation_key, std::string(activation_name(arch->activation))));
  if (qk_norm != arch->qk_norm && !arch->qk_norm_varies)
    return bad_file("{}: use_qk_norm is {} (not supported)", where, qk_norm);
  if (sliding) return bad_file("{}: use_sliding_window is true (not supported)", where);
  if (both_ways) return bad_file("{}: use_bidirectional_attention is true (not supported)", where);
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (f.has(key) && !(arch->gemma4 && key == std::string_view("final_logit_softcapping")))
      return bad_file("{}: {} is {} (not supported)", where, key, f.at(key).dump());
  RIDGE_TRY(c.window, arch->windowed ? f.integer_or("sliding_window", 0) : Result<int>(0));
  if (c.window > 0) {
    RIDGE_TRY_STATUS(read_window_pattern(f, *arch, c, where));
    RIDGE_TRY(c.window_rope_theta, f.number_or("rope_local_base_freq", arch->window_rope_theta));
    RIDGE_TRY_STATUS(use_layer_types(f, c, where));
  }
  if (arch->full_without_rope && !c.full_layers.empty())
    return bad_file("{}: layer_types have no period (supported: a period of sliding layers, the last one full)", where);
  if (arch->gemma4) RIDGE_TRY_STATUS(read_gemma4(f, c, where));
  if (arch->delta) RIDGE_TRY_STATUS(read_delta(f, c, where));
  if (arch->short_conv) RIDGE_TRY_STATUS(read_short_conv(f, c, where));
  if (arch->experts) RIDGE_TRY_STATUS(read_experts(f, *arch, c, where));
  if (arch->one_block) RIDGE_TRY_STATUS(read_one_block(f, c, where));
  else if (arch->mamba) RIDGE_TRY_STATUS(read_mamba(f, c, where));
  if (f.has("query_pre_attn_scalar")) {
    RIDGE_TRY(const float scalar, f.number_or("query_pre_attn_scalar", 0.0f));
    c.attention_scale = 1 / std::sqrt(scalar);
  }
  if (arch->multipliers) {
    RIDGE_TRY(c.attention_scale, f.number_or("attention_multiplier", 1.0f));
    RIDGE_TRY(c.embedding_scale, f.number_or("embedding_multiplier", 1.0f));
    RIDGE_TRY(c.residual_scale, f.number_or("residual_multiplier", 1.0f));
    RIDGE_TRY(c.logit_divisor, f.number_or("logits_scaling", 1.0f));
  }
  const Result<Activation> known_activation = find_activation(activation);
  if (!known_activation) return bad_file("{}: {} {}", where, activation_key, known_activation.error().message);
  const bool o_bias = c.o_bias;
  use_arch(*arch, c);
  c.o_bias = o_bias;
  if (!arch->gpt_oss) c.activation = *known_activation;
  if (arch->one_block && c.activation != Activation::relu2)
    return bad_file("{}: {} is '{}' (supported: relu2)", where, activation_key, activation);
  c.qk_norm = qk_norm;
  if (arch->qk_norm_after_rope) RIDGE_TRY_STATUS(f.same("attention_head_dim", c.head_dim));
  if (arch->hf_pairs == RopePairs::interleaved) {
    RIDGE_TRY(const std::string positions, f.text_or("position_embedding_type", "rope_gptj"));
    if (positions != "rope_gptj")
      return bad_file("{}: position_embedding_type is '{}' (supported: rope_gptj)", where, positions);
  }
  if (arch->nope_period > 0) {
    c.nope_period = arch->nope_period;
    RIDGE_TRY_STATUS(check_nope(f, c, where));
  }
  if (arch->logit_multiplier) {
    RIDGE_TRY(const float logit_scale, f.number_or("logit_scale", 1.0f));
    if (!(logit_scale > 0)) return bad_file("{}: logit_scale is {}, expected above 0", where, logit_scale);
    c.logit_divisor = 1 / logit_scale;
  }
  RIDGE_TRY(const int original_context, f.integer_or("original_max_position_embeddings", c.n_ctx_train));
  RIDGE_TRY(float rotary_share, f.number_or("partial_rotary_factor", 1.0f));
  // transformers 5 writes rope_parameters in place of rope_scaling and rope_theta: one object, or one a kind of layer.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!f.has(key)) continue;
    const io::Json* object = &f.at(key);
    if (object->is_object() && object->contains("full_attention")) {
      if (object->contains("sliding_attention") && (*object)["sliding_attention"].is_object()) {
        const Fields sliding_rope((*object)["sliding_attention"], where);
        RIDGE_TRY(c.window_rope_theta, sliding_rope.number_or("rope_theta", c.window_rope_theta));
        RIDGE_TRY(const std::string sliding_type, sliding_rope.text_or("rope_type", "default"));
        if (sliding_type != "default")
          return bad_file("{}: rope_type of sliding_attention is '{}' (supported: default)", where, sliding_type);
        RIDGE_TRY_STATUS(
            check_config_fields((*object)["sliding_attention"], "rope_scaling.", sliding_rope.read(), unknown, where));
      }
      object = &(*object)["full_attention"];
    }
    if (!object->is_object()) return bad_file("{}: field {} is not an object", where, key);
    const Fields scaling(*object, where);
    RIDGE_TRY(c.rope_scaling, rope_scaling(scaling, c.n_ctx_train, original_context, where));
    if (arch->latent) RIDGE_TRY_STATUS(read_score_factor(scaling, c.rope_scaling, where));
    else RIDGE_TRY_STATUS(read_magnitudes(scaling, c.rope_scaling));
    RIDGE_TRY(c.rope_theta, scaling.number_or("rope_theta", c.rope_theta));
    if (arch->position_scale) {
      RIDGE_TRY(c.position_scale, scaling.number_or("llama_4_scaling_beta", 0.0f));
      if (c.position_scale > 0) c.position_length = c.rope_scaling.original_context;
    }
    if (arch->qk_norm_after_rope) {  // Hunyuan's: a larger base
      RIDGE_TRY(const float alpha, scaling.number_or("alpha", 1.0f));
      if (alpha > 0) c.rope_theta *= float(std::pow(double(alpha), c.head_dim / (c.head_dim - 2.0)));
    }
    RIDGE_TRY(rotary_share, scaling.number_or("partial_rotary_factor", rotary_share));
    if (scaling.has("mrope_section")) {
      const io::Json& sections = scaling.at("mrope_section");
      if (!sections.is_array() || sections.size() > 4) return bad_file("{}: mrope_section is not a list of 4", where);
      c.rope_sections.assign(4, 0);
      for (size_t i = 0; i < sections.size(); ++i)
        if (sections[i].is_number_integer()) c.rope_sections[i] = sections[i].get<int64_t>();
    }
    RIDGE_TRY_STATUS(check_config_fields(*object, "rope_scaling.", scaling.read(), unknown, where));
  }
  if (!(rotary_share > 0 && rotary_share <= 1))
    return bad_file("{}: partial_rotary_factor is {}, expected above 0, at most 1", where, rotary_share);
  const int turned = int(float(c.head_dim) * rotary_share);
  if (arch->latent) RIDGE_TRY_STATUS(read_latent(f, *arch, c, where));
  else if (c.rope_scaling.kind == RopeScaling::Kind::proportional)
    c.rope_dim = c.head_dim, c.rope_scaling.turned_pairs = turned / 2;
  else c.rope_dim = turned;
  if (arch->block_sparse) {
    RIDGE_TRY(c.rope_dim, f.integer_or("rotary_dim", c.rope_dim));
  }
  for (const auto* factors : {&c.rope_scaling.short_factors, &c.rope_scaling.long_factors})
    if (c.rope_scaling.kind == RopeScaling::Kind::longrope && ssize(*factors) != c.rope_dim / 2)
      return bad_file("{}: LongRoPE has {} factors, expected {}, one a pair", where, factors->size(), c.rope_dim / 2);
  c.rope_pairs = arch->hf_pairs;
  RIDGE_TRY_STATUS(check_config(c, where));
  RIDGE_TRY_STATUS(check_config_fields(json, "", f.read(), unknown, where));
  return c;
}

}  // namespace ridge
