// bench decode --spec-type: generation with and without speculation, in turns, behind prompts of a real text.
//
// Every repetition takes its prompt from another place of the text, reads it into empty caches and generates twice, once
// each way; the second repetition begins with the other way. The tokens must be equal: a test whose texts differ fails.
// The time is the generation's, proposing included. Greedy texts of small models fall into loops, which every proposer
// knows: rows say which part of each text repeats.
#pragma once

#include "engine/speculate.h"
#include "lab/model/bench.h"

namespace ridge::lab {

struct SpecBenchParams {
  std::vector<std::string> models;
  std::string text, text_name;  ///< what prompts are cut from, and the file it came from
  std::vector<int> n_prompt{512}, n_gen{128};
  std::vector<KvChoice> kv{KvChoice{}};
  int n_ubatch = 512, repeats = 5, depth = 8;
  bool warm_up = true, check = true;
  std::optional<double> check_bound;
  float temperature = 0;
  uint64_t seed = 42;
  LoadOptions load;
  std::string type, draft_model, draft_kv;  ///< for the rows
  /// Proposers of a model whose texts have at most n_ctx tokens.
  std::function<ProposerMaker(const Model& model, int n_ctx)> open;
};

struct SpecBenchRow : ModelBenchRow {
  KvChoice kv;
  int n_prompt = 0, n_gen = 0;
  std::vector<double> seconds, plain_seconds;  ///< of each repetition, with and without speculation
  std::vector<double> repeated;                ///< repeated_share() of each text
  SpecReport spec;                             ///< of all repetitions
  bool same_text = true;

  std::string name() const;
  /// Tokens a second of a repetition; the first token comes from the prompt's step.
  MeanDeviation rate(const std::vector<double>& seconds) const;
  double speedup() const { return rate(seconds).mean / rate(plain_seconds).mean; }
  double mean_repeated() const;
};
using SpecBenchHooks = ModelBenchHooks<SpecBenchRow>;

/// The share of tokens that end eight tokens which stood in the text before.
double repeated_share(std::span<const int32_t> tokens);

/// Runs everything in order. Returns the number of rows whose check failed, or whose texts differ. Throws usage for a
/// model without a tokenizer and a text that is too short.
int run_spec_bench(const SpecBenchParams& params, const SpecBenchHooks& hooks);

/// The fields of bench decode's rows that say what ran where, then those of this bench. kind: "spec".
Row spec_fields(const SpecBenchRow& row, const SpecBenchParams& params);
std::string spec_markdown_head();
std::string spec_markdown_line(const SpecBenchRow& row, const SpecBenchParams& params);

}  // namespace ridge::lab
