// Flags of speculation, and who proposes by them: `ridge run`, `chat`, `serve`, `bench decode` and `bench batch`.
#pragma once

#include "cli/options.h"
#include "engine/decode/text.h"

namespace ridge::cli {

struct SpecFlags {
  std::string type = "none", draft_model, draft_kv = "f16", sampling = "exact";
  std::optional<std::string> draft_k, draft_v;
  int depth = 8;
  double p_min = 0;
  int vocab = 0;  ///< token ids that an MTP head proposes, the first ones; 0: all

  bool on() const { return type != "none"; }
  /// Refuses nonsense before a model is read.
  void check() const;
  /// The cache of the smaller model or of the head.
  KvChoice cache() const;
};
void add_spec_flags(CLI::App& app, SpecFlags& flags);

/// Texts that proposers work for.
struct ProposedTexts {
  int n_ctx = 0, n_ubatch = 0;
  int n_texts = 1;  ///< at a time
};
/// The proposers of a model, empty without speculation. `of_target` are the flags of the target; a smaller model runs
/// where it does, and is the maker's. The target and the maker must outlive the proposers.
ProposerMaker open_proposers(const SpecFlags& flags, const ModelFlags& of_target, const Model& target,
                             const ProposedTexts& texts);

/// Null without speculation.
std::unique_ptr<Speculation> open_speculation(const SpecFlags& flags, const ProposerMaker& proposers);

}  // namespace ridge::cli
