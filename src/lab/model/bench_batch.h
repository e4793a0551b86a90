// bench batch: prompts and generation of several sequences at once, as llama-batched-bench measures them.
//
// A test has B sequences. First all their prompts run, in steps of up to n_ubatch tokens that take sequences as they
// come. Then every step appends one token to each sequence and samples the next ones greedily, logits of every sequence
// included; a device samples by itself, a few steps ahead of the host. A row has the times of both phases, the bytes
// that a step of the second must read at least (weights once, every sequence's cache), and the share of the read
// bandwidth measured in the same run.
//
// With draft tokens the generation is timed a second time, behind the same lengths: draft tokens are accepted by
// chance, as in bench decode with forced acceptance, so that texts mean nothing and end apart. The time is that of as
// many tokens, of all sequences together.
#pragma once

#include "engine/decode/text.h"
#include "lab/model/bench.h"
#include "lab/model/bench_draft.h"

namespace ridge::lab {

/// Lengths of prompts: those of a list in turn, or spread evenly between two.
struct PromptLengths {
  std::vector<int> list;
  bool is_range = false;  ///< list has the first and the last

  /// Of n sequences.
  std::vector<int> of(int n) const;
  std::string text() const;
};
/// "512", "100,4000" or "128-8192"; the failure names `flag`.
Result<PromptLengths> parse_prompt_lengths(std::string_view flag, std::string_view text, int max);

/// Draft tokens that generation is timed with, beside that without.
struct BatchSpec {
  BenchDraft draft;
  double forced_accept = 0.7;  ///< probability that a draft token counts as right
  /// Proposers of a model for n_texts texts of at most n_ctx tokens.
  std::function<ProposerMaker(const Model& model, int n_ctx, int n_texts)> open;
};

struct BatchParams {
  std::string model;
  std::vector<PromptLengths> n_prompt{{{512}}};
  std::vector<int> n_gen{128}, n_parallel{1, 4, 16, 64};
  std::vector<KvChoice> kv{KvChoice{}};
  KvByRecord by_record;  ///< as of BenchParams
  int n_ubatch = 0;      ///< most tokens of a step of prompts; 0: 512, on a GPU 2048
  bool fill = false;     ///< random cache rows stand for the prompts, which do not run
  int repeats = 1;
  bool warm_up = true, check = true;
  std::optional<double> check_bound;
  uint64_t seed = 42;
  LoadOptions load;
  std::optional<BatchSpec> spec;
};

struct BatchTest {
  KvChoice kv;
  std::string prompt_text;     ///< "512", "128-8192"
  std::vector<int> n_prompt;   ///< of every sequence
  int n_gen = 0, n_spare = 0;  ///< spare: tokens that one may get more than others by draft tokens
  bool by_record = false;      ///< `kv` is what the record says, once the model is loaded

  int n_seq() const { return int(n_prompt.size()); }
  int64_t prompt_tokens() const;
  int64_t gen_tokens() const { return int64_t(n_gen) * n_seq(); }
  int64_t n_kv() const { return prompt_tokens() + gen_tokens(); }
  int longest() const;  ///< positions that the longest sequence ends with
  /// "pp512+tg128 b16", with "fill" for pp where prompts do not run.
  std::string name(bool fill) const;
  /// The cache in front.
  std::string text(bool fill) const { return kv_text(kv) + " " + name(fill); }
};
/// The tests in the order they run: caches, prompts, generations, sequences.
std::vector<BatchTest> batch_tests(const BatchParams& params);

struct BatchRow : ModelBenchRow {
  BatchTest test;
  bool fill = false;
  int n_ubatch = 0;
  std::vector<double> prompt_seconds, gen_seconds;  ///< one a repeat; no prompt_seconds with fill
  const BatchSpec* spec = nullptr;                  ///< what was asked; outlives the row
  std::vector<double> spec_seconds;                 ///< one a repeat: of as many tokens with draft tokens
  SpecReport report;                                ///< of all sequences and repeats

  /// Mean over the repeats; NaN where nothing was timed.
  double t_prompt() const { return mean_deviation(prompt_seconds).mean; }
  double t_gen() const { return mean_deviation(gen_seconds).mean; }
  double t_all() const { return fill ? NAN : t_prompt() + (test.n_gen > 0 ? t_gen() : 0); }
  double prompt_rate() const { return double(test.prompt_tokens()) / t_prompt(); }
  double gen_rate() const { return double(test.gen_tokens()) / t_gen(); }
  double spec_rate() const { return double(test.gen_tokens()) / mean_deviation(spec_seconds).mean; }
  double speedup() const { return spec_rate() / gen_rate(); }
  double read_gb_s() const { return read_bytes * test.n_gen / t_gen() / 1e9; }
  double pct_of_roof() const { return ModelBenchRow::pct_of_roof(read_gb_s()); }
};
using BatchHooks = ModelBenchHooks<BatchRow>;

/// Runs everything in order. Returns the number of rows whose check failed. Throws Error no_memory before any test runs
/// when the caches of one do not fit.
int run_batch_bench(const BatchParams& params, const BatchHooks& hooks);

/// The fields of bench decode's rows that say what ran where, and those of this bench. The table has
/// llama-batched-bench's columns, ours behind them.
Columns<BatchRow> batch_columns();
/// And what draft tokens add.
Columns<BatchRow> batch_spec_columns();

}  // namespace ridge::lab
