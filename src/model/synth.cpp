// Synthetic models: random weights at the true shapes of well-known models, so that speed can be measured without them.
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>

#include "base/closest.h"
#include "base/rng.h"
#include "model/arch/arch.h"
#include "model/convert.h"
#include "model/tensors.h"
#include "op/gemv/panels.h"

namespace ridge {
namespace {

struct SynthShape {
  std::string_view name;
  std::string_view arch;
  int n_layers, n_heads, n_kv_heads, head_dim, d_model, d_ff, vocab_size, n_ctx;
  float rope_theta;
  bool qkv_bias, tied;
  int rope_dim = 0;  // 0: head_dim
  int window = 0;
  int n_experts = 0, n_experts_used = 0, d_ff_expert = 0;
  float attention_scale = 0;
  // Latent attention: head_dim is kv_rank + rope_dim. One dense layer in front, a shared expert, experts in groups.
  int q_rank = 0, kv_rank = 0, nope_dim = 0, value_dim = 0, n_expert_groups = 1, n_groups_used = 1;
};
/// Additional settings of shapes with the gated delta rule.
struct Hybrid {
  std::string_view name;
  int d_ff_shared, delta_period;
  DeltaShape delta;
};
// From the config.json of each model.
// clang-format off
constexpr SynthShape kShapes[] = {
    {"qwen2.5-0.5b", "qwen2", 24, 14, 2, 64, 896, 4864, 151936, 32768, 1e6f, true, true},
    {"qwen2.5-1.5b", "qwen2", 28, 12, 2, 128, 1536, 8960, 151936, 131072, 1e6f, true, true},
    {"llama-3.2-1b", "llama", 16, 32, 8, 64, 2048, 8192, 128256, 131072, 5e5f, false, true},
    {"llama-3.1-8b", "llama", 32, 32, 8, 128, 4096, 14336, 128256, 131072, 5e5f, false, false},
    {"llama-3.1-70b", "llama", 80, 64, 8, 128, 8192, 28672, 128256, 131072, 5e5f, false, false},
    {"llama-3.1-405b", "llama", 126, 128, 8, 128, 16384, 53248, 128256, 131072, 5e5f, false, false},
    {"mistral-small-24b", "llama", 40, 32, 8, 128, 5120, 32768, 131072, 32768, 1e8f, false, false},
    {"phi-4-mini", "phi3", 32, 24, 8, 128, 3072, 8192, 200064, 131072, 1e4f, false, true, 96},
    {"gemma-3-27b", "gemma3", 62, 32, 16, 128, 5376, 21504, 262208, 131072, 1e6f, false, true, 128, 1024, 0, 0, 0,
     0.0771516749810459f},  // 168^-1/2
    {"qwen3-30b-a3b", "qwen3moe", 48, 32, 4, 128, 2048, 6144, 151936, 40960, 1e6f, false, false, 128, 0, 128, 8, 768},
    {"gpt-oss-20b", "gpt-oss", 24, 64, 8, 64, 2880, 2880, 201088, 131072, 1.5e5f, true, false, 64, 128, 32, 4, 2880},
    {"gpt-oss-120b", "gpt-oss", 36, 64, 8, 64, 2880, 2880, 201088, 131072, 1.5e5f, true, false, 64, 128, 128, 4, 2880},
    {"glm-4.7-flash", "deepseek2", 47, 20, 1, 576, 2048, 10240, 154880, 202752, 1e6f, false, false, 64, 0, 64, 4, 1536,
     0, 768, 512, 192, 256},
    {"qwen3.6-27b", "qwen35", 64, 24, 4, 256, 5120, 17408, 248320, 262144, 1e7f, false, false, 64},
    {"qwen3.6-35b-a3b", "qwen35moe", 40, 16, 2, 256, 2048, 512, 248320, 262144, 1e7f, false, false, 64, 0, 256, 8, 512},
    {"gemma-4-31b", "gemma4", 60, 32, 4, 512, 5376, 21504, 262144, 262144, 1e6f, false, true, 0, 1024},
    {"gemma-4-26b-a4b", "gemma4", 30, 16, 2, 512, 2816, 2112, 262144, 262144, 1e6f, false, true, 0, 1024, 128, 8, 704},
    {"gemma-4-e4b", "gemma4", 42, 8, 2, 512, 2560, 10240, 262144, 131072, 1e6f, false, true, 0, 512},
    {"nemotron-3-nano-30b-a3b", "nemotron_h_moe", 52, 32, 2, 128, 2688, 1856, 131072, 262144, 1e4f, false, false, 0, 0,
     128, 6, 1856},
    {"bitnet-2b-4t", "bitnet-b1.58", 30, 20, 5, 128, 2560, 6912, 128256, 4096, 5e5f, false, true},
    {"tiny-bitnet", "bitnet-b1.58", 2, 2, 1, 64, 128, 384, 512, 2048, 1e4f, false, true},
    {"tiny-64", "qwen2", 2, 4, 2, 64, 256, 512, 512, 2048, 1e4f, true, true},
    // Biases of all projections.
    {"tiny-biases", "llama", 2, 4, 2, 64, 256, 512, 512, 2048, 1e4f, true, true},
    {"tiny-gemma", "gemma3", 7, 4, 2, 32, 64, 96, 512, 2048, 1e4f, false, true, 32, 40},
    {"tiny-experts", "qwen3moe", 2, 4, 2, 32, 64, 160, 512, 2048, 1e4f, false, true, 32, 0, 8, 2, 32},
    {"tiny-oss", "gpt-oss", 3, 4, 2, 32, 64, 32, 512, 2048, 1e4f, true, false, 32, 40, 6, 2, 32},
    {"tiny-latent", "deepseek2", 3, 4, 1, 96, 64, 96, 512, 2048, 1e4f, false, true, 32, 0, 8, 2, 32, 0, 32, 64, 32, 16,
     4, 2},
    {"tiny-index", "deepseek32", 3, 4, 1, 96, 64, 96, 512, 2048, 1e4f, false, true, 32, 0, 8, 2, 32, 0, 32, 64, 32, 16,
     4, 2},
    {"tiny-delta", "qwen35moe", 4, 4, 2, 32, 64, 32, 512, 2048, 1e4f, false, true, 8, 0, 6, 2, 32},
    // Rows of whole groups of int4_g128.
    {"tiny-delta-128", "qwen35moe", 2, 4, 2, 32, 128, 128, 512, 2048, 1e4f, false, true, 8, 0, 6, 2, 128},
    {"tiny-gemma4", "gemma4", 6, 4, 1, 64, 64, 96, 512, 2048, 1e6f, false, true, 0, 40},
    {"tiny-gemma4-moe", "gemma4", 6, 4, 1, 64, 64, 96, 512, 2048, 1e6f, false, true, 0, 40, 8, 2, 32},
    {"tiny-gemma4-e", "gemma4", 9, 4, 2, 64, 64, 96, 512, 2048, 1e6f, false, true, 0, 40},
    {"tiny-nemotron", "nemotron_h", 7, 4, 2, 32, 64, 96, 512, 2048, 1e4f, false, false},
    {"tiny-nemotron-moe", "nemotron_h_moe", 7, 4, 2, 32, 64, 96, 512, 2048, 1e4f, false, false, 0, 0, 8, 2, 32},
    {"tiny", "llama", 2, 4, 2, 32, 64, 160, 512, 2048, 1e4f, false, true},
};
// clang-format on

constexpr Hybrid kHybrids[] = {
    {"qwen3.6-27b", 0, 4, {16, 48, 128, 128, 4}},
    {"qwen3.6-35b-a3b", 512, 4, {16, 32, 128, 128, 4}},
    {"tiny-delta", 32, 2, {2, 4, 16, 32, 4}},
    {"tiny-delta-128", 128, 2, {2, 4, 32, 32, 4}},
};

/// Additional settings of shapes whose queries choose their keys.
struct Indexed {
  std::string_view name;
  int heads, dim, top_k;
};
constexpr Indexed kIndexed[] = {{"tiny-index", 4, 48, 24}};

/// Additional settings of Gemma 4's shapes; n_kv_heads and head_dim are those of full layers.
struct Gemma4 {
  std::string_view name;
  int window_head_dim, window_kv_heads, window_period, shared_kv_layers, d_layer_input;
  bool full_k_is_v;
};
constexpr Gemma4 kGemmas[] = {
    {"gemma-4-31b", 256, 16, 6, 0, 0, true},    {"gemma-4-26b-a4b", 256, 8, 6, 0, 0, true},
    {"gemma-4-e4b", 256, 0, 6, 18, 256, false}, {"tiny-gemma4", 32, 2, 3, 0, 0, true},
    {"tiny-gemma4-moe", 32, 2, 3, 0, 0, true},  {"tiny-gemma4-e", 32, 0, 3, 3, 32, false},
};

/// Additional settings of Nemotron-H's shapes: a letter a layer, as config.json has them.
struct OneBlock {
  std::string_view name, letters;
  int d_ff_shared;
  MambaShape mamba;
};
constexpr OneBlock kOneBlocks[] = {
    {"nemotron-3-nano-30b-a3b", "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 3712, {64, 64, 8, 128, 4}},
    {"tiny-nemotron", "M-M*-M*", 0, {8, 16, 2, 16, 4}},
    {"tiny-nemotron-moe", "MEM*EM*", 64, {8, 16, 2, 16, 4}},
};

/// Fills matrices with valid blocks: a pool of encoded normal noise, copied from varying places.
class NoiseSource {
 public:
  NoiseSource(const WeightFormat& format, int64_t n_in, double gain) : format_(format) {
    constexpr int64_t kPoolValues = 1 << 18;
    Rng rng(uint64_t(n_in) * 2654435761u + 1);
    const double deviation = format.tail_bytes > 0 ? 1 : gain / std::sqrt(double(n_in));  // i2_s: Linear::scale has it
    pool_ = random_blocks(format, rng, deviation, kPoolValues);
  }
  void fill(std::byte* out, int64_t bytes, Rng& rng) const {
    const int64_t n_blocks = int64_t(pool_.size()) / format_.block_bytes;
    while (bytes > 0) {
      const int64_t from = int64_t(rng.next() % uint64_t(n_blocks / 2)) * format_.block_bytes;
      const int64_t n = std::min(bytes, int64_t(pool_.size()) - from);
      std::copy_n(pool_.data() + from, n, out);
      out += n;
      bytes -= n;
    }
  }

 private:
  const WeightFormat& format_;
  std::vector<std::byte> pool_;
};

void set_gemma4(const Gemma4& of, Config& c) {
  c.window_head_dim = of.window_head_dim;
  c.window_kv_heads = of.window_kv_heads;
  c.window_period = of.window_period;
  c.window_rope_theta = 10000;
  c.shared_kv_layers = of.shared_kv_layers;
  c.d_layer_input = of.d_layer_input;
  c.full_k_is_v = of.full_k_is_v;
  c.logit_cap = 30;
  c.rope_scaling.kind = RopeScaling::Kind::proportional;
  c.rope_scaling.turned_pairs = c.head_dim / 8;
  if (c.n_experts > 0) c.d_ff_shared = c.d_ff;
}

void set_blocks(const OneBlock& of, Config& c) {
  for (int i = 0; i < c.n_layers; ++i) {
    if (of.letters[size_t(i)] == 'M') c.state_layers.push_back(i);
    if (of.letters[size_t(i)] == '-' || of.letters[size_t(i)] == 'E') c.ff_layers.push_back(i);
  }
  c.mamba = of.mamba;
  c.d_ff_shared = of.d_ff_shared;
  c.nope_period = 1;
}

}  // namespace

Result<Config> synth_config(std::string_view name) {
  std::vector<std::string_view> names;
  for (const SynthShape& s : kShapes) {
    if (s.name == name) {
      Config c;
      c.name = s.name;
      c.n_layers = s.n_layers;
      c.n_heads = s.n_heads;
      c.n_kv_heads = s.n_kv_heads;
      c.head_dim = s.head_dim;
      c.rope_dim = s.rope_dim > 0 ? s.rope_dim : s.head_dim;
      c.d_model = s.d_model;
      c.d_ff = s.d_ff;
      c.vocab_size = s.vocab_size;
      c.n_ctx_train = s.n_ctx;
      c.rope_theta = s.rope_theta;
      c.qkv_bias = s.qkv_bias;
      c.tied_output = s.tied;
      c.window = s.window;
      c.n_experts = s.n_experts;
      c.n_experts_used = s.n_experts_used;
      c.d_ff_expert = s.d_ff_expert;
      c.attention_scale = s.attention_scale;
      if (s.kv_rank > 0) {
        c.q_rank = s.q_rank;
        c.kv_rank = s.kv_rank;
        c.nope_dim = s.nope_dim;
        c.value_dim = s.value_dim;
        c.n_expert_groups = s.n_expert_groups;
        c.n_groups_used = s.n_groups_used;
        c.d_ff_shared = s.d_ff_expert;
        c.dense_layers = {0};
        c.rope_pairs = RopePairs::interleaved;
      }
      for (const Hybrid& hybrid : kHybrids)
        if (hybrid.name == name)
          c.d_ff_shared = hybrid.d_ff_shared, c.delta_period = hybrid.delta_period, c.delta = hybrid.delta;
      for (const Indexed& of : kIndexed)
        if (of.name == name) c.index_heads = of.heads, c.index_dim = of.dim, c.index_top_k = of.top_k;
      for (const OneBlock& of : kOneBlocks)
        if (of.name == name) set_blocks(of, c);
      const Arch& arch = *find_arch(s.arch, s.n_experts > 0);
      if (c.window > 0) c.window_period = arch.window_period, c.window_rope_theta = arch.window_rope_theta;
      for (const Gemma4& of : kGemmas)
        if (of.name == name) set_gemma4(of, c);
      use_arch(arch, c);
      if (c.qkv_bias && !arch.qkv_bias) c.o_bias = c.mlp_bias = true;
      c.experts_renormalised = arch.experts_renormalised;
      return c;
    }
    names.push_back(s.name);
  }
  return fail(ErrorKind::usage, "unknown shape 'synth:{}' ({})", name, choices_text(name, names));
}

namespace {

Status apply_options(std::string_view spec, SynthPlan& plan) {
  while (!spec.empty()) {
    const size_t end = std::min(spec.find('@'), spec.size());
    const std::string_view option = spec.substr(0, end);
    spec.remove_prefix(std::min(spec.size(), end + 1));
    const size_t equals = option.find('=');
    const std::string_view key = option.substr(0, equals);
    const std::string value(equals == std::string_view::npos ? "" : option.substr(equals + 1));
    if (key == "weights") {
      const Result<QuantizeType> mix = find_quantize_type(value);
      if (mix && mix->format != mix->better) {
        plan.format = mix->format;
        plan.better = mix->better;
      } else {
        RIDGE_TRY(plan.format, find_weight_format(value));
      }
    } else if (key == "head") {
      RIDGE_TRY(plan.head, find_weight_format(value));
    } else if (key == "mtp" || key == "shared") {
      if (value != "0" && value != "1") return fail(ErrorKind::usage, "synth: option {}={} is not 0 or 1", key, value);
      (key == "mtp" ? plan.mtp : plan.shared) = value == "1";
    } else if (key == "skew") {
      char* rest = nullptr;
      plan.skew = std::strtod(value.c_str(), &rest);
      if (value.empty() || *rest || !(plan.skew >= 0 && plan.skew <= 4))
        return fail(ErrorKind::usage, "synth: option skew={} is not a number from 0 to 4", value);
    } else if (key == "layers") {
      char* rest = nullptr;
      const long n = std::strtol(value.c_str(), &rest, 10);
      if (value.empty() || *rest || n < 1 || n > 1024)
        return fail(ErrorKind::usage, "synth: option layers={} is not a number from 1 to 1024", value);
      if (n < plan.config.delta_period)
        return fail(ErrorKind::usage, "synth: option layers={} leaves no layer of {} that attends", value,
                    plan.config.delta_period);
      plan.config.n_layers = int(n);
      for (std::vector<int>* list : {&plan.config.state_layers, &plan.config.ff_layers})
        std::erase_if(*list, [&](int layer) { return layer >= n; });
      for (int i = 0; i < plan.config.n_layers; ++i)
        if (plan.config.kv_layer(i) < 0)
          return fail(ErrorKind::usage, "synth: option layers={} leaves layer {} no K and V to share", value, i);
      if (plan.config.n_cached_layers() == 0)
        return fail(ErrorKind::usage, "synth: option layers={} leaves no layer that attends", value);
    } else {
      return fail(ErrorKind::usage,
                  "unknown synth: option '{}' (there are: layers=N, weights=FORMAT, head=FORMAT, mtp=1, shared=1, "
                  "skew=S)",
                  option);
    }
  }
  return {};
}

}  // namespace

std::vector<std::string> synth_shape_names() {
  std::vector<std::string> names;
  for (const SynthShape& s : kShapes) names.emplace_back(s.name);
  return names;
}

Result<SynthPlan> plan_synth_model(std::string_view spec) {
  const size_t at = std::min(spec.find('@'), spec.size());
  SynthPlan plan;
  RIDGE_TRY(plan.config, synth_config(spec.substr(0, at)));
  plan.format = find_weight_format(plan.config.ternary ? "i2_s" : "f16").or_throw();
  RIDGE_TRY_STATUS(apply_options(at < spec.size() ? spec.substr(at + 1) : "", plan));
  if (plan.head) {
    if (plan.config.d_model % plan.head->group != 0 || plan.head->tail_bytes > 0)
      return fail(ErrorKind::usage, "synth: a head of {} columns cannot be {}", plan.config.d_model, plan.head->name);
    plan.config.tied_output = false;
  }
  if (plan.mtp && plan.config.has_delta(plan.config.n_layers - 1))
    return fail(ErrorKind::usage,
                "synth: with {} layers the last one keeps a state, an MTP head attends (another "
                "number of layers)",
                plan.config.n_layers);
  return plan;
}

const WeightFormat& SynthPlan::head_format() const { return head ? *head : format_of(config.d_model, false, true); }

const WeightFormat& SynthPlan::format_of(int64_t n_in, bool projection, bool preferred) const {
  const WeightFormat& f = preferred && better ? *better : *format;
  const bool ternary = f.tail_bytes > 0;  // i2_s: projections only, as in its models
  return n_in % f.group == 0 && (projection || !ternary) ? f : *weight_format_of_gguf(1);
}

namespace {

/// The format of a layer's matrix.
const WeightFormat& format_of(const SynthPlan& plan, const TensorRow& row, int layer) {
  if (row.kind == TensorKind::router) return *weight_format_of_gguf(0);
  const bool better = row.traits.better && gets_better(layer, plan.config.n_layers);
  return plan.format_of(row.shape(plan.config, layer).n_in, true, better);
}

}  // namespace

int64_t SynthPlan::decode_matrix_bytes() const {
  int64_t bytes = Linear{.format = &head_format(), .n_out = config.vocab_size, .n_in = config.d_model}.bytes();
  for (int i = 0; i < config.n_layers; ++i)
    for (const TensorRow& row : layer_tensors()) {
      if (!row.is_matrix() || !row.exists(config, i)) continue;
      const auto [n_out, n_in] = row.shape(config, i);
      const int n = row.is_in<ExpertWeights>() ? config.n_experts_used : row.of_heads() ? config.n_heads : 1;
      bytes += n * Linear{.format = &ridge::format_of(*this, row, i), .n_out = n_out, .n_in = n_in}.bytes();
    }
  if (const int64_t n = int64_t(config.n_layers) * config.d_layer_input; n > 0)
    bytes += Linear{.format = &format_of(config.d_model, false), .n_out = n, .n_in = config.d_model}.bytes();
  return bytes;
}

namespace {

/// Tensors of a layer in the order in which they are filled, which the numbers of all synth: models follow from.
/// Tensors of heads, and of experts, take turns. Rows that are not here are filled last.
constexpr std::string_view kFillOrder =
    "|attn_norm|attn_post_norm|ffn_post_norm|delta qkv|delta z|delta a|delta b|delta conv|delta decay|delta dt_bias|"
    "delta norm|q_a|q_a_norm|q_b|kv_a|kv_a_norm|k_b|v_b|index_q|index_k|index_weights|index_norm|"
    "index_norm_bias|q_norm|k_norm|q|k|v|o|q_bias|k_bias|v_bias|attn_sub_norm|"
    "ffn_sub_norm|ffn_norm|o_bias|sink_logits|router|router_bias|choice_bias|expert gate|expert up|expert down|"
    "expert gate_bias|expert up_bias|expert down_bias|shared_gate|gate|up|down|gate_bias|up_bias|down_bias|";

/// The layer rows in that order.
std::vector<const TensorRow*> rows_in_fill_order() {
  std::vector<const TensorRow*> rows;
  for (const TensorRow& row : layer_tensors()) rows.push_back(&row);
  const auto place = [](const TensorRow* row) { return kFillOrder.find(fmt::format("|{}|", row->name)); };
  std::ranges::stable_sort(rows, {}, place);
  return rows;
}

/// Values of a vector: centre + spread * normal.
struct Noise {
  float centre, spread;
};
Noise noise_of(const TensorRow& row, const Config& c, float branch_gain) {
  static const std::map<TensorKind, Noise> kNoises = {
      {TensorKind::norm, {1, 0.05f}},       {TensorKind::inner_norm, {1, 0.05f}},
      {TensorKind::bias, {0, 0.1f}},        {TensorKind::score_bias, {0, 0.1f}},
      {TensorKind::logit, {0, 1}},          {TensorKind::decay, {0, 1}},
      {TensorKind::multiplier, {1, 0.05f}}, {TensorKind::output_bias, {0, 0.01f}},
      {TensorKind::convolution, {0, 0.5f}}};
  // Blocks give rows of variance 1 behind a norm: as small as the others' beside x.
  if (row.kind == TensorKind::block_norm) return {branch_gain, 0.05f * branch_gain};
  if (row.kind == TensorKind::gate_row) return {0, float(1 / std::sqrt(double(c.d_model)))};
  return kNoises.at(row.kind);
}

}  // namespace

Result<LoadedModel> make_synth_model(CpuContext& context, std::string_view spec, SynthMatrices matrices) {
  RIDGE_TRY(const SynthPlan plan, plan_synth_model(spec));
  LoadedModel model;
  model.config = plan.config;
  const Config& c = model.config;
  Weights& w = model.weights;
  Weights* into = &w;  // what is made now: the model, then the MTP head
  Rng rng(1);

  std::map<std::tuple<const WeightFormat*, int64_t, double>, NoiseSource> noises;  // encoding one takes milliseconds
  // Rows are kept only where a kernel reads them: embeddings are looked up row by row, panels serve the matmuls.
  const auto matrix_of = [&](const WeightFormat& f, int64_t n_out, int64_t n_in, bool keep_rows, double gain = 1,
                             double skew = 0) -> Linear {
    Linear m{.format = &f, .n_out = n_out, .n_in = n_in};
    if (f.tail_bytes > 0) m.scale = float(gain / std::sqrt(double(n_in))), m.int8_activations = true;
    into->stored_bytes += m.bytes();
    into->n_params += n_out * n_in;
    if (matrices == SynthMatrices::shapes) return m;
    const auto at = std::tuple(&f, n_in, gain);
    const NoiseSource& noise = noises.try_emplace(at, f, n_in, gain).first->second;
    AlignedBuffer rows(m.bytes());
    noise.fill(rows.data(), m.bytes(), rng);
    for (int64_t i = 0; skew > 0 && i < n_out * n_in; ++i)  // floats: of a router
      reinterpret_cast<float*>(rows.data())[i] *= float(std::pow(double(1 + i / n_in), -skew));
    if (matrices == SynthMatrices::packed && wants_panels(f, n_in, context.isa)) {
      AlignedBuffer& panels = into->buffers.emplace_back(panel_bytes(f, n_out, n_in));
      pack_panels(context, f, n_out, n_in, rows.data(), panels.data());
      m.panels = panels.data();
      if (!keep_rows) rows = AlignedBuffer();
    }
    if (rows.bytes() > 0) {
      m.rows = rows.data();
      into->buffers.push_back(std::move(rows));
    }
    return m;
  };
  // As in trained models, what a block adds is small beside the residual stream: the embedding has variance 1, all
  // blocks together add about as much, and a small difference stays small.
  const double branch_gain = 1 / std::sqrt(2.0 * c.n_layers);
  const auto vector = [&](int64_t n, float centre, float spread) {
    std::vector<float> values(size_t(n), 0.0f);
    for (float& v : values) v = centre + spread * float(rng.normal());
    into->stored_bytes += 4 * n;
    into->n_params += n;
    return values;
  };

  w.embedding = matrix_of(plan.format_of(c.d_model, false, c.tied_output), c.vocab_size, c.d_model, true,
                          std::sqrt(double(c.d_model)) / c.embedding_scale);
  w.output = c.tied_output ? w.embedding : matrix_of(plan.head_format(), c.vocab_size, c.d_model, false);
  if (c.d_layer_input > 0) {
    const int64_t n = int64_t(c.n_layers) * c.d_layer_input;
    w.layer_embedding = matrix_of(plan.format_of(n, false), c.vocab_size, n, true);
    w.layer_inputs = matrix_of(plan.format_of(c.d_model, false), n, c.d_model, false);
    w.layer_inputs_norm = vector(c.d_layer_input, 1, 0.05f);
  }
  w.output_norm = vector(c.d_model, 1, 0.05f);
  if (c.tied_output)  // logits of variance 1; signs, so that the model does not say each token again
    for (float& v : w.output_norm)
      v *= (rng.next() % 2 == 0 ? 1.0f : -1.0f) * c.embedding_scale / std::sqrt(float(c.d_model));
  const std::vector<const TensorRow*> rows = rows_in_fill_order();
  const auto add_layer = [&](int i) {
    LayerWeights& layer = into->layers.emplace_back();
    const auto fill_row = [&](const TensorRow& row, auto& to) {
      const auto [n_out, n_in] = row.shape(c, i);
      if constexpr (std::is_same_v<decltype(to), Linear&>) {
        const double gain = row.kind == TensorKind::output ? branch_gain : 1;
        to = matrix_of(format_of(plan, row, i), n_out, n_in, false, gain,
                       row.kind == TensorKind::router ? plan.skew : 0);
      } else {
        const auto [centre, spread] = noise_of(row, c, float(branch_gain));
        to = vector(n_out * n_in, centre, spread);
        if (row.kind != TensorKind::decay) return;
        for (float& v : to) v = -0.1f * std::exp(v);
      }
    };
    const auto take_turns = [&](int n, const auto& fill_part) {
      for (int part = 0; part < n; ++part)
        for (const TensorRow* row : rows)
          if (row->exists(c, i)) fill_part(*row, size_t(part));
    };
    for (const TensorRow* row : rows) {
      if (!row->exists(c, i)) continue;
      if (row->member == TensorMember(&LayerWeights::k_b)) {
        layer.k_b.resize(size_t(c.n_heads));
        layer.v_b.resize(size_t(c.n_heads));
        take_turns(c.n_heads, [&](const TensorRow& of, size_t head) {
          if (of.of_heads()) fill_row(of, (layer.**of.of_heads())[head]);
        });
      } else if (row->is_in<ExpertWeights>() && layer.experts.empty()) {
        layer.experts.resize(size_t(c.n_experts));
        take_turns(c.n_experts, [&](const TensorRow& of, size_t e) { call_member(of, layer.experts[e], fill_row); });
      } else if (!row->of_heads()) {
        call_member(*row, layer, fill_row);
        call_member(*row, layer.delta, fill_row);
      }
    }
  };
  // First layer of each kind, with the bytes and parameters that it added to the model's counts.
  struct Made {
    int layer;
    int64_t bytes, params;
  };
  std::map<std::tuple<bool, bool, bool, bool, bool, int, bool>, Made> made;
  for (int i = 0; i < c.n_layers; ++i) {
    const std::tuple kind(c.has_delta(i), c.has_experts(i), plan.better && gets_better(i, c.n_layers), c.has_state(i),
                          c.has_mixer(i), c.head_dim_of(i), c.has_kv(i));
    if (const auto like = made.find(kind); plan.shared && like != made.end()) {
      w.layers.push_back(w.layers[size_t(like->second.layer)]);
      w.stored_bytes += like->second.bytes;
      w.n_params += like->second.params;
      continue;
    }
    const int64_t bytes = w.stored_bytes, params = w.n_params;
    add_layer(i);
    made.try_emplace(kind, Made{i, w.stored_bytes - bytes, w.n_params - params});
  }
  if (plan.mtp) {
    const auto head = std::make_shared<Weights>();
    into = head.get();
    head->join = matrix_of(plan.format_of(2 * c.d_model, false), c.d_model, 2 * c.d_model, false);
    head->join_embedding_norm = vector(c.d_model, 1, 0.05f);
    head->join_hidden_norm = vector(c.d_model, 1, 0.05f);
    head->output_norm = w.output_norm;
    add_layer(c.n_layers - 1);
    w.head = head;
  }
  return model;
}

}  // namespace ridge
