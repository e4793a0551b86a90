#include "lab/model/bench_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/engine.h"
#include "op/attn/attn.h"

namespace ridge::lab {
namespace {

// A matmul whose kernel rounds activations to 8 bits by groups of 32 makes steps of max / 127 and errors of step^2 /
// 12: an NMSE of 2.2e-5 where values are normal (max 2.1 sigma), of 1.7e-4 in the worst group (one value is all of it).
constexpr double kProduct = 1e-4;
// Integer attention: queries of 8 bits, largest value 4 sigma; weights of 8 bits, the largest of 64 up to 8 times their
// root mean square; levels of codes.
const double kQuery = std::pow(4.0 / 127, 2) / 12, kWeight = std::pow(8.0 / 255, 2) / 12;

constexpr int kCheckDepthMin = 64;    // centres and scales of heads are set
constexpr int kCheckDepthApart = 5;   // of sequences of a batch: lengths differ
constexpr int kSteps[] = {1, 4, 24};  // tokens of a sequence: the kernels of one, of few and of many
constexpr int kTokens = 1 + 4 + 24;

// Allowed error, as a multiple of what one such rounding of a block's input costs, measured on the reference. Other
// roundings of that size, and the accidents of a few values, are within four times of it.
constexpr double kRounded = 4;

/// Residual streams in front of blocks, by layer.
using StepStreams = std::map<std::pair<int, Block>, std::vector<float>>;
/// Residual streams behind the blocks of a reference, from the same inputs, and its logits.
struct Passed {
  StepStreams behind;
  std::vector<float> logits;
};

/// x [n, d_model] such that its RMSNorm with `weight` is that of `x` rounded to 8 bits by groups of 32.
std::vector<float> rounded_input(std::span<const float> x, std::span<const float> weight) {
  std::vector<float> out(x.begin(), x.end());
  const size_t width = weight.size();
  for (size_t row = 0; width > 0 && row < x.size(); row += width)  // no weight: nothing reads it through a norm
    for (size_t first = 0; first < width; first += 32) {
      const size_t end = std::min(first + 32, width);
      float largest = 0;  // of the normed values, but for the row's factor
      for (size_t i = first; i < end; ++i) largest = std::max(largest, std::abs(x[row + i] * weight[i]));
      const float step = largest / 127;
      for (size_t i = first; i < end; ++i)
        if (step > 0 && weight[i] != 0) out[row + i] = step * std::round(x[row + i] * weight[i] / step) / weight[i];
    }
  return out;
}

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

/// sum (a - b)^2 over sum b^2, of what blocks added: behind - before. Empty `before`: of `behind` alone.
double added_nmse(std::span<const float> a_behind, std::span<const float> a_before, std::span<const float> b_behind,
                  std::span<const float> b_before) {
  double error2 = 0, all2 = 0;
  for (size_t i = 0; i < b_behind.size(); ++i) {
    const double a = double(a_behind[i]) - (a_before.empty() ? 0 : a_before[i]),
                 b = double(b_behind[i]) - (b_before.empty() ? 0 : b_before[i]);
    error2 += (a - b) * (a - b);
    all2 += b * b;
  }
  return all2 > 0 ? error2 / all2 : error2;
}

/// Largest mean square of scores among the heads of a layer's queries, over keys of variance 1: how much rounding them
/// matters.
double largest_score2(View2<const float> q, int head_dim, float scale) {
  double largest = 0;
  for (int64_t i = 0; i < q.rows * q.cols; i += head_dim) {
    double sum = 0;
    for (int j = 0; j < head_dim; ++j) sum += double(q.data[i + j]) * q.data[i + j];
    largest = std::max(largest, sum * scale * scale);
  }
  return largest;
}

/// Runs a step of the reference's layers, each block on its own input: `inputs` of the model's layers.
Passed pass(Sequences& reference, std::span<const int32_t> tokens, std::span<const int> layers, int n_layers,
            const StepStreams& inputs, const OnAttention& on_attention) {
  Passed passed;
  reference.backend.watch(on_attention, [&](int i, Block block, View2<float> x) {
    const std::vector<float> behind(x.data, x.data + x.rows * x.cols);
    const int layer = i < ssize(layers) ? layers[size_t(i)] : n_layers;
    if (block == Block::feed_forward) passed.behind[{layer, Block::mixer}] = behind;
    else if (i > 0) passed.behind[{layers[size_t(i - 1)], Block::feed_forward}] = behind;
    std::ranges::copy(inputs.at({layer, block}), x.data);
  });
  reference.run(tokens);
  reference.backend.watch(nullptr, nullptr);
  const View2<const float> logits = reference.outputs->logits();
  passed.logits.assign(logits.data, logits.data + logits.rows * logits.cols);
  return passed;
}

}  // namespace

BenchReference::BenchReference(const std::string& path) : engine_(path, {.device = "cpu", .isa = "scalar"}) {}

BenchCheck BenchReference::compare(const Model& model, const CheckCase& of, uint64_t seed,
                                   std::optional<double> given_bound) {
  Engine& engine = model.engine();
  if (engine.plan().shares_kv())
    throw_error(ErrorKind::usage, "layers that share K and V cannot be checked one by one (bench without --check)");
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
  Sequences tested{.backend = engine.backend(), .pool = engine.open_pool(configs, n_pages, of.n_seq)};

  const SomeLayers some(engine_.plan(), engine_.weights(), layers);
  const std::unique_ptr<Backend> backend = make_cpu_backend(engine_.context(), some.plan, some.weights);
  const KvMetric* const metric = engine_.kv_metric(configs);
  std::vector<KvMetricView> views;
  for (const int layer : layers)
    if (metric) views.push_back({metric->layer(KvSide::k, layer), metric->layer(KvSide::v, layer)});
  const auto open_reference = [&] {
    return Sequences{.backend = *backend,
                     .pool = std::make_unique<SequencePool>(
                         backend->open_memory(some_configs, views, n_pages, of.n_seq), SequencePool::HostTwin())};
  };
  Sequences exact = open_reference(), rounded = open_reference();
  for (int i = 0; i < of.n_seq; ++i) {
    const SeqId seq = tested.pool->open().or_throw();
    tested.pool->fill(seq, depth + i * kCheckDepthApart, seed + uint64_t(i)).or_throw();
    tested.seqs.push_back({seq, 0});
    const SequenceImage image = tested.pool->save(seq, layers);
    exact.seqs.push_back({exact.pool->load(image).or_throw(), 0});
    rounded.seqs.push_back({rounded.pool->load(image).or_throw(), 0});
  }

  const double levels = level_error(configs[0]);
  BlockError worst;
  Rng rng(seed);
  for (const int n : kSteps) {
    const std::vector<int32_t> tokens = random_tokens(model, n * of.n_seq, rng);
    StepStreams inputs, rounded_inputs;
    engine.backend().watch(nullptr, [&](int layer, Block block, View2<float> x) {
      if (chosen.contains(layer) || chosen.contains(layer - 1))
        inputs[{layer, block}].assign(x.data, x.data + x.rows * x.cols);
    });
    tested.run(tokens);
    engine.backend().watch(nullptr, nullptr);
    for (const auto& [at, x] : inputs) {
      const auto& [layer, block] = at;
      const Weights& w = engine_.weights();
      rounded_inputs[at] = rounded_input(x, block == Block::output  ? w.output_norm
                                            : block == Block::mixer ? w.layers[size_t(layer)].attn_norm
                                                                    : w.layers[size_t(layer)].ffn_norm);
    }
    std::map<int, double> score2;
    const OnAttention on_attention = [&](int i, View2<const float> q, View2<const float>, View2<const float>) {
      const AttentionPlan& a = some.plan.layers[size_t(i)].attention;
      score2[layers[size_t(i)]] = largest_score2(q, a.head_dim, a.scale);
    };
    const Passed expected = pass(exact, tokens, layers, n_layers, inputs, on_attention),
                 shifted = pass(rounded, tokens, layers, n_layers, rounded_inputs, nullptr);

    const auto judge = [&](std::string_view block, int layer, double nmse, double sensitivity, double own_bound) {
      const double bound = own_bound + kRounded * sensitivity;
      const bool finite = std::isfinite(nmse) && std::isfinite(bound);
      if (!worst.finite || (finite && !worst.block.empty() && nmse * worst.bound <= worst.nmse * bound)) return;
      worst = {fmt::format("{} of layer {}, step of {}", block, layer, n), nmse, bound, finite};
    };
    for (const int layer : layers) {
      // A score is off by the query's relative error times its own mean square. The delta rule has no scores: what it
      // adds is off by the errors of q, of k (which stands twice in a change of the state), v, z, both gates and the
      // output matmul.
      const bool attends = engine.plan().layers[size_t(layer)].attends();
      const double s2 = attends ? score2.at(layer) : 0;
      const double of_mixer =
          attends ? kProduct * (2 + 2 * s2) + (kQuery + levels) * s2 + kWeight + levels : 8 * kProduct;
      const double own[2] = {of_mixer, 4 * kProduct};  // gate and up, their product, and down
      for (const Block block : {Block::mixer, Block::feed_forward}) {
        const bool is_mixer = block == Block::mixer;
        const std::pair<int, Block> at{layer, block},
            next{is_mixer ? layer : layer + 1, is_mixer               ? Block::feed_forward
                                               : layer + 1 < n_layers ? Block::mixer
                                                                      : Block::output};
        const std::vector<float>&before = inputs.at(at), &behind = expected.behind.at(at);
        judge(is_mixer ? mixer_name(engine.plan().layers[size_t(layer)].mixer) : "feed-forward", layer,
              added_nmse(inputs.at(next), before, behind, before),
              added_nmse(shifted.behind.at(at), rounded_inputs.at(at), behind, before), own[is_mixer ? 0 : 1]);
      }
    }
    const View2<const float> logits = tested.outputs->logits();
    judge("output", n_layers, added_nmse({logits.data, expected.logits.size()}, {}, expected.logits, {}),
          added_nmse(shifted.logits, {}, expected.logits, {}), kProduct);
  }
  const double bound = given_bound.value_or(worst.bound);
  return {
      .done = true,
      .passed = worst.finite && worst.nmse <= bound,
      .nmse = worst.nmse,
      .bound = bound,
      .depth = depth,
      .what = fmt::format("blocks of the first, middle and last layer{} behind {} positions, each given the same "
                          "input, against the ref kernels; worst: {}",
                          of.n_seq > 1 ? fmt::format(", {} sequences in a batch", of.n_seq) : "", depth, worst.block)};
}

std::vector<int32_t> random_tokens(const Model& model, int n, Rng& rng) {
  std::vector<int32_t> tokens;
  tokens.reserve(size_t(n));
  for (int i = 0; i < n; ++i) tokens.push_back(int32_t(rng.next() % uint64_t(model.info().vocab_size)));
  return tokens;
}

}  // namespace ridge::lab
