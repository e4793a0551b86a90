// Loading: files whose configuration or tensors lie are refused with the field's name; honest conversions load again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "cases/paths.h"
#include "cases/temp_dir.h"
#include "io/mapped_file.h"
#include "model/arch/arch.h"
#include "model/plan.h"
#include "model/weights.h"

namespace ridge {
namespace {

const char* const kTinyLlama = RIDGE_SOURCE_DIR "/models/stories260K.gguf";

using Metadata = std::map<std::string, io::GgufValue, std::less<>>;

/// The tiny model with metadata and tensor list changed, written and loaded: the error, or "".
class Variant {
 public:
  Variant() : source_(io::open_gguf(kTinyLlama).or_throw()), metadata(source_.gguf.metadata) {
    for (const io::Tensor& tensor : source_.gguf.tensors) {
      specs.push_back({tensor.name, tensor.format, tensor.shape});
      payloads.emplace_back(tensor.data.begin(), tensor.data.end());
    }
  }
  std::string load() const {
    const TempDir directory;
    const std::filesystem::path path = directory.path() / "m.gguf";
    write_gguf(path, metadata, specs, [&](size_t i, std::vector<std::byte>& out) -> Status {
      out = payloads[i];
      return {};
    }).or_throw();
    const Result<LoadedModel> model = load_model(path.string());
    if (model) return "";
    EXPECT_EQ(model.error().kind, ErrorKind::bad_file);
    return model.error().message;
  }
  size_t at(std::string_view name) const {
    for (size_t i = 0; i < specs.size(); ++i)
      if (specs[i].name == name) return i;
    throw std::runtime_error("no tensor " + std::string(name));
  }
  void erase(std::string_view name) {
    const auto i = std::ptrdiff_t(at(name));
    specs.erase(specs.begin() + i);
    payloads.erase(payloads.begin() + i);
  }

 private:
  io::GgufFile source_;

 public:
  Metadata metadata;
  std::vector<io::GgufTensorSpec> specs;
  std::vector<std::vector<std::byte>> payloads;
};

TEST(Load, UnchangedVariantLoads) { EXPECT_EQ(Variant().load(), ""); }

TEST(Load, AbsurdMetadataIsRefusedByName) {
  struct Case {
    const char* key;
    io::GgufValue value;
    const char* expected;
  };
  const Case cases[] = {
      {"llama.block_count", uint64_t(0), "n_layers is 0"},
      {"llama.block_count", uint64_t(1000000000), "n_layers is 1000000000"},
      {"llama.block_count", uint64_t(1) << 63, "llama.block_count"},
      {"llama.block_count", std::string("five"), "llama.block_count"},
      {"llama.block_count", 5.5, "llama.block_count"},
      {"llama.attention.head_count", uint64_t(0), "head_count is 0"},
      {"llama.attention.head_count", uint64_t(7), "head_dim 9 and rope dimension 8 must be even"},
      {"llama.attention.head_count_kv", uint64_t(16), "n_kv_heads is 16"},
      {"llama.attention.head_count_kv", uint64_t(3), "n_heads 8 is not a multiple of n_kv_heads 3"},
      {"llama.attention.head_count_kv", std::vector<uint64_t>{4, 4}, "has 2 entries for 5 layers"},
      {"llama.attention.head_count_kv", std::vector<uint64_t>{4, 4, 2, 4, 4}, "differs between layers"},
      {"llama.attention.key_length", uint64_t(1) << 20, "head_dim is 1048576"},
      {"llama.attention.key_length", uint64_t(0), "head_dim is 0"},
      {"llama.attention.value_length", uint64_t(4), "value_length 4 differs from key_length 8"},
      {"llama.attention.sliding_window", int64_t(-1), "llama.attention.sliding_window is -1"},
      {"llama.attention.sliding_window", uint64_t(1) << 31, "llama.attention.sliding_window is 2147483648"},
      {"llama.attn_logit_softcapping", 50.0, "llama.attn_logit_softcapping is 50 (not supported)"},
      {"llama.expert_count", uint64_t(8), "key 'llama.expert_used_count' is missing"},
      {"llama.attention.scale", -0.5, "attention scale is -0.5"},
      {"llama.residual_scale", NAN, "residual scale is nan"},
      {"llama.embedding_scale", 0.0, "embedding scale is 0"},
      {"llama.logit_scale", 0.0, "logit divisor is 0"},
      {"llama.attention.layer_norm_rms_epsilon", NAN, "RMSNorm epsilon is nan"},
      {"llama.attention.layer_norm_rms_epsilon", 0.0, "RMSNorm epsilon is 0"},
      {"llama.rope.freq_base", 0.0, "rope frequency base is 0"},
      {"llama.rope.freq_base", NAN, "rope frequency base is nan"},
      {"llama.rope.dimension_count", uint64_t(512), "rope dimension is 512"},
      {"llama.rope.scaling.type", std::string("dynamic"), "rope.scaling.type 'dynamic' is not supported"},
      {"llama.context_length", uint64_t(0), "context length is 0"},
      {"llama.context_length", uint64_t(1) << 40, "llama.context_length"},
      {"llama.embedding_length", uint64_t(65), "do not fit the configuration"},
      {"llama.feed_forward_length", uint64_t(173), "blk.0.ffn_gate.weight is [172, 64], expected [173, 64]"},
      {"general.architecture", std::string("mamba"),
       "architecture 'mamba' is not supported (there are: llama, qwen2, qwen3, qwen2vl, qwen3vl, seed_oss, "
       "hunyuan-dense, smollm3, exaone4, cohere2, mistral3, qwen2moe, qwen3moe, qwen3next, qwen35, qwen35moe, gpt-oss, "
       "deepseek2, deepseek32, glm-dsa, mistral4, glm4moe, ernie4_5-moe, minimax-m2, lfm2, lfm2moe, granite, "
       "granitehybrid, "
       "nemotron_h, nemotron_h_moe, phi3, olmo2, gemma3, gemma4, bitnet-b1.58, bitnet-25, "
       "bitnet)"},
      {"general.architecture", uint64_t(3), "general.architecture"},
  };
  for (const Case& c : cases) {
    Variant variant;
    variant.metadata[c.key] = c.value;
    const std::string message = variant.load();
    EXPECT_NE(message.find(c.expected), std::string::npos) << c.key << " -> " << message;
    EXPECT_NE(message.find("m.gguf"), std::string::npos) << "the file must be named: " << message;
  }
  for (const char* key : {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
                          "llama.context_length", "llama.attention.head_count", "general.architecture"}) {
    Variant variant;
    variant.metadata.erase(key);
    EXPECT_NE(variant.load().find(key), std::string::npos) << key << " missing";
  }
}

TEST(Load, MissingAndMisshapenTensorsAreListedTogether) {
  Variant variant;
  variant.erase("blk.1.attn_q.weight");
  variant.erase("output_norm.weight");
  variant.specs[variant.at("blk.3.ffn_norm.weight")].shape = {32};
  variant.payloads[variant.at("blk.3.ffn_norm.weight")].resize(32 * 4);
  const std::string message = variant.load();
  EXPECT_NE(message.find("3 tensor(s)"), std::string::npos) << message;
  EXPECT_NE(message.find("blk.1.attn_q.weight is missing"), std::string::npos) << message;
  EXPECT_NE(message.find("output_norm.weight is missing"), std::string::npos) << message;
  EXPECT_NE(message.find("blk.3.ffn_norm.weight is [32], expected [64]"), std::string::npos) << message;
}

TEST(Load, TensorsThatNothingReadsAreRefusedByNameUnlessTheyAreHarmless) {
  const auto with = [](const std::string& name, float value, int64_t n = 64) {
    Variant variant;
    variant.specs.push_back({name, weight_format_of_gguf(0), {n}});
    variant.payloads.emplace_back(size_t(4 * n));
    for (int64_t i = 0; i < n; ++i) std::memcpy(variant.payloads.back().data() + 4 * i, &value, 4);
    return variant.load();
  };
  for (const char* name :
       {"blk.0.attn_q_norm.weight", "blk.0.layer_out_scale.weight", "token_embd_norm.weight", "output.bias",
        "blk.3.attn_sinks.weight", "blk.0.attn_q.weight.lora_a", "cls.weight", "blk.9.attn_norm.weight"}) {
    const std::string message = with(name, 1);
    EXPECT_NE(message.find("1 tensor(s)"), std::string::npos) << name << ": " << message;
    EXPECT_NE(message.find(name), std::string::npos) << message;
  }
  for (const char* name : {"v.blk.0.attn_q.weight", "mm.0.weight", "blk.0.attn_rot_embd", "blk.1.attn.masked_bias"})
    EXPECT_EQ(with(name, 1), "") << name;
  EXPECT_EQ(with("output.bias", 0), "") << "zeros add nothing";
  for (const char* name : {"blk.0.attn_output.bias", "blk.2.ffn_down.bias", "blk.4.attn_v.bias"})
    EXPECT_EQ(with(name, 1, name[std::string_view(name).size() - 6] == 'v' ? 32 : 64), "") << name << " is added";

  Variant many;
  for (int i = 0; i < 100; ++i) {
    many.specs.push_back({fmt::format("extra.{}", i), weight_format_of_gguf(0), {1}});
    many.payloads.emplace_back(4);
  }
  const std::string message = many.load();
  EXPECT_NE(message.find("100 tensor(s)"), std::string::npos) << message;
  EXPECT_NE(message.find("and 92 more"), std::string::npos) << message;
}

TEST(Load, AThousandProblemsStayReadable) {
  Variant variant;
  for (const io::Tensor& tensor : io::open_gguf(kTinyLlama).or_throw().gguf.tensors)
    if (tensor.name.starts_with("blk.")) variant.erase(tensor.name);
  const std::string message = variant.load();
  EXPECT_LT(message.size(), 1500u);
  EXPECT_NE(message.find("45 tensor(s)"), std::string::npos) << message;
}

TEST(Load, NonFiniteNormsAreRefused) {
  Variant variant;
  const float bad = INFINITY;
  std::memcpy(variant.payloads[variant.at("blk.2.attn_norm.weight")].data() + 8, &bad, 4);
  EXPECT_NE(variant.load().find("blk.2.attn_norm.weight holds inf"), std::string::npos);
}

TEST(Load, MoreTokensThanEmbeddingRowsAreRefused) {
  Variant variant;
  for (const char* name : {"token_embd.weight", "output.weight"}) {
    const size_t i = variant.at(name);
    variant.specs[i].shape[0] = 500;
    variant.payloads[i].resize(500 * 64 * 4);
  }
  const std::string message = variant.load();
  EXPECT_NE(message.find("the tokenizer has 512 tokens, the embedding 500 rows"), std::string::npos) << message;
}

TEST(Load, AnAddedTokenMayLackARow) {
  // Models for text have tokens of images and padding that were added behind the embedding.
  for (const auto& [type, loads] :
       {std::pair(int64_t(1), false), {int64_t(3), true}, {int64_t(4), true}, {int64_t(5), true}}) {
    Variant variant;
    std::get<std::vector<std::string>>(variant.metadata.at("tokenizer.ggml.tokens")).push_back("<image>");
    std::get<std::vector<double>>(variant.metadata.at("tokenizer.ggml.scores")).push_back(0);
    std::get<std::vector<int64_t>>(variant.metadata.at("tokenizer.ggml.token_type")).push_back(type);
    EXPECT_EQ(variant.load() == "", loads) << variant.load();
    variant.metadata["tokenizer.ggml.eos_token_id"] = uint64_t(512);
    EXPECT_EQ(variant.load() == "", loads) << variant.load();
    variant.metadata["tokenizer.ggml.bos_token_id"] = uint64_t(512);
    EXPECT_NE(variant.load().find(loads ? "its BOS token 512" : "512"), std::string::npos) << variant.load();
  }
}

TEST(Load, EveryByteOfTheHeaderMayBeWrong) {
  // One byte at a time, across the whole header: an error or a model, never a crash. (ASan and UBSan watch in debug.)
  const io::MappedFile file = io::MappedFile::open(kTinyLlama).or_throw();
  const TempDir directory;
  int refused = 0;
  std::vector<std::byte> bytes(file.bytes().begin(), file.bytes().end());
  const size_t header = 14000;  // metadata and tensor infos of this file, some tokens included
  for (size_t i = 0; i < header; i += 97) {
    const std::byte before = bytes[i];
    bytes[i] ^= std::byte(0x81);
    const Result<LoadedModel> model = load_model(directory.write("m.gguf", bytes).string());
    refused += !model;
    bytes[i] = before;
  }
  EXPECT_GT(refused, 10);
}

TEST(Config, HfFieldsAreReadAndChecked) {
  const char* const kGood =
      R"({"model_type":"qwen2","hidden_size":896,"num_hidden_layers":24,"num_attention_heads":14,"num_key_value_heads":2,)"
      R"("intermediate_size":4864,"vocab_size":151936,"max_position_embeddings":32768,"rms_norm_eps":1e-6,"rope_theta":1000000.0,)"
      R"("tie_word_embeddings":true,"use_sliding_window":false})";
  const Config c = config_from_hf(kGood, "config.json").or_throw();
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_TRUE(c.tied_output);
  EXPECT_FALSE(c.qk_norm);
  EXPECT_EQ(c.rope_theta, 1e6f);
  const auto message = [&](std::string_view from, std::string_view to) {
    std::string text(kGood);
    text.replace(text.find(from), from.size(), to);
    const Result<Config> result = config_from_hf(text, "config.json");
    return result ? std::string() : result.error().message;
  };
  const std::pair<std::pair<const char*, const char*>, const char*> cases[] = {
      {{"\"qwen2\"", "\"gpt5\""}, "model_type 'gpt5' is not supported"},
      {{"\"hidden_size\":896", "\"hidden_size\":\"big\""}, "hidden_size"},
      {{"\"hidden_size\":896", "\"hidden_size\":-3"}, "hidden_size"},
      {{"\"num_hidden_layers\":24", "\"num_hidden_layers\":1e30"}, "num_hidden_layers"},
      {{"\"num_hidden_layers\":24,", ""}, "num_hidden_layers is missing"},
      {{"\"num_key_value_heads\":2", "\"num_key_value_heads\":5"}, "n_heads 14"},
      {{"\"rms_norm_eps\":1e-6", "\"rms_norm_eps\":0"}, "epsilon"},
      {{"\"use_sliding_window\":false", "\"use_sliding_window\":true"}, "use_sliding_window"},
      {{"\"use_sliding_window\":false", "\"hidden_act\":\"gelu\""}, "hidden_act 'gelu'"},
      {{"\"use_sliding_window\":false", "\"rope_scaling\":{\"rope_type\":\"dynamic\"}"}, "'dynamic' is not supported"},
      {{"\"use_sliding_window\":false", "\"rope_scaling\":{\"rope_type\":\"longrope\"}"}, "short_factor is not a list"},
      {{"\"use_sliding_window\":false",
        "\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,-1],\"long_factor\":[1]}"},
       "short_factor holds -1"},
      {{"\"use_sliding_window\":false",
        "\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[1]}"},
       "LongRoPE has 1 factors, expected 32, one a pair"},
      {{"\"use_sliding_window\":false", "\"partial_rotary_factor\":0"}, "partial_rotary_factor is 0"},
      {{"\"use_sliding_window\":false", "\"final_logit_softcapping\":30"}, "final_logit_softcapping is 30"},
      {{"\"use_sliding_window\":false", "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":0}"},
       "scaling factor is 0"},
      {{"\"use_sliding_window\":false", "\"rope_scaling\":7"}, "rope_scaling is not an object"},
  };
  for (const auto& [change, expected] : cases)
    EXPECT_NE(message(change.first, change.second).find(expected), std::string::npos)
        << change.second << " -> " << message(change.first, change.second);
}

TEST(Config, LayersThatSlideHaveAPeriod) {
  const auto gemma = [](std::string_view more) {
    return config_from_hf(
        R"({"model_type":"gemma3_text","hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4,)"
        R"("num_key_value_heads":2,"head_dim":16,"intermediate_size":96,"vocab_size":512,)"
        R"("max_position_embeddings":2048,"sliding_window":16)" +
            std::string(more) + "}",
        "config.json");
  };
  EXPECT_EQ(gemma("").or_throw().window_period, 6);
  const char* const kPattern =
      R"(,"layer_types":["sliding_attention","full_attention","sliding_attention","full_attention"])";
  EXPECT_EQ(gemma(kPattern).or_throw().window_period, 2);
  const char* const kAll =
      R"(,"layer_types":["sliding_attention","sliding_attention","sliding_attention","sliding_attention"])";
  EXPECT_TRUE(gemma(kAll).or_throw().slides(3));
  const Config any =
      gemma(R"(,"layer_types":["sliding_attention","full_attention","full_attention","sliding_attention"])").or_throw();
  EXPECT_TRUE(any.slides(0) && !any.slides(1) && !any.slides(2) && any.slides(3));
  const std::pair<const char*, const char*> bad[] = {
      {R"(,"layer_types":["sliding_attention"])", "not a list of 4 layers"},
      {R"(,"layer_types":["sliding_attention","full_attention","linear_attention","full_attention"])",
       "has \"linear_attention\""},
      {R"(,"sliding_window_pattern":-1)", "sliding_window_pattern is -1"},
      {R"(,"rope_local_base_freq":0.5)", "rope frequency base of sliding layers is 0.5"},
      {R"(,"query_pre_attn_scalar":0)", "attention scale is inf"},
  };
  for (const auto& [more, expected] : bad) {
    const Result<Config> config = gemma(more);
    ASSERT_FALSE(config) << more;
    EXPECT_NE(config.error().message.find(expected), std::string::npos) << config.error().message;
  }
}

TEST(Config, LayersOfTheDeltaRuleHaveAPeriodAndMayBeNested) {
  const std::string text =
      R"("hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,)"
      R"("intermediate_size":96,"vocab_size":512,"max_position_embeddings":2048,"linear_num_key_heads":2,)"
      R"("linear_num_value_heads":4,"linear_key_head_dim":16,"linear_value_head_dim":32,"linear_conv_kernel_dim":4,)"
      R"("rope_parameters":{"rope_theta":10000000,"partial_rotary_factor":0.25,"mrope_section":[2,1,1]})";
  const auto qwen = [&](std::string_view more) {
    return config_from_hf(R"({"model_type":"qwen3_5_text",)" + text + std::string(more) + "}", "config.json");
  };
  const Config c = qwen("").or_throw();
  EXPECT_EQ(c.arch, "qwen35");
  EXPECT_EQ(c.delta_period, 4);
  EXPECT_TRUE(c.has_delta(2));
  EXPECT_FALSE(c.has_delta(3));
  EXPECT_EQ(c.n_cached_layers(), 1);
  EXPECT_EQ(c.q_rows(0), 256) << "a gate behind each head's query";
  EXPECT_EQ(c.rope_dim, 8);
  EXPECT_EQ(c.delta.state_values(), 4 * 16 * 32 + 3 * (2 * 2 * 16 + 4 * 32));
  EXPECT_FALSE(c.delta.keys_cycle);
  EXPECT_EQ(qwen(R"(,"layer_types":["linear_attention","full_attention","linear_attention","full_attention"])")
                .or_throw()
                .delta_period,
            2);

  const Config nested = config_from_hf(R"({"model_type":"qwen3_5","tie_word_embeddings":true,"vision_config":{},)"
                                       R"("text_config":{"model_type":"qwen3_5_text",)" +
                                           text + "}}",
                                       "config.json")
                            .or_throw();
  EXPECT_EQ(nested.arch, "qwen35");
  EXPECT_TRUE(nested.tied_output) << "said outside";
  EXPECT_FALSE(config_from_hf(R"({"model_type":"qwen3_5","text_config":7})", "config.json"));

  const std::pair<const char*, const char*> bad[] = {
      {R"(,"layer_types":["linear_attention"])", "not a list of 4 layers"},
      {R"(,"layer_types":["linear_attention","full_attention","full_attention","full_attention"])", "at layer 2"},
      {R"(,"layer_types":["linear_attention","linear_attention","linear_attention","linear_attention"])",
       "interval of full attention is 5"},
      {R"(,"full_attention_interval":0)", "full_attention_interval 0"},
      {R"(,"full_attention_interval":5)", "interval of full attention is 5"},
      {R"(,"attn_output_gate":false)", "attn_output_gate is false"},
  };
  for (const auto& [more, expected] : bad) {
    const Result<Config> config = qwen(more);
    ASSERT_FALSE(config) << more;
    EXPECT_NE(config.error().message.find(expected), std::string::npos) << config.error().message;
  }
}

TEST(Config, ATextModelInsideAnotherMayLeaveOutDefaults) {
  // The text_config of gemma-3-4b-it has nothing else.
  const Config gemma =
      config_from_hf(R"({"model_type":"gemma3","text_config":{"hidden_size":2560,"intermediate_size":10240,)"
                     R"("model_type":"gemma3_text","num_hidden_layers":34,"rope_scaling":{"factor":8.0,)"
                     R"("rope_type":"linear"},"sliding_window":1024},"vision_config":{}})",
                     "config.json")
          .or_throw();
  EXPECT_EQ(gemma.arch, "gemma3");
  EXPECT_EQ(gemma.vocab_size, 262208);
  EXPECT_EQ(gemma.n_heads, 8);
  EXPECT_EQ(gemma.n_kv_heads, 4);
  EXPECT_EQ(gemma.head_dim, 256);
  EXPECT_EQ(gemma.n_ctx_train, 131072);
  EXPECT_EQ(gemma.rope_theta, 1e6f);
  EXPECT_EQ(gemma.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(gemma.window, 1024);
  EXPECT_EQ(gemma.window_period, 6);
  EXPECT_EQ(gemma.window_rope_theta, 1e4f);
  EXPECT_EQ(gemma.attention_scale, 1 / 16.0f);
  EXPECT_TRUE(gemma.tied_output);

  const auto mistral = [](std::string_view text) {
    return config_from_hf(R"({"model_type":"mistral3","text_config":{)" + std::string(text) + "}}", "config.json");
  };
  const Config small = mistral(R"("model_type":"mistral","head_dim":128,"hidden_size":5120,"vocab_size":131072,)"
                               R"("intermediate_size":32768,"num_hidden_layers":40,"rms_norm_eps":1e-05,)"
                               R"("rope_theta":1000000000.0,"sliding_window":null)")
                           .or_throw();
  EXPECT_EQ(small.arch, "llama");
  EXPECT_EQ(small.n_heads, 32);
  EXPECT_EQ(small.n_kv_heads, 8);
  EXPECT_EQ(small.window, 0) << "null is no window";
  EXPECT_FALSE(small.tied_output);
  EXPECT_EQ(mistral("").or_throw().window, 4096) << "and nothing is the default";
  const Result<Config> other = mistral(R"("model_type":"ministral9")");
  ASSERT_FALSE(other);
  EXPECT_THAT(
      other.error().message,
      testing::HasSubstr(
          R"(text_config has model_type "ministral9" (supported in "mistral3": mistral, ministral3, mistral4))"));
}

TEST(Config, NumbersOfExpertsAreChecked) {
  const auto moe = [](std::string_view experts) {
    return config_from_hf(R"({"model_type":"qwen3_moe","hidden_size":64,"num_hidden_layers":3,"num_attention_heads":4,)"
                          R"("num_key_value_heads":2,"head_dim":16,"intermediate_size":96,"vocab_size":512,)"
                          R"("max_position_embeddings":2048)" +
                              std::string(experts) + "}",
                          "config.json");
  };
  const Config good =
      moe(R"(,"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":24,"mlp_only_layers":[0],"norm_topk_prob":false)")
          .or_throw();
  EXPECT_FALSE(good.has_experts(0));
  EXPECT_TRUE(good.has_experts(1) && good.has_experts(2));
  EXPECT_FALSE(good.experts_renormalised);
  const std::pair<const char*, const char*> bad[] = {
      {R"(,"num_experts":0,"num_experts_per_tok":2,"moe_intermediate_size":24)", "num_experts is 0"},
      {R"(,"num_experts":2147483648,"num_experts_per_tok":2,"moe_intermediate_size":24)", "num_experts is 2147483648"},
      {R"(,"num_experts":8,"num_experts_per_tok":9,"moe_intermediate_size":24)", "experts of a token is 9"},
      {R"(,"num_experts":8,"num_experts_per_tok":0,"moe_intermediate_size":24)", "experts of a token is 0"},
      {R"(,"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":0)", "d_ff of an expert is 0"},
      {R"(,"num_experts":8,"num_experts_per_tok":2)", "moe_intermediate_size is missing"},
      {R"(,"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":24,"mlp_only_layers":3)", "not a list"},
  };
  for (const auto& [experts, expected] : bad) {
    const Result<Config> config = moe(experts);
    ASSERT_FALSE(config) << experts;
    EXPECT_NE(config.error().message.find(expected), std::string::npos) << config.error().message;
  }
}

TEST(Config, LatentAttentionIsReadAndChecked) {
  const auto deepseek = [](std::string_view from, std::string_view to) {
    std::string text =
        R"({"model_type":"deepseek_v3","hidden_size":64,"num_hidden_layers":3,"num_attention_heads":4,)"
        R"("intermediate_size":96,"vocab_size":512,"max_position_embeddings":2048,"kv_lora_rank":32,)"
        R"("qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":12,"n_routed_experts":8,"num_experts_per_tok":2,)"
        R"("moe_intermediate_size":24,"n_shared_experts":2,"n_group":4,"topk_group":2,"first_k_dense_replace":1})";
    return config_from_hf(text.replace(text.find(from), from.size(), to), "config.json");
  };
  const char* const kYarn = R"(,"rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":4096,)"
                            R"("mscale":1.0,"mscale_all_dim":1.0}})";
  const Config c = deepseek("}", kYarn).or_throw();
  EXPECT_EQ(c.n_kv_heads, 1);
  EXPECT_EQ(c.head_dim, 40);
  EXPECT_EQ(c.query_dim(), 24);
  EXPECT_EQ(c.d_ff_shared, 48);
  EXPECT_FALSE(c.has_experts(0));
  EXPECT_TRUE(c.has_experts(1));
  EXPECT_EQ(c.rope_pairs, RopePairs::interleaved);
  const ModelPlan plan = make_plan(c);
  EXPECT_EQ(plan.ropes[0].magnitude, 1);
  EXPECT_NEAR(plan.layers[0].attention.scale, std::pow(1 + 0.1 * std::log(40.0), 2) / std::sqrt(24.0), 1e-6);
  EXPECT_EQ(plan.layers[0].mixer, MixerKind::latent);
  const std::array<const char*, 3> bad[] = {
      {"}", R"(,"scoring_func":"softmax"})", "scoring_func is 'softmax'"},
      {"}", R"(,"topk_method":"greedy"})", "topk_method is 'greedy'"},
      {"}", R"(,"rope_interleave":false})", "rope_interleave is false"},
      {"}", R"(,"attention_bias":true})", "attention_bias is true"},
      {"}", R"(,"moe_layer_freq":2})", "moe_layer_freq is 2"},
      {R"("n_group":4)", R"("n_group":3)", "2 of 8 experts from 2 of 3 groups"},
      {R"("n_group":4,"topk_group":2)", R"("n_group":8,"topk_group":1)", "2 of 8 experts from 1 of 8 groups"},
      {R"("n_group":4)", R"("n_group":0)", "of 0 groups"},
      {R"("kv_lora_rank":32)", R"("kv_lora_rank":0)", "kv_lora_rank is 0"},
      {R"("kv_lora_rank":32)", R"("kv_lora_rank":1020)", "head_dim is 1028"},
      {R"("v_head_dim":12)", R"("v_head_dim":0)", "value_dim is 0"},
      {"}", R"(,"routed_scaling_factor":0})", "expert scale is 0"},
      {"}", R"(,"rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":4096,"mscale":1.0}})",
       "YaRN with mscale 1, mscale_all_dim 0"},
  };
  for (const auto& [from, to, expected] : bad) {
    const Result<Config> config = deepseek(from, to);
    ASSERT_FALSE(config) << to;
    EXPECT_NE(config.error().message.find(expected), std::string::npos) << config.error().message;
  }
}

TEST(Config, MistralIsALlamaWithAWindowOrNone) {
  const auto mistral = [](std::string_view more) {
    return R"({"hidden_size":64,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,)"
           R"("intermediate_size":128,"vocab_size":512,"max_position_embeddings":2048,"rope_theta":1000000.0)" +
           std::string(more) + "}";
  };
  for (const char* more : {R"(,"model_type":"mistral","sliding_window":null)", R"(,"model_type":"mistral")",
                           R"(,"architectures":["MistralForCausalLM"],"sliding_window":null)"}) {
    const Config c = config_from_hf(mistral(more), "config.json").or_throw();
    EXPECT_EQ(c.arch, "llama");
    EXPECT_EQ(c.head_dim, 32);
    EXPECT_EQ(c.rope_theta, 1e6f);
    EXPECT_FALSE(c.qkv_bias);
    EXPECT_FALSE(c.qk_norm);
  }
  for (const char* more : {R"(,"model_type":"mistral","sliding_window":16)",
                           R"(,"model_type":"mistral","sliding_window":16,"use_sliding_window":false)"}) {
    const Config windowed = config_from_hf(mistral(more), "config.json").or_throw();
    EXPECT_EQ(windowed.arch, "llama");
    EXPECT_TRUE(windowed.slides(0) && windowed.slides(2));
  }
  const Result<Config> negative =
      config_from_hf(mistral(R"(,"model_type":"mistral","sliding_window":-1)"), "config.json");
  ASSERT_FALSE(negative);
  EXPECT_NE(negative.error().message.find("sliding_window is -1"), std::string::npos) << negative.error().message;
  // Where use_sliding_window decides, the number alone is no window.
  EXPECT_TRUE(config_from_hf(mistral(R"(,"model_type":"qwen2","sliding_window":16)"), "config.json"));
}

/// The tiny model as a file of another architecture: every key under that name.
Variant renamed(const std::string& arch) {
  Variant variant;
  Metadata metadata;
  for (const auto& [key, value] : variant.metadata)
    metadata[key.starts_with("llama.") ? arch + key.substr(5) : key] = value;
  metadata["general.architecture"] = arch;
  variant.metadata = std::move(metadata);
  return variant;
}

TEST(Load, MistralIsALlamaWithAWindowOrNone) {
  const Variant mistral = renamed("mistral");
  EXPECT_EQ(mistral.load(), "");
  io::Gguf gguf;
  gguf.metadata = mistral.metadata;
  const io::GgufFile tiny = io::open_gguf(kTinyLlama).or_throw();
  gguf.tensors = tiny.gguf.tensors;
  const Config c = config_from_gguf(gguf, "f").or_throw();
  EXPECT_EQ(c.arch, "llama");
  EXPECT_EQ(c.rope_pairs, RopePairs::interleaved);
  EXPECT_EQ(config_metadata(c).at("general.architecture"), io::GgufValue(std::string("llama")));

  for (const std::string arch : {"mistral", "llama"}) {
    Variant windowed = renamed(arch);
    windowed.metadata[arch + ".attention.sliding_window"] = uint64_t(4096);
    EXPECT_EQ(windowed.load(), "");
    gguf.metadata = windowed.metadata;
    const Config sliding = config_from_gguf(gguf, "f").or_throw();
    EXPECT_TRUE(sliding.slides(0) && sliding.slides(4)) << arch;
    EXPECT_EQ(config_metadata(sliding).at("llama.attention.sliding_window"), io::GgufValue(uint64_t(4096)));
  }
}

/// Fields that only the newest architectures have.
TEST(Config, FieldsOfNewArchitecturesAreCheckedBeforeTheyAreUsed) {
  const auto refusal = [](std::string_view type, std::string_view fields, int n_layers = 4) {
    const Result<Config> read =
        config_from_hf(R"({"hidden_size":64,"num_attention_heads":4,"vocab_size":32,)"
                       R"("max_position_embeddings":64,"model_type":")" +
                           fmt::format(R"({}","num_hidden_layers":{},{}{}}})", type, n_layers,
                                       type == "lfm2" ? "" : R"("intermediate_size":96,)", fields),
                       "config.json");
    return read ? std::string() : read.error().message;
  };
  using testing::HasSubstr;
  EXPECT_EQ(refusal("exaone4", R"("sliding_window":16,"sliding_window_pattern":"LLLG")"), "");
  for (const char* letters : {"", "L", "G G", "LLGL"})
    EXPECT_THAT(refusal("exaone4", fmt::format(R"("sliding_window":16,"sliding_window_pattern":"{}")", letters)),
                HasSubstr("sliding_window_pattern is"))
        << letters;
  EXPECT_THAT(refusal("ministral3", R"("rope_parameters":{"rope_type":"default","llama_4_scaling_beta":0.1})"),
              HasSubstr("positions at which queries grow is 0"));
  EXPECT_THAT(refusal("smollm3", R"("no_rope_layers":[1,1,0,1])"), HasSubstr("no_rope_layers is [1,1,0,1]"));
  EXPECT_THAT(refusal("llama", R"("x":1)", 1 << 30), HasSubstr("expected 1 to 1024"));
  const std::string conv = R"("conv_L_cache":3,"block_ff_dim":96,)";
  EXPECT_EQ(refusal("lfm2", conv + R"("full_attn_idxs":[2])"), "");
  const std::string both_widths = R"("full_attn_idxs":[2],"intermediate_size":40)";
  EXPECT_EQ(refusal("lfm2", conv + both_widths), "");
  EXPECT_EQ(config_from_hf(R"({"hidden_size":64,"num_attention_heads":4,"vocab_size":32,"max_position_embeddings":64,)"
                           R"("model_type":"lfm2","num_hidden_layers":4,)" +
                               conv + both_widths + "}",
                           "config.json")
                .or_throw()
                .d_ff,
            96)
      << "of two widths, LFM2's own name counts";
  EXPECT_THAT(refusal("lfm2", conv + R"("full_attn_idxs":[4])"), HasSubstr("full_attn_idxs holds 4"));
  EXPECT_THAT(refusal("lfm2", conv + R"("x":1)"), HasSubstr("layer_types is missing"));
  EXPECT_THAT(refusal("lfm2", conv + R"("layer_types":["conv","conv","mamba","conv"])"), HasSubstr("layer_types is"));
  EXPECT_THAT(refusal("lfm2", conv + R"("full_attn_idxs":[2],"block_auto_adjust_ff_dim":true,)"
                                     R"("block_ffn_dim_multiplier":1e30)"),
              HasSubstr("block_ffn_dim_multiplier 1e+30"));
  EXPECT_THAT(refusal("lfm2", conv + R"("full_attn_idxs":[2],"block_auto_adjust_ff_dim":true,)"
                                     R"("block_multiple_of":1073741824)"),
              HasSubstr("d_ff is 1073741824"));
}

}  // namespace
}  // namespace ridge
