// Needle retrieval for models that are no assistants: a random token sequence is planted in a text, its first tokens
// come again at the end, and the rest is scored. Copying from far back is what small models do in context too. A small
// model finds part of the tokens, so figures are read against the f16 row and the row without a needle: a cache that
// loses what distinguishes one key from another finds none; small losses show in the NLL if at all.
#pragma once

#include "lab/quality/engine_timelines.h"
#include "lab/quality/quality.h"

namespace ridge::lab {

struct NeedleOptions {
  int n_ctx = 1024;   ///< tokens of a probe, all in all
  int n_trials = 16;  ///< probes per depth
  int n_depths = 5;   ///< evenly from the beginning (0) to just before the cue (1)
  int needle = 16;    ///< tokens of the sequence
  int copies = 6;     ///< planted one behind the other: small models copy text that repeats
  int cue = 8;        ///< of which this many are repeated; the others are the answer
  uint64_t seed = 42;
  std::string device = "cpu";
  std::vector<KvChoice> candidates;
};

struct NeedleProbe {
  std::vector<int32_t> tokens;
  int needle_at = -1;    ///< position of the planted sequence; -1: not planted
  int first_answer = 0;  ///< tokens from here on are the answer
};
/// Text, `copies` needles at `depth` (0 to 1; nothing: none), text, cue, answer: n_ctx tokens, the first of them `bos`.
NeedleProbe make_probe(const NeedleOptions& options, std::span<const int32_t> text, std::span<const int32_t> needle,
                       std::optional<double> depth, std::optional<int32_t> bos);

/// Scores of the answers at one depth.
struct NeedleScore {
  double depth = 0;
  MeanStat nll;    ///< per answer token, given the true ones before it
  MeanStat top;    ///< 1 where the answer token is the most likely one
  MeanStat exact;  ///< 1 where a whole answer is
};
/// Feeds the probe, the answer token by token, and adds its scores; whether each token was found to `found`.
void score_probe(Timeline& timeline, const NeedleProbe& probe, NeedleScore& score, std::vector<bool>* found = nullptr);
/// The probes of a study at one depth (nothing: without a needle), a trial each. Throws Error where the text is too
/// short.
std::vector<NeedleProbe> make_probes(const Model& model, const Corpus& corpus, const NeedleOptions& options,
                                     std::optional<double> depth);

struct NeedleResult {
  KvChoice kv;
  KvReport cache;
  std::vector<NeedleScore> depths;
  NeedleScore absent;  ///< the same answers without the needle: what guessing gives
};

using NeedleHooks = StudyHooks<NeedleResult>;  // progress in probes

/// Runs every candidate over the same probes. Stopped early, finished candidates have been handed over.
void run_needle(const Model& model, const Corpus& corpus, const NeedleOptions& options, const NeedleHooks& hooks);

Row to_row(const Row& subject, const NeedleOptions& options, const NeedleResult& result);
/// Markdown, one line per row: tokens found and NLL by depth.
std::string needle_table(std::span<const Row> rows);

}  // namespace ridge::lab
