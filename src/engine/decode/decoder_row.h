// A row of the decoder on its way through a step.
#pragma once

#include "engine/decode/decoder.h"

namespace ridge {

struct Decoder::Row : DecodeRow {
  explicit Row(const DecodeRow& row) : DecodeRow(row) {}
  int n_tokens() const { return int(tokens.size() + proposals.size()); }
  int n_accepted() const { return std::max(0, n_taken - 1); }
  Speculation* speculation() const { return text->speculation; }
  /// Whether its tokens need a rule of the host.
  bool on_host() const { return rejects || text->pick; }

  size_t at = 0;                 // of its tokens in those of the step
  int n_asked = 0, n_taken = 0;  // draft tokens that were wanted, tokens that were handed on
  int n_right = 0;               // draft tokens that were accepted, the text's last token among them
  bool rejects = false;          // draft tokens hold by rejection sampling
  double proposing = 0;          // seconds
  std::vector<int32_t> proposals = {};
  std::vector<Distribution> probabilities = {};  // with `rejects`: what they were sampled from
};

}  // namespace ridge
