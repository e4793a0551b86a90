// How long greedy text stays the same: the first token at which a cache makes another choice than the base.
#pragma once

#include "lab/quality/engine_timelines.h"
#include "lab/quality/quality.h"

namespace ridge::lab {

struct DivergenceOptions {
  int n_prompts = 16;
  int prompt_tokens = 256;
  int n_generate = 128;
  std::string device = "cpu";
  KvChoice base;
  std::vector<KvChoice> candidates;
};

/// `n` runs of `length` tokens, evenly spread over the text, each beginning with BOS when there is one. Fails when the
/// text is shorter than that.
Result<std::vector<std::vector<int32_t>>> pick_prompts(std::span<const int32_t> text, int n, int length,
                                                       std::optional<int32_t> bos);

/// The n greedy tokens after `prompt`; with `same_as` only those up to and including the first difference.
std::vector<int32_t> greedy_tokens(Timeline& timeline, std::span<const int32_t> prompt, int n,
                                   const std::vector<int32_t>* same_as = nullptr);

struct DivergenceResult {
  KvChoice kv;
  KvReport cache;
  std::vector<int> lengths;  ///< tokens equal to the base's, per prompt; n_generate: all of them
};

using DivergenceHooks = StudyHooks<DivergenceResult>;  // progress in texts

/// Generates with the base, then with every candidate. Stopped early, finished candidates have been handed over.
void run_divergence(const Model& model, const Corpus& corpus, const DivergenceOptions& options,
                    const DivergenceHooks& hooks);

Row to_row(const Row& subject, const DivergenceOptions& options, const DivergenceResult& result);
/// Markdown, one line per row.
std::string divergence_table(std::span<const Row> rows);

}  // namespace ridge::lab
