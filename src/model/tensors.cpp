#include "model/tensors.h"

#include <algorithm>
#include <array>

namespace ridge {
namespace {

using C = const Config&;
using Kind = TensorKind;
using Cut = TensorCut;
using Shape = TensorShape;

bool has_delta(C c, int i) { return c.has_delta(i); }
bool has_state(C c, int i) { return c.has_state(i); }
bool has_mamba(C c, int i) { return c.has_mamba(i); }
bool has_latent(C c, int i) { return c.attends(i) && c.kv_rank > 0; }
bool has_low_q(C c, int i) { return has_latent(c, i) && c.q_rank > 0; }
bool has_index(C c, int i) { return has_latent(c, i) && c.index_top_k > 0; }
bool has_heads(C c, int i) { return c.attends(i) && c.kv_rank == 0; }
bool has_k(C c, int i) { return has_heads(c, i) && c.has_kv(i); }
bool has_v(C c, int i) { return has_heads(c, i) && c.has_v(i); }
bool has_q(C c, int i) { return has_heads(c, i) || (has_latent(c, i) && c.q_rank == 0); }
bool has_qkv_bias(C c, int i) { return has_heads(c, i) && c.qkv_bias; }
bool has_q_norm(C c, int i) { return has_heads(c, i) && c.qk_norm; }
bool has_k_norm(C c, int i) { return has_k(c, i) && c.qk_norm; }
bool has_mixer(C c, int i) { return c.has_mixer(i); }
bool has_norms_before(C c, int) { return c.norms != NormPlace::after; }
bool has_attn_norm(C c, int i) { return has_norms_before(c, i) && c.has_mixer(i); }
bool has_ffn_norm(C c, int i) {
  return has_norms_before(c, i) && c.norms != NormPlace::parallel && c.has_feed_forward(i);
}
bool has_norms_behind(C c, int) { return c.norms == NormPlace::after || c.norms == NormPlace::both; }
bool has_dense(C c, int i) { return c.has_feed_forward(i) && (!c.has_experts(i) || c.d_ff_shared > 0); }
bool has_gate(C c, int i) { return has_dense(c, i) && !c.ungated; }
bool has_dense_bias(C c, int i) { return !c.has_experts(i) && c.mlp_bias; }
bool has_experts(C c, int i) { return c.has_experts(i); }
bool has_expert_gate(C c, int i) { return c.has_experts(i) && !c.ungated; }
bool has_beside(C c, int i) { return c.has_experts(i) && c.dense_beside; }
bool has_layer_input(C c, int) { return c.d_layer_input > 0; }
bool has_expert_biases(C c, int i) { return c.has_experts(i) && c.expert_biases; }
bool is_model(C c, int i) { return i != c.n_layers; }
bool is_head(C c, int i) { return i == c.n_layers; }
bool has_layer_inputs(C c, int i) { return is_model(c, i) && c.d_layer_input > 0; }
bool always(C, int) { return true; }

bool has_longrope(C c) { return c.rope_scaling.kind == RopeScaling::Kind::longrope; }
bool lacks_qkv_bias(C c) { return !arch_of(c).qkv_bias; }
bool lacks_o_bias(C c) { return !arch_of(c).gpt_oss; }
bool lacks_mlp_bias(C) { return true; }
bool lacks_factors(C c) { return !has_longrope(c) && !arch_of(c).gemma4; }

int64_t dense_width(C c, int i) { return c.has_experts(i) ? c.d_ff_shared : c.d_ff_of(i); }
Shape of_model(C c, int) { return {c.d_model}; }
Shape of_vocab(C c, int) { return {c.vocab_size, c.d_model}; }
Shape of_rope(C c, int) { return {c.rope_dim / 2}; }
Shape of_query(C c, int i) { return {c.kv_rank > 0 ? int64_t(c.n_heads) * c.query_dim() : c.q_rows(i), c.d_model}; }
Shape of_query_bias(C c, int i) { return {c.q_rows(i)}; }
Shape of_kv(C c, int i) { return {c.kv_dim(i), c.d_model}; }
Shape of_kv_bias(C c, int i) { return {c.kv_dim(i)}; }
Shape of_index_key(C c, int) { return {c.index_dim}; }
Shape of_mamba_heads(C c, int) { return {c.mamba.n_heads}; }
/// Columns of the output projection.
int64_t mixer_width(C c, int i) {
  return c.has_delta(i)   ? c.delta.values()
         : c.has_mamba(i) ? c.mamba.inner()
         : c.has_conv(i)  ? c.d_model
                          : c.value_width(i);
}
Shape of_value_head(C c, int) { return {c.delta.n_value_heads, c.d_model}; }
Shape of_value_head_each(C c, int) { return {c.delta.n_value_heads}; }
Shape into_dense(C c, int i) { return {dense_width(c, i), c.d_model}; }
Shape of_dense(C c, int i) { return {dense_width(c, i)}; }
Shape into_expert(C c, int) { return {c.d_ff_expert, c.d_model}; }
Shape of_expert(C c, int) { return {c.d_ff_expert}; }
Shape of_experts(C c, int) { return {c.n_experts}; }

using L = LayerWeights;
using D = DeltaWeights;
using E = ExpertWeights;

// clang-format off
constexpr TensorRow kLayerTensors[] = {
    {"delta qkv", &D::qkv, Kind::matrix, {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"}, has_delta,
     [](C c, int) -> Shape { return {c.delta.channels(), c.d_model}; }, Cut::channels},
    {"delta z", &D::z, Kind::matrix, {"attn_gate.weight", "linear_attn.in_proj_z.weight"}, has_delta,
     [](C c, int) -> Shape { return {c.delta.values(), c.d_model}; }, Cut::values},
    {"delta a", &D::a, Kind::matrix, {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"}, has_delta, of_value_head,
     Cut::value_heads},
    {"delta b", &D::b, Kind::matrix, {"ssm_beta.weight", "linear_attn.in_proj_b.weight"}, has_delta, of_value_head,
     Cut::value_heads},
    {"delta conv", &D::conv, Kind::convolution, {"ssm_conv1d.weight", "linear_attn.conv1d.weight"}, has_delta,
     [](C c, int) -> Shape { return {c.delta.kernel, c.delta.channels()}; }, Cut::channels},
    {"delta decay", &D::decay, Kind::decay, {"ssm_a", "linear_attn.A_log"}, has_delta, of_value_head_each,
     Cut::value_heads},
    {"delta dt_bias", &D::dt_bias, Kind::logit, {"ssm_dt.bias", "linear_attn.dt_bias"}, has_delta, of_value_head_each,
     Cut::value_heads},
    {"delta norm", &D::norm, Kind::inner_norm, {"ssm_norm.weight", "linear_attn.norm.weight"}, has_delta,
     [](C c, int) -> Shape { return {c.delta.value_dim}; }},

    {"conv_in", &L::conv_in, Kind::matrix, {"shortconv.in_proj.weight", "conv.in_proj.weight"}, has_state,
     [](C c, int i) -> Shape { return {c.has_mamba(i) ? c.mamba.columns() : 3 * int64_t(c.d_model), c.d_model}; }},
    {"conv", &L::conv, Kind::convolution, {"shortconv.conv.weight", "conv.conv.weight"}, has_state,
     [](C c, int i) -> Shape {
       return c.has_mamba(i) ? Shape{c.mamba.kernel, c.mamba.channels()} : Shape{c.conv_kernel, c.d_model};
     }},
    {"conv_bias", &L::conv_bias, Kind::logit, {"ssm_conv1d.bias", "mamba.conv1d.bias"}, has_mamba,
     [](C c, int) -> Shape { return {c.mamba.channels()}; }},
    {"mamba decay", &L::mamba_decay, Kind::decay, {"ssm_a", "mamba.A_log"}, has_mamba, of_mamba_heads},
    {"mamba d", &L::mamba_d, Kind::logit, {"ssm_d", "mamba.D"}, has_mamba, of_mamba_heads},
    {"mamba dt_bias", &L::mamba_dt_bias, Kind::logit, {"ssm_dt.bias", "mamba.dt_bias"}, has_mamba, of_mamba_heads},
    {"mamba norm", &L::mamba_norm, Kind::inner_norm, {"ssm_norm.weight", "mamba.norm.weight"}, has_mamba,
     [](C c, int) -> Shape { return {c.mamba.inner()}; }},

    {"attn_norm", &L::attn_norm, Kind::norm, {"attn_norm.weight", "input_layernorm.weight"}, has_attn_norm,
     of_model},
    {"q", &L::q, Kind::matrix, {"attn_q.weight", "self_attn.q_proj.weight"}, has_q, of_query, Cut::heads,
     {.rope = true}},
    {"k", &L::k, Kind::matrix, {"attn_k.weight", "self_attn.k_proj.weight"}, has_k, of_kv, Cut::kv_heads,
     {.rope = true}},
    {"v", &L::v, Kind::matrix, {"attn_v.weight", "self_attn.v_proj.weight"}, has_v, of_kv, Cut::kv_heads,
     {.better = true}},
    {"q_bias", &L::q_bias, Kind::bias, {"attn_q.bias", "self_attn.q_proj.bias"}, has_qkv_bias, of_query_bias,
     Cut::heads, {.rope = true, .may_lack = lacks_qkv_bias}},
    {"k_bias", &L::k_bias, Kind::bias, {"attn_k.bias", "self_attn.k_proj.bias"}, has_qkv_bias, of_kv_bias,
     Cut::kv_heads, {.rope = true, .may_lack = lacks_qkv_bias}},
    {"v_bias", &L::v_bias, Kind::bias, {"attn_v.bias", "self_attn.v_proj.bias"}, has_qkv_bias, of_kv_bias,
     Cut::kv_heads, {.may_lack = lacks_qkv_bias}},
    {"q_norm", &L::q_norm, Kind::norm, {"attn_q_norm.weight", "self_attn.q_norm.weight"}, has_q_norm,
     [](C c, int i) -> Shape { return {c.qk_norm_whole ? c.q_dim(i) : c.head_dim_of(i)}; }},
    {"k_norm", &L::k_norm, Kind::norm, {"attn_k_norm.weight", "self_attn.k_norm.weight"}, has_k_norm,
     [](C c, int i) -> Shape { return {c.qk_norm_whole ? c.kv_dim(i) : c.head_dim_of(i)}; }},

    {"q_a", &L::q_a, Kind::matrix, {"attn_q_a.weight", "self_attn.q_a_proj.weight"}, has_low_q,
     [](C c, int) -> Shape { return {c.q_rank, c.d_model}; }},
    {"q_a_norm", &L::q_a_norm, Kind::inner_norm, {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"}, has_low_q,
     [](C c, int) -> Shape { return {c.q_rank}; }},
    {"q_b", &L::q_b, Kind::matrix, {"attn_q_b.weight", "self_attn.q_b_proj.weight"}, has_low_q,
     [](C c, int) -> Shape { return {int64_t(c.n_heads) * c.query_dim(), c.q_rank}; }, Cut::heads},
    {"kv_a", &L::kv_a, Kind::matrix, {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"}, has_latent,
     [](C c, int) -> Shape { return {c.head_dim, c.d_model}; }},
    {"kv_a_norm", &L::kv_a_norm, Kind::inner_norm, {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
     has_latent, [](C c, int) -> Shape { return {c.kv_rank}; }},
    {"k_b", &L::k_b, Kind::matrix, {"attn_k_b.weight", "self_attn.kv_b_proj.weight"}, has_latent,
     [](C c, int) -> Shape { return {c.kv_rank, c.nope_dim}; }, Cut::heads, {.layout = TensorLayout::by_head}},
    {"v_b", &L::v_b, Kind::matrix, {"attn_v_b.weight", "self_attn.kv_b_proj.weight"}, has_latent,
     [](C c, int) -> Shape { return {c.value_dim, c.kv_rank}; }, Cut::heads, {.layout = TensorLayout::by_head}},

    {"index_q", &L::index_q, Kind::matrix, {"indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight"}, has_index,
     [](C c, int) -> Shape { return {int64_t(c.index_heads) * c.index_dim, c.q_rank}; }},
    {"index_k", &L::index_k, Kind::matrix, {"indexer.attn_k.weight", "self_attn.indexer.wk.weight"}, has_index,
     [](C c, int) -> Shape { return {c.index_dim, c.d_model}; }},
    {"index_weights", &L::index_weights, Kind::matrix, {"indexer.proj.weight", "self_attn.indexer.weights_proj.weight"},
     has_index, [](C c, int) -> Shape { return {c.index_heads, c.d_model}; }},
    {"index_norm", &L::index_norm, Kind::inner_norm, {"indexer.k_norm.weight", "self_attn.indexer.k_norm.weight"},
     has_index, of_index_key},
    {"index_norm_bias", &L::index_norm_bias, Kind::bias, {"indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"},
     has_index, of_index_key},

    {"attn_sub_norm", &L::attn_sub_norm, Kind::inner_norm, {"attn_sub_norm.weight", "self_attn.attn_sub_norm.weight"},
     [](C c, int) { return c.sub_norm; }, [](C c, int i) -> Shape { return {c.q_dim(i)}; }},
    {"o", &L::o, Kind::output, {"attn_output.weight", "self_attn.o_proj.weight"}, has_mixer,
     [](C c, int i) -> Shape { return {c.d_model, mixer_width(c, i)}; },
     Cut::mixed},
    {"attn_post_norm", &L::attn_post_norm, Kind::block_norm,
     {"post_attention_norm.weight", "post_attention_layernorm.weight"}, has_norms_behind, of_model},
    {"o_bias", &L::o_bias, Kind::output_bias, {"attn_output.bias", "self_attn.o_proj.bias"},
     [](C c, int i) { return has_heads(c, i) && c.o_bias; }, of_model, Cut::summed, {.may_lack = lacks_o_bias}},
    {"sink_logits", &L::sink_logits, Kind::logit, {"attn_sinks.weight", "self_attn.sinks"},
     [](C c, int i) { return has_heads(c, i) && c.sink_logits; }, [](C c, int) -> Shape { return {c.n_heads}; },
     Cut::heads},

    {"ffn_norm", &L::ffn_norm, Kind::norm, {"ffn_norm.weight", "post_attention_layernorm.weight"}, has_ffn_norm,
     of_model},
    {"gate", &L::gate, Kind::matrix, {"ffn_gate.weight", "mlp.gate_proj.weight"}, has_gate, into_dense, Cut::ff},
    {"up", &L::up, Kind::matrix, {"ffn_up.weight", "mlp.up_proj.weight"}, has_dense, into_dense, Cut::ff},
    {"gate_bias", &L::gate_bias, Kind::bias, {"ffn_gate.bias", "mlp.gate_proj.bias"}, has_dense_bias, of_dense, Cut::ff,
     {.may_lack = lacks_mlp_bias}},
    {"up_bias", &L::up_bias, Kind::bias, {"ffn_up.bias", "mlp.up_proj.bias"}, has_dense_bias, of_dense, Cut::ff,
     {.may_lack = lacks_mlp_bias}},
    {"ffn_sub_norm", &L::ffn_sub_norm, Kind::inner_norm, {"ffn_sub_norm.weight", "mlp.ffn_sub_norm.weight"},
     [](C c, int) { return c.sub_norm; }, of_dense},
    {"down", &L::down, Kind::output, {"ffn_down.weight", "mlp.down_proj.weight"}, has_dense,
     [](C c, int i) -> Shape { return {c.d_model, dense_width(c, i)}; }, Cut::ff_columns, {.better = true}},
    {"down_bias", &L::down_bias, Kind::output_bias, {"ffn_down.bias", "mlp.down_proj.bias"}, has_dense_bias, of_model,
     Cut::summed, {.may_lack = lacks_mlp_bias}},
    {"ffn_post_norm", &L::ffn_post_norm, Kind::block_norm,
     {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"}, has_norms_behind, of_model},

    {"expert_norm", &L::expert_norm, Kind::norm, {"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
     has_beside, of_model},
    {"dense_post_norm", &L::dense_post_norm, Kind::norm,
     {"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"}, has_beside, of_model},
    {"expert_post_norm", &L::expert_post_norm, Kind::norm,
     {"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"}, has_beside, of_model},
    {"router_scale", &L::router_scale, Kind::inner_norm, {"ffn_gate_inp.scale", "router.scale"}, has_beside, of_model},
    {"expert_scale", &L::expert_scale, Kind::multiplier, {"ffn_down_exps.scale", "router.per_expert_scale"}, has_beside,
     of_experts},
    {"input_gate", &L::input_gate, Kind::matrix, {"inp_gate.weight", "per_layer_input_gate.weight"}, has_layer_input,
     [](C c, int) -> Shape { return {c.d_layer_input, c.d_model}; }},
    {"input_proj", &L::input_proj, Kind::matrix, {"proj.weight", "per_layer_projection.weight"}, has_layer_input,
     [](C c, int) -> Shape { return {c.d_model, c.d_layer_input}; }},
    {"input_post_norm", &L::input_post_norm, Kind::block_norm,
     {"post_norm.weight", "post_per_layer_input_norm.weight"}, has_layer_input, of_model},
    {"layer_scale", &L::layer_scale, Kind::multiplier, {"layer_output_scale.weight", "layer_scalar"},
     [](C c, int) { return c.layer_scale; }, [](C, int) -> Shape { return {1}; }},

    {"router", &L::router, Kind::router, {"ffn_gate_inp.weight", "mlp.gate.weight"}, has_experts,
     [](C c, int) -> Shape { return {c.n_experts, c.d_model}; }},
    {"router_bias", &L::router_bias, Kind::score_bias, {"ffn_gate_inp.bias", "mlp.router.bias"}, has_expert_biases,
     of_experts},
    {"choice_bias", &L::choice_bias, Kind::score_bias, {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
     [](C c, int i) { return c.has_experts(i) && c.choice_bias; }, of_experts},
    {"shared_gate", &L::shared_gate, Kind::gate_row, {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
     [](C c, int i) { return c.has_experts(i) && c.d_ff_shared > 0 && c.shared_gate; }, of_model},

    {"expert gate", &E::gate, Kind::matrix, {"ffn_gate_exps.weight", "mlp.experts.{}.gate_proj.weight"},
     has_expert_gate, into_expert, Cut::ff},
    {"expert up", &E::up, Kind::matrix, {"ffn_up_exps.weight", "mlp.experts.{}.up_proj.weight"}, has_experts,
     into_expert, Cut::ff},
    {"expert down", &E::down, Kind::output, {"ffn_down_exps.weight", "mlp.experts.{}.down_proj.weight"}, has_experts,
     [](C c, int) -> Shape { return {c.d_model, c.d_ff_expert}; }, Cut::ff_columns},
    {"expert gate_bias", &E::gate_bias, Kind::bias, {"ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias"},
     has_expert_biases, of_expert, Cut::ff, {.layout = TensorLayout::woven}},
    {"expert up_bias", &E::up_bias, Kind::bias, {"ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias"},
     has_expert_biases, of_expert, Cut::ff, {.layout = TensorLayout::woven}},
    {"expert down_bias", &E::down_bias, Kind::output_bias, {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
     has_expert_biases, of_model, Cut::summed, {.layout = TensorLayout::woven}},
};
// clang-format on

/// Files that have a tensor under another name or within another one.
struct OtherSource {
  std::string_view row;
  bool (*when)(const Arch& arch, C c, int layer);
  TensorSource source;
};

bool is_fused(const Arch& arch, C, int) { return arch.fused; }
bool is_oss(const Arch& arch, C, int) { return arch.gpt_oss; }
bool is_stacked(const Arch& arch, C, int) { return arch.experts_stacked; }
bool is_by_key_head(const Arch& arch, C, int) { return arch.delta_by_key_head; }
bool is_behind(const Arch& arch, C, int) { return arch.grouped_experts; }  // a head is the layer behind the last one
bool is_shared(const Arch& arch, C c, int i) { return c.has_experts(i) && !arch.grouped_experts && !c.dense_beside; }
bool is_grouped_shared(const Arch& arch, C c, int i) { return c.has_experts(i) && arch.grouped_experts; }
bool is_gemma4(const Arch& arch, C, int) { return arch.gemma4; }
bool is_block_sparse(const Arch& arch, C, int) { return arch.block_sparse; }
bool is_as_moe(const Arch& arch, C, int) { return arch.experts_as_moe; }
bool is_granite(const Arch& arch, C, int) { return arch.mamba && !arch.one_block; }
bool is_granite_dense(const Arch& arch, C c, int i) { return is_granite(arch, c, i) && !c.has_experts(i); }
bool is_granite_shared(const Arch& arch, C c, int i) { return is_granite(arch, c, i) && c.has_experts(i); }
bool is_mamba(const Arch&, C c, int i) { return c.has_mamba(i); }
bool is_nemotron(const Arch& arch, C, int) { return arch.one_block; }
bool is_nemotron_dense(const Arch& arch, C c, int i) { return arch.one_block && !c.has_experts(i); }
bool is_nemotron_shared(const Arch& arch, C c, int i) { return arch.one_block && c.has_experts(i); }
bool is_nemotron_mamba(const Arch& arch, C c, int i) { return arch.one_block && c.has_mamba(i); }
bool is_lfm(const Arch& arch, C, int) { return arch.short_conv; }
bool is_lfm_dense(const Arch& arch, C c, int i) { return arch.short_conv && !c.has_experts(i); }
bool is_after_rope(const Arch& arch, C, int) { return arch.qk_norm_after_rope; }

constexpr TensorName kQkv{"attn_qkv.weight", "self_attn.qkv_proj.weight"},
    kGateUp{"ffn_up.weight", "mlp.gate_up_proj.weight"}, kBa{"ssm_ba.weight", "linear_attn.in_proj_ba.weight"};
constexpr std::string_view kQkvz = "linear_attn.in_proj_qkvz.weight", kExpertGateUp = "mlp.experts.gate_up_proj",
                           kExpertDown = "mlp.experts.down_proj";

// clang-format off
constexpr OtherSource kOtherSources[] = {
    {"delta qkv", is_by_key_head, {{"attn_qkv.weight", kQkvz}, TensorLayout::by_key_head}},
    {"delta z", is_by_key_head, {{"attn_gate.weight", kQkvz}, TensorLayout::by_key_head}},
    {"delta a", is_by_key_head, {kBa, TensorLayout::by_key_head}},
    {"delta b", is_by_key_head, {kBa, TensorLayout::by_key_head}},
    {"q", is_fused, {kQkv}},
    {"k", is_fused, {kQkv}},
    {"v", is_fused, {kQkv}},
    {"o", [](const Arch&, C c, int i) { return c.has_delta(i); }, {{"ssm_out.weight", "linear_attn.out_proj.weight"}}},
    {"attn_norm", is_nemotron, {{"attn_norm.weight", "norm.weight"}}},
    {"ffn_norm", is_nemotron, {{"attn_norm.weight", "norm.weight"}}},
    {"q", is_nemotron, {{"attn_q.weight", "mixer.q_proj.weight"}}},
    {"k", is_nemotron, {{"attn_k.weight", "mixer.k_proj.weight"}}},
    {"v", is_nemotron, {{"attn_v.weight", "mixer.v_proj.weight"}}},
    {"conv_in", is_nemotron, {{"ssm_in.weight", "mixer.in_proj.weight"}}},
    {"conv", is_nemotron, {{"ssm_conv1d.weight", "mixer.conv1d.weight"}}},
    {"conv_bias", is_nemotron, {{"ssm_conv1d.bias", "mixer.conv1d.bias"}}},
    {"mamba decay", is_nemotron, {{"ssm_a", "mixer.A_log"}}},
    {"mamba d", is_nemotron, {{"ssm_d", "mixer.D"}}},
    {"mamba dt_bias", is_nemotron, {{"ssm_dt.bias", "mixer.dt_bias"}}},
    {"mamba norm", is_nemotron, {{"ssm_norm.weight", "mixer.norm.weight"}}},
    {"o", is_nemotron_mamba, {{"ssm_out.weight", "mixer.out_proj.weight"}}},
    {"o", is_nemotron, {{"attn_output.weight", "mixer.o_proj.weight"}}},
    {"up", is_nemotron_dense, {{"ffn_up.weight", "mixer.up_proj.weight"}}},
    {"down", is_nemotron_dense, {{"ffn_down.weight", "mixer.down_proj.weight"}}},
    {"up", is_nemotron_shared, {{"ffn_up_shexp.weight", "mixer.shared_experts.up_proj.weight"}}},
    {"down", is_nemotron_shared, {{"ffn_down_shexp.weight", "mixer.shared_experts.down_proj.weight"}}},
    {"router", is_nemotron, {{"ffn_gate_inp.weight", "mixer.gate.weight"}}},
    {"choice_bias", is_nemotron, {{"exp_probs_b.bias", "mixer.gate.e_score_correction_bias"}}},
    {"expert up", is_nemotron, {{"ffn_up_exps.weight", "mixer.experts.{}.up_proj.weight"}}},
    {"expert down", is_nemotron, {{"ffn_down_exps.weight", "mixer.experts.{}.down_proj.weight"}}},
    {"embedding", is_nemotron, {{"token_embd.weight", "model.embeddings.weight"}}},
    {"output_norm", is_nemotron, {{"output_norm.weight", "model.norm_f.weight"}}},
    {"conv_in", is_mamba, {{"ssm_in.weight", "mamba.in_proj.weight"}}},
    {"conv", is_mamba, {{"ssm_conv1d.weight", "mamba.conv1d.weight"}}},
    {"o", is_mamba, {{"ssm_out.weight", "mamba.out_proj.weight"}}},
    {"gate", is_granite_dense, {{"ffn_gate.weight", "shared_mlp.input_linear.weight"}}},
    {"up", is_granite_dense, {{"ffn_up.weight", "shared_mlp.input_linear.weight"}}},
    {"down", is_granite_dense, {{"ffn_down.weight", "shared_mlp.output_linear.weight"}}},
    {"gate", is_granite_shared, {{"ffn_gate_shexp.weight", "shared_mlp.input_linear.weight"}}},
    {"up", is_granite_shared, {{"ffn_up_shexp.weight", "shared_mlp.input_linear.weight"}}},
    {"down", is_granite_shared, {{"ffn_down_shexp.weight", "shared_mlp.output_linear.weight"}}},
    {"router", is_granite, {{"ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight"}}},
    {"expert gate", is_granite, {{"ffn_gate_exps.weight", "block_sparse_moe.input_linear.weight"}}},
    {"expert up", is_granite, {{"ffn_up_exps.weight", "block_sparse_moe.input_linear.weight"}}},
    {"expert down", is_granite, {{"ffn_down_exps.weight", "block_sparse_moe.output_linear.weight"}}},
    {"o", [](const Arch&, C c, int i) { return c.has_conv(i); },
     {{"shortconv.out_proj.weight", "conv.out_proj.weight"}}},
    {"o", is_lfm, {{"attn_output.weight", "self_attn.out_proj.weight"}}},
    {"attn_norm", is_lfm, {{"attn_norm.weight", "operator_norm.weight"}}},
    {"ffn_norm", is_lfm, {{"ffn_norm.weight", "ffn_norm.weight"}}},
    {"q_norm", is_lfm, {{"attn_q_norm.weight", "self_attn.q_layernorm.weight"}}},
    {"k_norm", is_lfm, {{"attn_k_norm.weight", "self_attn.k_layernorm.weight"}}},
    {"gate", is_lfm_dense, {{"ffn_gate.weight", "feed_forward.w1.weight"}}},
    {"up", is_lfm_dense, {{"ffn_up.weight", "feed_forward.w3.weight"}}},
    {"down", is_lfm_dense, {{"ffn_down.weight", "feed_forward.w2.weight"}}},
    {"router", is_lfm, {{"ffn_gate_inp.weight", "feed_forward.gate.weight"}}},
    {"choice_bias", is_lfm, {{"exp_probs_b.bias", "feed_forward.expert_bias"}}},
    {"expert gate", is_lfm, {{"ffn_gate_exps.weight", "feed_forward.experts.{}.w1.weight"}}},
    {"expert up", is_lfm, {{"ffn_up_exps.weight", "feed_forward.experts.{}.w3.weight"}}},
    {"expert down", is_lfm, {{"ffn_down_exps.weight", "feed_forward.experts.{}.w2.weight"}}},
    {"output_norm", is_lfm, {{"token_embd_norm.weight", "model.embedding_norm.weight"}}},
    // With norms behind blocks Hugging Face's names of norms mean other places.
    {"ffn_norm", [](const Arch&, C c, int) { return c.norms == NormPlace::both; },
     {{"ffn_norm.weight", "pre_feedforward_layernorm.weight"}}},
    {"ffn_norm", [](const Arch& arch, C, int) { return arch.ffn_norm_is_post_attention; },
     {{"post_attention_norm.weight", "post_attention_layernorm.weight"}}},
    {"gate", is_fused, {kGateUp}},
    {"up", is_fused, {kGateUp}},
    {"gate", is_grouped_shared, {{"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"}}},
    {"up", is_grouped_shared, {{"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"}}},
    {"down", is_grouped_shared, {{"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"}}},
    {"gate", is_shared, {{"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"}}},
    {"up", is_shared, {{"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"}}},
    {"down", is_shared, {{"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"}}},
    {"q_norm", is_after_rope, {{"attn_q_norm.weight", "self_attn.query_layernorm.weight"}}},
    {"k_norm", is_after_rope, {{"attn_k_norm.weight", "self_attn.key_layernorm.weight"}}},
    {"router", is_block_sparse, {{"ffn_gate_inp.weight", "block_sparse_moe.gate.weight"}}},
    {"choice_bias", is_block_sparse, {{"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"}}},
    {"choice_bias", is_as_moe, {{"exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias"}}},
    {"expert gate", is_block_sparse, {{"ffn_gate_exps.weight", "block_sparse_moe.experts.{}.w1.weight"}}},
    {"expert up", is_block_sparse, {{"ffn_up_exps.weight", "block_sparse_moe.experts.{}.w3.weight"}}},
    {"expert down", is_block_sparse, {{"ffn_down_exps.weight", "block_sparse_moe.experts.{}.w2.weight"}}},
    {"router", is_gemma4, {{"ffn_gate_inp.weight", "router.proj.weight"}}},
    {"expert gate", is_gemma4, {{"ffn_gate_exps.weight", "experts.gate_up_proj"}}},
    {"expert up", is_gemma4, {{"ffn_up_exps.weight", "experts.gate_up_proj"}}},
    {"expert down", is_gemma4, {{"ffn_down_exps.weight", "experts.down_proj"}}},
    {"router", is_oss, {{"ffn_gate_inp.weight", "mlp.router.weight"}}},
    {"expert gate", is_oss, {{"ffn_gate_exps.weight", kExpertGateUp}, TensorLayout::woven}},
    {"expert up", is_oss, {{"ffn_up_exps.weight", kExpertGateUp}, TensorLayout::woven}},
    {"expert down", is_oss, {{"ffn_down_exps.weight", kExpertDown}, TensorLayout::woven}},
    {"expert gate", is_stacked, {{"ffn_gate_exps.weight", kExpertGateUp}}},
    {"expert up", is_stacked, {{"ffn_up_exps.weight", kExpertGateUp}}},
    {"expert down", is_stacked, {{"ffn_down_exps.weight", kExpertDown}}},
    {"output_norm", [](const Arch& arch, C c, int i) { return is_head(c, i) && arch.grouped_experts; },
     {{"blk.{}.nextn.shared_head_norm.weight", "model.layers.{}.shared_head.norm.weight"}}},
    {"output_norm", [](const Arch&, C c, int i) { return is_head(c, i); },
     {{"blk.{}.nextn.shared_head_norm.weight", "mtp.norm.weight"}}},
    {"join", is_behind, {{"blk.{}.nextn.eh_proj.weight", "model.layers.{}.eh_proj.weight"}}},
    {"join_embedding_norm", is_behind, {{"blk.{}.nextn.enorm.weight", "model.layers.{}.enorm.weight"}}},
    {"join_hidden_norm", is_behind, {{"blk.{}.nextn.hnorm.weight", "model.layers.{}.hnorm.weight"}}},
    {"rope_factors", [](const Arch&, C c, int) { return has_longrope(c); }, {{"rope_factors_short.weight", ""}}},
};
// clang-format on

using W = Weights;

// clang-format off
constexpr TensorRow kModelTensors[] = {
    {"embedding", &W::embedding, Kind::matrix, {"token_embd.weight", "model.embed_tokens.weight"}, is_model, of_vocab},
    {"layer_embedding", &W::layer_embedding, Kind::matrix,
     {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"}, has_layer_inputs,
     [](C c, int) -> Shape { return {c.vocab_size, int64_t(c.n_layers) * c.d_layer_input}; }},
    {"layer_inputs", &W::layer_inputs, Kind::matrix,
     {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"}, has_layer_inputs,
     [](C c, int) -> Shape { return {int64_t(c.n_layers) * c.d_layer_input, c.d_model}; }},
    {"layer_inputs_norm", &W::layer_inputs_norm, Kind::inner_norm,
     {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"}, has_layer_inputs,
     [](C c, int) -> Shape { return {c.d_layer_input}; }},
    {"output_norm", &W::output_norm, Kind::norm, {"output_norm.weight", "model.norm.weight"}, always, of_model},
    {"output", &W::output, Kind::matrix, {"output.weight", "lm_head.weight"},
     [](C c, int i) { return is_model(c, i) && !c.tied_output; }, of_vocab},
    {"rope_factors", &W::rope_factors, Kind::factors, {"rope_freqs.weight", ""},
     [](C c, int i) { return is_model(c, i) && c.rope_scaling.short_factors.empty(); }, of_rope, Cut::whole,
     {.may_lack = lacks_factors}},
    {"long_rope_factors", &W::long_rope_factors, Kind::factors, {"rope_factors_long.weight", ""},
     [](C c, int i) { return is_model(c, i) && has_longrope(c) && c.rope_scaling.long_factors.empty(); }, of_rope},
    {"join_embedding_norm", &W::join_embedding_norm, Kind::norm,
     {"blk.{}.nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"}, is_head, of_model},
    {"join_hidden_norm", &W::join_hidden_norm, Kind::norm,
     {"blk.{}.nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"}, is_head, of_model},
    {"join", &W::join, Kind::matrix, {"blk.{}.nextn.eh_proj.weight", "mtp.fc.weight"}, is_head,
     [](C c, int) -> Shape { return {c.d_model, 2 * int64_t(c.d_model)}; }},
};
// clang-format on

/// Bytes of all members of Owner that have rows.
template <class Owner>
constexpr size_t bytes_in_rows() {
  size_t bytes = 0;
  for (const TensorRow& row : kLayerTensors)
    bytes += std::visit([]<class T, class Of>(T Of::*) { return std::is_same_v<Of, Owner> ? sizeof(T) : size_t(0); },
                        row.member);
  return bytes;
}
// A member without a row, or with two, does not compile.
static_assert(bytes_in_rows<ExpertWeights>() == sizeof(ExpertWeights));
static_assert(bytes_in_rows<DeltaWeights>() == sizeof(DeltaWeights));
static_assert(bytes_in_rows<LayerWeights>() + sizeof(LayerWeights::delta) + sizeof(LayerWeights::experts) ==
              sizeof(LayerWeights));

std::string in_layer(std::string_view prefix, const TensorRow& row, std::string_view name) {
  return std::string(row.is_in<Weights>() ? "" : prefix).append(name);
}

}  // namespace

std::span<const TensorRow> layer_tensors() { return kLayerTensors; }
std::span<const TensorRow> model_tensors() { return kModelTensors; }

const TensorRow& tensor_row(TensorMember member) {
  for (const std::span<const TensorRow> rows : {layer_tensors(), model_tensors()})
    for (const TensorRow& row : rows)
      if (row.member == member) return row;
  throw std::logic_error("a member without a row");
}

TensorSource tensor_source(const TensorRow& row, const Config& c, int layer) {
  const Arch& arch = arch_of(c);
  for (const OtherSource& other : kOtherSources)
    if (other.row == row.name && other.when(arch, c, layer)) return other.source;
  return {row.file, row.traits.layout};
}

TensorPart part_of(const TensorRow& row, const Config& c, int layer, std::string_view TensorName::*container) {
  const std::string_view shared = tensor_source(row, c, layer).name.*container;
  TensorPart part;
  for (const TensorRow& other : layer_tensors()) {
    if (!other.exists(c, layer) || tensor_source(other, c, layer).name.*container != shared) continue;
    if (&other == &row) part.first = part.total, part.index = part.count;
    part.total += other.shape(c, layer).n_out;
    ++part.count;
  }
  return part;
}

std::span<const TensorName> head_ends(const Arch& arch) {
  static constexpr TensorName kEnds[] = {{"blk.{}.nextn.embed_tokens.weight", "mtp.embed_tokens.weight"},
                                         {"blk.{}.nextn.shared_head_head.weight", "mtp.lm_head.weight"}},
                              kBehind[] = {{kEnds[0].gguf, "model.layers.{}.embed_tokens.weight"},
                                           {kEnds[1].gguf, "model.layers.{}.shared_head.head.weight"}};
  return arch.grouped_experts ? kBehind : kEnds;
}

std::string gguf_name(const TensorRow& row, const TensorName& name, int layer) {
  return fmt::format(fmt::runtime(in_layer("blk.{}.", row, name.gguf)), layer);
}

std::string hf_name(const TensorRow& row, const TensorName& name, int layer, int expert) {
  return fmt::format(fmt::runtime(in_layer("model.layers.{}.", row, name.hf)), layer, expert);
}

std::vector<int64_t> rows_by_key_head(const DeltaShape& d, Linear DeltaWeights::*part) {
  const int64_t ratio = d.n_value_heads / d.n_key_heads, values = ratio * d.value_dim;
  const int64_t rows = 2 * d.key_dim + 2 * values;  // of a key head
  std::vector<int64_t> picked;
  const auto take = [&](int64_t rows_each, int64_t first, int64_t count) {
    for (int64_t head = 0; head < d.n_key_heads; ++head)
      for (int64_t i = 0; i < count; ++i) picked.push_back(head * rows_each + first + i);
  };
  if (part == &DeltaWeights::qkv) {
    take(rows, 0, d.key_dim);
    take(rows, d.key_dim, d.key_dim);
    take(rows, 2 * d.key_dim, values);
  }
  if (part == &DeltaWeights::z) take(rows, 2 * d.key_dim + values, values);
  if (part == &DeltaWeights::b) take(2 * ratio, 0, ratio);
  if (part == &DeltaWeights::a) take(2 * ratio, ratio, ratio);
  return picked;
}

Config head_config(const Config& c) {
  Config head = c;
  head.delta = {};
  head.dense_layers = {};
  return head;
}

}  // namespace ridge
