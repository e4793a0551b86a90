// One step: tokens of any sequences, prompts and single tokens mixed.
#pragma once

#include "base/view.h"
#include "engine/pool.h"

namespace ridge {

/// Which rows of a step get logits.
enum class LogitRows : uint8_t { none, last, all };  // `last`: of every sequence

/// New tokens of one sequence, behind those that it holds.
struct SeqTokens {
  SeqId seq{};
  int n_tokens = 0;
};

struct Batch {
  std::span<const int32_t> tokens;  ///< [n_tokens], sequence after sequence; ids are valid
  std::span<const SeqTokens> seqs;  ///< each sequence once; their tokens add up to n_tokens
  LogitRows logits = LogitRows::last;
  bool hidden = false;             ///< keep the hidden state of every token, for Outputs::hidden()
  View2<const float> joined = {};  ///< of an MTP head (Weights::join): hidden states on the host, [n_tokens, d_model]

  /// Rows of logits: one a sequence or one a token, in the batch's order.
  int64_t n_logits() const {
    return logits == LogitRows::none ? 0 : logits == LogitRows::all ? int64_t(tokens.size()) : int64_t(seqs.size());
  }
};

}  // namespace ridge
