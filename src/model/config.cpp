#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ridge {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

/// Share of stretching of each pair under YaRN (arXiv 2309.00071, section 3.2): 0 leaves it, 1 divides by the factor.
double yarn_ramp(const Config& config, int pair) {
  const RopeScaling& s = config.rope_scaling;
  const auto pair_with_turns = [&](double turns) {
    return config.rope_dim * std::log(s.original_context / (turns * kTwoPi)) /
           (2 * std::log(double(config.rope_theta)));
  };
  const double first = pair_with_turns(s.beta_fast), last = pair_with_turns(s.beta_slow);
  const double low = std::max(0.0, s.truncate ? std::floor(first) : first);
  const double high = std::min(config.rope_dim - 1.0, s.truncate ? std::ceil(last) : last);
  return std::clamp((pair - low) / std::max(high - low, 0.001), 0.0, 1.0);
}

/// Llama 3.1's rule: long wavelengths are divided by the factor, short ones kept, a linear blend between.
double llama3_frequency(const RopeScaling& s, double frequency) {
  const double turns = s.original_context * frequency / kTwoPi;  // over the original context
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double keep = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - keep) * frequency / s.factor + keep * frequency;
}

}  // namespace

bool Config::has_experts(int layer) const {
  return n_experts > 0 && has_feed_forward(layer) && !std::ranges::binary_search(dense_layers, layer);
}

bool Config::has_state(int layer) const { return std::ranges::binary_search(state_layers, layer); }

int Config::kv_layer(int layer) const {
  int of = layer;
  if (!has_kv(layer))
    for (of = n_layers - shared_kv_layers - 1; of >= 0 && (!attends(of) || slides(of) != slides(layer)); --of) {
    }
  return of;
}

Config Config::of_layer(int layer) const {
  Config c = *this;
  c.head_dim = head_dim_of(layer);
  c.n_kv_heads = kv_heads_of(layer);
  c.window = 0;
  return c;
}

void Config::set_sliding(const std::vector<bool>& which) {
  const auto full = std::find(which.begin(), which.end(), false) - which.begin();
  full_layers.clear();
  window_period = full == ssize(which) ? 0 : int(full) + 1;
  if (std::find(which.begin(), which.end(), true) == which.end()) window = 0;
  bool fits = true;
  for (int i = 0; i < n_layers; ++i) fits = fits && slides(i) == (window > 0 && which[size_t(i)]);
  if (fits) return;
  window_period = 0;
  for (int i = 0; i < n_layers; ++i)
    if (!which[size_t(i)]) full_layers.push_back(i);
}

int Config::n_cached_layers() const {
  int n = 0;
  for (int i = 0; i < n_layers; ++i) n += has_layer(i) && attends(i) && has_kv(i);
  return n;
}

float yarn_magnitude(float factor, float share) { return float(0.1 * share * std::log(double(factor)) + 1); }

Rope make_rope(const Config& config, const float* factors) {
  const RopeScaling& s = config.rope_scaling;
  Rope rope{.pairs = config.rope_pairs, .magnitude = 1};
  for (int i = 0; i < config.rope_dim / 2; ++i) {
    double frequency = std::pow(double(config.rope_theta), -2.0 * i / config.rope_dim);
    if (factors) frequency /= factors[i];
    switch (s.kind) {
      case RopeScaling::Kind::none:
      case RopeScaling::Kind::longrope: break;  // factors are all there is
      case RopeScaling::Kind::linear: frequency /= s.factor; break;
      case RopeScaling::Kind::proportional: frequency = i < s.turned_pairs ? frequency / s.factor : 0; break;
      case RopeScaling::Kind::llama3: frequency = llama3_frequency(s, frequency); break;
      case RopeScaling::Kind::yarn: {
        const double ramp = yarn_ramp(config, i);
        frequency = frequency / s.factor * ramp + frequency * (1 - ramp);
      }
    }
    rope.frequency.push_back(frequency);
  }
  if (s.attention_factor > 0) rope.magnitude = s.attention_factor;
  else if (s.kind == RopeScaling::Kind::yarn) rope.magnitude = yarn_magnitude(s.factor);
  return rope;
}

Status check_config(const Config& c, std::string_view where) {
  const auto range = [&](std::string_view field, int64_t value, int64_t low, int64_t high) -> Status {
    if (value >= low && value <= high) return {};
    return bad_file("{}: {} is {}, expected {} to {}", where, field, value, low, high);
  };
  RIDGE_TRY_STATUS(range("n_layers", c.n_layers, 1, kMaxLayers));
  RIDGE_TRY_STATUS(range("n_heads", c.n_heads, 1, 1024));
  RIDGE_TRY_STATUS(range("n_kv_heads", c.n_kv_heads, 1, c.n_heads));
  RIDGE_TRY_STATUS(range("head_dim", c.head_dim, 2, 1024));
  RIDGE_TRY_STATUS(range("d_model", c.d_model, 1, 1 << 17));
  RIDGE_TRY_STATUS(range("d_ff", c.d_ff, 1, 1 << 20));
  RIDGE_TRY_STATUS(range("vocab_size", c.vocab_size, 1, 1 << 22));
  RIDGE_TRY_STATUS(range("context length", c.n_ctx_train, 1, 1 << 26));
  RIDGE_TRY_STATUS(range("rope dimension", c.rope_dim, 2, c.head_dim));
  if (c.head_dim % 2 || c.rope_dim % 2)
    return bad_file("{}: head_dim {} and rope dimension {} must be even", where, c.head_dim, c.rope_dim);
  if (c.n_heads % c.n_kv_heads != 0)
    return bad_file("{}: n_heads {} is not a multiple of n_kv_heads {}", where, c.n_heads, c.n_kv_heads);
  if (!(c.rms_eps > 0 && c.rms_eps < 1))
    return bad_file("{}: RMSNorm epsilon is {}, expected above 0 and below 1", where, c.rms_eps);
  if (!(c.rope_theta > 1 && c.rope_theta < 1e12f))
    return bad_file("{}: rope frequency base is {}, expected above 1 and below 1e12", where, c.rope_theta);
  const RopeScaling& s = c.rope_scaling;
  if (s.kind != RopeScaling::Kind::none && !(s.factor >= 1 && s.factor <= 65536))
    return bad_file("{}: rope scaling factor is {}, expected 1 to 65536", where, s.factor);
  if (s.kind != RopeScaling::Kind::none && s.kind != RopeScaling::Kind::linear &&
      s.kind != RopeScaling::Kind::proportional)
    RIDGE_TRY_STATUS(range("rope scaling's original context", s.original_context, 1, 1 << 26));
  if (s.kind == RopeScaling::Kind::llama3 &&
      !(s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor && s.high_freq_factor < 1e6f))
    return bad_file("{}: rope scaling's low and high frequency factors are {} and {}, expected 0 < low < high", where,
                    s.low_freq_factor, s.high_freq_factor);
  if (s.kind == RopeScaling::Kind::yarn && !(s.beta_slow > 0 && s.beta_fast > s.beta_slow && s.beta_fast < 1e6f &&
                                             s.attention_factor >= 0 && s.attention_factor < 1e3f))
    return bad_file("{}: YaRN beta_fast {}, beta_slow {}, attention factor {}: expected 0 < slow < fast", where,
                    s.beta_fast, s.beta_slow, s.attention_factor);
  if (!(s.attention_factor >= 0 && s.attention_factor < 1e3f))
    return bad_file("{}: rope scaling's attention factor is {}, expected 0 to 1000", where, s.attention_factor);
  if (s.kind == RopeScaling::Kind::longrope && !(s.attention_factor > 0))
    return bad_file("{}: LongRoPE's attention factor is {}, expected above 0 and below 1000", where,
                    s.attention_factor);
  RIDGE_TRY_STATUS(range("number of experts", c.n_experts, 0, 4096));
  if (c.n_experts > 0) {
    RIDGE_TRY_STATUS(range("experts of a token", c.n_experts_used, 1, c.n_experts));
    RIDGE_TRY_STATUS(range("d_ff of an expert", c.d_ff_expert, 1, 1 << 20));
    RIDGE_TRY_STATUS(range("d_ff of the shared expert", c.d_ff_shared, 0, 1 << 20));
  }
  if (c.n_expert_groups < 1 || c.n_experts % c.n_expert_groups != 0 || c.n_groups_used < 1 ||
      c.n_groups_used > c.n_expert_groups ||
      c.n_experts_used > int64_t(c.n_experts) / c.n_expert_groups * c.n_groups_used)
    return bad_file(
        "{}: {} of {} experts from {} of {} groups: expected equal groups with at least as many experts in those used",
        where, c.n_experts_used, c.n_experts, c.n_groups_used, c.n_expert_groups);
  if (c.kv_rank > 0) {
    RIDGE_TRY_STATUS(range("rank of the latent row", c.kv_rank, 1, 1024 - c.rope_dim));
    RIDGE_TRY_STATUS(range("rank of the queries", c.q_rank, 0, 1 << 16));
    RIDGE_TRY_STATUS(range("query values without RoPE", c.nope_dim, 1, 1024));
    RIDGE_TRY_STATUS(range("value_dim", c.value_dim, 1, 1024));
    if (c.head_dim != c.kv_rank + c.rope_dim || c.n_kv_heads != 1)
      return bad_file("{}: {} kv heads of {} are not one latent row of {} + {}", where, c.n_kv_heads, c.head_dim,
                      c.kv_rank, c.rope_dim);
  }
  if (c.index_top_k > 0) {
    RIDGE_TRY_STATUS(range("heads of the index", c.index_heads, 1, 1024));
    RIDGE_TRY_STATUS(range("values of an index key", c.index_dim, c.rope_dim, 1024));
    RIDGE_TRY_STATUS(range("keys that a query chooses", c.index_top_k, 1, 1 << 20));
    RIDGE_TRY_STATUS(range("rank of the queries that an index reads", c.q_rank, 1, 1 << 16));
  }
  if (c.delta.n_key_heads > 0) {
    const DeltaShape& d = c.delta;
    RIDGE_TRY_STATUS(range("key heads of the delta rule", d.n_key_heads, 1, 1024));
    RIDGE_TRY_STATUS(range("value heads of the delta rule", d.n_value_heads, 1, 1024));
    RIDGE_TRY_STATUS(range("key dimension of the delta rule", d.key_dim, 1, 1024));
    RIDGE_TRY_STATUS(range("value dimension of the delta rule", d.value_dim, 1, 1024));
    RIDGE_TRY_STATUS(range("kernel of the convolution", d.kernel, 2, 64));
    RIDGE_TRY_STATUS(range("interval of full attention", c.delta_period, 1, c.n_layers));
    if (d.n_value_heads % d.n_key_heads != 0)
      return bad_file("{}: {} value heads of the delta rule are not a multiple of {} key heads", where, d.n_value_heads,
                      d.n_key_heads);
  }
  if (!c.state_layers.empty()) {
    const MambaShape& m = c.mamba;
    RIDGE_TRY_STATUS(range("tokens of a convolution", c.conv_kernel + m.kernel, 2, 64));
    RIDGE_TRY_STATUS(range("layers with a state", ssize(c.state_layers), 1, c.n_layers - 1));
    RIDGE_TRY_STATUS(range("heads of Mamba2", m.n_heads, c.conv_kernel > 0 ? 0 : 1, 4096));
    RIDGE_TRY_STATUS(range("head_dim of Mamba2", m.head_dim, c.conv_kernel > 0 ? 0 : 1, 1024));
    RIDGE_TRY_STATUS(range("groups of Mamba2", m.n_groups, c.conv_kernel > 0 ? 0 : 1, m.n_heads));
    RIDGE_TRY_STATUS(range("state of Mamba2", m.state_dim, c.conv_kernel > 0 ? 0 : 1, 1024));
    if (m.n_groups > 0 && m.n_heads % m.n_groups != 0)
      return bad_file("{}: {} heads of Mamba2 are not a multiple of {} groups", where, m.n_heads, m.n_groups);
  }
  if (!c.ff_layers.empty()) {
    int n_attending = 0;
    for (int i = 0; i < c.n_layers; ++i) n_attending += c.attends(i);
    RIDGE_TRY_STATUS(range("layers that attend", n_attending, 1, c.n_layers));
  }
  if (c.position_scale != 0) {
    RIDGE_TRY_STATUS(range("positions at which queries grow", c.position_length, 1, 1 << 26));
    if (!(c.position_scale > 0 && c.position_scale < 1e3f))
      return bad_file("{}: growth of queries with the position is {}, expected above 0 and below 1000", where,
                      c.position_scale);
  }
  RIDGE_TRY_STATUS(range("sliding window", c.window, 0, 1 << 26));
  RIDGE_TRY_STATUS(range("sliding window's period", c.window_period, 0, 1024));
  if (c.window_head_dim > 0) {
    RIDGE_TRY_STATUS(range("head_dim of sliding layers", c.window_head_dim, 2, 1024));
    if (c.window_head_dim % 2)
      return bad_file("{}: head_dim {} of sliding layers must be even", where, c.window_head_dim);
  }
  RIDGE_TRY_STATUS(range("layers that share K and V", c.shared_kv_layers, 0, c.n_layers - 1));
  for (int i = 0; i < c.n_layers; ++i)
    if (c.kv_layer(i) < 0)
      return bad_file("{}: layer {} shares K and V, but no layer of its kind has them (not supported)", where, i);
  RIDGE_TRY_STATUS(range("values of a token for each layer", c.d_layer_input, 0, 1 << 16));
  if (c.window_kv_heads > 0) {
    RIDGE_TRY_STATUS(range("n_kv_heads of sliding layers", c.window_kv_heads, 1, c.n_heads));
    if (c.n_heads % c.window_kv_heads != 0)
      return bad_file("{}: n_heads {} is not a multiple of n_kv_heads {} of sliding layers", where, c.n_heads,
                      c.window_kv_heads);
  }
  if (c.window_rope_theta != 0 && !(c.window_rope_theta > 1 && c.window_rope_theta < 1e12f))
    return bad_file("{}: rope frequency base of sliding layers is {}, expected above 1 and below 1e12", where,
                    c.window_rope_theta);
  for (const auto& [name, value] : {std::pair("embedding scale", c.embedding_scale),
                                    {"residual scale", c.residual_scale},
                                    {"logit divisor", c.logit_divisor},
                                    {"cap of logits", c.logit_cap == 0 ? 1 : c.logit_cap},
                                    {"expert scale", c.expert_scale},
                                    {"attention scale", c.attention_scale == 0 ? 1 : c.attention_scale}})
    if (!(value > 0 && value < 1e6f))
      return bad_file("{}: {} is {}, expected above 0 and below 1e6", where, name, value);
  return {};
}

}  // namespace ridge
