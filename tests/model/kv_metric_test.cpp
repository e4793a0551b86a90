// The metrics of cached rows against their definition, computed plainly.
#include "model/kv_metric.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "op/gemv/panels.h"

namespace ridge {
namespace {

constexpr int kDim = 8, kHeads = 4, kKvHeads = 2, kModel = 24, kContext = 64;

class KvMetricTest : public ::testing::Test {
 protected:
  KvMetricTest() {
    config.n_layers = 1;
    config.n_heads = kHeads;
    config.n_kv_heads = kKvHeads;
    config.head_dim = kDim;
    config.d_model = kModel;
    config.n_ctx_train = kContext;
    config.rope_dim = kDim;
    config.rope_pairs = RopePairs::interleaved;
    rope = make_rope(config, nullptr);
    weights.layers.resize(1);
    LayerWeights& layer = weights.layers[0];
    layer.q = matrix(kHeads * kDim, kModel, q);
    layer.o = matrix(kModel, kHeads * kDim, o);
    for (int i = 0; i < kModel; ++i) layer.attn_norm.push_back(float(1 + 0.1 * i));
    for (int i = 0; i < kHeads * kDim; ++i) layer.q_bias.push_back(float(rng.normal()));
    for (int i = 0; i < kDim; ++i) layer.q_norm.push_back(float(0.5 + 0.2 * i));
  }
  ModelPlan plan() const {
    ModelPlan of_rope;
    of_rope.ropes = {rope};
    of_rope.layers.resize(1);
    return of_rope;
  }
  Linear matrix(int64_t n_out, int64_t n_in, std::vector<float>& values) {
    values.resize(size_t(n_out * n_in));
    for (float& v : values) v = float(rng.normal());
    return {.format = find_weight_format("f32").or_throw(),
            .n_out = n_out,
            .n_in = n_in,
            .rows = reinterpret_cast<const std::byte*>(values.data())};
  }
  static void expect_form(std::span<const float> got, const std::vector<double>& form) {
    double trace = 0;
    for (int i = 0; i < kDim; ++i) trace += form[size_t(i * kDim + i)];
    for (int i = 0; i < kDim * kDim; ++i)
      EXPECT_NEAR(got[size_t(i)], form[size_t(i)] * kDim / trace, 1e-5) << i / kDim << ", " << i % kDim;
  }

  Rng rng{5};
  CpuContext context{1};
  Config config;
  Rope rope;
  Weights weights;
  std::vector<float> q, o;
};

TEST_F(KvMetricTest, ValuesAreWeighedByTheOutputProjection) {
  const KvMetric metric = make_kv_metric(context, config, weights, plan());
  for (int kv_head = 0; kv_head < kKvHeads; ++kv_head) {
    std::vector<double> form(kDim * kDim, 0.0);
    for (int h = 2 * kv_head; h < 2 * kv_head + 2; ++h)
      for (int r = 0; r < kModel; ++r)
        for (int i = 0; i < kDim; ++i)
          for (int j = 0; j < kDim; ++j)
            form[size_t(i * kDim + j)] +=
                double(o[size_t(r * kHeads * kDim + h * kDim + i)]) * o[size_t(r * kHeads * kDim + h * kDim + j)];
    expect_form(metric.layer(KvSide::v, 0).subspan(size_t(kv_head) * kDim * kDim, kDim * kDim), form);
  }
}

TEST_F(KvMetricTest, KeysAreWeighedByTheQueriesAtAllPositions) {
  for (const bool bias : {false, true})
    for (const bool norm : {false, true}) {
      config.qkv_bias = bias;
      config.qk_norm = norm;
      const KvMetric metric = make_kv_metric(context, config, weights, plan());
      const LayerWeights& layer = weights.layers[0];
      for (int kv_head = 0; kv_head < kKvHeads; ++kv_head) {
        // Columns of A: what unit inputs and the bias contribute to a query of each head; the form is the sum of a a^T.
        std::vector<double> form(kDim * kDim, 0.0);
        for (int h = 2 * kv_head; h < 2 * kv_head + 2; ++h) {
          std::vector<std::vector<float>> columns;
          for (int c = 0; c < kModel + int(bias); ++c) {
            std::vector<float> a(kDim);
            for (int d = 0; d < kDim; ++d)
              a[size_t(d)] = c == kModel ? layer.q_bias[size_t(h * kDim + d)]
                                         : q[size_t((h * kDim + d) * kModel + c)] * layer.attn_norm[size_t(c)];
            columns.push_back(a);
          }
          if (norm) {
            double total = 0;
            for (const auto& a : columns)
              for (const float x : a) total += double(x) * x;
            for (auto& a : columns)
              for (int d = 0; d < kDim; ++d) a[size_t(d)] *= float(std::sqrt(kDim / total)) * layer.q_norm[size_t(d)];
          }
          for (const auto& column : columns)
            for (int p = 0; p < kContext; ++p) {  // 64 positions of a context of 64: all of them
              std::vector<float> a = column;
              apply_rope(context, RopeAngles(context, rope, {&p, 1}), kDim, View2<float>(a.data(), 1, kDim));
              for (int i = 0; i < kDim; ++i)
                for (int j = 0; j < kDim; ++j) form[size_t(i * kDim + j)] += double(a[size_t(i)]) * a[size_t(j)];
            }
        }
        expect_form(metric.layer(KvSide::k, 0).subspan(size_t(kv_head) * kDim * kDim, kDim * kDim), form);
      }
    }
}

TEST_F(KvMetricTest, AMatrixThatIsOnlyPanelsGivesTheSameForms) {
  // q8_0 rows and, without them, the panels made of them: unit vectors read out what the rows decode to.
  const WeightFormat& q8_0 = *find_weight_format("q8_0").or_throw();
  if (!wants_panels(q8_0, 64, context.isa)) GTEST_SKIP() << "this processor has no panel kernels";
  config.d_model = 64;
  weights.layers[0].attn_norm.assign(64, 1.0f);
  q.resize(kHeads * kDim * 64);
  o.resize(64 * kHeads * kDim);
  for (auto* values : {&q, &o})
    for (float& v : *values) v = float(rng.normal());
  std::vector<std::vector<std::byte>> rows(2);
  std::vector<AlignedBuffer> panels;
  LayerWeights& layer = weights.layers[0];
  const auto pack = [&](Linear& m, int64_t n_out, int64_t n_in, const std::vector<float>& values,
                        std::vector<std::byte>& blocks) {
    blocks.resize(size_t(n_out * q8_0.row_bytes(n_in)));
    ASSERT_TRUE(encode_rows(q8_0, values, n_in, blocks));
    m = {.format = &q8_0, .n_out = n_out, .n_in = n_in, .rows = blocks.data()};
  };
  pack(layer.q, kHeads * kDim, 64, q, rows[0]);
  pack(layer.o, 64, kHeads * kDim, o, rows[1]);
  const KvMetric expected = make_kv_metric(context, config, weights, plan());
  for (Linear* m : {&layer.q, &layer.o}) {
    AlignedBuffer& buffer = panels.emplace_back(panel_bytes(q8_0, m->n_out, m->n_in));
    pack_panels(context, q8_0, m->n_out, m->n_in, m->rows, buffer.data());
    m->panels = buffer.data();
    m->rows = nullptr;
  }
  const KvMetric metric = make_kv_metric(context, config, weights, plan());
  for (size_t i = 0; i < expected.k.size(); ++i) EXPECT_NEAR(metric.k[i], expected.k[i], 1e-4) << i;
  for (size_t i = 0; i < expected.v.size(); ++i) EXPECT_NEAR(metric.v[i], expected.v[i], 1e-4) << i;
}

TEST_F(KvMetricTest, WeightsOfZerosGiveTheIdentity) {
  std::fill(o.begin(), o.end(), 0.0f);
  const KvMetric metric = make_kv_metric(context, config, weights, plan());
  for (int i = 0; i < kDim * kDim; ++i) EXPECT_EQ(metric.v[size_t(i)], float(i / kDim == i % kDim));
}

/// A latent row of 6 + 2 values: what an error in it does to scores, and to what leaves through v_b and W_o.
TEST_F(KvMetricTest, LatentRowsAreWeighedByBothReaders) {
  constexpr int kRank = 6, kRope = 2, kNope = 4, kValue = 3, kQueryRank = 5;
  config.n_kv_heads = 1;
  config.kv_rank = kRank;
  config.rope_dim = kRope;
  config.nope_dim = kNope;
  config.value_dim = kValue;
  rope = make_rope(config, nullptr);
  std::vector<float> query, k_b[kHeads], v_b[kHeads];
  LayerWeights& layer = weights.layers[0];
  layer.o = matrix(kModel, kHeads * kValue, o);
  for (int h = 0; h < kHeads; ++h) {
    layer.k_b.push_back(matrix(kRank, kNope, k_b[h]));
    layer.v_b.push_back(matrix(kValue, kRank, v_b[h]));
  }
  for (int i = 0; i < kQueryRank; ++i) layer.q_a_norm.push_back(float(0.5 + 0.3 * i));
  for (const bool low_rank : {false, true}) {
    config.q_rank = low_rank ? kQueryRank : 0;
    const int n_in = low_rank ? kQueryRank : kModel;
    (low_rank ? layer.q_b : layer.q) = matrix(kHeads * (kNope + kRope), n_in, query);
    std::vector<double> keys(kDim * kDim, 0.0), values(kDim * kDim, 0.0);
    for (int h = 0; h < kHeads; ++h) {
      for (int c = 0; c < n_in; ++c) {
        const float norm = low_rank ? layer.q_a_norm[size_t(c)] : layer.attn_norm[size_t(c)];
        const auto of = [&](int d) { return query[size_t((h * (kNope + kRope) + d) * n_in + c)] * norm; };
        for (int p = 0; p < kContext; ++p) {
          std::vector<float> a(kDim, 0.0f);
          for (int i = 0; i < kRank; ++i)
            for (int d = 0; d < kNope; ++d) a[size_t(i)] += k_b[h][size_t(i * kNope + d)] * of(d);
          for (int d = 0; d < kRope; ++d) a[size_t(kRank + d)] = of(kNope + d);
          apply_rope(context, RopeAngles(context, rope, {&p, 1}), kRope, View2<float>(&a[kRank], 1, kRope));
          for (int i = 0; i < kDim; ++i)
            for (int j = 0; j < kDim; ++j) keys[size_t(i * kDim + j)] += double(a[size_t(i)]) * a[size_t(j)];
        }
      }
      for (int r = 0; r < kModel; ++r) {
        std::vector<double> a(kDim, 0.0);
        for (int i = 0; i < kRank; ++i)
          for (int d = 0; d < kValue; ++d)
            a[size_t(i)] += double(o[size_t((r * kHeads + h) * kValue + d)]) * v_b[h][size_t(d * kRank + i)];
        for (int i = 0; i < kDim; ++i)
          for (int j = 0; j < kDim; ++j) values[size_t(i * kDim + j)] += a[size_t(i)] * a[size_t(j)];
      }
    }
    double key_trace = 0, value_trace = 0;
    for (size_t i = 0; i < kDim; ++i) key_trace += keys[i * kDim + i], value_trace += values[i * kDim + i];
    std::vector<double> form(kDim * kDim);
    for (size_t i = 0; i < form.size(); ++i) form[i] = keys[i] / key_trace + values[i] / value_trace;
    const KvMetric metric = make_kv_metric(context, config, weights, plan());
    expect_form(metric.layer(KvSide::k, 0), form);
    EXPECT_TRUE(metric.layer(KvSide::v, 0).empty());
  }
}

}  // namespace
}  // namespace ridge
