// MTP heads of models with experts: of GLM-4.x against its formula in double, of the others against their own layer
// behind a join in double, and texts with such heads, which are those without.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "cases/own_mtp_head.h"
#include "cases/reference_data.h"
#include "cases/temp_dir.h"
#include "engine/decode/text.h"
#include "engine/engine.h"
#include "model/convert.h"
#include "model/mtp.h"
#include "model/tensors.h"

namespace ridge {
namespace {

using Row = std::vector<double>;

/// The tensors of a directory in double, by the file's names.
class Tensors {
 public:
  explicit Tensors(const Weights& model) : tensors_(std::get<io::HfDirectory>(model.source).tensors) {}
  Row operator[](std::string_view name) const {
    const auto found = std::ranges::find(tensors_, name, &io::Tensor::name);
    RIDGE_CHECK(found != tensors_.end(), "no tensor {}", name);
    int64_t n = 1;
    for (const int64_t size : found->shape) n *= size;
    std::vector<float> values(static_cast<size_t>(n));
    found->format->decode(found->data.data(), n, values.data());
    return {values.begin(), values.end()};
  }

 private:
  const std::vector<io::Tensor>& tensors_;
};

Row normed(Row x, const Row& weight, double eps) {
  const size_t n = weight.size();
  for (size_t at = 0; at < x.size(); at += n) {
    const double sum = std::inner_product(&x[at], &x[at] + n, &x[at], 0.0);
    for (size_t i = 0; i < n; ++i) x[at + i] *= weight[i] / std::sqrt(sum / double(n) + eps);
  }
  return x;
}
/// Matrix [.., x.size()] times x.
Row times(const Row& matrix, const Row& x) {
  Row y;
  for (size_t at = 0; at < matrix.size(); at += x.size())
    y.push_back(std::inner_product(x.begin(), x.end(), &matrix[at], 0.0));
  return y;
}
void add(Row& to, const Row& more, double factor = 1) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += factor * more[i];
}
Row joined(const Row& embedding, const Row& hidden, const Row& join) {
  Row both = embedding;
  both.insert(both.end(), hidden.begin(), hidden.end());
  return times(join, both);
}

/// The head of GLM-4.x as its publishers have it: the layer behind the last one.
class GlmHead {
 public:
  explicit GlmHead(const LoadedModel& model)
      : c_(model.config), t_(model.weights), layer_(fmt::format("model.layers.{}.", c_.n_layers)) {}

  /// Logits behind pairs of hidden states and tokens.
  std::vector<Row> logits(const std::vector<Row>& hidden, std::span<const int32_t> tokens) {
    const Row embeddings = of("embed_tokens.weight"), join = of("eh_proj.weight"), head = of("shared_head.head.weight");
    const auto d = size_t(c_.d_model);
    std::vector<Row> all;
    for (size_t t = 0; t < tokens.size(); ++t) {
      const Row token(&embeddings[size_t(tokens[t]) * d], &embeddings[size_t(tokens[t]) * d] + d);
      Row x = joined(norm(token, "enorm"), norm(hidden[t], "hnorm"), join);
      add(x, attention(norm(x, "input_layernorm"), int(t)));
      add(x, experts(norm(x, "post_attention_layernorm")));
      all.push_back(times(head, norm(x, "shared_head.norm")));
    }
    return all;
  }

 private:
  Row of(std::string_view name) const { return t_[layer_ + std::string(name)]; }
  Row norm(const Row& x, std::string_view name) const {
    return normed(x, of(std::string(name) + ".weight"), c_.rms_eps);
  }
  /// Heads of x through a matrix with a bias; q and k are normed and turned.
  Row heads(const Row& x, const std::string& name, int position) const {
    Row y = times(of("self_attn." + name + "_proj.weight"), x);
    add(y, of("self_attn." + name + "_proj.bias"));
    if (name == "v") return y;
    y = norm(y, "self_attn." + name + "_norm");
    const size_t half = size_t(c_.rope_dim) / 2;
    for (size_t at = 0; at < y.size(); at += size_t(c_.head_dim))
      for (size_t i = 0; i < half; ++i) {
        const double angle = position * std::pow(double(c_.rope_theta), -double(i) / double(half));
        const double a = y[at + i], b = y[at + i + half];
        y[at + i] = a * std::cos(angle) - b * std::sin(angle);
        y[at + i + half] = b * std::cos(angle) + a * std::sin(angle);
      }
    return y;
  }
  Row attention(const Row& x, int position) {
    const Row q = heads(x, "q", position);
    keys_.push_back(heads(x, "k", position));
    values_.push_back(heads(x, "v", position));
    const auto dim = size_t(c_.head_dim);
    Row out(q.size(), 0.0);
    for (size_t h = 0; h < size_t(c_.n_heads); ++h) {
      const size_t from = h / size_t(c_.n_heads / c_.n_kv_heads) * dim;
      Row weights;
      for (const Row& k : keys_)
        weights.push_back(
            std::exp(std::inner_product(&q[h * dim], &q[h * dim] + dim, &k[from], 0.0) / std::sqrt(double(dim))));
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (size_t t = 0; t < weights.size(); ++t)
        for (size_t i = 0; i < dim; ++i) out[h * dim + i] += weights[t] / sum * values_[t][from + i];
    }
    return times(of("self_attn.o_proj.weight"), out);
  }
  Row feed_forward(const Row& x, const std::string& name) const {
    Row gate = times(of("mlp." + name + ".gate_proj.weight"), x);
    const Row up = times(of("mlp." + name + ".up_proj.weight"), x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    return times(of("mlp." + name + ".down_proj.weight"), gate);
  }
  Row experts(const Row& x) const {
    Row scores = times(of("mlp.gate.weight"), x);
    for (double& score : scores) score = 1 / (1 + std::exp(-score));
    const Row bias = of("mlp.gate.e_score_correction_bias");
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::greater(), [&](size_t e) { return scores[e] + bias[e]; });
    order.resize(size_t(c_.n_experts_used));
    double sum = 0;
    for (const size_t e : order) sum += scores[e];
    Row y = feed_forward(x, "shared_experts");
    for (const size_t e : order)
      add(y, feed_forward(x, fmt::format("experts.{}", e)), scores[e] / sum * c_.expert_scale);
    return y;
  }

  const Config& c_;
  const Tensors t_;
  const std::string layer_;
  std::vector<Row> keys_, values_;
};

/// Hidden states and tokens for a head.
struct Pairs {
  Pairs(const Config& c, size_t n) {
    Rng rng(5);
    for (size_t t = 0; t < n; ++t) {
      tokens.push_back(int32_t(rng.next() % uint64_t(c.vocab_size)));
      for (int i = 0; i < c.d_model; ++i) hidden.push_back(float(rng.normal()));
    }
  }
  std::vector<int32_t> tokens;
  std::vector<float> hidden;
};

/// Logits of all tokens of a step that a plan runs over an f32 cache.
std::vector<float> run(CpuContext& context, const ModelPlan& plan, const Weights& weights, const Pairs& pairs,
                       std::span<const int32_t> tokens) {
  const auto backend = make_cpu_backend(context, plan, weights);
  const auto layers = layer_configs({.n_ctx = 64, .k = {.format = "f32"}, .v = {.format = "f32"}}, plan);
  SequencePool pool(backend->open_memory(layers, {}, 1, 1), nullptr);
  pool.set_n_ctx(64);
  const auto outputs = backend->make_outputs();
  const SeqTokens of{pool.open().or_throw(), int(tokens.size())};
  pool.reserve(of.seq, of.n_tokens).or_throw();
  backend->run({.tokens = tokens,
                .seqs = {&of, 1},
                .logits = LogitRows::all,
                .joined = {pairs.hidden.data(), ssize(tokens), plan.d_model}},
               pool, *outputs);
  const View2<const float> rows = outputs->logits();
  return {rows.data, rows.data + rows.rows * rows.cols};
}

TEST(MtpHeadOfGlm, IsItsFormula) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const std::string path = (*data / "parity/models/glm4_moe").native();
  const TempDir dir;
  convert_to_gguf(path, dir / "a.gguf", *find_weight_format("f32").or_throw(), nullptr).or_throw();
  const LoadedModel directory = load_model(path).or_throw();
  const Pairs pairs(directory.config, 20);
  std::vector<Row> hidden;
  for (auto at = pairs.hidden.begin(); at != pairs.hidden.end(); at += directory.config.d_model)
    hidden.emplace_back(at, at + directory.config.d_model);
  const std::vector<Row> expected = GlmHead(directory).logits(hidden, pairs.tokens);
  for (const std::string& file : {path, (dir / "a.gguf").native()}) {
    const LoadedModel model = load_model(file).or_throw();
    CpuContext context(1);
    const MtpHead head = load_mtp_head(context, model.config, model.weights, "").or_throw();
    EXPECT_TRUE(head.after_norm);
    const std::vector<float> logits =
        run(context, head_plan(model.config, model.weights), head.weights, pairs, pairs.tokens);
    // The tolerance of the reference data, for float32.
    for (size_t i = 0; i < logits.size(); ++i)
      ASSERT_NEAR(logits[i], expected[i / expected[0].size()][i % expected[0].size()], 1e-4) << file << " " << i;
  }
}

/// A head is its join, a layer as others, the norm and the output matrix: so a model of that one layer, whose
/// embeddings are what the join gives, has the head's logits.
void expect_a_layer_behind_a_join(const std::string& path) {
  SCOPED_TRACE(path);
  LoadedModel model = load_model(path).or_throw();
  CpuContext context(1, Isa::scalar);
  MtpHead head = load_mtp_head(context, model.config, model.weights, "").or_throw();
  EXPECT_TRUE(head.after_norm);
  ModelPlan plan = head_plan(model.config, model.weights);
  const Pairs pairs(model.config, 20);
  const std::vector<float> logits = run(context, plan, head.weights, pairs, pairs.tokens);

  const auto in_double = [](const Linear& m) {
    Row values;
    std::vector<float> row(static_cast<size_t>(m.n_in));
    for (int64_t r = 0; r < m.n_out; ++r) {
      m.format->decode(m.rows + r * m.format->row_bytes(m.n_in), m.n_in, row.data());
      for (const float value : row) values.push_back(double(value) * m.scale);
    }
    return values;
  };
  const auto weight = [](const std::vector<float>& values) { return Row(values.begin(), values.end()); };
  const Row join = in_double(head.weights.join), embedding = in_double(head.weights.embedding);
  const auto d = size_t(plan.d_model);
  std::vector<float> table;
  for (size_t t = 0; t < pairs.tokens.size(); ++t) {
    const double* const token = &embedding[size_t(pairs.tokens[t]) * d];
    const Row x = joined(normed(Row(token, token + d), weight(head.weights.join_embedding_norm), plan.norm_eps),
                         normed(Row(&pairs.hidden[t * d], &pairs.hidden[t * d] + d),
                                weight(head.weights.join_hidden_norm), plan.norm_eps),
                         join);
    table.insert(table.end(), x.begin(), x.end());
  }
  head.weights.join = {};
  head.weights.embedding = {.format = *find_weight_format("f32"),
                            .n_out = ssize(pairs.tokens),
                            .n_in = plan.d_model,
                            .rows = reinterpret_cast<const std::byte*>(table.data())};
  std::vector<int32_t> rows(pairs.tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  const std::vector<float> expected = run(context, plan, head.weights, pairs, rows);
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-4) << i;
}

/// Texts with the head are those without, for every cache.
void expect_same_texts(const std::string& path) {
  SCOPED_TRACE(path);
  const Model model = Model::load(path);
  std::vector<int32_t> prompt;
  for (int i = 0; i < 20; ++i) prompt.push_back((7 * i * i + 3) % model.info().vocab_size);
  SpecReport all;
  for (const char* cache : {"f16", "q8_0", "rotor-3"})
    for (const float temperature : {0.0f, 0.8f}) {
      if (cache[0] != 'f' && model.info().head_dim % 32 != 0) continue;
      const SessionOptions options{.n_ctx = 128, .k = {.format = cache}, .v = {.format = cache}};
      const SamplerOptions sampler{.temperature = temperature, .seed = 3};
      const auto sample = [&](Speculation* speculation) {
        Session session(model, options);
        session.speculate(speculation);
        session.prefill(prompt);
        std::vector<int32_t> tokens;
        session.generate(sampler, prompt, 60, [&](int32_t token) { return tokens.push_back(token), true; });
        return tokens;
      };
      const std::vector<int32_t> plain = sample(nullptr);
      Speculation speculation(mtp_proposers(model, "", options)(), 3, false);
      EXPECT_EQ(sample(&speculation), plain) << cache << " " << temperature;
      all.n_proposed += speculation.report().n_proposed;
    }
  EXPECT_GT(all.n_proposed, 100);
}

TEST(MtpHeadsOfExperts, AreALayerBehindAJoin) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const TempDir dir;
  for (const char* name : {"qwen3_5_moe", "qwen3_next", "deepseek_v3", "glm4_moe_lite"}) {
    write_with_head(*data / "parity/models" / name, dir / name, false);
    expect_a_layer_behind_a_join((dir / name).native());
  }
}

TEST(MtpHeadsOfExperts, TextsAreIdentical) {
  const auto data = reference_data();
  if (!data) GTEST_SKIP() << "reference models are not here (set RIDGE_DATA)";
  const TempDir dir;
  expect_same_texts((*data / "parity/models/glm4_moe").native());
  for (const char* name : {"qwen3_5_moe", "deepseek_v3"}) {
    write_with_head(*data / "parity/models" / name, dir / name, false);
    expect_same_texts((dir / name).native());
  }
}

}  // namespace
}  // namespace ridge
