// GGUF metadata <-> Config.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "model/arch/arch.h"
#include "model/arch/keys.h"
#include "model/tensors.h"

namespace ridge {
namespace {

/// Reads the keys of one architecture with defaults for what a file may leave out, and keeps account of what it read.
class Keys {
 public:
  Keys(const io::Gguf& gguf, std::string_view arch) : gguf_(gguf), prefix_(std::string(arch) + ".") {}

  bool has(std::string_view key) const { return gguf_.has(prefix_ + std::string(key)); }
  Result<int> integer(std::string_view key) const {
    RIDGE_TRY(const int64_t value, gguf_.integer(take(key)));
    if (value < 0 || value > (1 << 30))
      return bad_file("{}: {}{} is {}, expected 0 to 2^30", gguf_.where, prefix_, key, value);
    return int(value);
  }
  Result<int> integer_or(std::string_view key, int fallback) const {
    return has(key) ? integer(key) : Result<int>(fallback);
  }
  Result<float> number_or(std::string_view key, float fallback) const {
    if (!has(key)) return fallback;
    RIDGE_TRY(const double value, gguf_.number(take(key)));
    return float(value);
  }
  Result<bool> flag_or(std::string_view key, bool fallback) const {
    return has(key) ? gguf_.flag(take(key)) : Result<bool>(fallback);
  }
  Result<std::string> text_or(std::string_view key, std::string fallback) const {
    return has(key) ? gguf_.text(take(key)) : Result<std::string>(std::move(fallback));
  }
  /// A count that some files give per layer: all layers must agree.
  Result<int> uniform_integer(std::string_view key, int n_layers) const {
    const std::string full = take(key);
    const auto entry = gguf_.metadata.find(full);
    const bool is_array =
        entry != gguf_.metadata.end() && (std::holds_alternative<std::vector<int64_t>>(entry->second) ||
                                          std::holds_alternative<std::vector<uint64_t>>(entry->second));
    if (!is_array) return integer(key);
    RIDGE_TRY(const std::vector<int64_t> values, gguf_.integers(full));
    if (int64_t(values.size()) < n_layers)
      return bad_file("{}: {} has {} entries for {} layers", gguf_.where, full, values.size(), n_layers);
    if (!std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == values[0]; }))
      return bad_file("{}: {} differs between layers (only models with the same heads in every layer are supported)",
                      gguf_.where, full);
    if (values[0] < 0 || values[0] > (1 << 30)) return bad_file("{}: {} is {}", gguf_.where, full, values[0]);
    return int(values[0]);
  }

  /// A count that some files give per layer: that of the first layer, and the largest.
  Result<int> first_integer(std::string_view key) const {
    RIDGE_TRY(const std::vector<int64_t> values, integers(key));
    return as_count(key, values.empty() ? -1 : values[0]);
  }
  Result<int> largest_integer(std::string_view key) const {
    RIDGE_TRY(const std::vector<int64_t> values, integers(key));
    return as_count(key, values.empty() ? -1 : std::ranges::max(values));
  }
  /// The count of each layer.
  Result<std::vector<int64_t>> integers_of_layers(std::string_view key, int n_layers) const {
    RIDGE_TRY(std::vector<int64_t> values, integers(key));
    if (ssize(values) == 1) values.resize(size_t(n_layers), values[0]);
    if (ssize(values) != n_layers)
      return bad_file("{}: {}{} has {} entries for {} layers", gguf_.where, prefix_, key, values.size(), n_layers);
    return values;
  }
  /// A list of numbers or of true and false, or one number.
  Result<std::vector<int64_t>> integers(std::string_view key) const {
    const std::string full = take(key);
    if (!has(key)) return bad_file("{}: {} is missing", gguf_.where, full);
    if (const auto* flags = std::get_if<std::vector<bool>>(&gguf_.metadata.at(full)))
      return std::vector<int64_t>(flags->begin(), flags->end());
    if (const Result<int64_t> one = gguf_.integer(full)) return std::vector<int64_t>{*one};
    return gguf_.integers(full);
  }
  /// Refuses a value that differs from what the other keys say.
  Status same(std::string_view key, int64_t value) const {
    RIDGE_TRY(const int found, integer_or(key, int(value)));
    if (found == value) return {};
    return bad_file("{}: {}{} is {}, other keys say {} (not supported)", gguf_.where, prefix_, key, found, value);
  }
  const std::set<std::string, std::less<>>& read() const { return read_; }

 private:
  Result<int> as_count(std::string_view key, int64_t value) const {
    if (value >= 0 && value <= (1 << 30)) return int(value);
    return bad_file("{}: {}{} is {}, expected 0 to 2^30", gguf_.where, prefix_, key, value);
  }
  std::string take(std::string_view key) const { return *read_.insert(prefix_ + std::string(key)).first; }

  const io::Gguf& gguf_;
  std::string prefix_;
  mutable std::set<std::string, std::less<>> read_;  // full names
};

Result<RopeScaling> rope_scaling(const Keys& keys, std::string_view where) {
  RopeScaling s;
  RIDGE_TRY(s.factor, keys.number_or("rope.scaling.factor", 1.0f));
  if (s.factor == 0) s.factor = 1;
  // As other readers have it: a factor without a type is linear.
  RIDGE_TRY(const std::string type, keys.text_or("rope.scaling.type", s.factor == 1 ? "none" : "linear"));
  if (type == "none" || type.empty()) s.kind = RopeScaling::Kind::none;
  else if (type == "linear") s.kind = RopeScaling::Kind::linear;
  else if (type == "yarn") s.kind = RopeScaling::Kind::yarn;
  else if (type == "longrope") s.kind = RopeScaling::Kind::longrope;  // its factors are tensors
  else
    return bad_file("{}: rope.scaling.type '{}' is not supported (there are: none, linear, yarn, longrope)", where,
                    type);
  const bool yarn = s.kind == RopeScaling::Kind::yarn;
  if (s.kind == RopeScaling::Kind::longrope && s.factor != 1)
    return bad_file("{}: rope.scaling.factor is {} with type 'longrope' (not supported)", where, s.factor);
  if (s.kind == RopeScaling::Kind::none) s.factor = 1;
  RIDGE_TRY(s.original_context, keys.integer_or("rope.scaling.original_context_length", 0));
  RIDGE_TRY(const float ext, keys.number_or("rope.scaling.yarn_ext_factor", -1.0f));
  RIDGE_TRY(const float yarn_attention, keys.number_or("rope.scaling.yarn_attn_factor", 1.0f));
  if (ext >= 0 && ext != (yarn ? 1 : 0))
    return bad_file("{}: rope.scaling.yarn_ext_factor is {} with type '{}' (not supported)", where, ext, type);
  if (yarn_attention >= 0 && yarn_attention != 1)
    return bad_file("{}: rope.scaling.yarn_attn_factor is {} (not supported)", where, yarn_attention);
  // On top of YaRN's own magnitude, which Config has in one number with it.
  RIDGE_TRY(const float attention, keys.number_or("rope.scaling.attn_factor", 1.0f));
  if (!(attention > 0)) return bad_file("{}: rope.scaling.attn_factor is {}, expected above 0", where, attention);
  if (attention != 1) s.attention_factor = attention * (yarn ? yarn_magnitude(s.factor) : 1);
  RIDGE_TRY(s.beta_fast, keys.number_or("rope.scaling.yarn_beta_fast", s.beta_fast));
  RIDGE_TRY(s.truncate, keys.flag_or("rope.scaling.yarn_truncate", true));
  RIDGE_TRY(s.beta_slow, keys.number_or("rope.scaling.yarn_beta_slow", s.beta_slow));
  return s;
}

constexpr int kSoftmax = 1, kSigmoid = 2, kSoftmaxOfChosen = 3;  // as other readers number functions of routers

/// Routers of experts that form no groups.
Status check_router(const Keys& keys, const Arch& arch, const Config& c, std::string_view where) {
  RIDGE_TRY(const int gate, keys.integer_or("expert_gating_func", 0));
  const int own = arch.sigmoid_router ? kSigmoid : kSoftmax;
  if (gate != 0 && gate != own && !(arch.gpt_oss && gate == kSoftmaxOfChosen))
    return bad_file("{}: expert_gating_func is {} (supported: {}, a {})", where, gate, own,
                    arch.sigmoid_router ? "sigmoid" : "softmax");
  RIDGE_TRY(const int n_shared, keys.integer_or("expert_shared_count", 0));
  if (n_shared > 0 && c.d_ff_shared == 0)
    return bad_file("{}: expert_shared_count is {} without expert_shared_feed_forward_length (not supported)", where,
                    n_shared);
  return {};
}

Status read_dense_layers(const Keys& keys, Config& c) {
  RIDGE_TRY(const int n_dense, keys.integer_or("leading_dense_block_count", 0));
  c.set_dense_in_front(n_dense);
  return {};
}

/// Experts in groups, dense layers in front, a shared expert.
Status read_grouped_experts(const Keys& keys, const Arch& arch, Config& c, std::string_view where) {
  // Files of DeepSeek-V2 that are older than the key do not say.
  const int own = arch.sigmoid_router && !arch.latent ? kSigmoid : kSoftmax;
  RIDGE_TRY(const int gate, keys.integer_or("expert_gating_func", own));
  if (gate != kSoftmax && gate != kSigmoid)
    return bad_file("{}: expert_gating_func is {} (supported: {}, a softmax, and {}, a sigmoid)", where, gate, kSoftmax,
                    kSigmoid);
  c.sigmoid_router = gate == kSigmoid;
  c.choice_bias = arch.choice_bias && c.sigmoid_router == arch.sigmoid_router;
  RIDGE_TRY(const int n_shared, keys.integer_or("expert_shared_count", 0));
  c.set_shared_experts(n_shared);
  RIDGE_TRY(c.n_expert_groups, keys.integer_or("expert_group_count", 1));
  RIDGE_TRY(c.n_groups_used, keys.integer_or("expert_group_used_count", 1));
  RIDGE_TRY_STATUS(read_dense_layers(keys, c));
  RIDGE_TRY(const int every, keys.integer_or("interleave_moe_layer_step", 1));
  if (every != 1) return bad_file("{}: interleave_moe_layer_step is {} (supported: 1)", where, every);
  RIDGE_TRY(const int shared, keys.integer_or("expert_shared_feed_forward_length", c.d_ff_shared));
  if (arch.one_block) c.d_ff_shared = shared;
  else if (shared != 0 && shared != c.d_ff_shared)
    return bad_file("{}: expert_shared_feed_forward_length is {}, expected {}: {} times expert_feed_forward_length",
                    where, shared, c.d_ff_shared, n_shared);
  return {};
}

/// The widths of latent attention, and YaRN of its scores.
Status read_latent(const Keys& keys, const Arch& arch, Config& c, std::string_view where) {
  if (!keys.has("attention.key_length_mla"))
    return bad_file("{}: attention.key_length_mla is missing (a file with attn_kv_b in one piece is not supported)",
                    where);
  RIDGE_TRY(const int query_dim, keys.integer("attention.key_length_mla"));
  RIDGE_TRY(c.value_dim, keys.integer("attention.value_length_mla"));
  RIDGE_TRY(c.kv_rank, keys.integer("attention.kv_lora_rank"));
  RIDGE_TRY(c.q_rank, keys.integer_or("attention.q_lora_rank", 0));
  RIDGE_TRY(c.rope_dim, keys.integer("rope.dimension_count"));
  c.nope_dim = query_dim - c.rope_dim;
  if (arch.indexed) {
    RIDGE_TRY(c.index_heads, keys.integer("attention.indexer.head_count"));
    RIDGE_TRY(c.index_dim, keys.integer("attention.indexer.key_length"));
    RIDGE_TRY(c.index_top_k, keys.integer("attention.indexer.top_k"));
    if (c.index_top_k < 1)
      return bad_file("{}: attention.indexer.top_k is {}, expected 1 or more", where, c.index_top_k);
  }
  RopeScaling& s = c.rope_scaling;
  if (s.kind != RopeScaling::Kind::yarn) return {};
  RIDGE_TRY(s.score_factor, keys.number_or("rope.scaling.yarn_log_multiplier", 0.0f));
  if (!(s.score_factor > 0 && s.score_factor < 10) || s.attention_factor != 0)
    return bad_file("{}: YaRN with yarn_log_multiplier {} and attn_factor not 1 (supported: above 0, and 1)", where,
                    s.score_factor);
  s.attention_factor = 1;
  return {};
}

/// How queries grow with the position, and YaRN's magnitude where a file of such a model has it.
Status read_position_scale(const Keys& keys, const Arch& arch, Config& c, std::string_view where) {
  RopeScaling& s = c.rope_scaling;
  RIDGE_TRY(c.position_scale, keys.number_or("attention.temperature_scale", 0.0f));
  RIDGE_TRY(c.position_length, keys.integer_or("attention.temperature_length", s.original_context));
  if (c.position_scale == 0) c.position_length = 0;
  if (arch.latent || s.kind != RopeScaling::Kind::yarn || !keys.has("rope.scaling.yarn_log_multiplier")) return {};
  RIDGE_TRY(const float share, keys.number_or("rope.scaling.yarn_log_multiplier", 0.0f));
  if (share != 1) return bad_file("{}: rope.scaling.yarn_log_multiplier is {} (supported: 1)", where, share);
  s.attention_factor = 1;
  return {};
}

void set_grouped_experts(const Config& c, const auto& set) {
  set("expert_gating_func", uint64_t(c.sigmoid_router ? kSigmoid : kSoftmax));
  set("expert_shared_count", uint64_t(!c.ff_layers.empty() ? c.d_ff_shared > 0 : c.d_ff_shared / c.d_ff_expert));
  set("expert_group_count", uint64_t(c.n_expert_groups));
  set("expert_group_used_count", uint64_t(c.n_groups_used));
  set("expert_weights_scale", double(c.expert_scale));
  set("expert_weights_norm", c.experts_renormalised);
  if (c.ff_layers.empty()) set("leading_dense_block_count", uint64_t(c.dense_layers.size()));
}

void set_latent(const Config& c, const auto& set) {
  set("attention.value_length", uint64_t(c.kv_rank));
  set("attention.key_length_mla", uint64_t(c.query_dim()));
  set("attention.value_length_mla", uint64_t(c.value_dim));
  set("attention.kv_lora_rank", uint64_t(c.kv_rank));
  if (c.q_rank > 0) set("attention.q_lora_rank", uint64_t(c.q_rank));
  if (c.index_top_k > 0) {
    set("attention.indexer.head_count", uint64_t(c.index_heads));
    set("attention.indexer.key_length", uint64_t(c.index_dim));
    set("attention.indexer.top_k", uint64_t(c.index_top_k));
  }
  if (c.rope_scaling.score_factor > 0) set("rope.scaling.yarn_log_multiplier", double(c.rope_scaling.score_factor));
}

/// The layers that attend have KV heads, the others short convolutions or Mamba2.
Status read_states(const Keys& keys, const io::Gguf& gguf, const Arch& arch, Config& c, std::string_view where) {
  constexpr std::string_view kHeads = "attention.head_count_kv";
  if (arch.short_conv) {
    RIDGE_TRY(c.conv_kernel, keys.integer("shortconv.l_cache"));
  } else {
    RIDGE_TRY(c.mamba.n_heads, keys.integer("ssm.time_step_rank"));
    RIDGE_TRY(c.mamba.n_groups, keys.integer("ssm.group_count"));
    RIDGE_TRY(c.mamba.state_dim, keys.integer("ssm.state_size"));
    RIDGE_TRY(c.mamba.kernel, keys.integer("ssm.conv_kernel"));
    RIDGE_TRY(const int inner, keys.integer("ssm.inner_size"));
    if (c.mamba.n_heads < 1 || inner % c.mamba.n_heads != 0)
      return bad_file("{}: ssm.inner_size {} is not a multiple of ssm.time_step_rank {}", where, inner,
                      c.mamba.n_heads);
    c.mamba.head_dim = inner / c.mamba.n_heads;
    RIDGE_TRY(const bool rope, keys.flag_or("rope.scaling.finetuned", true));
    if (!rope || arch.one_block) c.nope_period = 1;
  }
  RIDGE_TRY(const std::vector<int64_t> heads, keys.integers_of_layers(kHeads, c.n_layers));
  std::vector<int64_t> widths;
  if (arch.one_block) {
    RIDGE_TRY(widths, keys.integers_of_layers("feed_forward_length", c.n_layers));
  }
  const TensorRow& router = tensor_row(&LayerWeights::router);
  c.n_kv_heads = 0;
  for (int i = 0; i < c.n_layers; ++i) {
    const int64_t n = heads[size_t(i)];
    if (arch.one_block && widths[size_t(i)] > 0) {
      c.ff_layers.push_back(i);
      const bool dense = arch.experts && !gguf.find(gguf_name(router, router.file, i));
      if (dense) c.dense_layers.push_back(i);
      if (n != 0 || ((dense || !arch.experts) && widths[size_t(i)] != c.d_ff))
        return bad_file("{}: layer {} has {} KV heads and a feed-forward of {} (supported: none, and {})", where, i, n,
                        widths[size_t(i)], c.d_ff);
    } else if (n == 0) c.state_layers.push_back(i);
    else if (n < 0 || n > 1024 || (c.n_kv_heads != 0 && n != c.n_kv_heads))
      return bad_file("{}: {} is {} in layer {} (supported: one number of heads, and 0)", where, kHeads, n, i);
    else c.n_kv_heads = int(n);
  }
  return {};
}

/// Which layers slide, where a file says it: one number is a period, a list has every layer.
Status read_window_pattern(const Keys& keys, Config& c, std::string_view where) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  if (!keys.has(kPattern)) return {};
  RIDGE_TRY(const std::vector<int64_t> pattern, keys.integers(kPattern));
  if (c.window == 0) return {};
  if (ssize(pattern) == 1 && (c.n_layers > 1 || pattern[0] > 1)) {
    c.window_period = int(std::clamp<int64_t>(pattern[0], -1, 1 << 30));
    return {};
  }
  if (ssize(pattern) < c.n_layers)
    return bad_file("{}: {} has {} entries for {} layers", where, kPattern, pattern.size(), c.n_layers);
  std::vector<bool> slides;
  for (int i = 0; i < c.n_layers; ++i) slides.push_back(pattern[size_t(i)] != 0);
  c.set_sliding(slides);
  return {};
}

/// Gemma 4's heads of both kinds of layers.
Status read_gemma4(const Keys& keys, const io::Gguf& gguf, Config& c, std::string_view where) {
  constexpr std::string_view kHeads = "attention.head_count_kv";
  RIDGE_TRY(c.window_head_dim, keys.integer_or("attention.key_length_swa", c.head_dim));
  RIDGE_TRY_STATUS(keys.same("attention.value_length_swa", c.window_head_dim));
  RIDGE_TRY_STATUS(keys.same("rope.dimension_count_swa", c.window_head_dim));
  if (c.window_head_dim == c.head_dim) c.window_head_dim = 0;
  RIDGE_TRY(const std::vector<int64_t> heads, keys.integers_of_layers(kHeads, c.n_layers));
  c.n_kv_heads = c.window_kv_heads = 0;
  for (int i = 0; i < c.n_layers; ++i) {
    int& of_kind = c.slides(i) ? c.window_kv_heads : c.n_kv_heads;
    const int64_t n = heads[size_t(i)];
    if (n < 1 || n > 1024 || (of_kind != 0 && n != of_kind))
      return bad_file("{}: {} is {} in layer {} (supported: one number in all sliding layers, one in all others)",
                      where, kHeads, n, i);
    of_kind = int(n);
  }
  if (c.n_kv_heads == 0) c.n_kv_heads = c.window_kv_heads;
  if (c.n_kv_heads == c.window_kv_heads) c.window_kv_heads = 0;
  RIDGE_TRY(c.shared_kv_layers, keys.integer_or("attention.shared_kv_layers", 0));
  RIDGE_TRY(c.d_layer_input, keys.integer_or("embedding_length_per_layer_input", 0));
  RIDGE_TRY(const std::vector<int64_t> widths, keys.integers_of_layers("feed_forward_length", c.n_layers));
  c.wide_sharing = c.shared_kv_layers > 0 && widths.back() != c.d_ff;
  for (int i = 0; i < c.n_layers; ++i)
    if (widths[size_t(i)] != c.d_ff_of(i))
      return bad_file(
          "{}: feed_forward_length is {} in layer {} (supported: {}, and twice that in layers that share K "
          "and V)",
          where, widths[size_t(i)], i, c.d_ff);
  const TensorRow& v = tensor_row(&LayerWeights::v);
  for (int i = 0; i < c.n_layers; ++i)
    if (!c.slides(i) && c.has_kv(i) && !gguf.find(gguf_name(v, v.file, i))) c.full_k_is_v = true;
  RIDGE_TRY(c.logit_cap, keys.number_or("final_logit_softcapping", 0.0f));
  return {};
}

/// Biases are where a file has them: no key says so.
void find_biases(const io::Gguf& gguf, const Arch& arch, Config& c) {
  constexpr std::string_view kBlock = "blk.";
  // The number of layers is the file's and not checked yet: the tensors are what is walked over.
  const auto any = [&](std::initializer_list<TensorMember> members) {
    return std::ranges::any_of(gguf.tensors, [&](const io::Tensor& tensor) {
      return tensor.name.starts_with(kBlock) && std::atoi(tensor.name.c_str() + kBlock.size()) < c.n_layers &&
             std::ranges::any_of(members, [&](const TensorMember& member) {
               return tensor.name.ends_with(fmt::format(".{}", tensor_row(member).file.gguf));
             });
    });
  };
  using L = LayerWeights;
  if (!arch.latent && !arch.fused) c.qkv_bias = any({&L::q_bias, &L::k_bias, &L::v_bias});
  if (!arch.latent) c.o_bias = c.o_bias || any({&L::o_bias});
  if (!arch.experts && !arch.fused && !arch.one_block) c.mlp_bias = any({&L::gate_bias, &L::up_bias, &L::down_bias});
}

}  // namespace

Result<Config> config_from_gguf(const io::Gguf& gguf, std::string_view where) {
  RIDGE_TRY(const std::string arch_name, gguf.text("general.architecture"));
  const auto n_experts =
      gguf.has(arch_name + ".expert_count") ? gguf.integer(arch_name + ".expert_count") : Result<int64_t>(0);
  const Arch* arch = find_arch(arch_name, n_experts && *n_experts > 0);
  if (!arch) {
    std::string known;
    for (const Arch& a : arch_list())
      if (a.same_as.empty() && find_arch(a.name, false) == &a)
        known += (known.empty() ? "" : ", ") + std::string(a.name);
    return bad_file("{}: architecture '{}' is not supported (there are: {})", where, arch_name, known);
  }
  const Keys keys(gguf, arch_name);
  Config c;
  if (gguf.has("general.name")) {
    RIDGE_TRY(c.name, gguf.text("general.name"));
  }
  RIDGE_TRY(c.n_layers, keys.integer("block_count"));
  // Layers that predict further tokens are the last blocks; nothing runs them.
  RIDGE_TRY(const int n_predict, keys.integer_or("nextn_predict_layers", 0));
  c.n_layers -= n_predict;
  // Before anything is made for each layer.
  if (c.n_layers < 1 || c.n_layers > kMaxLayers)
    return bad_file("{}: n_layers is {}, expected 1 to {}", where, c.n_layers, kMaxLayers);
  RIDGE_TRY(c.d_model, keys.integer("embedding_length"));
  const bool own_d_ff = !arch->experts || keys.has("feed_forward_length");
  RIDGE_TRY(c.d_ff, arch->gemma4      ? keys.first_integer("feed_forward_length")
                    : arch->one_block ? keys.largest_integer("feed_forward_length")
                    : own_d_ff        ? keys.uniform_integer("feed_forward_length", c.n_layers)
                                      : keys.integer("expert_feed_forward_length"));
  RIDGE_TRY(c.n_heads, keys.uniform_integer("attention.head_count", c.n_layers));
  c.n_kv_heads = c.n_heads;
  if (arch->short_conv || arch->mamba) {
    RIDGE_TRY_STATUS(read_states(keys, gguf, *arch, c, where));
  } else if (keys.has("attention.head_count_kv") && !arch->gemma4) {
    RIDGE_TRY(c.n_kv_heads, keys.uniform_integer("attention.head_count_kv", c.n_layers));
  }
  if (c.n_heads < 1)
    return bad_file("{}: {}.attention.head_count is {}, expected 1 or more", where, arch_name, c.n_heads);
  RIDGE_TRY(c.head_dim, keys.integer_or("attention.key_length", c.d_model / c.n_heads));
  RIDGE_TRY(const int value_length, keys.integer_or("attention.value_length", c.head_dim));
  if (value_length != c.head_dim && !arch->latent)
    return bad_file("{}: {}.attention.value_length {} differs from key_length {} (not supported)", where, arch_name,
                    value_length, c.head_dim);
  for (const char* key :
       {"attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv", "attention.max_alibi_bias"}) {
    RIDGE_TRY(const float value, keys.number_or(key, 0.0f));
    if (value != 0 && !(arch->gemma4 && key == std::string_view("final_logit_softcapping")))
      return bad_file("{}: {}.{} is {} (not supported)", where, arch_name, key, value);
  }
  RIDGE_TRY(c.n_experts, keys.integer_or("expert_count", 0));
  if (c.n_experts > 0 && !arch->experts)
    return bad_file("{}: {}.expert_count is {} (experts of this architecture are not supported)", where, arch_name,
                    c.n_experts);
  if (arch->mamba && c.n_experts == 0) RIDGE_TRY_STATUS(keys.same("expert_shared_feed_forward_length", c.d_ff));
  if (arch->experts && c.n_experts == 0) return bad_file("{}: {}.expert_count is 0", where, arch_name);
  if (c.n_experts > 0) {
    RIDGE_TRY(c.n_experts_used, keys.integer("expert_used_count"));
    RIDGE_TRY(c.d_ff_expert, arch->block_sparse || arch->mamba ? keys.integer_or("expert_feed_forward_length", c.d_ff)
                                                               : keys.integer("expert_feed_forward_length"));
    RIDGE_TRY(c.d_ff_shared, keys.integer_or("expert_shared_feed_forward_length", arch->gemma4 ? c.d_ff : 0));
    RIDGE_TRY(c.experts_renormalised, keys.flag_or("expert_weights_norm", arch->experts_renormalised && !arch->latent));
    RIDGE_TRY(c.expert_scale, keys.number_or("expert_weights_scale", 1.0f));
    if (c.expert_scale == 0) c.expert_scale = 1;
    if (!arch->grouped_experts) RIDGE_TRY_STATUS(check_router(keys, *arch, c, where));
    if (arch->short_conv) RIDGE_TRY_STATUS(read_dense_layers(keys, c));
  }
  if (arch->delta) {
    RIDGE_TRY(c.delta.n_key_heads, keys.integer("ssm.group_count"));
    RIDGE_TRY(c.delta.n_value_heads, keys.integer("ssm.time_step_rank"));
    RIDGE_TRY(c.delta.key_dim, keys.integer("ssm.state_size"));
    RIDGE_TRY(const int values, keys.integer("ssm.inner_size"));
    RIDGE_TRY(c.delta.kernel, keys.integer("ssm.conv_kernel"));
    RIDGE_TRY(c.delta_period, keys.integer_or("full_attention_interval", 4));
    if (c.delta.n_key_heads < 1 || c.delta.n_value_heads < 1 || values % c.delta.n_value_heads != 0 ||
        c.delta_period < 1)
      return bad_file("{}: {}.ssm.group_count {}, time_step_rank {}, inner_size {} and an interval of {} do not fit",
                      where, arch_name, c.delta.n_key_heads, c.delta.n_value_heads, values, c.delta_period);
    c.delta.value_dim = values / c.delta.n_value_heads;
    c.delta.keys_cycle = arch->delta_keys_cycle;
  }
  RIDGE_TRY(c.window, keys.integer_or("attention.sliding_window", 0));
  RIDGE_TRY(const float window_theta, keys.number_or("rope.freq_base_swa", arch->window_rope_theta));
  if (c.window > 0) {
    c.window_period = arch->window_period;
    c.window_rope_theta = window_theta;
  }
  RIDGE_TRY_STATUS(read_window_pattern(keys, c, where));
  if (arch->full_without_rope && !c.full_layers.empty())
    return bad_file("{}: sliding layers without a period (supported: a period of them, the last one full)", where);
  if (arch->gemma4) {
    RIDGE_TRY_STATUS(read_gemma4(keys, gguf, c, where));
  } else {
    RIDGE_TRY_STATUS(keys.same("attention.key_length_swa", c.head_dim));
    RIDGE_TRY_STATUS(keys.same("attention.value_length_swa", value_length));
  }
  RIDGE_TRY(c.attention_scale, keys.number_or("attention.scale", 0.0f));
  use_arch(*arch, c);
  RIDGE_TRY(c.embedding_scale, keys.number_or("embedding_scale", c.embedding_scale));
  RIDGE_TRY(c.residual_scale, keys.number_or("residual_scale", 1.0f));
  RIDGE_TRY(const float logit_scale, keys.number_or("logit_scale", 1.0f));
  c.logit_divisor = arch->logit_multiplier && logit_scale > 0 ? 1 / logit_scale : logit_scale;
  if (arch->nope_period > 0) c.nope_period = arch->nope_period;
  if (const TensorRow& q_norm = tensor_row(&LayerWeights::q_norm); arch->qk_norm_varies)
    c.qk_norm = gguf.find(gguf_name(q_norm, q_norm.file, 0)) != nullptr;
  RIDGE_TRY(c.n_ctx_train, keys.integer("context_length"));
  RIDGE_TRY(c.rms_eps,
            keys.number_or(arch->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
                           c.rms_eps));
  if (arch->one_block) {
    RIDGE_TRY(const float other_eps, keys.number_or("attention.layer_norm_epsilon", c.rms_eps));
    if (other_eps != c.rms_eps)
      return bad_file("{}: attention.layer_norm_epsilon is {}, that of RMSNorm {} (supported: equal ones)", where,
                      other_eps, c.rms_eps);
  }
  RIDGE_TRY(c.rope_theta, keys.number_or("rope.freq_base", c.rope_theta));
  RIDGE_TRY(c.rope_dim, keys.integer_or("rope.dimension_count", c.head_dim));
  RIDGE_TRY(c.rope_scaling, rope_scaling(keys, where));
  if (!arch->gemma4) RIDGE_TRY_STATUS(keys.same("rope.dimension_count_swa", c.rope_dim));
  if (arch->grouped_experts) RIDGE_TRY_STATUS(read_grouped_experts(keys, *arch, c, where));
  if (arch->latent) RIDGE_TRY_STATUS(read_latent(keys, *arch, c, where));
  if (arch->position_scale) RIDGE_TRY_STATUS(read_position_scale(keys, *arch, c, where));
  if (c.window_rope_theta > 0 && c.rope_scaling.attention_factor != 0)
    return bad_file("{}: rope.scaling.attn_factor beside a base of sliding layers (not supported)", where);
  RopeScaling& scaling = c.rope_scaling;
  if (gguf.find(tensor_row(&Weights::long_rope_factors).file.gguf)) scaling.kind = RopeScaling::Kind::longrope;
  if (scaling.kind == RopeScaling::Kind::longrope && scaling.attention_factor == 0) scaling.attention_factor = 1;
  c.rope_pairs = arch->gguf_pairs;
  if (keys.has("hidden_activation")) {
    RIDGE_TRY(const std::string name, keys.text_or("hidden_activation", ""));
    const Result<Activation> known = find_activation(name);
    if (!known) return bad_file("{}: {}.hidden_activation {}", where, arch_name, known.error().message);
    c.activation = *known;
  }
  const io::Tensor* embedding = gguf.find(tensor_row(&Weights::embedding).file.gguf);
  c.vocab_size = embedding && !embedding->shape.empty() ? int(std::min<int64_t>(embedding->shape[0], 1 << 30)) : 0;
  find_biases(gguf, *arch, c);
  c.tied_output = gguf.find(tensor_row(&Weights::output).file.gguf) == nullptr;
  RIDGE_TRY_STATUS(check_config(c, where));
  RIDGE_TRY_STATUS(check_gguf_keys(gguf, arch_name, keys.read(), where));
  return c;
}

std::map<std::string, io::GgufValue, std::less<>> config_metadata(const Config& c) {
  std::map<std::string, io::GgufValue, std::less<>> m;
  const auto set = [&](std::string_view key, io::GgufValue value) {
    m[fmt::format("{}.{}", c.arch, key)] = std::move(value);
  };
  m["general.architecture"] = c.arch;
  m["general.name"] = c.name;
  set("block_count", uint64_t(c.n_layers));
  set("context_length", uint64_t(c.n_ctx_train));
  set("embedding_length", uint64_t(c.d_model));
  if (c.wide_sharing || !c.ff_layers.empty()) {
    std::vector<int64_t> widths;
    for (int i = 0; i < c.n_layers; ++i)
      widths.push_back(!c.has_feed_forward(i) ? 0 : c.has_experts(i) ? c.d_ff_expert : c.d_ff_of(i));
    set("feed_forward_length", std::move(widths));
  } else {
    set("feed_forward_length", uint64_t(c.d_ff));
  }
  set("attention.head_count", uint64_t(c.n_heads));
  if (c.window_kv_heads > 0) {
    std::vector<int64_t> heads;
    for (int i = 0; i < c.n_layers; ++i) heads.push_back(c.kv_heads_of(i));
    set("attention.head_count_kv", std::move(heads));
  } else if (c.state_layers.empty()) {
    set("attention.head_count_kv", uint64_t(c.n_kv_heads));
  } else {
    std::vector<int64_t> heads;
    for (int i = 0; i < c.n_layers; ++i) heads.push_back(c.attends(i) ? c.n_kv_heads : 0);
    set("attention.head_count_kv", std::move(heads));
    if (c.conv_kernel > 0) set("shortconv.l_cache", uint64_t(c.conv_kernel));
  }
  if (c.mamba.n_heads > 0) {
    set("ssm.conv_kernel", uint64_t(c.mamba.kernel));
    set("ssm.state_size", uint64_t(c.mamba.state_dim));
    set("ssm.group_count", uint64_t(c.mamba.n_groups));
    set("ssm.time_step_rank", uint64_t(c.mamba.n_heads));
    set("ssm.inner_size", uint64_t(c.mamba.inner()));
    if (c.nope_period == 1) set("rope.scaling.finetuned", false);
  }
  set("attention.key_length", uint64_t(c.head_dim));
  set("attention.value_length", uint64_t(c.head_dim));
  set(c.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", double(c.rms_eps));
  if (arch_of(c).one_block) set("attention.layer_norm_epsilon", double(c.rms_eps));
  set("rope.dimension_count", uint64_t(c.rope_dim));
  set("rope.freq_base", double(c.rope_theta));
  set("vocab_size", uint64_t(c.vocab_size));
  if (c.activation != Activation::silu && c.activation != arch_of(c).activation)
    set("hidden_activation", std::string(activation_name(c.activation)));
  if (c.n_experts > 0) {
    set("expert_count", uint64_t(c.n_experts));
    set("expert_used_count", uint64_t(c.n_experts_used));
    set("expert_feed_forward_length", uint64_t(c.d_ff_expert));
    if (c.d_ff_shared > 0 && c.kv_rank == 0 && !c.dense_beside)
      set("expert_shared_feed_forward_length", uint64_t(c.d_ff_shared));
    if (arch_of(c).grouped_experts) set_grouped_experts(c, set);
    else if (c.sigmoid_router) set("expert_gating_func", uint64_t(kSigmoid));
    if (arch_of(c).short_conv) set("leading_dense_block_count", uint64_t(c.dense_layers.size()));
  }
  if (c.position_scale > 0) {
    set("attention.temperature_scale", double(c.position_scale));
    set("attention.temperature_length", uint64_t(c.position_length));
  }
  if (c.kv_rank > 0) set_latent(c, set);
  if (c.delta.n_key_heads > 0) {
    set("ssm.conv_kernel", uint64_t(c.delta.kernel));
    set("ssm.state_size", uint64_t(c.delta.key_dim));
    set("ssm.group_count", uint64_t(c.delta.n_key_heads));
    set("ssm.time_step_rank", uint64_t(c.delta.n_value_heads));
    set("ssm.inner_size", uint64_t(c.delta.values()));
    set("full_attention_interval", uint64_t(c.delta_period));
  }
  if (!c.rope_sections.empty()) set("rope.dimension_sections", c.rope_sections);
  if (c.window > 0) set("attention.sliding_window", uint64_t(c.window));
  if (c.window_head_dim > 0)
    for (const char* key : {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
      set(key, uint64_t(c.window_head_dim));
  if (c.shared_kv_layers > 0) set("attention.shared_kv_layers", uint64_t(c.shared_kv_layers));
  if (c.d_layer_input > 0) set("embedding_length_per_layer_input", uint64_t(c.d_layer_input));
  if (c.logit_cap > 0) set("final_logit_softcapping", double(c.logit_cap));
  if (c.window > 0 && (arch_of(c).gemma4 || c.window_period != arch_of(c).window_period || !c.full_layers.empty())) {
    std::vector<bool> slides;
    for (int i = 0; i < c.n_layers; ++i) slides.push_back(c.slides(i));
    set("attention.sliding_window_pattern", std::move(slides));
  }
  if (c.window > 0 && c.window_rope_theta > 0) set("rope.freq_base_swa", double(c.window_rope_theta));
  if (c.attention_scale > 0 && !arch_of(c).gemma4) set("attention.scale", double(c.attention_scale));
  if (c.embedding_scale != 1 && !arch_of(c).embedding_root) set("embedding_scale", double(c.embedding_scale));
  if (c.residual_scale != 1) set("residual_scale", double(c.residual_scale));
  if (c.logit_divisor != 1)
    set("logit_scale", double(arch_of(c).logit_multiplier ? 1 / c.logit_divisor : c.logit_divisor));
  const RopeScaling& s = c.rope_scaling;
  // llama3 and proportional scaling travel as the tensor rope_freqs.weight instead (model/convert.cpp).
  if (s.kind == RopeScaling::Kind::longrope) {
    set("rope.scaling.attn_factor", double(s.attention_factor));
    set("rope.scaling.original_context_length", uint64_t(s.original_context));
  }
  if (s.kind == RopeScaling::Kind::linear || s.kind == RopeScaling::Kind::yarn) {
    set("rope.scaling.type", std::string(s.kind == RopeScaling::Kind::linear ? "linear" : "yarn"));
    set("rope.scaling.factor", double(s.factor));
    if (s.original_context > 0) set("rope.scaling.original_context_length", uint64_t(s.original_context));
    if (s.attention_factor > 0 && c.kv_rank == 0) {
      const float own = s.kind == RopeScaling::Kind::yarn ? yarn_magnitude(s.factor) : 1;
      set("rope.scaling.attn_factor", double(s.attention_factor / own));
    }
    if (s.kind == RopeScaling::Kind::yarn) {
      set("rope.scaling.yarn_beta_fast", double(s.beta_fast));
      set("rope.scaling.yarn_beta_slow", double(s.beta_slow));
      if (!s.truncate) set("rope.scaling.yarn_truncate", false);  // no other reader knows it
    }
  }
  return m;
}

}  // namespace ridge
