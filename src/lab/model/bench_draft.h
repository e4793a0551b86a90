// Proposers in benches with draft tokens, as the benches' rows name them.
#pragma once

#include <string>

#include "lab/rows/columns.h"

namespace ridge::lab {

struct BenchDraft {
  std::string type, draft_model, draft_kv;
  int depth = 8;  ///< most draft tokens of a sequence in a step
  int vocab = 0;  ///< token ids that an MTP head proposes, the first ones; 0: all
};
inline Columns<BenchDraft> draft_columns() {
  return {
      {"spec_type", "-", "proposer of draft tokens", [](auto& d) { return d.type; }},
      {"spec_depth", "tokens", "most draft tokens of a sequence in a step", [](auto& d) { return d.depth; }},
      {"spec_vocab", "tokens", "that an MTP head proposes; 0: all", [](auto& d) { return d.vocab; }},
      {"draft_model", "-", "model that proposes", [](auto& d) { return d.draft_model; }},
      {"draft_kv", "-", "its cache", [](auto& d) { return d.draft_kv; }},
  };
}

}  // namespace ridge::lab
