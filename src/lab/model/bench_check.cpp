#include "lab/model/bench_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

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

constexpr int kCheckDepthMin = 64;    // centres and scales of heads are set
constexpr int kCheckDepthApart = 5;   // of sequences of a batch: lengths differ
constexpr int kSteps[] = {1, 4, 24};  // tokens of a sequence: the kernels of one, of few and of many
constexpr int kTokens = 1 + 4 + 24;

/// Residual streams in front of blocks.
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

/// Sequences of a pool of their own on some backend.
struct Sequences {
  void run(std::span<const int32_t> tokens) {
    for (SeqTokens& of_seq : seqs) {
      of_seq.n_tokens = int(tokens.size() / seqs.size());
      pool->reserve(of_seq.seq, of_seq.n_tokens).or_throw();
    }
    backend.run({.tokens = tokens, .seqs = seqs, .logits = LogitRows::last}, *pool, *outputs);
  }
  Backend& backend;
  std::unique_ptr<SequencePool> pool;
  std::unique_ptr<Outputs> outputs = backend.make_outputs();
  std::vector<SeqTokens> seqs;
};

struct BlockError {
  std::string block;  // "attention of layer 13, step of 1"
  double nmse = 0, bound = 0;
  bool finite = true;
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

BenchReference::BenchReference(const std::string& path)
    : engine_(path, {.device = "cpu", .n_threads = 0, .isa = "scalar", .kernels = {}}) {}

BenchCheck BenchReference::compare(const Model& model, const CheckCase& of, uint64_t seed,
                                   std::optional<double> given_bound) {
  Engine& engine = model.engine();
  const int n_layers = int(engine.plan().layers.size()), depth = std::max(of.depth, kCheckDepthMin);
  const int n_ctx = depth + kCheckDepthApart * of.n_seq + kTokens;
  const std::set<int> chosen{0, n_layers / 2, n_layers - 1};
  const std::vector<int> layers(chosen.begin(), chosen.end());
  const std::vector<KvLayerConfig> configs = layer_configs(session_options(of.kv, n_ctx, kTokens), engine.plan());
  std::vector<KvLayerConfig> some_configs;
  for (const int layer : layers) {
    some_configs.push_back(configs[size_t(layer)]);
    some_configs.back().layer = layer;
  }
  const int n_pages = of.n_seq * std::max(1, pages_for(configs, n_ctx));
  Sequences tested{.backend = engine.backend(), .pool = engine.open_pool(configs, n_pages, of.n_seq), .seqs = {}};

  const SomeLayers some(engine_.plan(), engine_.weights(), layers);
  const std::unique_ptr<Backend> backend = make_cpu_backend(engine_.context(), some.plan, some.weights);
  const KvMetric* const metric = engine_.kv_metric(configs);
  std::vector<KvMetricView> views;
  for (const int layer : layers)
    if (metric) views.push_back({metric->layer(true, layer), metric->layer(false, layer)});
  Sequences reference{.backend = *backend,
                      .pool = std::make_unique<SequencePool>(
                          backend->open_memory(some_configs, views, n_pages, of.n_seq), SequencePool::HostTwin()),
                      .seqs = {}};
  for (int i = 0; i < of.n_seq; ++i) {
    const SeqId seq = tested.pool->open().or_throw();
    tested.pool->fill(seq, depth + i * kCheckDepthApart, seed + uint64_t(i)).or_throw();
    tested.seqs.push_back({seq, 0});
    reference.seqs.push_back({reference.pool->load(tested.pool->save(seq, layers)).or_throw(), 0});
  }

  Worst worst(level_error(configs[0]));
  Rng rng(seed);
  for (const int n : kSteps) {
    const std::vector<int32_t> tokens = random_tokens(model, n * of.n_seq, rng);
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
    for (int i = 0; i < of.n_seq; ++i)
      worst.add(name("output", n_layers), nullptr, actual.row(i), expected.row(i), Worst::output_bound());
  }
  const BlockError& error = worst.get();
  const double bound = given_bound.value_or(error.bound);
  return {
      .done = true,
      .passed = error.finite && error.nmse <= bound,
      .nmse = error.nmse,
      .bound = bound,
      .depth = depth,
      .what = fmt::format("blocks of the first, middle and last layer{} behind {} positions, each given the same "
                          "input, against the ref kernels; worst: {}",
                          of.n_seq > 1 ? fmt::format(", {} sequences in a batch", of.n_seq) : "", depth, error.block)};
}

std::vector<int32_t> random_tokens(const Model& model, int n, Rng& rng) {
  std::vector<int32_t> tokens;
  tokens.reserve(size_t(n));
  for (int i = 0; i < n; ++i) tokens.push_back(int32_t(rng.next() % uint64_t(model.info().vocab_size)));
  return tokens;
}

}  // namespace ridge::lab
