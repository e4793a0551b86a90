// bench decode --spec-type: generation with and without speculation, in turns, behind prompts of a real text.
//
// Every repetition takes its prompt from another place of the text, reads it into empty caches and generates twice,
// once each way; the second repetition begins with the other way. On the CPU the tokens must be equal: a test whose
// texts differ fails. On a device rows count the repetitions whose texts differ.
// The time is the generation's, proposing included. Greedy texts of small models fall into loops, which every proposer
// knows: rows say which part of each text repeats. With forced acceptance texts mean nothing and are not compared:
// prompts may be random tokens behind random cache rows, as in bench decode.
#pragma once

#include "engine/decode/text.h"
#include "lab/model/bench.h"
#include "lab/model/bench_draft.h"

namespace ridge::lab {

struct SpecBenchParams {
  std::vector<std::string> models;
  std::string text, text_name;  ///< what prompts are cut from, and the file it came from; empty: random tokens
  std::vector<int> n_prompt{512}, n_gen{128}, n_depth{0};
  std::vector<KvChoice> kv{KvChoice{}};
  int n_ubatch = 512, repeats = 5;
  bool warm_up = true, check = true;
  std::optional<double> check_bound;
  float temperature = 0;
  std::optional<double> forced_accept;  ///< probability that a proposal counts as right
  uint64_t seed = 42;
  LoadOptions load;
  BenchDraft draft;
  std::string sampling = "exact";  ///< or reject: texts are not compared
  /// Proposers of a model whose texts have at most n_ctx tokens; the maker outlives them, and goes with its row.
  std::function<ProposerMaker(const Model& model, int n_ctx)> open;
};

struct SpecBenchRow : ModelBenchRow {
  const SpecBenchParams* run = nullptr;  ///< what was asked; outlives the row
  KvChoice kv;
  int n_prompt = 0, n_gen = 0, n_depth = 0;
  std::vector<double> seconds, plain_seconds;  ///< of each repetition, with and without speculation
  std::vector<double> prompt_seconds, plain_prompt_seconds;
  /// Of a device, all that is allocated behind a repetition: buffers do not shrink. Without: before there was a
  /// proposer.
  int64_t device_bytes = 0, plain_device_bytes = 0;
  std::vector<double> repeated;         ///< repeated_share() of each text
  SpecReport spec;                      ///< of all repetitions
  std::optional<int> texts_differ = 0;  ///< repetitions; none where acceptance is forced, or by rejection
  bool failed = false;

  std::string name() const;
  /// Tokens a second of a repetition; the first token comes from the prompt's step.
  MeanDeviation rate(const std::vector<double>& seconds) const;
  MeanDeviation prompt_rate(const std::vector<double>& seconds) const;
  double speedup() const { return rate(seconds).mean / rate(plain_seconds).mean; }
  double mean_repeated() const;
};
using SpecBenchHooks = ModelBenchHooks<SpecBenchRow>;

/// The share of tokens that end eight tokens which stood in the text before.
double repeated_share(std::span<const int32_t> tokens);

/// Runs everything in order. Returns the number of rows whose check failed, or whose texts differ on the CPU. Throws
/// usage for a text that is too short, and without forced acceptance for a model without a tokenizer.
int run_spec_bench(const SpecBenchParams& params, const SpecBenchHooks& hooks);

/// The fields of bench decode's rows that say what ran where, and those of this bench.
Columns<SpecBenchRow> spec_columns();

}  // namespace ridge::lab
