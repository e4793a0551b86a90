// Quality runs on the device against the CPU's.
#include <cmath>

#include "cases/paths.h"
#include "gpu/device_data.h"
#include "lab/quality/quality.h"

namespace ridge {
namespace {

class EvaluateCuda : public OnDevice {};

/// The reference's sums, and sums of the CPU's widest vectors: where the order of a sum moves a code of a cache,
/// results move by what no rounding of floats explains. Rows of rotor-3 on an H200 are 6e-7 of their squares from the
/// reference's, as if one code in 700,000 differed; perplexity is 2.8e-4 from the reference's, of AVX-512's
/// sums 3.5e-4.
TEST_F(EvaluateCuda, IsTheCpus) {
  const std::string path = RIDGE_SOURCE_DIR "/models/stories260K.gguf";
  const Model cpu = Model::load(path, {.n_threads = 2, .isa = "scalar"}), vectors = Model::load(path, {.n_threads = 2}),
              device = Model::load(path, {.device = "cuda"});
  lab::Corpus corpus = lab::read_corpus(cpu, RIDGE_SOURCE_DIR "/models/wikitext-2-excerpt.txt");
  corpus.tokens.resize(1200);
  for (const lab::EvalPath eval_path : {lab::EvalPath::prefill, lab::EvalPath::decode})
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
      const lab::EvalResult expected = lab::evaluate(cpu, corpus, options, {}),
                            of_vectors = lab::evaluate(vectors, corpus, options, {});
      const lab::EvalResult got = lab::evaluate(device, corpus, options, hooks);
      ASSERT_EQ(got.chunks_done, expected.chunks_done);
      EXPECT_EQ(chunks, expected.chunks_done);
      EXPECT_EQ(steps, total);
      EXPECT_EQ(got.scored_bytes, expected.scored_bytes);
      for (size_t c = 0; c < got.candidates.size(); ++c) {
        const lab::CandidateResult &a = got.candidates[c], &b = expected.candidates[c];
        EXPECT_EQ(a.cache.k.bytes_per_token, b.cache.k.bytes_per_token);
        EXPECT_EQ(a.cache.k.fixed_bytes, b.cache.k.fixed_bytes);
        const auto ppl_of = [&](const lab::CandidateResult& of) {
          return against_base ? of.scores.pair.means().ppl.value : of.scores.ppl.ppl().value;
        };
        const double of_order = c == 2 ? 2 * std::abs(ppl_of(of_vectors.candidates[c]) / ppl_of(b) - 1) : 0;
        EXPECT_NEAR(ppl_of(a) / ppl_of(b), 1, 2e-4 + of_order);
        if (!against_base) {
          EXPECT_EQ(a.scores.ppl.count(), b.scores.ppl.count());
          continue;
        }
        const lab::PairMeans x = a.scores.pair.means(), y = b.scores.pair.means();
        EXPECT_EQ(x.count, y.count);
        EXPECT_NEAR(x.kld.value, y.kld.value, c == 0 ? 0 : c == 1 ? 1e-6 : 0.02 * y.kld.value);
        EXPECT_NEAR(x.same_top.value, y.same_top.value, 0.01);
      }
    }
}

}  // namespace
}  // namespace ridge
