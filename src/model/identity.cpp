#include "model/identity.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <set>
#include <type_traits>

#include "base/rng.h"

namespace ridge {
namespace {

/// A hash of values one after another. Lists and texts bring their length, so that no two sequences of values look
/// alike.
class Digest {
 public:
  Digest() { XXH3_64bits_reset(&state_); }

  void bytes(const void* data, size_t size) { XXH3_64bits_update(&state_, data, size); }
  template <class... T>
  void add(const T&... values) {
    (one(values), ...);
  }
  uint64_t value() const { return XXH3_64bits_digest(&state_); }

 private:
  template <class T>
  void one(const T& value) {
    if constexpr (requires { value.data(); }) {
      one(uint64_t(value.size()));
      bytes(value.data(), value.size() * sizeof(*value.data()));
    } else {
      static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>, "give the members of a struct");
      bytes(&value, sizeof value);
    }
  }

  XXH3_state_t state_;
};

// A member that joins one of these structs does not compile here until it is named: then it belongs into add() too.

void add_shape(Digest& d, const DeltaShape& shape) {
  const auto& [n_key_heads, n_value_heads, key_dim, value_dim, kernel, keys_cycle] = shape;
  d.add(n_key_heads, n_value_heads, key_dim, value_dim, kernel, keys_cycle);
}

void add_scaling(Digest& d, const RopeScaling& scaling) {
  const auto& [kind, factor, original_context, attention_factor, score_factor, beta_fast, truncate, beta_slow,
               low_freq_factor, high_freq_factor, short_factors, long_factors, turned_pairs] = scaling;
  d.add(kind, factor, original_context, attention_factor, score_factor, beta_fast, truncate, beta_slow, low_freq_factor,
        high_freq_factor, short_factors, long_factors);
  if (kind == RopeScaling::Kind::proportional) d.add(turned_pairs);
}

void add_config(Digest& d, const Config& config) {
  // `name` is for people; `here` says which part of the model a rank has, and the whole is identified.
  const auto& [arch, name, n_layers, n_heads, n_kv_heads, head_dim, d_model, d_ff, vocab_size, n_ids, n_ctx_train,
               rms_eps, rope_theta, rope_dim, rope_pairs, rope_scaling, qkv_bias, o_bias, mlp_bias, sink_logits,
               qk_norm, qk_norm_whole, qk_norm_after_rope, norms, layer_norm, window, window_period, window_rope_theta,
               window_head_dim, window_kv_heads, full_layers, full_k_is_v, shared_kv_layers, wide_sharing,
               d_layer_input, v_norm, layer_scale, nope_period, position_scale, position_length, kv_rank, q_rank,
               nope_dim, value_dim, index_heads, index_dim, index_top_k, n_experts, n_experts_used, d_ff_expert,
               d_ff_shared, dense_beside, expert_biases, experts_renormalised, sigmoid_router, choice_bias, shared_gate,
               n_expert_groups, n_groups_used, expert_scale, dense_layers, delta, delta_period, state_layers,
               conv_kernel, mamba, ff_layers, ungated, attention_gate, rope_sections, attention_scale, embedding_scale,
               residual_scale, logit_divisor, logit_cap, tied_output, activation, sub_norm, ternary,  // BitNet
               here] = config;
  d.add(arch, n_layers, n_heads, n_kv_heads, head_dim, d_model, d_ff, vocab_size, n_ids, n_ctx_train, rms_eps,
        rope_theta, rope_dim, rope_pairs, qkv_bias, o_bias, mlp_bias, sink_logits, qk_norm, qk_norm_whole, norms,
        window, window_period, window_rope_theta, kv_rank, q_rank, nope_dim, value_dim, n_experts, n_experts_used,
        d_ff_expert, d_ff_shared, expert_biases, experts_renormalised, sigmoid_router, n_expert_groups, n_groups_used,
        expert_scale, dense_layers, delta_period, attention_gate, rope_sections, attention_scale, embedding_scale,
        residual_scale, logit_divisor, tied_output, activation, sub_norm, ternary);
  add_scaling(d, rope_scaling);
  add_shape(d, delta);
  // Add the settings of later architectures only where they are in use: state files of all other models stay valid.
  if (qk_norm_after_rope || layer_norm || nope_period > 0 || position_scale != 0 || conv_kernel > 0 ||
      !state_layers.empty() || choice_bias != sigmoid_router ||
      (n_experts > 0 && d_ff_shared > 0 && shared_gate != (kv_rank == 0)))
    d.add(qk_norm_after_rope, layer_norm, nope_period, position_scale, position_length, choice_bias, shared_gate,
          conv_kernel, state_layers, mamba.n_heads, mamba.head_dim, mamba.n_groups, mamba.state_dim, mamba.kernel);
  if (window_head_dim > 0 || window_kv_heads > 0 || !full_layers.empty() || full_k_is_v || v_norm || layer_scale ||
      logit_cap != 0 || dense_beside || shared_kv_layers > 0 || wide_sharing || d_layer_input > 0 ||
      !ff_layers.empty() || ungated)
    d.add(window_head_dim, window_kv_heads, full_layers, full_k_is_v, v_norm, layer_scale, logit_cap, dense_beside,
          shared_kv_layers, wide_sharing, d_layer_input, ff_layers, ungated);
  if (index_top_k > 0) d.add(index_heads, index_dim, index_top_k);
}

/// Contents of matrices, those that several share once.
class Matrices {
 public:
  Matrices(Digest& digest, bool whole) : digest_(digest), whole_(whole) {}

  void add(const Linear& m) {
    digest_.add(m.n_out, m.n_in, m.format->name, m.scale, m.int8_activations);
    if (m.order) digest_.bytes(m.order, size_t(m.n_in) * sizeof *m.order);
    // Panels alone: of a synth: model, whose weights follow from its configuration and formats.
    if (!m.rows || !seen_.insert(m.rows).second) return;
    if (whole_ || m.bytes() <= 2 * kStride) digest_.bytes(m.rows, size_t(m.bytes()));
    else add_blocks(m.rows, m.bytes());
  }

 private:
  static constexpr int64_t kBlock = 4096, kStride = 1 << 18;

  void add_blocks(const std::byte* rows, int64_t bytes) {
    digest_.bytes(rows, kBlock);
    for (int64_t first = 0; first + kStride <= bytes; first += kStride)
      digest_.bytes(rows + first + int64_t(splitmix64(uint64_t(first)) % (kStride / kBlock)) * kBlock, kBlock);
    digest_.bytes(rows + bytes - kBlock, kBlock);
  }

  Digest& digest_;
  const bool whole_;
  std::set<const std::byte*> seen_;
};

}  // namespace

ModelIdentity identify(const Config& config, const Weights& weights, int64_t whole_bytes) {
  Digest digest;
  add_config(digest, config);
  for_each_vector(weights, [&](const std::vector<float>& values) { digest.add(values); });
  int64_t bytes = 0;
  for (const Linear* const m : {&weights.embedding, &weights.layer_embedding}) bytes += m->format ? m->bytes() : 0;
  for_each_matrix(weights, [&](const Linear& m, std::string_view) { bytes += m.bytes(); });
  Matrices matrices(digest, bytes <= whole_bytes);
  matrices.add(weights.embedding);
  if (weights.layer_embedding.format) matrices.add(weights.layer_embedding);
  for_each_matrix(weights, [&](const Linear& m, std::string_view name) {
    digest.add(name);
    matrices.add(m);
  });
  ModelIdentity identity{.original_context = config.rope_scaling.original_context};
  identity.of_short = identity.of_long = digest.value();
  if (!weights.long_rope_factors.empty()) identity.of_long = splitmix64(identity.of_short);
  return identity;
}

}  // namespace ridge
