// Quality runs on the device against the CPU's.
#include <cmath>

#include "cases/kv_state_file.h"
#include "cases/paths.h"
#include "engine/engine.h"
#include "engine/kv_options.h"
#include "gpu/device_data.h"
#include "lab/quality/quality.h"

namespace ridge {
namespace {

class EvaluateCuda : public OnDevice {};

/// An engine's sequence over the cache rotor-3, chunk after chunk.
struct Coded {
  Coded(Engine& of, int n_ctx) : engine(of), outputs(of.backend().make_outputs()) {
    const auto layers = layer_configs(session_options(parse_kv_choice("rotor-3").or_throw(), n_ctx, 0), of.plan());
    pool = of.open_pool(layers, pages_for(layers, 2 * n_ctx), 2);
    seq = pool->open().or_throw();
  }
  void run(std::span<const int32_t> tokens, int step) {
    pool->reset(seq);
    for (size_t at = 0; at < tokens.size(); at += size_t(step)) {
      const auto some = tokens.subspan(at, std::min(size_t(step), tokens.size() - at));
      const SeqTokens one{seq, int(some.size())};
      pool->reserve(seq, one.n_tokens).or_throw();
      engine.backend().run({.tokens = some, .seqs = {&one, 1}, .logits = LogitRows::none}, *pool, *outputs);
    }
  }

  Engine& engine;
  std::unique_ptr<Outputs> outputs;
  std::unique_ptr<SequencePool> pool;
  SeqId seq{};
};

/// Squares of what the rows of two engines' caches are apart, over the squares of the rows, after the same chunks.
double rows_apart(const Model& cpu, const Model& device, std::span<const int32_t> tokens,
                  const lab::EvalOptions& options) {
  const int step = options.path == lab::EvalPath::decode ? 1 : options.n_ubatch;
  Coded on_host(cpu.engine(), options.n_ctx), on_device(device.engine(), options.n_ctx);
  double apart = 0, all = 0;
  for (size_t at = 0; at + size_t(options.n_ctx) <= tokens.size(); at += size_t(options.n_ctx)) {
    for (Coded* coded : {&on_host, &on_device}) coded->run(tokens.subspan(at, size_t(options.n_ctx)), step);
    const SeqId taken = on_host.pool->load(on_device.pool->save(on_device.seq)).or_throw();
    const std::vector<float> want = read_back(*on_host.pool, on_host.seq), got = read_back(*on_host.pool, taken);
    on_host.pool->close(taken);
    EXPECT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      apart += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
      all += double(want[i]) * want[i];
    }
  }
  return apart / all;
}

/// Squares of the errors of a 3-bit code over those of its values: a normal value's, coded with the least error.
constexpr double kCodeError = 0.0345;
/// Most codes that differ between CPU and GPU. Rows of f16 and half products in prompts' attention give a value a
/// relative error of 2e-3 (the square root of the bound in model_cuda_test.cpp). Borders between codes have a density of
/// 1.74 a standard deviation together, and a normal error has a mean size of 0.8: 1.74 x 0.8 x 2e-3.
constexpr double kMostCodesOff = 3e-3;

TEST_F(EvaluateCuda, IsTheCpus) {
  const std::string path = RIDGE_SOURCE_DIR "/models/stories260K.gguf";
  const Model cpu = Model::load(path, {.n_threads = 2, .isa = "scalar"}),
              device = Model::load(path, {.device = "cuda"});
  lab::Corpus corpus = lab::read_corpus(cpu, RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt");
  corpus.tokens.resize(1200);
  for (const lab::EvalPath eval_path : {lab::EvalPath::prefill, lab::EvalPath::decode}) {
    double moved = 0;  // divergence that codes which differ bring; of rotor-3
    for (const bool against_base : {true, false}) {
      lab::EvalOptions options;
      options.n_ctx = 160;
      options.n_ubatch = 48;
      options.path = eval_path;
      options.against_base = against_base;
      options.candidates = parse_kv_list("f16,f32,rotor-3").or_throw();
      int chunks = 0;
      int64_t steps = 0, total = 0;
      const lab::EvalHooks hooks{.stop = {},
                                 .on_progress = [&](int64_t n, int64_t of) { steps += n, total = of; },
                                 .on_chunk = [&](const lab::EvalResult& so_far) { chunks = so_far.chunks_done; }};
      const lab::EvalResult expected = lab::evaluate(cpu, corpus, options, {});
      const lab::EvalResult got = lab::evaluate(device, corpus, options, hooks);
      ASSERT_EQ(got.chunks_done, expected.chunks_done);
      EXPECT_EQ(chunks, expected.chunks_done);
      EXPECT_EQ(steps, total);
      EXPECT_EQ(got.scored_bytes, expected.scored_bytes);
      if (against_base) {
        // A code that differs is a step away. A step's square is 12 times a code's error, and the divergence from exact
        // rows grows with the squares of errors.
        const double apart = rows_apart(cpu, device, corpus.tokens, options);
        RecordProperty(fmt::format("rows_apart_{}", int(eval_path)), fmt::format("{:.3g}", apart));
        EXPECT_LT(apart, 12 * kCodeError * kMostCodesOff);
        moved = expected.candidates.back().scores.pair.means().kld.value * apart / kCodeError;
      }
      for (size_t c = 0; c < got.candidates.size(); ++c) {
        const lab::CandidateResult &a = got.candidates[c], &b = expected.candidates[c];
        EXPECT_EQ(a.cache.k.bytes_per_token, b.cache.k.bytes_per_token);
        EXPECT_EQ(a.cache.k.fixed_bytes, b.cache.k.fixed_bytes);
        if (!against_base) {
          EXPECT_EQ(a.scores.ppl.count(), b.scores.ppl.count());
          // Logarithms of probabilities that diverge by D have a standard deviation of sqrt(2 D): four of their mean's.
          const double of_codes = c == 2 ? moved + 4 * std::sqrt(2 * moved / double(a.scores.ppl.count())) : 0;
          const double ratio = a.scores.ppl.ppl().value / b.scores.ppl.ppl().value;
          RecordProperty(fmt::format("ppl_{}_{}", int(eval_path), c),
                         fmt::format("{:.3g} of {:.3g}", ratio - 1, 2e-4 + of_codes));
          EXPECT_NEAR(ratio, 1, 2e-4 + of_codes);
          continue;
        }
        const lab::PairMeans x = a.scores.pair.means(), y = b.scores.pair.means();
        EXPECT_EQ(x.count, y.count);
        EXPECT_NEAR(x.ppl.value / y.ppl.value, 1,
                    c == 2 ? 2e-4 + moved + 4 * std::sqrt(2 * moved / double(x.count)) : 2e-4);
        EXPECT_NEAR(x.kld.value, y.kld.value, c == 0 ? 0 : c == 1 ? 1e-6 : 0.02 * y.kld.value);
        EXPECT_NEAR(x.same_top.value, y.same_top.value, 0.01);
      }
    }
  }
}

}  // namespace
}  // namespace ridge
