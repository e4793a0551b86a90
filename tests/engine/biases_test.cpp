// Biases of every projection: what the CPU computes is what their definition says, from either container.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "cases/rank_answers.h"
#include "cases/temp_dir.h"
#include "io/json.h"
#include "io/tokenizer_parts.h"
#include "model/convert.h"

namespace ridge {
namespace {

using Rows = std::vector<float>;

Rows product(const Linear& m, const Rows& x, const std::vector<float>& bias) {
  Rows y(size_t(m.n_out)), row(size_t(m.n_in));
  for (int64_t r = 0; r < m.n_out; ++r) {
    m.format->decode(m.rows + r * m.format->row_bytes(m.n_in), m.n_in, row.data());
    double sum = bias.empty() ? 0 : bias[size_t(r)];
    for (size_t i = 0; i < row.size(); ++i) sum += double(row[i]) * x[i];
    y[size_t(r)] = float(sum);
  }
  return y;
}
Rows normed(const Rows& x, const std::vector<float>& weight, float eps) {
  double squares = 0;
  for (const float v : x) squares += double(v) * v;
  const double scale = 1 / std::sqrt(squares / double(x.size()) + eps);
  Rows y;
  for (size_t i = 0; i < x.size(); ++i) y.push_back(float(x[i] * scale * weight[i]));
  return y;
}

/// Logits of one token alone, which attends to itself only.
Rows logits_of(const Config& c, const Weights& w, int32_t token) {
  Rows x(size_t(c.d_model));
  w.embedding.format->decode(w.embedding.rows + token * w.embedding.format->row_bytes(c.d_model), c.d_model, x.data());
  for (const LayerWeights& l : w.layers) {
    const Rows v = product(l.v, normed(x, l.attn_norm, c.rms_eps), l.v_bias);
    Rows heads;
    for (int h = 0; h < c.n_heads; ++h) {
      const auto first = v.begin() + h / (c.n_heads / c.n_kv_heads) * c.head_dim;
      heads.insert(heads.end(), first, first + c.head_dim);
    }
    const Rows mixed = product(l.o, heads, l.o_bias);
    for (size_t i = 0; i < x.size(); ++i) x[i] += mixed[i];
    const Rows h = normed(x, l.ffn_norm, c.rms_eps), up = product(l.up, h, l.up_bias);
    Rows gate = product(l.gate, h, l.gate_bias);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    const Rows made = product(l.down, gate, l.down_bias);
    for (size_t i = 0; i < x.size(); ++i) x[i] += made[i];
  }
  return product(w.output, normed(x, w.output_norm, c.rms_eps), {});
}

TEST(Biases, AreAddedToEveryProjection) {
  CpuContext context(1);
  const LoadedModel model = make_synth_model(context, "tiny-biases@weights=f32", SynthMatrices::rows).or_throw();
  const Config& c = model.config;
  ASSERT_TRUE(c.qkv_bias && c.o_bias && c.mlp_bias);
  Engine engine("synth:tiny-biases@weights=f32", {.n_threads = 1});
  for (const int32_t token : {3, 99}) {
    const Rows expected = logits_of(c, model.weights, token);
    const Answer answer = answer_of(engine, std::vector<int32_t>{token}, 1, "f32");
    ASSERT_EQ(answer.prompt.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(answer.prompt[i], expected[i], 1e-4) << i;
  }
}

/// Tensors of a directory, of random values.
class Directory {
 public:
  const TempDir dir;
  std::vector<io::SafetensorsSpec> specs;
  bool copies_embedding = false;  // as lm_head.weight, which comes behind it

  void add(std::string name, std::vector<int64_t> shape) {
    specs.push_back({std::move(name), *find_weight_format("f32"), std::move(shape)});
  }
  void add_layer(bool attention_bias, bool mlp_bias) {
    const auto matrix = [&](const std::string& name, int64_t n_out, int64_t n_in, bool bias) {
      add("model.layers.0." + name + ".weight", {n_out, n_in});
      if (bias) add("model.layers.0." + name + ".bias", {n_out});
    };
    matrix("self_attn.q_proj", 64, 64, attention_bias);
    matrix("self_attn.k_proj", 32, 64, attention_bias);
    matrix("self_attn.v_proj", 32, 64, attention_bias);
    matrix("self_attn.o_proj", 64, 64, attention_bias);
    matrix("mlp.gate_proj", 96, 64, mlp_bias);
    matrix("mlp.up_proj", 96, 64, mlp_bias);
    matrix("mlp.down_proj", 64, 96, mlp_bias);
    add("model.layers.0.input_layernorm.weight", {64});
    add("model.layers.0.post_attention_layernorm.weight", {64});
    add("model.embed_tokens.weight", {256, 64});
    add("model.norm.weight", {64});
  }
  std::string write(const std::string& more) const {
    dir.write("config.json",
              R"({"model_type":"llama","hidden_size":64,"num_hidden_layers":1,"num_attention_heads":4,)"
              R"("num_key_value_heads":2,"intermediate_size":96,"vocab_size":256,"max_position_embeddings":128,)"
              R"("tie_word_embeddings":true)" +
                  more + "}");
    std::string vocab;
    for (int i = 0; i < 256; ++i)
      vocab += fmt::format("{}{}:{}", i > 0 ? "," : "", io::Json(io::bpe_piece_of_byte(uint8_t(i))).dump(), i);
    dir.write("tokenizer.json",
              R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel",)"
              R"("add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,)"
              R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" +
                  vocab + R"(},"merges":[]}})");
    Rng rng(3);
    std::vector<float> embedding;
    io::write_safetensors(dir / "model.safetensors", specs, [&](size_t i, const io::SafetensorsSink& sink) {
      std::vector<float> values;
      const std::vector<int64_t>& shape = specs[i].shape;
      for (int64_t n = shape[0] * (shape.size() > 1 ? shape[1] : 1); n > 0; --n)
        values.push_back(0.2f * float(rng.normal()));
      if (specs[i].name == "model.embed_tokens.weight") embedding = values;
      if (specs[i].name == "lm_head.weight" && copies_embedding) values = embedding;
      return sink(std::as_bytes(std::span(values)));
    }).or_throw();
    return dir.path().native();
  }
};

const std::vector<int32_t> kIds = {7, 200, 31, 4, 99, 31, 8};

TEST(Biases, AreTheSameFromADirectoryAndFromItsGgufFile) {
  Directory from;
  from.add_layer(true, true);
  const std::string path = from.write(R"(,"attention_bias":true,"mlp_bias":true)");
  const std::string gguf = (from.dir / "m.gguf").native();
  convert_to_gguf(path, gguf, find_quantize_type("f32").or_throw(), nullptr).or_throw();
  Engine directory(path, {.n_threads = 1}), file(gguf, {.n_threads = 1});
  const Answer expected = answer_of(directory, kIds, 2, "f32"), answer = answer_of(file, kIds, 2, "f32");
  ASSERT_EQ(answer.prompt.size(), expected.prompt.size());
  for (size_t i = 0; i < expected.prompt.size(); ++i) ASSERT_NEAR(answer.prompt[i], expected.prompt[i], 1e-4) << i;
}

TEST(Biases, ThatConfigJsonDoesNotAskForAreRefusedByName) {
  Directory from;
  from.add_layer(true, true);
  const Result<LoadedModel> model = load_model(from.write(R"(,"attention_bias":true)"));
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().kind, ErrorKind::bad_file);
  EXPECT_THAT(model.error().message, testing::HasSubstr("model.layers.0.mlp.down_proj.bias"));
  EXPECT_THAT(model.error().message, testing::HasSubstr("3 tensor(s)"));
}

TEST(Biases, ThatConfigJsonAsksForMustBeThere) {
  Directory from;
  from.add_layer(false, false);
  EXPECT_THAT(load_model(from.write(R"(,"mlp_bias":true)")).error().message,
              testing::HasSubstr("model.layers.0.mlp.gate_proj.bias is missing"));
}

TEST(Biases, ACopyOfTheEmbeddingAsOutputIsHarmlessAndAnotherMatrixIsNot) {
  Directory from;
  from.add_layer(false, false);
  from.add("lm_head.weight", {256, 64});
  const Result<LoadedModel> model = load_model(from.write(""));
  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().message, testing::HasSubstr("lm_head.weight"));
  from.copies_embedding = true;
  EXPECT_TRUE(load_model(from.write("")));
}

}  // namespace
}  // namespace ridge
