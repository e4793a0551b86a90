// ridge chat: what its two forms, a conversation and a debate, have in common.
#pragma once

#include "cli/options.h"
#include "cli/speaker.h"
#include "cli/spec_flags.h"
#include "cli/structure_flags.h"

namespace ridge::cli {

struct ChatFlags {
  ModelFlags model;
  ContextFlags context;
  KvFlags kv;
  SpecFlags spec;
  StructureFlags structure;
  OutputFlags output;
  std::string system, topic;
  std::vector<std::string> debate;  ///< both sides; empty: a conversation
  int n_predict = -1, n_turns = 10;
  SamplerOptions sampler;
  int64_t seed = -1;
  bool no_history = false, verbose = false;

  /// Of a model's sessions.
  int n_ctx(const Model& model) const;
  /// Of a model that is loaded; `seed` is the one in force.
  SpeakerOptions speaker(const Model& model) const;
};

/// Both return the exit code.
int run_conversation(const ChatFlags& flags);
int run_debate(const ChatFlags& flags);

}  // namespace ridge::cli
