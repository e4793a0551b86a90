#include "model/arch/keys.h"

#include <algorithm>
#include <functional>

namespace ridge {
namespace {

constexpr KeyUse kUsed = KeyUse::used, kHarmless = KeyUse::harmless, kRefused = KeyUse::refused;

constexpr std::string_view kAbout = "says what the file is", kText = "of the tokenizer",
                           kTraining = "of training alone", kVision = "of images and sound, which are not read",
                           kOther = "of another architecture", kHead = "of heads that propose further tokens";

/// Keys of which the same is to be said.
struct KeyGroup {
  std::string_view keys;  ///< with blanks between
  KeyUse use = KeyUse::used;
  std::string_view why, neutral;  ///< as in KeyRow
};

constexpr KeyGroup kGgufKeys[] = {
    {"general.architecture general.name general.alignment split.* .context_length .embedding_length .block_count "
     ".feed_forward_length .nextn_predict_layers .logit_scale .embedding_scale .residual_scale .attn_logit_softcapping "
     ".final_logit_softcapping .hidden_activation .attention.head_count .attention.head_count_kv "
     ".attention.max_alibi_bias .attention.clamp_kqv .attention.key_length .attention.value_length "
     ".attention.layer_norm_rms_epsilon .attention.sliding_window .attention.sliding_window_pattern .attention.scale "
     ".attention.key_length_swa .attention.value_length_swa .rope.dimension_count .rope.dimension_count_swa "
     ".rope.freq_base .rope.freq_base_swa .rope.scaling.type .rope.scaling.factor .rope.scaling.attn_factor "
     ".rope.scaling.original_context_length .rope.scaling.yarn_ext_factor .rope.scaling.yarn_attn_factor "
     ".rope.scaling.yarn_beta_fast .rope.scaling.yarn_beta_slow .rope.scaling.yarn_truncate tokenizer.ggml.model "
     "tokenizer.ggml.pre tokenizer.ggml.tokens tokenizer.ggml.token_type tokenizer.ggml.scores tokenizer.ggml.merges "
     "tokenizer.ggml.bos_token_id tokenizer.ggml.eos_token_id tokenizer.ggml.eot_token_id tokenizer.ggml.eom_token_id "
     "tokenizer.ggml.unknown_token_id tokenizer.ggml.padding_token_id tokenizer.ggml.add_bos_token "
     "tokenizer.ggml.add_eos_token tokenizer.ggml.add_space_prefix tokenizer.ggml.remove_extra_whitespaces "
     "tokenizer.ggml.precompiled_charsmap tokenizer.chat_template tokenizer.chat_template.* tokenizer.chat_templates "
     "ridge.*",
     kUsed},
    {".leading_dense_block_count", kUsed, "dense layers in front of those with experts", "0"},
    {".full_attention_interval", kUsed, "layers without attention", "0 1"},
    {".expert_count .expert_used_count .expert_feed_forward_length", kUsed, "experts", "0"},
    {".expert_shared_feed_forward_length .expert_shared_count", kUsed, "a shared expert", "0"},
    {".expert_group_count .expert_group_used_count", kUsed, "groups of experts", "0 1"},
    {".expert_weights_scale", kUsed, "scaled weights of experts", "0 1"},
    {".expert_weights_norm", kUsed, "weights of experts that add up to 1", "false"},
    {".expert_gating_func", kUsed, "another function of the router", "0"},
    {".attention.q_lora_rank .attention.kv_lora_rank .attention.key_length_mla .attention.value_length_mla", kUsed,
     "latent attention", "0"},
    {".attention.indexer.head_count .attention.indexer.key_length .attention.indexer.top_k", kUsed, "sparse attention",
     "0"},
    {".rope.scaling.yarn_log_multiplier", kUsed, "scores stretched by YaRN", "0"},
    {".ssm.conv_kernel .ssm.inner_size .ssm.state_size .ssm.time_step_rank .ssm.group_count", kUsed,
     "layers with states", "0"},
    {"general.file_type general.quantization_version", kHarmless, "tensors say their formats"},
    {"general.sampling.*", kHarmless, "a recommendation: sampling follows the options of a run or a request"},
    {"general.*", kHarmless, kAbout},
    {"quantize.* imatrix.*", kHarmless, "how the file was made"},
    {"clip.* .n_deepstack_layers .vision.* .audio.* .mm.*", kHarmless, kVision},
    {".vocab_size", kHarmless, "the embedding's rows say it"},
    {".tensor_data_layout", kHarmless, "an old note on how the file was made"},
    {".pooling_type .dense_2_feat_in .dense_2_feat_out .dense_3_feat_in .dense_3_feat_out", kHarmless,
     "of embeddings of texts, which are not computed"},
    {".rope.dimension_sections", kHarmless, "of positions in images, which texts do not have"},
    {".rope.scaling.finetuned", kHarmless, "says how the model was trained"},
    {"tokenizer.ggml.token_type_count tokenizer.ggml.seperator_token_id tokenizer.ggml.cls_token_id "
     "tokenizer.ggml.mask_token_id",
     kHarmless, "of encoders"},
    {"tokenizer.ggml.prefix_token_id tokenizer.ggml.suffix_token_id tokenizer.ggml.middle_token_id "
     "tokenizer.ggml.fim_*",
     kHarmless, "of filling gaps, which requests spell themselves"},
    {"tokenizer.ggml.*", kHarmless, kText},
    {"tokenizer.huggingface.json", kHarmless, "the other keys say the same"},
    {"general.type", kRefused, "a file that is no model", "model"},
    {"adapter.*", kRefused, "an adapter, which no model here takes"},
    {"diffusion.*", kRefused, "text by diffusion", "false"},
    {"xielu.*", kRefused, "the activation xIELU"},
    {".embedding_length_out", kRefused, "an output of another width", "0"},
    {".features_length .time_mix_extra_dim .time_decay_extra_dim .token_shift_count .altup.* "
     ".attention.decay_lora_rank .attention.iclr_lora_rank .attention.value_residual_mix_lora_rank "
     ".attention.gate_lora_rank .kda.head_dim .wkv.head_size .posnet.* .convnext.*",
     kRefused, kOther, "0"},
    {".use_parallel_residual", kRefused, "attention and feed-forward side by side", "false"},
    {".decoder_start_token_id", kRefused, "an encoder in front of the decoder"},
    {".decoder_block_count", kRefused, "an encoder in front of the decoder", "0"},
    {".router_logit_softcapping", kRefused, "soft caps of the router", "0"},
    {".swin_norm", kRefused, "norms of Swin", "false"},
    {".rescale_every_n_layers", kRefused, "rescaled layers", "0"},
    {".interleave_moe_layer_step .moe_every_n_layers", kRefused, "experts in some layers", "0 1"},
    {".activation_sparsity_scale", kRefused, "sparse activations", "0"},
    {".embedding_length_per_layer_input", kUsed, "embeddings of layers", "0"},
    {".swiglu_clamp_exp .swiglu_clamp_shexp", kRefused, "clamped activations", "0"},
    {".expert_chunk_feed_forward_length", kRefused, "experts in chunks", "0"},
    {".expert_group_scale", kRefused, "groups of experts", "0 1"},
    {".experts_per_group", kRefused, "groups of experts", "0"},
    {".moe_latent_size", kRefused, "experts in a latent space", "0"},
    {".attention.layer_norm_epsilon", kRefused, "LayerNorm in place of RMSNorm"},
    {".attention.group_norm_epsilon", kRefused, "norms of groups"},
    {".attention.group_norm_groups", kRefused, "norms of groups", "0"},
    {".attention.causal", kRefused, "attention that sees later tokens", "true"},
    {".attention.relative_buckets_count", kRefused, "relative positions", "0"},
    {".attention.output_scale", kRefused, "a scaled output of attention", "0 1"},
    {".attention.temperature_length .attention.temperature_scale", kRefused, "scores that grow with the position", "0"},
    {".attention.shared_kv_layers", kUsed, "layers that share caches", "0"},
    {".attention.indexer.*", kRefused, "sparse attention", "0"},
    {".rope.scale_linear", kRefused, "an old name of linear scaling", "0 1"},
    {".rope.scaling.alpha", kRefused, "scaling by alpha", "0 1"},
    {".ssm.dt_b_c_rms", kRefused, "norms of states", "false"},
    {".classifier.output_labels", kRefused, "a classifier"},
    {".shortconv.l_cache", kRefused, "short convolutions", "0"},
    {"tokenizer.ggml.add_sep_token", kRefused, "a separator behind every text", "false"},
    {"tokenizer.ggml.suppress_tokens", kRefused, "tokens that never come"},
    {"tokenizer.ggml.normalizer.lowercase", kRefused, "texts in lower case", "false"},
    {"tokenizer.ggml.normalizer.strip_accents", kRefused, "texts without accents", "false"},
    {"tokenizer.ggml.escape_whitespaces", kRefused, "blanks that stay as they are", "true"},
    {"tokenizer.ggml.treat_whitespace_as_suffix", kRefused, "blanks behind words", "false"},
    {"tokenizer.rwkv.world", kRefused, kOther},
};

constexpr KeyGroup kConfigFields[] = {
    {"num_hidden_layers hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim vocab_size "
     "max_position_embeddings original_max_position_embeddings rms_norm_eps tie_word_embeddings attention_bias "
     "qkv_bias mlp_bias use_sliding_window use_bidirectional_attention hidden_activation attn_logit_softcapping "
     "final_logit_softcapping query_pre_attn_scalar rope_theta rope_scaling rope_parameters partial_rotary_factor "
     "rope_scaling.type rope_scaling.rope_type rope_scaling.rope_theta rope_scaling.partial_rotary_factor "
     "rope_scaling.mrope_section",
     kUsed},
    {"layer_types", kUsed, "layers of several kinds", "full_attention"},
    {"attention_multiplier", kUsed, "scaled scores", "1"},
    {"embedding_multiplier", kUsed, "scaled embeddings", "1"},
    {"residual_multiplier", kUsed, "scaled blocks", "1"},
    {"logits_scaling", kUsed, "scaled logits", "1"},
    {"rope_interleave", kUsed, "other pairs of RoPE", "false"},
    {"use_qk_norm", kUsed, "norms of queries and keys", "false"},
    {"num_experts num_local_experts n_routed_experts num_experts_per_tok experts_per_token moe_intermediate_size",
     kUsed, "experts", "0"},
    {"n_shared_experts shared_expert_intermediate_size", kUsed, "a shared expert", "0"},
    {"norm_topk_prob", kUsed, "weights of experts that add up to 1", "false"},
    {"decoder_sparse_step moe_layer_freq", kUsed, "experts in some layers", "0 1"},
    {"mlp_only_layers", kUsed, "experts in some layers", "[]"},
    {"first_k_dense_replace", kUsed, "dense layers in front of those with experts", "0"},
    {"n_group topk_group", kUsed, "groups of experts", "0 1"},
    {"topk_method", kUsed, "another choice of experts", "greedy"},
    {"scoring_func", kUsed, "another function of the router", "softmax"},
    {"routed_scaling_factor", kUsed, "scaled weights of experts", "1"},
    {"swiglu_limit", kUsed, "clamped activations", "0"},
    {"kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim v_head_dim", kUsed, "latent attention",
     "0"},
    {"index_n_heads index_head_dim index_topk", kUsed, "sparse attention", "0"},
    {"indexer_rope_interleave", kUsed, "other pairs of RoPE", "false true"},
    {"linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim",
     kUsed, "layers with states", "0"},
    {"full_attention_interval", kUsed, "layers without attention", "0 1"},
    {"mamba_chunk_size normalization_function", kHarmless, "of kernels, and always an RMSNorm"},
    {"mamba_num_heads hybrid_override_pattern", kUsed, "layers with states", "0"},
    {"moe_latent_size", kRefused, "experts in a latent space", "0"},
    {"expand chunk_size residual_in_fp32 rescale_prenorm_residual time_step_floor time_step_max time_step_min "
     "num_logits_to_keep mamba_ssm_cache_dtype use_mamba_kernels",
     kHarmless, "of training and of kernels"},
    {"mamba_n_heads", kUsed, "layers with states", "0"},
    {"conv_L_cache", kUsed, "short convolutions", "0"},
    {"block_norm_eps", kHarmless, "the norm's epsilon says it"},
    {"attn_output_gate", kUsed, "gates of heads", "false"},
    {"rope_scaling.factor", kUsed, "stretched positions without a type", "1"},
    {"rope_scaling.attention_factor", kUsed, "scaled cosines and sines", "1"},
    {"architectures model_type _name_or_path _commit_hash transformers_version transformers.js_config license language "
     "unsloth* finetuning_task",
     kHarmless, kAbout},
    {"auto_map", kHarmless, "names of Python code"},
    {"_attn_implementation _attn_implementation_autoset attn_implementation _flash_attn_2_enabled use_flash_attn "
     "use_flash_attn_2",
     kHarmless, "a choice of kernels"},
    {"torch_dtype dtype", kHarmless, "tensors say their formats"},
    {"mamba_ssm_dtype", kHarmless, "states are float32"},
    {"task_specific_params eos_token_id prefix do_sample temperature top_k top_p typical_p repetition_penalty "
     "length_penalty max_length min_length num_beams num_beam_groups num_return_sequences diversity_penalty "
     "early_stopping no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids suppress_tokens "
     "begin_suppress_tokens forced_bos_token_id forced_eos_token_id exponential_decay_length_penalty "
     "remove_invalid_values return_dict_in_generate output_scores",
     kHarmless, "of generation"},
    {"use_cache", kHarmless, "Ridge always has a cache"},
    {"cache_implementation", kHarmless, "caches follow the options"},
    {"bos_token_id pad_token_id sep_token_id unk_token_id cls_token_id tokenizer_class", kHarmless, kText},
    {"image_token_id image_token_index video_token_id vision_start_token_id vision_end_token_id vision_token_id "
     "mm_tokens_per_image boi_token_id eoi_token_id audio_token_id boa_token_id eoa_token_index "
     "boi_token_index eoi_token_index vision_config audio_config projector_hidden_act multimodal_projector_bias "
     "spatial_merge_size vision_feature_layer",
     kHarmless, kVision},
    {"quantization_config", kHarmless, "read with the tensors (io/packed.h, model/ternary.h)"},
    {"attention_dropout hidden_dropout residual_dropout moe_capacity moe_norm_min embd_pdrop resid_pdrop "
     "embedding_dropout initializer_range initializer_factor "
     "init_method router_aux_loss_coef router_jitter_noise input_jitter_noise router_z_loss_coef output_router_logits "
     "aux_loss_alpha seq_aux gradient_checkpointing problem_type id2label label2id",
     kHarmless, kTraining},
    {"pretraining_tp", kHarmless, "how products were split in training: the sums are the same"},
    {"ep_size", kHarmless, "how experts are spread over machines"},
    {"max_window_layers sliding_window", kHarmless, "of use_sliding_window, which is refused where it is true"},
    {"return_dict output_attentions output_hidden_states torchscript use_bfloat16 tf_legacy_loss", kHarmless,
     "of the Python interface"},
    {"chunk_size_feed_forward", kHarmless, "how products are split"},
    {"is_decoder", kHarmless, "all models here are decoders"},
    {"decoder_start_token_id tie_encoder_decoder", kHarmless, "of encoders"},
    {"initial_context_length", kHarmless, "rope_scaling says it"},
    {"hidden_act", kHarmless, "hidden_activation says it"},
    {"sliding_window_pattern rope_local_base_freq", kHarmless, "without a window no layer slides"},
    {"_sliding_window_pattern", kHarmless, "layer_types says the same"},
    {"use_mrope rope_scaling.mrope_interleaved", kHarmless, "of positions in images, which texts do not have"},
    {"input_bits weight_bits", kHarmless, "BitNet's rule is always the same"},
    {"num_nextn_predict_layers mtp_num_hidden_layers mtp_use_dedicated_embeddings num_mtp_modules "
     "use_mtp mtp_transformer_layers",
     kHarmless, kHead},
    {"use_embedding_sharing use_parallel_embedding use_gated_activation order_of_interleaved_layers", kHarmless,
     "of Cohere, whose models are all alike there"},
    {"rope_scaling.original_max_position_embeddings", kHarmless, "of other types of scaling"},
    {"rope_scaling.beta_fast rope_scaling.beta_slow rope_scaling.truncate rope_scaling.mscale "
     "rope_scaling.mscale_all_dim",
     kHarmless, "of YaRN"},
    {"rope_scaling.low_freq_factor rope_scaling.high_freq_factor", kHarmless, "of llama3"},
    {"rope_scaling.short_factor rope_scaling.long_factor", kHarmless, "of longrope"},
    {"rope_scaling.finetuned", kHarmless, "says how the model was trained"},
    {"rope_scaling.max_position_embeddings", kHarmless, "the configuration says it"},
    {"is_causal causal", kRefused, "attention that sees later tokens", "true"},
    {"use_rope", kRefused, "positions without RoPE", "true"},
    {"activation_function", kRefused, "another activation", "silu swish"},
    {"compression_config", kRefused, "compressed tensors"},
    {"pruned_heads", kRefused, "pruned heads", "{}"},
    {"is_encoder_decoder add_cross_attention", kRefused, "an encoder in front of the decoder", "false"},
    {"cross_attention_hidden_size", kRefused, "an encoder in front of the decoder"},
    {"no_rope_layers", kRefused, "layers without RoPE", "1"},
    {"no_rope_layer_interval", kRefused, "layers without RoPE", "0"},
    {"logit_scale", kRefused, "scaled logits", "1"},
    {"scale_emb", kRefused, "scaled embeddings", "1"},
    {"scale_depth", kRefused, "scaled blocks"},
    {"dim_model_base", kRefused, "scaled logits"},
    {"attention_scale", kRefused, "scaled scores", "1"},
    {"rotary_pct rotary_percent", kRefused, "partial RoPE by an old name", "1"},
    {"rotary_dim", kRefused, "partial RoPE by an old name"},
    {"rotary_emb_base", kRefused, "the base of RoPE by an old name"},
    {"rope_ratio", kRefused, "a scaled base of RoPE", "1"},
    {"rope_interleaved", kRefused, "other pairs of RoPE", "false"},
    {"position_embedding_type", kRefused, "positions that are not RoPE", "rope rotary"},
    {"alibi use_alibi", kRefused, "ALiBi", "false"},
    {"use_parallel_residual parallel_attn parallel_block", kRefused, "attention and feed-forward side by side",
     "false"},
    {"new_decoder_architecture", kRefused, kOther, "false"},
    {"use_parallel_block", kRefused, "attention and feed-forward side by side", "true"},
    {"attn_type_list", kRefused, "linear attention", "1"},
    {"qk_norm_type", kRefused, "another norm of queries and keys", "per_layer"},
    {"clip_qkv", kRefused, "clamped queries, keys and values", "0"},
    {"attn_config", kRefused, kOther},
    {"layer_norm_eps layer_norm_epsilon", kRefused, "LayerNorm in place of RMSNorm"},
    {"norm_type", kRefused, "another norm", "rms_norm rmsnorm"},
    {"norm_eps", kRefused, "a norm of another architecture"},
    {"qk_layernorm", kRefused, "norms of queries and keys", "false"},
    {"attn_temperature_tuning", kRefused, "scores that grow with the position", "false 0"},
    {"attn_scale floor_scale rope_scaling.llama_4_scaling_beta", kRefused, "scores that grow with the position", "0"},
    {"llama_4_scaling", kRefused, "scores that grow with the position"},
    {"attention_chunk_size", kRefused, "attention in chunks"},
    {"cross_layer_attention use_cla", kRefused, "layers that share caches", "false"},
    {"global_head_dim num_global_key_value_heads", kUsed, "heads of full layers"},
    {"attention_k_eq_v", kUsed, "keys that are values", "false"},
    {"hidden_size_per_layer_input", kUsed, "embeddings of layers", "0"},
    {"vocab_size_per_layer_input", kHarmless, "of embeddings of layers"},
    {"enable_moe_block", kUsed, "experts", "false"},
    {"top_k_experts", kUsed, "experts", "0"},
    {"use_double_wide_mlp", kUsed, "wider layers", "false"},
    {"num_kv_shared_layers", kUsed, "layers that share caches", "0"},
    {"bias use_bias add_bias_linear", kRefused, "biases of all matrices", "false"},
    {"lm_head_bias", kRefused, "a bias of the output matrix", "false"},
    {"attention_out_bias", kRefused, "a bias of the attention output", "false"},
    {"moe_num_experts", kRefused, "experts", "0"},
    {"num_shared_experts shared_intermediate_size", kRefused, "a shared expert", "0"},
    {"moe_router_use_sigmoid", kRefused, "another function of the router", "false"},
    {"rope_scaling.extrapolation_factor rope_scaling.attn_factor", kRefused, "another YaRN", "1"},
    {"rope_scaling.short_mscale rope_scaling.long_mscale", kRefused, "another magnitude of LongRoPE"},
    {"rope_scaling.alpha", kRefused, "scaling by alpha", "0 1"},
};

void for_each_word(std::string_view words, const std::function<void(std::string_view word)>& call) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    if (end > 0) call(words.substr(0, end));
    words.remove_prefix(std::min(words.size(), end + 1));
  }
}

/// A row a key.
std::vector<KeyRow> rows_of(std::span<const KeyGroup> groups) {
  std::vector<KeyRow> rows;
  for (const KeyGroup& group : groups)
    for_each_word(group.keys, [&](std::string_view key) {
      rows.push_back({key, group.use, group.why, group.neutral});
    });
  return rows;
}

/// The row of a key; of several with "*" the longest.
const KeyRow* find_row(std::span<const KeyRow> rows, std::string_view name) {
  const KeyRow* found = nullptr;
  for (const KeyRow& row : rows) {
    if (row.name == name) return &row;
    if (row.name.ends_with('*') && name.starts_with(row.name.substr(0, row.name.size() - 1)) &&
        (!found || row.name.size() > found->name.size()))
      found = &row;
  }
  return found;
}

bool is_neutral(const KeyRow& row, std::string_view value) {
  bool found = false;
  for_each_word(row.neutral, [&](std::string_view word) { found |= word == value; });
  return found;
}

/// Texts of a value, or of all values of a list.
struct TextsOf {
  std::vector<std::string> operator()(const std::string& value) const { return {value}; }
  std::vector<std::string> operator()(bool value) const { return {value ? "true" : "false"}; }
  template <class T>
  std::vector<std::string> operator()(const T& value) const {
    if constexpr (requires { value.begin(); }) {
      std::vector<std::string> texts;
      for (const auto& one : value) texts.push_back((*this)(one).front());
      return texts;
    } else {
      return {fmt::format("{}", value)};
    }
  }
};

std::vector<std::string> texts_of(const io::Json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  if (value.is_number()) return {fmt::format("{}", value.get<double>())};
  if (!value.is_array() || value.empty()) return {value.dump()};
  std::vector<std::string> texts;
  for (const io::Json& one : value) texts.push_back(one.is_array() ? one.dump() : texts_of(one).front());
  return texts;
}

/// Refusals of keys, collected into one message.
class Refusals {
 public:
  void add(std::string_view key, std::span<const std::string> texts, std::string_view why) {
    constexpr size_t kShown = 8, kLength = 60;
    if (++n_ > kShown) return;
    std::string value = fmt::format("{}", fmt::join(texts, ", "));
    if (value.size() > kLength) value = value.substr(0, kLength) + "...";
    text_ += fmt::format("{}{} is {} ({})", n_ > 1 ? "; " : "", key, value, why);
  }
  Status status(std::string_view where) const {
    constexpr size_t kShown = 8;
    if (n_ == 0) return {};
    return bad_file("{}: {}{}", where, text_, n_ > kShown ? fmt::format("; and {} more", n_ - kShown) : "");
  }

 private:
  std::string text_;
  size_t n_ = 0;
};

bool passes(const KeyRow& row, std::span<const std::string> texts) {
  if (row.use == KeyUse::harmless) return true;
  return !row.neutral.empty() && std::ranges::all_of(texts, [&](const std::string& t) { return is_neutral(row, t); });
}

std::string not_supported(const KeyRow& row) {
  return row.why.empty() ? "not supported" : fmt::format("{}: not supported", row.why);
}

}  // namespace

std::span<const KeyRow> gguf_key_rows() {
  static const std::vector<KeyRow> rows = rows_of(kGgufKeys);
  return rows;
}
std::span<const KeyRow> config_field_rows() {
  static const std::vector<KeyRow> rows = rows_of(kConfigFields);
  return rows;
}

Status check_gguf_keys(const io::Gguf& gguf, std::string_view arch, const std::set<std::string, std::less<>>& read,
                       std::string_view where) {
  Refusals refusals;
  for (const auto& [key, value] : gguf.metadata) {
    if (read.contains(key)) continue;
    const bool of_arch = key.starts_with(arch) && key.size() > arch.size() && key[arch.size()] == '.';
    const KeyRow* const row = find_row(gguf_key_rows(), of_arch ? std::string_view(key).substr(arch.size()) : key);
    if (!row && !of_arch) continue;  // of another program
    const std::vector<std::string> texts = std::visit(TextsOf(), value);
    if (!row) refusals.add(key, texts, "unknown key: Ridge cannot tell whether it changes results");
    else if (!(row->use == KeyUse::used && !of_arch) && !passes(*row, texts))
      refusals.add(key, texts, not_supported(*row));
  }
  return refusals.status(where);
}

Status check_config_fields(const io::Json& object, std::string_view inside,
                           const std::set<std::string, std::less<>>& read, std::vector<std::string>* unknown,
                           std::string_view where) {
  Refusals refusals;
  for (const auto& [key, value] : object.items()) {
    if (read.contains(key) || value.is_null()) continue;
    const std::string name = std::string(inside) + key;
    const KeyRow* const row = find_row(config_field_rows(), name);
    if (row && !passes(*row, texts_of(value))) refusals.add(name, texts_of(value), not_supported(*row));
    if (!row && unknown) unknown->push_back(name);
  }
  return refusals.status(where);
}

}  // namespace ridge
