#include "model/arch/keys.h"

#include <algorithm>

namespace ridge {
namespace {

constexpr KeyUse kUsed = KeyUse::used, kHarmless = KeyUse::harmless, kRefused = KeyUse::refused;

constexpr std::string_view kAbout = "says what the file is", kText = "of the tokenizer",
                           kTraining = "of training alone", kVision = "of images and sound, which are not read",
                           kOther = "of another architecture", kHead = "of heads that propose further tokens";

constexpr KeyRow kGgufRows[] = {
    // Of the file.
    {"general.architecture"},
    {"general.name"},
    {"general.alignment"},
    {"general.type", kRefused, "a file that is no model", "model"},
    {"general.file_type", kHarmless, "tensors say their formats"},
    {"general.quantization_version", kHarmless, "tensors say their formats"},
    {"general.sampling.*", kHarmless, "a recommendation: sampling follows the options of a run or a request"},
    {"general.*", kHarmless, kAbout},
    {"split.*"},
    {"quantize.*", kHarmless, "how the file was made"},
    {"imatrix.*", kHarmless, "how the file was made"},
    {"adapter.*", kRefused, "an adapter, which no model here takes"},
    {"clip.*", kHarmless, kVision},
    {"diffusion.*", kRefused, "text by diffusion", "false"},
    {"xielu.*", kRefused, "the activation xIELU"},
    // Sizes.
    {".vocab_size", kHarmless, "the embedding's rows say it"},
    {".context_length"},
    {".embedding_length"},
    {".embedding_length_out", kRefused, "an output of another width", "0"},
    {".features_length", kRefused, kOther, "0"},
    {".block_count"},
    {".leading_dense_block_count", kUsed, "dense layers in front of those with experts", "0"},
    {".feed_forward_length"},
    {".use_parallel_residual", kRefused, "attention and feed-forward side by side", "false"},
    {".tensor_data_layout", kHarmless, "an old note on how the file was made"},
    {".nextn_predict_layers"},
    {".n_deepstack_layers", kHarmless, kVision},
    {".pooling_type", kHarmless, "of embeddings of texts, which are not computed"},
    {".logit_scale"},
    {".embedding_scale"},
    {".residual_scale"},
    {".decoder_start_token_id", kRefused, "an encoder in front of the decoder"},
    {".decoder_block_count", kRefused, "an encoder in front of the decoder", "0"},
    {".attn_logit_softcapping"},
    {".final_logit_softcapping"},
    {".router_logit_softcapping", kRefused, "soft caps of the router", "0"},
    {".swin_norm", kRefused, "norms of Swin", "false"},
    {".rescale_every_n_layers", kRefused, "rescaled layers", "0"},
    {".time_mix_extra_dim", kRefused, kOther, "0"},
    {".time_decay_extra_dim", kRefused, kOther, "0"},
    {".token_shift_count", kRefused, kOther, "0"},
    {".interleave_moe_layer_step", kRefused, "experts in some layers", "0 1"},
    {".full_attention_interval", kUsed, "layers without attention", "0 1"},
    {".activation_sparsity_scale", kRefused, "sparse activations", "0"},
    {".altup.*", kRefused, kOther, "0"},
    {".embedding_length_per_layer_input", kRefused, "embeddings of layers", "0"},
    {".hidden_activation"},
    {".swiglu_clamp_exp", kRefused, "clamped activations", "0"},
    {".swiglu_clamp_shexp", kRefused, "clamped activations", "0"},
    {".dense_2_feat_in", kHarmless, "of embeddings of texts, which are not computed"},
    {".dense_2_feat_out", kHarmless, "of embeddings of texts, which are not computed"},
    {".dense_3_feat_in", kHarmless, "of embeddings of texts, which are not computed"},
    {".dense_3_feat_out", kHarmless, "of embeddings of texts, which are not computed"},
    // Experts.
    {".expert_count", kUsed, "experts", "0"},
    {".expert_used_count", kUsed, "experts", "0"},
    {".expert_feed_forward_length", kUsed, "experts", "0"},
    {".expert_shared_feed_forward_length", kUsed, "a shared expert", "0"},
    {".expert_chunk_feed_forward_length", kRefused, "experts in chunks", "0"},
    {".expert_shared_count", kUsed, "a shared expert", "0"},
    {".expert_group_count", kUsed, "groups of experts", "0 1"},
    {".expert_group_used_count", kUsed, "groups of experts", "0 1"},
    {".expert_weights_scale", kUsed, "scaled weights of experts", "0 1"},
    {".expert_weights_norm", kUsed, "weights of experts that add up to 1", "false"},
    {".expert_gating_func", kUsed, "another function of the router", "0"},
    {".expert_group_scale", kRefused, "groups of experts", "0 1"},
    {".experts_per_group", kRefused, "groups of experts", "0"},
    {".moe_every_n_layers", kRefused, "experts in some layers", "0 1"},
    {".moe_latent_size", kRefused, "experts in a latent space", "0"},
    // Attention.
    {".attention.head_count"},
    {".attention.head_count_kv"},
    {".attention.max_alibi_bias"},
    {".attention.clamp_kqv"},
    {".attention.key_length"},
    {".attention.value_length"},
    {".attention.layer_norm_epsilon", kRefused, "LayerNorm in place of RMSNorm"},
    {".attention.layer_norm_rms_epsilon"},
    {".attention.group_norm_epsilon", kRefused, "norms of groups"},
    {".attention.group_norm_groups", kRefused, "norms of groups", "0"},
    {".attention.causal", kRefused, "attention that sees later tokens", "true"},
    {".attention.q_lora_rank", kUsed, "latent attention", "0"},
    {".attention.kv_lora_rank", kUsed, "latent attention", "0"},
    {".attention.key_length_mla", kUsed, "latent attention", "0"},
    {".attention.value_length_mla", kUsed, "latent attention", "0"},
    {".attention.decay_lora_rank", kRefused, kOther, "0"},
    {".attention.iclr_lora_rank", kRefused, kOther, "0"},
    {".attention.value_residual_mix_lora_rank", kRefused, kOther, "0"},
    {".attention.gate_lora_rank", kRefused, kOther, "0"},
    {".attention.relative_buckets_count", kRefused, "relative positions", "0"},
    {".attention.sliding_window"},
    {".attention.sliding_window_pattern"},
    {".attention.scale"},
    {".attention.output_scale", kRefused, "a scaled output of attention", "0 1"},
    {".attention.temperature_length", kRefused, "scores that grow with the position", "0"},
    {".attention.temperature_scale", kRefused, "scores that grow with the position", "0"},
    {".attention.key_length_swa"},
    {".attention.value_length_swa"},
    {".attention.shared_kv_layers", kRefused, "layers that share caches", "0"},
    {".attention.indexer.*", kRefused, "sparse attention", "0"},
    // RoPE.
    {".rope.dimension_count"},
    {".rope.dimension_count_swa"},
    {".rope.dimension_sections", kHarmless, "of positions in images, which texts do not have"},
    {".rope.freq_base"},
    {".rope.freq_base_swa"},
    {".rope.scale_linear", kRefused, "an old name of linear scaling", "0 1"},
    {".rope.scaling.type"},
    {".rope.scaling.factor"},
    {".rope.scaling.alpha", kRefused, "scaling by alpha", "0 1"},
    {".rope.scaling.attn_factor"},
    {".rope.scaling.original_context_length"},
    {".rope.scaling.finetuned", kHarmless, "says how the model was trained"},
    {".rope.scaling.yarn_log_multiplier", kUsed, "scores stretched by YaRN", "0"},
    {".rope.scaling.yarn_ext_factor"},
    {".rope.scaling.yarn_attn_factor"},
    {".rope.scaling.yarn_beta_fast"},
    {".rope.scaling.yarn_beta_slow"},
    {".rope.scaling.yarn_truncate"},
    // States, and what else other architectures have.
    {".ssm.conv_kernel", kUsed, "layers with states", "0"},
    {".ssm.inner_size", kUsed, "layers with states", "0"},
    {".ssm.state_size", kUsed, "layers with states", "0"},
    {".ssm.time_step_rank", kUsed, "layers with states", "0"},
    {".ssm.group_count", kUsed, "layers with states", "0"},
    {".ssm.dt_b_c_rms", kRefused, "norms of states", "false"},
    {".kda.head_dim", kRefused, kOther, "0"},
    {".wkv.head_size", kRefused, kOther, "0"},
    {".posnet.*", kRefused, kOther, "0"},
    {".convnext.*", kRefused, kOther, "0"},
    {".classifier.output_labels", kRefused, "a classifier", ""},
    {".shortconv.l_cache", kRefused, "short convolutions", "0"},
    {".vision.*", kHarmless, kVision},
    {".audio.*", kHarmless, kVision},
    {".mm.*", kHarmless, kVision},
    // The tokenizer: io/tokenizer_gguf.cpp refuses kinds of tokenizers by name.
    {"tokenizer.ggml.model"},
    {"tokenizer.ggml.pre"},
    {"tokenizer.ggml.tokens"},
    {"tokenizer.ggml.token_type"},
    {"tokenizer.ggml.token_type_count", kHarmless, "of encoders"},
    {"tokenizer.ggml.scores"},
    {"tokenizer.ggml.merges"},
    {"tokenizer.ggml.bos_token_id"},
    {"tokenizer.ggml.eos_token_id"},
    {"tokenizer.ggml.eot_token_id"},
    {"tokenizer.ggml.eom_token_id"},
    {"tokenizer.ggml.unknown_token_id"},
    {"tokenizer.ggml.padding_token_id"},
    {"tokenizer.ggml.seperator_token_id", kHarmless, "of encoders"},
    {"tokenizer.ggml.cls_token_id", kHarmless, "of encoders"},
    {"tokenizer.ggml.mask_token_id", kHarmless, "of encoders"},
    {"tokenizer.ggml.add_bos_token"},
    {"tokenizer.ggml.add_eos_token"},
    {"tokenizer.ggml.add_sep_token", kRefused, "a separator behind every text", "false"},
    {"tokenizer.ggml.add_space_prefix"},
    {"tokenizer.ggml.remove_extra_whitespaces"},
    {"tokenizer.ggml.precompiled_charsmap"},
    {"tokenizer.ggml.prefix_token_id", kHarmless, "of filling gaps, which requests spell themselves"},
    {"tokenizer.ggml.suffix_token_id", kHarmless, "of filling gaps, which requests spell themselves"},
    {"tokenizer.ggml.middle_token_id", kHarmless, "of filling gaps, which requests spell themselves"},
    {"tokenizer.ggml.fim_*", kHarmless, "of filling gaps, which requests spell themselves"},
    {"tokenizer.ggml.suppress_tokens", kRefused, "tokens that never come"},
    {"tokenizer.ggml.normalizer.lowercase", kRefused, "texts in lower case", "false"},
    {"tokenizer.ggml.normalizer.strip_accents", kRefused, "texts without accents", "false"},
    {"tokenizer.ggml.escape_whitespaces", kRefused, "blanks that stay as they are", "true"},
    {"tokenizer.ggml.treat_whitespace_as_suffix", kRefused, "blanks behind words", "false"},
    {"tokenizer.ggml.*", kHarmless, kText},
    {"tokenizer.huggingface.json", kHarmless, "the other keys say the same"},
    {"tokenizer.rwkv.world", kRefused, kOther},
    {"tokenizer.chat_template"},
    {"tokenizer.chat_template.*"},
    {"tokenizer.chat_templates"},
    {"ridge.*"},
};

constexpr KeyRow kFieldRows[] = {
    {"is_causal", kRefused, "attention that sees later tokens", "true"},
    {"causal", kRefused, "attention that sees later tokens", "true"},
    {"use_rope", kRefused, "positions without RoPE", "true"},
    {"activation_function", kRefused, "another activation", "silu swish"},
    // About the file, and what generation options decide.
    {"architectures", kHarmless, kAbout},
    {"model_type", kHarmless, kAbout},
    {"auto_map", kHarmless, "names of Python code"},
    {"_name_or_path", kHarmless, kAbout},
    {"_attn_implementation", kHarmless, "a choice of kernels"},
    {"_attn_implementation_autoset", kHarmless, "a choice of kernels"},
    {"attn_implementation", kHarmless, "a choice of kernels"},
    {"_commit_hash", kHarmless, kAbout},
    {"_flash_attn_2_enabled", kHarmless, "a choice of kernels"},
    {"use_flash_attn", kHarmless, "a choice of kernels"},
    {"use_flash_attn_2", kHarmless, "a choice of kernels"},
    {"torch_dtype", kHarmless, "tensors say their formats"},
    {"dtype", kHarmless, "tensors say their formats"},
    {"mamba_ssm_dtype", kHarmless, "states are float32"},
    {"transformers_version", kHarmless, kAbout},
    {"transformers.js_config", kHarmless, kAbout},
    {"license", kHarmless, kAbout},
    {"language", kHarmless, kAbout},
    {"unsloth*", kHarmless, kAbout},
    {"finetuning_task", kHarmless, kAbout},
    {"task_specific_params", kHarmless, "of generation"},
    {"use_cache", kHarmless, "Ridge always has a cache"},
    {"cache_implementation", kHarmless, "caches follow the options"},
    {"bos_token_id", kHarmless, kText},
    {"eos_token_id", kHarmless, "of generation"},
    {"pad_token_id", kHarmless, kText},
    {"sep_token_id", kHarmless, kText},
    {"unk_token_id", kHarmless, kText},
    {"cls_token_id", kHarmless, kText},
    {"image_token_id", kHarmless, kVision},
    {"image_token_index", kHarmless, kVision},
    {"video_token_id", kHarmless, kVision},
    {"vision_start_token_id", kHarmless, kVision},
    {"vision_end_token_id", kHarmless, kVision},
    {"mm_tokens_per_image", kHarmless, kVision},
    {"boi_token_index", kHarmless, kVision},
    {"eoi_token_index", kHarmless, kVision},
    {"vision_config", kHarmless, kVision},
    {"audio_config", kHarmless, kVision},
    {"projector_hidden_act", kHarmless, kVision},
    {"multimodal_projector_bias", kHarmless, kVision},
    {"spatial_merge_size", kHarmless, kVision},
    {"vision_feature_layer", kHarmless, kVision},
    {"tokenizer_class", kHarmless, kText},
    {"prefix", kHarmless, "of generation"},
    {"quantization_config", kHarmless, "read with the tensors (io/int4_packed.h, model/ternary.h)"},
    {"compression_config", kRefused, "compressed tensors"},
    // Of training.
    {"attention_dropout", kHarmless, kTraining},
    {"hidden_dropout", kHarmless, kTraining},
    {"embd_pdrop", kHarmless, kTraining},
    {"resid_pdrop", kHarmless, kTraining},
    {"embedding_dropout", kHarmless, kTraining},
    {"initializer_range", kHarmless, kTraining},
    {"initializer_factor", kHarmless, kTraining},
    {"init_method", kHarmless, kTraining},
    {"router_aux_loss_coef", kHarmless, kTraining},
    {"router_jitter_noise", kHarmless, kTraining},
    {"input_jitter_noise", kHarmless, kTraining},
    {"router_z_loss_coef", kHarmless, kTraining},
    {"output_router_logits", kHarmless, kTraining},
    {"aux_loss_alpha", kHarmless, kTraining},
    {"seq_aux", kHarmless, kTraining},
    {"pretraining_tp", kHarmless, "how products were split in training: the sums are the same"},
    {"gradient_checkpointing", kHarmless, kTraining},
    {"ep_size", kHarmless, "how experts are spread over machines"},
    {"max_window_layers", kHarmless, "of use_sliding_window, which is refused where it is true"},
    {"return_dict", kHarmless, "of the Python interface"},
    {"output_attentions", kHarmless, "of the Python interface"},
    {"output_hidden_states", kHarmless, "of the Python interface"},
    {"torchscript", kHarmless, "of the Python interface"},
    {"use_bfloat16", kHarmless, "of the Python interface"},
    {"tf_legacy_loss", kHarmless, "of the Python interface"},
    {"chunk_size_feed_forward", kHarmless, "how products are split"},
    {"problem_type", kHarmless, kTraining},
    {"id2label", kHarmless, kTraining},
    {"label2id", kHarmless, kTraining},
    {"pruned_heads", kRefused, "pruned heads", "{}"},
    {"is_decoder", kHarmless, "all models here are decoders"},
    {"is_encoder_decoder", kRefused, "an encoder in front of the decoder", "false"},
    {"add_cross_attention", kRefused, "an encoder in front of the decoder", "false"},
    {"cross_attention_hidden_size", kRefused, "an encoder in front of the decoder"},
    {"decoder_start_token_id", kHarmless, "of encoders"},
    {"tie_encoder_decoder", kHarmless, "of encoders"},
    // Of generation, where old files have it.
    {"do_sample", kHarmless, "of generation"},
    {"temperature", kHarmless, "of generation"},
    {"top_k", kHarmless, "of generation"},
    {"top_p", kHarmless, "of generation"},
    {"typical_p", kHarmless, "of generation"},
    {"repetition_penalty", kHarmless, "of generation"},
    {"length_penalty", kHarmless, "of generation"},
    {"max_length", kHarmless, "of generation"},
    {"min_length", kHarmless, "of generation"},
    {"num_beams", kHarmless, "of generation"},
    {"num_beam_groups", kHarmless, "of generation"},
    {"num_return_sequences", kHarmless, "of generation"},
    {"diversity_penalty", kHarmless, "of generation"},
    {"early_stopping", kHarmless, "of generation"},
    {"no_repeat_ngram_size", kHarmless, "of generation"},
    {"encoder_no_repeat_ngram_size", kHarmless, "of generation"},
    {"bad_words_ids", kHarmless, "of generation"},
    {"suppress_tokens", kHarmless, "of generation"},
    {"begin_suppress_tokens", kHarmless, "of generation"},
    {"forced_bos_token_id", kHarmless, "of generation"},
    {"forced_eos_token_id", kHarmless, "of generation"},
    {"exponential_decay_length_penalty", kHarmless, "of generation"},
    {"remove_invalid_values", kHarmless, "of generation"},
    {"return_dict_in_generate", kHarmless, "of generation"},
    {"output_scores", kHarmless, "of generation"},
    // Sizes.
    {"num_hidden_layers"},
    {"hidden_size"},
    {"intermediate_size"},
    {"num_attention_heads"},
    {"num_key_value_heads"},
    {"head_dim"},
    {"vocab_size"},
    {"max_position_embeddings"},
    {"original_max_position_embeddings"},
    {"initial_context_length", kHarmless, "rope_scaling says it"},
    {"rms_norm_eps"},
    {"tie_word_embeddings"},
    {"attention_bias"},
    {"qkv_bias"},
    {"mlp_bias"},
    {"use_sliding_window"},
    {"use_bidirectional_attention"},
    {"hidden_act", kHarmless, "hidden_activation says it"},
    {"hidden_activation"},
    {"attn_logit_softcapping"},
    {"final_logit_softcapping"},
    {"sliding_window", kHarmless, "of use_sliding_window, which is refused where it is true"},
    {"sliding_window_pattern", kHarmless, "without a window no layer slides"},
    {"_sliding_window_pattern", kHarmless, "layer_types says the same"},
    {"rope_local_base_freq", kHarmless, "without a window no layer slides"},
    {"layer_types", kUsed, "layers of several kinds", "full_attention"},
    {"no_rope_layers", kRefused, "layers without RoPE", "1"},
    {"no_rope_layer_interval", kRefused, "layers without RoPE", "0"},
    {"query_pre_attn_scalar"},
    {"attention_multiplier", kUsed, "scaled scores", "1"},
    {"embedding_multiplier", kUsed, "scaled embeddings", "1"},
    {"residual_multiplier", kUsed, "scaled blocks", "1"},
    {"logits_scaling", kUsed, "scaled logits", "1"},
    {"logit_scale", kRefused, "scaled logits", "1"},
    {"scale_emb", kRefused, "scaled embeddings", "1"},
    {"scale_depth", kRefused, "scaled blocks"},
    {"dim_model_base", kRefused, "scaled logits"},
    {"attention_scale", kRefused, "scaled scores", "1"},
    {"rope_theta"},
    {"rope_scaling"},
    {"rope_parameters"},
    {"partial_rotary_factor"},
    {"rotary_pct", kRefused, "partial RoPE by an old name", "1"},
    {"rotary_percent", kRefused, "partial RoPE by an old name", "1"},
    {"rotary_dim", kRefused, "partial RoPE by an old name"},
    {"rotary_emb_base", kRefused, "the base of RoPE by an old name"},
    {"rope_ratio", kRefused, "a scaled base of RoPE", "1"},
    {"rope_interleave", kUsed, "other pairs of RoPE", "false"},
    {"rope_interleaved", kRefused, "other pairs of RoPE", "false"},
    {"use_mrope", kHarmless, "of positions in images, which texts do not have"},
    {"position_embedding_type", kRefused, "positions that are not RoPE", "rope rotary"},
    {"alibi", kRefused, "ALiBi", "false"},
    {"use_alibi", kRefused, "ALiBi", "false"},
    {"use_parallel_residual", kRefused, "attention and feed-forward side by side", "false"},
    {"parallel_attn", kRefused, "attention and feed-forward side by side", "false"},
    {"parallel_block", kRefused, "attention and feed-forward side by side", "false"},
    {"new_decoder_architecture", kRefused, kOther, "false"},
    {"clip_qkv", kRefused, "clamped queries, keys and values", "0"},
    {"attn_config", kRefused, kOther},
    {"layer_norm_eps", kRefused, "LayerNorm in place of RMSNorm"},
    {"layer_norm_epsilon", kRefused, "LayerNorm in place of RMSNorm"},
    {"norm_type", kRefused, "another norm", "rms_norm rmsnorm"},
    {"norm_eps", kRefused, "a norm of another architecture"},
    {"qk_layernorm", kRefused, "norms of queries and keys", "false"},
    {"use_qk_norm", kUsed, "norms of queries and keys", "false"},
    {"attn_temperature_tuning", kRefused, "scores that grow with the position", "false 0"},
    {"attn_scale", kRefused, "scores that grow with the position", "0"},
    {"floor_scale", kRefused, "scores that grow with the position", "0"},
    {"llama_4_scaling", kRefused, "scores that grow with the position"},
    {"attention_chunk_size", kRefused, "attention in chunks"},
    {"cross_layer_attention", kRefused, "layers that share caches", "false"},
    {"use_cla", kRefused, "layers that share caches", "false"},
    {"num_kv_shared_layers", kRefused, "layers that share caches", "0"},
    {"bias", kRefused, "biases of all matrices", "false"},
    {"use_bias", kRefused, "biases of all matrices", "false"},
    {"add_bias_linear", kRefused, "biases of all matrices", "false"},
    {"lm_head_bias", kRefused, "a bias of the output matrix", "false"},
    {"attention_out_bias", kRefused, "a bias of the attention output", "false"},
    {"input_bits", kHarmless, "BitNet's rule is always the same"},
    {"weight_bits", kHarmless, "BitNet's rule is always the same"},
    // Experts.
    {"num_experts", kUsed, "experts", "0"},
    {"num_local_experts", kUsed, "experts", "0"},
    {"n_routed_experts", kUsed, "experts", "0"},
    {"moe_num_experts", kRefused, "experts", "0"},
    {"num_experts_per_tok", kUsed, "experts", "0"},
    {"experts_per_token", kUsed, "experts", "0"},
    {"moe_intermediate_size", kUsed, "experts", "0"},
    {"n_shared_experts", kUsed, "a shared expert", "0"},
    {"num_shared_experts", kRefused, "a shared expert", "0"},
    {"shared_expert_intermediate_size", kUsed, "a shared expert", "0"},
    {"shared_intermediate_size", kRefused, "a shared expert", "0"},
    {"norm_topk_prob", kUsed, "weights of experts that add up to 1", "false"},
    {"decoder_sparse_step", kUsed, "experts in some layers", "0 1"},
    {"mlp_only_layers", kUsed, "experts in some layers", "[]"},
    {"first_k_dense_replace", kUsed, "dense layers in front of those with experts", "0"},
    {"moe_layer_freq", kUsed, "experts in some layers", "0 1"},
    {"n_group", kUsed, "groups of experts", "0 1"},
    {"topk_group", kUsed, "groups of experts", "0 1"},
    {"topk_method", kUsed, "another choice of experts", "greedy"},
    {"scoring_func", kUsed, "another function of the router", "softmax"},
    {"routed_scaling_factor", kUsed, "scaled weights of experts", "1"},
    {"swiglu_limit", kUsed, "clamped activations", "0"},
    {"moe_router_use_sigmoid", kRefused, "another function of the router", "false"},
    // Latent attention.
    {"kv_lora_rank", kUsed, "latent attention", "0"},
    {"q_lora_rank", kUsed, "latent attention", "0"},
    {"qk_nope_head_dim", kUsed, "latent attention", "0"},
    {"qk_rope_head_dim", kUsed, "latent attention", "0"},
    {"qk_head_dim", kUsed, "latent attention", "0"},
    {"v_head_dim", kUsed, "latent attention", "0"},
    {"index_n_heads", kRefused, "sparse attention", "0"},
    {"index_head_dim", kRefused, "sparse attention", "0"},
    {"index_topk", kRefused, "sparse attention", "0"},
    // The gated delta rule.
    {"linear_num_key_heads", kUsed, "layers with states", "0"},
    {"linear_num_value_heads", kUsed, "layers with states", "0"},
    {"linear_key_head_dim", kUsed, "layers with states", "0"},
    {"linear_value_head_dim", kUsed, "layers with states", "0"},
    {"linear_conv_kernel_dim", kUsed, "layers with states", "0"},
    {"full_attention_interval", kUsed, "layers without attention", "0 1"},
    {"attn_output_gate", kUsed, "gates of heads", "false"},
    // Heads that propose further tokens are read where --spec-type asks for them.
    {"num_nextn_predict_layers", kHarmless, kHead},
    {"mtp_num_hidden_layers", kHarmless, kHead},
    {"mtp_use_dedicated_embeddings", kHarmless, kHead},
    {"num_mtp_modules", kHarmless, kHead},
    // Of rope_scaling and rope_parameters.
    {"rope_scaling.type"},
    {"rope_scaling.rope_type"},
    {"rope_scaling.rope_theta"},
    {"rope_scaling.partial_rotary_factor"},
    {"rope_scaling.factor", kUsed, "stretched positions without a type", "1"},
    {"rope_scaling.original_max_position_embeddings", kHarmless, "of other types of scaling"},
    {"rope_scaling.attention_factor", kUsed, "scaled cosines and sines", "1"},
    {"rope_scaling.beta_fast", kHarmless, "of YaRN"},
    {"rope_scaling.beta_slow", kHarmless, "of YaRN"},
    {"rope_scaling.truncate", kHarmless, "of YaRN"},
    {"rope_scaling.mscale", kHarmless, "of YaRN"},
    {"rope_scaling.mscale_all_dim", kHarmless, "of YaRN"},
    {"rope_scaling.extrapolation_factor", kRefused, "another YaRN", "1"},
    {"rope_scaling.attn_factor", kRefused, "another YaRN", "1"},
    {"rope_scaling.low_freq_factor", kHarmless, "of llama3"},
    {"rope_scaling.high_freq_factor", kHarmless, "of llama3"},
    {"rope_scaling.short_factor", kHarmless, "of longrope"},
    {"rope_scaling.long_factor", kHarmless, "of longrope"},
    {"rope_scaling.short_mscale", kRefused, "another magnitude of LongRoPE"},
    {"rope_scaling.long_mscale", kRefused, "another magnitude of LongRoPE"},
    {"rope_scaling.alpha", kRefused, "scaling by alpha", "0 1"},
    {"rope_scaling.finetuned", kHarmless, "says how the model was trained"},
    {"rope_scaling.mrope_section"},
    {"rope_scaling.mrope_interleaved", kHarmless, "of positions in images, which texts do not have"},
    {"rope_scaling.llama_4_scaling_beta", kRefused, "scores that grow with the position", "0"},
    {"rope_scaling.max_position_embeddings", kHarmless, "the configuration says it"},
};

const KeyRow* find_row(std::span<const KeyRow> rows, std::string_view name) {
  for (const KeyRow& row : rows) {
    const bool glob = row.name.ends_with('*');
    const std::string_view text = row.name.substr(0, row.name.size() - glob);
    if (glob ? name.starts_with(text) : name == text) return &row;
  }
  return nullptr;
}

bool is_neutral(const KeyRow& row, std::string_view value) {
  std::string_view rest = row.neutral;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == value) return true;
    rest.remove_prefix(std::min(rest.size(), end + 1));
  }
  return false;
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

/// What is refused, all of it in one message.
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

std::span<const KeyRow> gguf_key_rows() { return kGgufRows; }
std::span<const KeyRow> config_field_rows() { return kFieldRows; }

Status check_gguf_keys(const io::Gguf& gguf, std::string_view arch, const std::set<std::string, std::less<>>& read,
                       std::string_view where) {
  Refusals refusals;
  for (const auto& [key, value] : gguf.metadata) {
    if (read.contains(key)) continue;
    const bool of_arch = key.starts_with(arch) && key.size() > arch.size() && key[arch.size()] == '.';
    const KeyRow* const row = find_row(kGgufRows, of_arch ? std::string_view(key).substr(arch.size()) : key);
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
    const KeyRow* const row = find_row(kFieldRows, name);
    if (row && !passes(*row, texts_of(value))) refusals.add(name, texts_of(value), not_supported(*row));
    if (!row && unknown) unknown->push_back(name);
  }
  return refusals.status(where);
}

}  // namespace ridge
