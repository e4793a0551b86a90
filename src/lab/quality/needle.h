// Needle retrieval for models that are no assistants: a random token sequence is planted in a text, its first tokens
// come again at the end, and the model should predict the rest. Copying from far back is what small models do in
// context too. A small model finds part of the tokens, so a cache is compared with the base on the same probes.
#pragma once

#include "lab/quality/engine_timelines.h"
#include "lab/quality/quality.h"

namespace ridge::lab {

struct NeedleOptions {
  int n_ctx = 1024;   ///< tokens of a probe, all in all
  int n_trials = 16;  ///< probes per depth
  int needle = 16;    ///< tokens of the sequence
  int copies = 6;     ///< planted one behind the other: small models copy text that repeats
  int cue = 8;        ///< of which this many are repeated; the others are the answer
  uint64_t seed = 42;
};

struct NeedleProbe {
  std::vector<int32_t> tokens;
  int needle_at = -1;    ///< position of the planted sequence; -1: not planted
  int first_answer = 0;  ///< tokens from here on are the answer
};
/// Text, `copies` needles at `depth` (0 to 1; nothing: none), text, cue, answer: n_ctx tokens, the first of them `bos`.
NeedleProbe make_probe(const NeedleOptions& options, std::span<const int32_t> text, std::span<const int32_t> needle,
                       std::optional<double> depth, std::optional<int32_t> bos);
/// Probes at one depth (nothing: without a needle), a trial each. Throws Error where the text is too short.
std::vector<NeedleProbe> make_probes(const Model& model, const Corpus& corpus, const NeedleOptions& options,
                                     std::optional<double> depth);

/// Feeds the probe, the answer token by token: which of its tokens are the likeliest behind the true ones before them.
std::vector<bool> found_tokens(Timeline& timeline, const NeedleProbe& probe);

}  // namespace ridge::lab
