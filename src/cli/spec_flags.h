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

  bool on() const { return type != "none"; }
  /// Refuses nonsense before a model is read.
  void check() const;
  /// The cache of the smaller model or of the head.
  KvChoice cache() const;
};
void add_spec_flags(CLI::App& app, SpecFlags& flags);

/// The proposers of a model, and the smaller model that they may run.
struct Proposers {
  std::unique_ptr<Model> draft;
  ProposerMaker make;
};
/// Texts that proposers work for.
struct ProposedTexts {
  int n_ctx = 0, n_ubatch = 0;
  int n_texts = 1;  ///< at a time
};
/// `of_target` are the flags of the target; the smaller model runs where it does. Both models must outlive the
/// proposers.
Proposers open_proposers(const SpecFlags& flags, const ModelFlags& of_target, const Model& target,
                         const ProposedTexts& texts);

/// Null without speculation.
std::unique_ptr<Speculation> open_speculation(const SpecFlags& flags, const Proposers& proposers);

}  // namespace ridge::cli
