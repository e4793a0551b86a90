// ridge eval tasks: items with an answer, by task and cache.
#include "chat/model.h"
#include "cli/eval.h"
#include "lab/quality/tasks.h"
#include "lab/rows/int_list.h"

namespace ridge::cli {
namespace {

struct TaskFlags {
  StudyFlags study{.list = "f16,q8_0,rotor-4,rotor-3"};
  std::string base = "f16";
  std::vector<std::string> only, contexts;
  bool quick = false;
  int n_items = 0, seed = 42;
};

lab::TaskOptions task_options(const TaskFlags& flags) {
  lab::TaskOptions options;
  lab::TaskSizes& sizes = options.sizes;
  if (flags.quick) sizes = lab::quick_task_sizes();
  if (!flags.contexts.empty())
    sizes.needle_contexts =
        lab::parse_int_list("--contexts", fmt::format("{}", fmt::join(flags.contexts, ",")), 128, 1 << 26).or_throw();
  if (flags.n_items > 0)
    for (int* const n : {&sizes.n_needles, &sizes.n_canaries, &sizes.n_continuations, &sizes.n_cloze, &sizes.n_sums})
      *n = flags.n_items;
  for (const std::string& list : flags.only)
    for (std::string& name : split(list, ',')) options.only.push_back(std::move(name));
  options.seed = uint64_t(flags.seed);
  options.base = parse_kv_choice(flags.base).or_throw();
  return options;
}

int tasks(const TaskFlags& flags) {
  const auto run = [](const Model& model, const lab::Corpus& corpus, const lab::TaskOptions& options,
                      const lab::TaskHooks& hooks) {
    const chat::ChatModel chat(model);
    lab::TaskOptions with_chat = options;
    with_chat.chat = [&](std::span<const lab::ChatTurn> turns) {
      text::Json messages = text::Json::array();
      for (const lab::ChatTurn& turn : turns) messages.push_back(chat::message_of(turn.role, turn.content));
      return chat.tokens(chat.prompt(messages));
    };
    lab::run_tasks(model, corpus, with_chat, hooks);
  };
  return run_study<lab::TaskResult>(flags.study, "eval_task", "tokens", task_options(flags), run, lab::task_table);
}

}  // namespace

static Action declare_eval_tasks(CLI::App& app) {
  const auto flags = std::make_shared<TaskFlags>();
  TaskFlags& f = *flags;
  add_corpus_flags(app, f.study.text);
  in_group(app, "Tasks");
  add_list(app, "--only", f.only, "", fmt::format("only these: {}", fmt::join(lab::task_names(), ", ")));
  app.add_flag("--quick", f.quick,
               "fewer and shorter items: some minutes a cache on a CPU, with a model of 10^8 parameters");
  add_list(app, "--contexts", f.contexts, "1024,2048,4096,7168", "tokens of the needles' texts");
  add_whole(app, "--items", f.n_items, 0, 1 << 20, "items of each task; 0: 50 to 500 by task");
  add_whole(app, "--seed", f.seed, 0, INT32_MAX, "seed of the items");
  add_list_flags(app, f.study);
  in_group(app, "KV cache");
  add_text(app, "--base", f.base, "KV", "the cache that the others are compared with, item by item");
  add_output_flags(app, f.study.output, true);
  return [flags] { return tasks(*flags); };
}

extern const Command eval_tasks_command = {
    "eval tasks", "what a cache costs in answers that are right",
    R"(Needle: a code that was told at some depth of a text. JSON and code: the last entry of a list must parse, or
close its brackets. Continuation: greedy text, and the first token that is not the base's. Cloze: the next sentence
among four. Sums: of two digits, in a chat, the answer among four. A row a task and cache: the share that is
right with its 95 % interval (Wilson), the base's beside it, the items that only one of the two has right, and
how likely chance splits them so (McNemar's exact p). --kv-window, --kv-sinks and their kind give every cache of
--kv one policy. Texts longer than the model was trained for are not applicable.)",
    R"(ridge eval tasks -m model.gguf -f wiki.test.raw --quick
ridge eval tasks -m model.gguf -f wiki.test.raw --kv f16,q4_0:hadamard,rotor-4/rotor-3 --kv-window 96 --kv-sinks 4
ridge eval tasks -m model.gguf -f wiki.test.raw --only needle --contexts 8192,16384,32768 --results tasks.jsonl)",
    declare_eval_tasks};

}  // namespace ridge::cli
