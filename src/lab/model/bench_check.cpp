#include "lab/model/bench_check.h"

#include <algorithm>

#include "base/metrics.h"
#include "engine/engine.h"

namespace ridge::lab {
namespace {

// Kernels quantise activations to int8 in groups of 32: 2e-5 of NMSE a product (step max/127, error step^2/12), some
// ten of them a layer, and attention passes part of it on. A wrong kernel is off by its whole size.
constexpr double kCheckBoundPerLayer = 5e-4;
constexpr int kCheckExtraLayers = 2;  // the output matrix, and slack for shallow models
// A cache of few bits makes a whole step of a small difference next to a border of two codes: d^2 becomes d times a
// step. p8/q4_0 has three times the NMSE of q8_0 (0.029 and 0.011 on the 0.5B shape).
constexpr double kCheckCoarseCache = 4, kCheckCoarseBits = 6;
constexpr int kCheckDepthMin = 64, kCheckDepthMax = 512;
constexpr int kCheckDepthApart = 5;  // of sequences of a batch: lengths differ
constexpr int kCheckSteps = 2, kCheckPrompt = 4;

double check_bound(const ModelInfo& model, const KvChoice& kv) {
  bool coarse = false;
  for (const KvSideOptions* side : {&kv.k, &kv.v}) {
    const KvFormat& format = *find_kv_format(side->format).or_throw();
    coarse |= format.bits_per_value(model.head_dim) < kCheckCoarseBits;
  }
  return kCheckBoundPerLayer * (model.n_layers + kCheckExtraLayers) * (coarse ? kCheckCoarseCache : 1);
}

int check_depth(const CheckCase& of) { return std::clamp(of.depth, kCheckDepthMin, kCheckDepthMax); }
std::string check_key(const CheckCase& of) {
  return fmt::format("{} {} {}", kv_text(of.kv), check_depth(of), of.n_seq);
}

std::unique_ptr<SequencePool> check_pool(const Model& model, const CheckCase& of) {
  const int n_ctx = check_depth(of) + kCheckDepthApart * of.n_seq + kCheckSteps + kCheckPrompt;
  Engine& engine = model.engine();
  const auto layers = layer_configs(session_options(of.kv, n_ctx, kCheckPrompt), engine.plan());
  return engine.open_pool(layers, of.n_seq * std::max(1, pages_for(layers, n_ctx)), of.n_seq);
}

}  // namespace

BenchReference::BenchReference(const std::string& path, std::span<const CheckCase> cases, uint64_t seed,
                               const std::function<void(const std::string&)>& step,
                               const std::function<bool()>& stopped)
    : seed_(seed) {
  const Model model = Model::load(path, {.device = "cpu", .n_threads = 0, .isa = "scalar", .kernels = {}});
  for (const CheckCase& of : cases) {
    step("reference logits, " + kv_text(of.kv));
    if (stopped()) return;
    const auto [at, is_new] = known_.try_emplace(check_key(of));
    if (!is_new) continue;
    const auto pool = check_pool(model, of);
    for (int i = 0; i < of.n_seq; ++i) {
      const SeqId seq = pool->open().or_throw();
      pool->fill(seq, check_depth(of) + i * kCheckDepthApart, seed + uint64_t(i)).or_throw();
      at->second.caches.push_back(pool->save(seq));
    }
    at->second.logits = logits(model, of, at->second.caches);
  }
}

std::vector<float> BenchReference::logits(const Model& model, const CheckCase& of,
                                          const std::vector<SequenceImage>& caches) const {
  const auto pool = check_pool(model, of);
  const auto outputs = model.engine().backend().make_outputs();
  std::vector<SeqTokens> seqs;
  for (const SequenceImage& cache : caches) seqs.push_back({pool->load(cache).or_throw(), 0});
  Rng rng(seed_);
  std::vector<float> all;
  const auto run = [&](int n_each) {
    for (SeqTokens& of_seq : seqs) {
      of_seq.n_tokens = n_each;
      pool->reserve(of_seq.seq, n_each).or_throw();
    }
    const std::vector<int32_t> tokens = random_tokens(model, n_each * of.n_seq, rng);
    model.engine().backend().run({.tokens = tokens, .seqs = seqs, .logits = LogitRows::all}, *pool, *outputs);
    const View2<const float> rows = outputs->logits();
    all.insert(all.end(), rows.data, rows.data + rows.rows * rows.cols);
  };
  for (int i = 0; i < kCheckSteps; ++i) run(1);
  run(kCheckPrompt);
  return all;
}

BenchCheck BenchReference::compare(const Model& model, const CheckCase& of, std::optional<double> bound) const {
  BenchCheck check{.bound = bound.value_or(check_bound(model.info(), of.kv)), .depth = check_depth(of), .what = {}};
  const auto found = known_.find(check_key(of));
  if (found == known_.end()) return check;
  const std::vector<float> actual = logits(model, of, found->second.caches), &expected = found->second.logits;
  const size_t vocab = size_t(model.info().vocab_size);
  check.done = true;
  check.passed = actual.size() == expected.size();
  for (size_t row = 0; check.passed && row < actual.size(); row += vocab) {
    const Comparison c = ridge::compare(std::span(actual).subspan(row, vocab), std::span(expected).subspan(row, vocab));
    check.nmse = std::max(check.nmse, c.nmse);
    check.passed = c.same_nonfinite && c.nmse <= check.bound;
  }
  check.what = fmt::format("{} decode steps and {} prompt tokens{} at depth {}, all logits, against the ref kernels",
                           kCheckSteps, kCheckPrompt,
                           of.n_seq > 1 ? fmt::format(" of {} sequences in a batch", of.n_seq) : "", check.depth);
  return check;
}

std::vector<int32_t> random_tokens(const Model& model, int n, Rng& rng) {
  std::vector<int32_t> tokens;
  tokens.reserve(size_t(n));
  for (int i = 0; i < n; ++i) tokens.push_back(int32_t(rng.next() % uint64_t(model.info().vocab_size)));
  return tokens;
}

}  // namespace ridge::lab
