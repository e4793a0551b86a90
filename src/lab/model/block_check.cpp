#include "lab/model/block_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/metrics.h"
#include "base/rng.h"
#include "engine/cpu_backend.h"
#include "op/attn/attn.h"

namespace ridge::lab {
namespace {

// A product whose kernel rounds activations to 8 bits by groups of 32 makes steps of max / 127 and errors of step^2 /
// 12: an NMSE of 2.2e-5 where values are normal (max 2.1 sigma), of 1.7e-4 in the worst group (one value is all of it).
constexpr double kProduct = 1e-4;
// Integer attention: queries of 8 bits, largest value 4 sigma; weights of 8 bits, the largest of 64 up to 8 times their
// root mean square; levels of codes.
const double kQuery = std::pow(4.0 / 127, 2) / 12, kWeight = std::pow(8.0 / 255, 2) / 12;

/// What enters a block, and what reference and engine made of it.
using BlockKey = std::pair<int, Block>;
using BlockInputs = std::map<BlockKey, std::vector<float>>;

double level_error(const KvLayerConfig& layer) {
  double sum = 0;
  for (const KvSideConfig* side : {&layer.k, &layer.v})
    if (const auto rounding = int_rounding(*side->format, layer.head_dim))
      sum += rounding->level_error * rounding->level_error;
  return sum;
}

/// The weights and the plan of some layers of a model.
struct SomeLayers {
  SomeLayers(const ModelPlan& from_plan, const Weights& from, std::span<const int> layers) : plan(from_plan) {
    plan.layers.clear();
    for (const int layer : layers) {
      plan.layers.push_back(from_plan.layers[size_t(layer)]);
      weights.layers.push_back(from.layers[size_t(layer)]);
    }
    weights.embedding = from.embedding;
    weights.output_norm = from.output_norm;
    weights.output = from.output;
  }
  ModelPlan plan;
  Weights weights;
};

/// A sequence of its own on some backend.
struct OneSequence {
  void run(std::span<const int32_t> tokens) {
    const SeqTokens of_seq{seq, int(tokens.size())};
    pool->reserve(seq, of_seq.n_tokens).or_throw();
    backend.run({.tokens = tokens, .seqs = {&of_seq, 1}, .logits = LogitRows::last}, *pool, *outputs);
  }
  Backend& backend;
  std::unique_ptr<SequencePool> pool;
  std::unique_ptr<Outputs> outputs = backend.make_outputs();
  SeqId seq{};
};

/// Collects the worst block.
class Worst {
 public:
  Worst(double levels) : levels_(levels) {}
  /// Largest mean square of scores among the heads of a layer's queries: how much rounding them matters.
  void queries(View2<const float> q, int head_dim, float scale) {
    score2_ = 0;
    for (int64_t i = 0; i < q.rows * q.cols; i += head_dim) {
      double sum = 0;
      for (int j = 0; j < head_dim; ++j) sum += double(q.data[i + j]) * q.data[i + j];
      score2_ = std::max(score2_, sum * scale * scale);
    }
  }
  /// Keys have variance 1 (SequencePool::fill): a score is off by the query's relative error times score2.
  double mixer_bound() const { return kProduct * (2 + 2 * score2_) + (kQuery + levels_) * score2_ + kWeight + levels_; }
  static double feed_forward_bound() { return 4 * kProduct; }  // gate and up, their product, and down
  static double output_bound() { return kProduct; }

  /// Residual streams behind a block; `before` null: compares them as they are.
  void add(std::string block, const std::vector<float>* before, std::span<const float> actual,
           std::span<const float> expected, double bound) {
    double error2 = 0, branch2 = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double e = expected[i], from = before ? (*before)[i] : 0;
      error2 += (actual[i] - e) * (actual[i] - e);
      branch2 += (e - from) * (e - from);
    }
    const double nmse = branch2 > 0 ? error2 / branch2 : error2;
    const bool finite = std::isfinite(nmse);
    if (found_ && worst_.finite && finite && nmse / bound <= worst_.nmse / worst_.bound) return;
    if (found_ && !worst_.finite) return;
    worst_ = {.block = std::move(block), .nmse = nmse, .bound = bound, .finite = finite};
    found_ = true;
  }
  const BlockError& get() const { return worst_; }

 private:
  double levels_, score2_ = 1;
  bool found_ = false;
  BlockError worst_;
};

}  // namespace

BlockReference::BlockReference(const std::string& path)
    : engine_(path, {.device = "cpu", .n_threads = 0, .isa = "scalar", .kernels = {}}) {}

BlockError BlockReference::compare(Engine& engine, const KvChoice& kv, int depth, uint64_t seed) {
  const int n_layers = int(engine.plan().layers.size()), n_ctx = depth + kTokens;
  const std::set<int> chosen{0, n_layers / 2, n_layers - 1};
  const std::vector<int> layers(chosen.begin(), chosen.end());
  const std::vector<KvLayerConfig> configs = layer_configs(session_options(kv, n_ctx, kTokens), engine.plan());
  std::vector<KvLayerConfig> some_configs;
  for (const int layer : layers) {
    some_configs.push_back(configs[size_t(layer)]);
    some_configs.back().layer = layer;
  }
  const int n_pages = std::max(1, pages_for(configs, n_ctx));

  OneSequence tested{engine.backend(), engine.open_pool(configs, n_pages, 1)};
  tested.seq = tested.pool->open().or_throw();
  tested.pool->fill(tested.seq, depth, seed).or_throw();

  const SomeLayers some(engine_.plan(), engine_.weights(), layers);
  const std::unique_ptr<Backend> backend = make_cpu_backend(engine_.context(), some.plan, some.weights);
  const KvMetric* const metric = engine_.kv_metric(configs);
  std::vector<KvMetricView> views;
  for (const int layer : layers)
    if (metric) views.push_back({metric->layer(true, layer), metric->layer(false, layer)});
  OneSequence reference{*backend, std::make_unique<SequencePool>(backend->open_memory(some_configs, views, n_pages, 1),
                                                                 SequencePool::HostTwin())};
  reference.seq = reference.pool->load(tested.pool->save(tested.seq, layers)).or_throw();

  Worst worst(level_error(configs[0]));
  Rng rng(seed);
  for (const int n : kSteps) {
    std::vector<int32_t> tokens;
    while (ssize(tokens) < n) tokens.push_back(int32_t(rng.next() % uint64_t(engine.plan().vocab_size)));
    BlockInputs inputs;
    engine.backend().watch(nullptr, [&](int layer, Block block, View2<float> x) {
      if (chosen.contains(layer) || chosen.contains(layer - 1))
        inputs[{layer, block}].assign(x.data, x.data + x.rows * x.cols);
    });
    tested.run(tokens);
    engine.backend().watch(nullptr, nullptr);

    const auto name = [&](std::string_view block, int layer) {
      return fmt::format("{} of layer {}, step of {}", block, layer, n);
    };
    backend->watch(
        [&](int i, View2<const float> q, View2<const float>, View2<const float>) {
          const AttentionPlan& a = some.plan.layers[size_t(i)].attention;
          worst.queries(q, a.head_dim, a.scale);
        },
        [&](int i, Block block, View2<float> x) {
          const std::span<const float> mine(x.data, size_t(x.rows * x.cols));
          const int layer = i < ssize(layers) ? layers[size_t(i)] : n_layers;
          if (block == Block::feed_forward) {
            worst.add(name(mixer_name(some.plan.layers[size_t(i)].mixer), layer), &inputs[{layer, Block::mixer}],
                      inputs[{layer, block}], mine, worst.mixer_bound());
          } else if (i > 0) {
            const int before = layers[size_t(i - 1)];
            const Block behind = before + 1 < n_layers ? Block::mixer : Block::output;
            worst.add(name("feed-forward", before), &inputs[{before, Block::feed_forward}],
                      inputs[{before + 1, behind}], mine, Worst::feed_forward_bound());
          }
          std::ranges::copy(inputs[{layer, block}], x.data);
        });
    reference.run(tokens);
    const View2<const float> actual = tested.outputs->logits(), expected = reference.outputs->logits();
    worst.add(fmt::format("output, step of {}", n), nullptr, actual.row(0), expected.row(0), Worst::output_bound());
  }
  return worst.get();
}

}  // namespace ridge::lab
