// Quality of KV cache configurations on a text: perplexity, and KL divergence against the same weights with an f16
// cache. One model, one base run and any number of candidates advance together, chunk by chunk.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/kv_choice.h"
#include "io/kl_base.h"
#include "lab/quality/windows.h"
#include "lab/rows/columns.h"

namespace ridge::lab {

/// A text as it is scored; everything needed to know whether two figures compare.
struct Corpus {
  std::string path;
  int64_t bytes = 0;
  uint64_t xxh64 = 0;  ///< of the file's bytes, seed 0
  std::vector<int32_t> tokens;
};
/// Reads and tokenizes a text file, special tokens added as the model wants, or by `tokenize`. Throws Error with the
/// reason.
Corpus read_corpus(const Model& model, const std::string& path,
                   const std::function<std::vector<int32_t>(std::string_view text)>& tokenize = nullptr);
/// Tokens drawn at random, for models without a tokenizer. The hash is of the tokens.
Corpus random_corpus(const Model& model, int n_tokens);
/// The text of a base file: its tokens. The hash is of the tokens. Refused when the vocabularies differ.
Corpus base_corpus(const Model& model, const io::KlBaseFile& file);

/// Fields that every row about a model on a text begins with.
Row subject(std::string_view kind, const ModelInfo& model, const Corpus& corpus, const std::string& device);

/// Hooks of a study that gives a result for each cache.
template <class Result>
struct StudyHooks {
  std::function<bool()> stop;
  std::function<void(int64_t done, int64_t total)> on_progress;
  std::function<void(const Result& result)> on_result;  ///< of a cache that is finished
};

struct EvalOptions {
  int n_ctx = 512;
  int max_chunks = -1;  ///< -1: all
  int n_ubatch = 512;
  std::string device = "cpu";  ///< for the rows
  EvalPath path = EvalPath::prefill;
  bool against_base = false;                  ///< false: perplexity only
  bool whole_curve = false;                   ///< the curve over positions has the first half of the window too
  KvChoice base;                              ///< f16 unless told otherwise
  const io::KlBaseFile* base_file = nullptr;  ///< instead of running the base; the corpus is base_corpus() of it
  std::string save_base;                      ///< writes the base's rows to this file
  std::vector<KvChoice> candidates;
  int group = 8;  ///< caches beside one run of the base, where evaluate_rows() runs them
};

struct CandidateResult {
  KvChoice kv;
  KvReport cache;
  Scores scores;  ///< pair against a base, ppl otherwise

  /// Bytes of both sides at a context of n tokens: coded rows, window and sinks.
  int64_t bytes_at(int n) const;
  double mib_at(int n) const { return double(bytes_at(n)) / 1048576; }
};

struct EvalResult {
  EvalOptions options;
  ModelInfo model;
  Row subject;  ///< what the rows begin with
  Windows windows;
  int chunks_done = 0;
  int64_t scored_bytes = 0;  ///< of the scored tokens' text
  double values_4k = 0;      ///< of K and V that 4096 tokens hold; sliding layers hold their window
  double seconds = 0;
  std::vector<CandidateResult> candidates;

  bool complete() const { return chunks_done == windows.n_chunks; }
  /// Sum of NLL in bits over the bytes of the scored tokens.
  double bits_per_byte(const CandidateResult& candidate) const;
  /// Name of the base that candidates are compared with: a cache, or "file NAME".
  std::string base_name() const;
  /// Bits that one value takes when the cache holds 4096 tokens: coded rows, window and sinks, each token once.
  double effective_bits_4k(const CandidateResult& candidate) const;
};

struct EvalHooks {
  std::function<bool()> stop;
  std::function<void(int64_t steps, int64_t total)> on_progress;  ///< token steps just done, and in all
  std::function<void(const EvalResult& so_far)> on_chunk;
};

/// Plan of evaluate(): its result with no candidate run yet. Refuses texts that are too short.
EvalResult plan_evaluation(const Model& model, const Corpus& corpus, const EvalOptions& options);

/// Runs the evaluation; stopped early, the result holds the chunks that were finished (and there is no base file).
EvalResult evaluate(const Model& model, const Corpus& corpus, const EvalOptions& options, const EvalHooks& hooks);

}  // namespace ridge::lab
