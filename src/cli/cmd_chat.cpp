// ridge chat: a conversation with a model, or a debate of two.
#include "cli/chat.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "cli/interrupt.h"
#include "cli/kv_auto.h"

namespace ridge::cli {

int ChatFlags::n_ctx(const Model& of) const { return context_for(context, kv, of); }

SpeakerOptions ChatFlags::speaker(const Model& of) const {
  SpeakerOptions options{.kv = choice_for(kv, of, n_ctx(of), output.quiet),
                         .n_ctx = n_ctx(of),
                         .n_ubatch = context.ubatch(),
                         .shows_progress = !output.quiet,
                         .generate = {.max_tokens = n_predict, .sampler = sampler}};
  options.generate.sampler.seed = uint64_t(seed);
  return options;
}

Action declare_chat(CLI::App& app) {
  const auto flags = std::make_shared<ChatFlags>();
  ChatFlags& f = *flags;
  say_needed(add_model_flag(app, f.model, false), "required, or --debate");
  add_device_flags(app, f.model);
  add_rank_flags(app, &f.model.n_stages);
  in_group(app, "Conversation");
  add_text(app, "--system", f.system, "TEXT", "the system prompt");
  add_template_flag(app, f.model);
  app.add_flag("--no-history", f.no_history, "read and write no history of typed lines");
  in_group(app, "Debate");
  app.add_option("--debate", f.debate, "two sides, each a system prompt or a model")
      ->expected(2)
      ->type_name("A B")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_whole(app, "--turns", f.n_turns, 1, 1 << 20, "answers of both sides together");
  add_text(app, "--topic", f.topic, "TEXT", "what they talk about");
  in_group(app, "Generation");
  add_whole(app, "-n,--n-predict", f.n_predict, -1, 1 << 26,
            "tokens an answer; -1: until it or the context ends, in a debate 128");
  in_group(app, "Sampling");
  add_sampler_flags(app, f.sampler, f.seed);
  add_structure_flags(app, f.structure);
  add_context_flags(app, f.context, "context in tokens; 0: the model's trained context, or less if memory is short");
  add_kv_flags(app, f.kv);
  add_decision_flag(app, f.kv);
  add_spec_flags(app, f.spec);
  add_output_flags(app, f.output, false);
  app.add_flag("--verbose", f.verbose, "more start-up lines: shape, processor, weights, cache by layers, kernels");
  return [flags] {
    if (flags->seed < 0) flags->seed = int64_t(std::random_device{}());
    if (flags->debate.size() != 0 && flags->debate.size() != 2) bad_flag("--debate", "takes two sides, A and B");
    flags->spec.check();
    if (!flags->debate.empty() && flags->spec.on())
      bad_flag("--debate", "its sides do not speculate", "leave out --spec-type");
    if (!flags->debate.empty() && flags->structure.on())
      bad_flag("--debate", "its sides talk freely", "leave out --json-schema and --grammar");
    install_chat_interrupts();
    return flags->debate.empty() ? run_conversation(*flags) : run_debate(*flags);
  };
}

}  // namespace ridge::cli
