// Keys of GGUF files and fields of config.json: each is used, harmless for a reason that its row says, or refused by
// name.
#include "model/arch/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/paths.h"
#include "io/gguf.h"
#include "model/arch/arch.h"

namespace ridge {
namespace {

using testing::HasSubstr;

/// A llama of five layers: the shipped tiny one, with some keys changed.
Result<Config> with(const std::map<std::string, io::GgufValue>& changes, std::string_view arch = "llama") {
  static const io::GgufFile tiny = io::open_gguf(RIDGE_SOURCE_DIR "/models/stories260K.gguf").or_throw();
  io::Gguf gguf;
  gguf.tensors = tiny.gguf.tensors;
  for (const auto& [key, value] : tiny.gguf.metadata)
    gguf.metadata[key.starts_with("llama.") ? std::string(arch) + key.substr(5) : key] = value;
  gguf.metadata["general.architecture"] = std::string(arch);
  for (const auto& [key, value] : changes) gguf.metadata[key] = value;
  return config_from_gguf(gguf, "m.gguf");
}
std::string refusal(const Result<Config>& config) { return config ? "" : config.error().message; }

/// A key of the row, as a file of the architecture has it.
std::string key_of(const KeyRow& row) {
  std::string key(row.name);
  if (key.ends_with('*')) key.replace(key.size() - 1, 1, "x");
  return key.starts_with('.') ? "llama" + key : key;
}
io::GgufValue value_of(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (text.find_first_not_of("0123456789") == std::string::npos) return uint64_t(std::stoull(text));
  return text;
}
std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> words;
  for (std::string word; const char c : std::string(text) + " ") {
    if (c != ' ') word += c;
    else if (!word.empty()) words.push_back(std::exchange(word, ""));
  }
  return words;
}

TEST(Keys, EveryRowIsOneKeyAndSaysWhy) {
  for (const auto rows : {gguf_key_rows(), config_field_rows()}) {
    std::set<std::string_view> names;
    for (const KeyRow& row : rows) {
      EXPECT_TRUE(names.insert(row.name).second) << row.name << " is there twice";
      EXPECT_EQ(row.use != KeyUse::used && row.why.empty(), false) << row.name;
      EXPECT_EQ(row.use == KeyUse::harmless && !row.neutral.empty(), false) << row.name;
    }
  }
}

TEST(Keys, OfGgufFilesPassWithNeutralValuesAndAreElseRefusedByName) {
  int n_refused = 0;
  for (const KeyRow& row : gguf_key_rows()) {
    const std::string key = key_of(row);
    for (const std::string& neutral : words(row.neutral))
      EXPECT_EQ(refusal(with({{key, value_of(neutral)}})), "") << key << " " << neutral;
    const std::string message = refusal(with({{key, uint64_t(7654321)}}));
    EXPECT_EQ(row.use == KeyUse::harmless ? message : "", "") << key;
    if (row.use != KeyUse::refused) continue;
    EXPECT_THAT(message, HasSubstr(key + " is 7654321 (" + std::string(row.why))) << key;
    ++n_refused;
  }
  EXPECT_GT(n_refused, 40);
}

TEST(Keys, ThatOtherArchitecturesReadAreRefusedInALlama) {
  for (const char* key : {"ssm.conv_kernel", "expert_shared_count", "expert_group_count", "attention.kv_lora_rank",
                          "leading_dense_block_count", "full_attention_interval", "expert_weights_scale"})
    EXPECT_THAT(refusal(with({{"llama." + std::string(key), uint64_t(5)}})), HasSubstr("llama." + std::string(key)))
        << key;
}

TEST(Keys, ThatChangeResultsAreUsedOrRefused) {
  const auto yarn = [](std::map<std::string, io::GgufValue> more) {
    more["llama.rope.scaling.type"] = std::string("yarn");
    more["llama.rope.scaling.factor"] = 4.0;
    more["llama.rope.scaling.original_context_length"] = uint64_t(128);
    return with(more);
  };
  const float own = yarn_magnitude(4);
  EXPECT_FLOAT_EQ(make_rope(yarn({}).or_throw(), nullptr).magnitude, own);
  EXPECT_FLOAT_EQ(make_rope(yarn({{"llama.rope.scaling.attn_factor", 2.0}}).or_throw(), nullptr).magnitude, 2 * own)
      << "on top of what YaRN does by itself";
  EXPECT_FLOAT_EQ(make_rope(with({{"llama.rope.scaling.attn_factor", 2.0}}).or_throw(), nullptr).magnitude, 2);
  EXPECT_EQ(with({{"llama.rope.scaling.factor", 4.0}}).or_throw().rope_scaling.kind, RopeScaling::Kind::linear)
      << "a factor without a type";
  // What was read is written, and read again.
  const Config factor = yarn({{"llama.rope.scaling.attn_factor", 2.0}}).or_throw();
  EXPECT_NEAR(std::get<double>(config_metadata(factor).at("llama.rope.scaling.attn_factor")), 2, 1e-6);

  const std::tuple<const char*, io::GgufValue, const char*> refused[] = {
      {"llama.attention.causal", false, "llama.attention.causal is false (attention that sees later tokens"},
      {"llama.use_parallel_residual", true, "llama.use_parallel_residual is true"},
      {"llama.attention.layer_norm_epsilon", 1e-5, "LayerNorm"},
      {"llama.attention.clamp_kqv", 8.0, "llama.attention.clamp_kqv is 8"},
      {"llama.rope.scaling.attn_factor", 0.0, "rope.scaling.attn_factor is 0"},
      {"llama.rope.scaling.yarn_ext_factor", 1.0, "yarn_ext_factor is 1 with type 'none'"},
      {"llama.rope.scaling.yarn_attn_factor", 2.0, "yarn_attn_factor is 2"},
      {"llama.rope.scaling.yarn_log_multiplier", 0.1, "llama.rope.scaling.yarn_log_multiplier is 0.1"},
      {"llama.rope.scale_linear", 4.0, "llama.rope.scale_linear is 4"},
      {"llama.rope.dimension_count_swa", uint64_t(4), "llama.rope.dimension_count_swa is 4, other keys say 8"},
      {"llama.attention.key_length_swa", uint64_t(4), "llama.attention.key_length_swa is 4, other keys say 8"},
      {"llama.swiglu_clamp_exp", std::vector<double>{0, 0, 7, 0, 0}, "llama.swiglu_clamp_exp is 0, 0, 7, 0, 0"},
      {"llama.frobnicate", uint64_t(1), "llama.frobnicate is 1 (unknown key"},
      {"general.type", std::string("adapter"), "general.type is adapter"},
      {"adapter.lora.alpha", 16.0, "adapter.lora.alpha is 16"},
  };
  for (const auto& [key, value, expected] : refused) EXPECT_THAT(refusal(with({{key, value}})), HasSubstr(expected));
  EXPECT_EQ(refusal(with({{"another.program", uint64_t(1)}})), "") << "not of the architecture";
  const std::string both = refusal(with({{"llama.attention.causal", false}, {"llama.use_parallel_residual", true}}));
  EXPECT_THAT(both, HasSubstr("attention.causal"));
  EXPECT_THAT(both, HasSubstr("use_parallel_residual"));
}

TEST(Keys, OfGgufFilesSayWhichLayersSlide) {
  const auto gemma = [](io::GgufValue pattern) {
    return with({{"mistral.attention.sliding_window", uint64_t(16)},
                 {"mistral.attention.sliding_window_pattern", std::move(pattern)}},
                "mistral");
  };
  EXPECT_EQ(gemma(uint64_t(3)).or_throw().window_period, 3);
  EXPECT_EQ(gemma(std::vector<bool>{true, false, true, false, true}).or_throw().window_period, 2);
  EXPECT_EQ(gemma(std::vector<int64_t>{1, 1, 1, 1, 1}).or_throw().window_period, 0);
  EXPECT_FALSE(gemma(std::vector<int64_t>{0, 0, 0, 0, 0}).or_throw().slides(0));
  const Config any = gemma(std::vector<bool>{true, false, false, false, true}).or_throw();
  EXPECT_TRUE(any.slides(0) && !any.slides(1) && !any.slides(3) && any.slides(4));
  EXPECT_THAT(refusal(gemma(std::vector<bool>{true, false})), HasSubstr("2 entries for 5 layers"));
}

std::string json_of(const std::string& text) {
  const bool is_text = text.find_first_not_of("0123456789.") != std::string::npos && text != "true" &&
                       text != "false" && text[0] != '[' && text[0] != '{';
  return is_text ? '"' + text + '"' : text;
}
Result<Config> llama(const std::string& more, std::vector<std::string>* unknown = nullptr, const char* type = "llama") {
  return config_from_hf(R"({"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,)"
                        R"("intermediate_size":96,"vocab_size":512,"max_position_embeddings":2048,"model_type":")" +
                            std::string(type) + "\"" + more + "}",
                        "config.json", unknown);
}

TEST(Fields, PassWithNeutralValuesAndAreElseRefusedByName) {
  int n_refused = 0;
  for (const KeyRow& row : config_field_rows()) {
    std::string name(row.name);
    if (name.ends_with('*')) name.back() = 'x';
    const auto field = [&](const std::string& value) {
      return name.starts_with("rope_scaling.")
                 ? fmt::format(R"(,"rope_scaling":{{"rope_type":"default","{}":{}}})", name.substr(13), value)
                 : fmt::format(R"(,"{}":{})", name, value);
    };
    if (name == "model_type" || name == "rope_scaling.rope_type") continue;
    for (const std::string& neutral : words(row.neutral))
      EXPECT_EQ(refusal(llama(field(json_of(neutral)))), "") << name << " " << neutral;
    const std::string message = name == "hidden_act" ? "" : refusal(llama(field("7654321")));
    EXPECT_EQ(row.use == KeyUse::harmless ? message : "", "") << name;
    if (row.use != KeyUse::refused) continue;
    EXPECT_THAT(message, HasSubstr(name + " is 7654321 (" + std::string(row.why))) << name;
    ++n_refused;
  }
  EXPECT_GT(n_refused, 40);
}

TEST(Fields, ThatChangeResultsAreUsedOrRefused) {
  const std::pair<const char*, const char*> refused[] = {
      {R"(,"use_parallel_residual":true)", "use_parallel_residual is true"},
      {R"(,"num_local_experts":8)", "num_local_experts is 8"},
      {R"(,"layer_types":["full_attention","sliding_attention"])", "layer_types is full_attention, sliding_attention"},
      {R"(,"attention_multiplier":0.5)", "attention_multiplier is 0.5"},
      {R"(,"logit_scale":0.0625)", "logit_scale is 0.0625"},
      {R"(,"use_qk_norm":true)", "use_qk_norm is true"},
      {R"(,"rope_scaling":{"rope_type":"linear","factor":2,"attention_factor":3})",
       "rope_scaling.attention_factor is 3"},
      {R"(,"rope_scaling":{"rope_type":"default","factor":2})", "rope_scaling.factor is 2"},
      {R"(,"rope_scaling":{"rope_type":"yarn","factor":2,"llama_4_scaling_beta":0.1})", "llama_4_scaling_beta is 0.1"},
  };
  for (const auto& [more, expected] : refused) EXPECT_THAT(refusal(llama(more)), HasSubstr(expected)) << more;
  const Config both =
      llama(R"(,"rope_scaling":{"rope_type":"yarn","factor":4,"mscale":1,"mscale_all_dim":1})").or_throw();
  EXPECT_FLOAT_EQ(make_rope(both, nullptr).magnitude, 1) << "the quotient of two magnitudes";
  const Result<Config> outer = config_from_hf(
      R"({"model_type":"qwen3_5","clip_qkv":8,"text_config":{"model_type":"qwen3_5_text"}})", "config.json");
  EXPECT_THAT(refusal(outer), HasSubstr("clip_qkv is 8"));
}

TEST(Fields, OfBiasesFollowTheFamily) {
  const Config attention = llama(R"(,"attention_bias":true)").or_throw();
  EXPECT_TRUE(attention.qkv_bias && attention.o_bias);
  EXPECT_FALSE(attention.mlp_bias);
  EXPECT_TRUE(llama(R"(,"mlp_bias":true)").or_throw().mlp_bias);
  const Config qwen = llama("", nullptr, "qwen2").or_throw();
  EXPECT_TRUE(qwen.qkv_bias);
  EXPECT_FALSE(qwen.o_bias);
  EXPECT_THAT(refusal(llama(R"(,"attention_bias":true)", nullptr, "phi3")), HasSubstr("attention_bias is true"));
}

TEST(Fields, ThatNobodyKnowsAreListed) {
  std::vector<std::string> unknown;
  EXPECT_TRUE(llama(R"(,"frobnicate":3,"note":"text","nothing":null,"off":false,"unsloth_fixed":true)", &unknown));
  EXPECT_EQ(unknown, (std::vector<std::string>{"frobnicate", "note", "off"}));
}

}  // namespace
}  // namespace ridge
