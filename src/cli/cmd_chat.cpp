// ridge chat: a conversation with a model, or a debate of two.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/interrupt.h"
#include "chat/debate.h"
#include "cli/kv_auto.h"
#include "cli/options.h"
#include "cli/spec_flags.h"
#include "cli/start_lines.h"
#include "cli/structure_flags.h"
#include "rank/mpi.h"

namespace ridge::cli {
namespace {

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

  /// Context of a model's sessions, in tokens.
  int n_ctx(const Model& model) const;
  /// Options of a speaker over a loaded model; `seed` is the one in force.
  chat::SpeakerOptions speaker(const Model& model) const;
};

int ChatFlags::n_ctx(const Model& of) const { return context_for(context, kv, of); }

chat::SpeakerOptions ChatFlags::speaker(const Model& of) const {
  chat::SpeakerOptions options{.kv = choice_for(kv, of, n_ctx(of), output.quiet),
                               .n_ctx = n_ctx(of),
                               .n_ubatch = context.ubatch(of.engine().default_ubatch()),
                               .shows_progress = !output.quiet,
                               .generate = {.max_tokens = n_predict, .sampler = sampler}};
  options.generate.sampler.seed = uint64_t(seed);
  return options;
}

int run_conversation(const ChatFlags& flags) {
  check_kv_flags(flags.kv);  // refuses nonsense before the model is read
  if (flags.model.model.empty()) bad_flag("--model", "a model is needed", "ridge chat -m MODEL");
  const Model model = load_model(flags.model);
  const chat::ChatModel chat(model, flags.model.chat_template);
  chat.check();
  const ProposerMaker proposers = open_proposers(
      flags.spec, flags.model, model, {flags.n_ctx(model), flags.context.ubatch(model.engine().default_ubatch())});
  const std::unique_ptr<Speculation> speculation = open_speculation(flags.spec, proposers);
  AnswerStructure structure(flags.structure, model);
  chat::ConversationOptions options{.speaker = flags.speaker(model),
                                    .system = flags.system,
                                    .spec_type = flags.spec.type,
                                    .json = flags.output.json,
                                    .quiet = flags.output.quiet,
                                    .keeps_history = !flags.no_history};
  options.speaker.speculation = speculation.get();
  options.speaker.structure = [&](const serve::AnswerForm& form) { return structure.rule(form); };
  options.facts = [&](const Session& session, const KvChoice& kv) {
    return start_lines(model.info(), session, kv) +
           (flags.verbose ? more_start_lines(model.info(), session) : std::string());
  };
  return chat::converse(chat, options);
}

int run_debate(const ChatFlags& flags) {
  check_kv_flags(flags.kv);  // refuses nonsense before a model is read
  chat::Side sides[] = {chat::parse_side(flags.debate[0], "A"), chat::parse_side(flags.debate[1], "B")};
  if (sides[0].name == sides[1].name) sides[0].name += " 1", sides[1].name += " 2";
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::unique_ptr<chat::ChatModel>> chats;
  std::vector<chat::Debater> debaters;
  for (chat::Side& side : sides) {
    if (side.model_path.empty()) side.model_path = flags.model.model;
    if (side.model_path.empty())
      bad_flag("--debate", fmt::format("{} has no model", side.name), "give -m MODEL, or a model in its place");
    if (chats.empty() || side.model_path != sides[0].model_path) {
      if (!chats.empty() && joined_ranks())
        bad_flag("--tp", "ranks share one model, and this debate has two", "give both sides one model");
      ModelFlags model = flags.model;
      model.model = side.model_path;
      models.push_back(std::make_unique<Model>(load_model(model)));
      chats.push_back(std::make_unique<chat::ChatModel>(*models.back(), flags.model.chat_template));
    }
    debaters.push_back({side, *chats.back(), flags.speaker(*models.back())});
  }
  chat::DebateOptions options{
      .topic = flags.topic, .n_turns = flags.n_turns, .json = flags.output.json, .quiet = flags.output.quiet};
  options.facts = [&](const Session& session, const KvChoice& kv) {
    return fmt::format("models   {}, cache {}: {}\n", models.size(), flags.kv.is_auto() ? "auto" : kv_text(kv),
                       chat::cache_cost(models[0]->info(), session));
  };
  return chat::debate(debaters[0], debaters[1], options);
}

}  // namespace

static Action declare_chat(CLI::App& app) {
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

extern const Command chat_command = {
    "chat",
    "talk with a model, or let two talk",
    R"(A conversation with streamed answers. The cache stays from turn to turn. Ctrl-C stops an answer, Ctrl-D
leaves, /help lists the commands. When stdin is not a terminal, its lines are the messages. With --debate two
system prompts or two models answer each other. Models without a chat template get lines of "User: ..." and
"Assistant: ...".)",
    R"(ridge chat -m model.gguf --kv-quant rotor-3
ridge chat -m model.gguf --debate "Ann: You love cats." "Bob: You love dogs." --topic pets --turns 20
ridge chat --debate first.gguf second.gguf --topic "the best format of a cache")",
    declare_chat,
    RankUse::led_for_clients};

}  // namespace ridge::cli
