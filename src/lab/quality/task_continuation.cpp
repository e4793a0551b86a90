// Continuations: greedy text behind prompts of the corpus, and the first token at which it is not the base's.
#include "lab/quality/greedy.h"
#include "lab/quality/tasks.h"

namespace ridge::lab {

std::vector<Task> continuation_tasks(const TaskSource& source) {
  const TaskSizes& sizes = source.options.sizes;
  Task task{.name = "continuation",
            .size = sizes.continued_tokens,
            .n_generate = sizes.continuation_lengths.back(),
            .lengths = sizes.continuation_lengths};
  if (const int n = task.size + task.n_generate; n > source.model.info().n_ctx_train)
    task.why_not = fmt::format("{} tokens, the model was trained for {}", n, source.model.info().n_ctx_train);
  auto prompts = pick_prompts(source.corpus.tokens, sizes.n_continuations, sizes.continued_tokens, source.bos);
  if (!prompts) task.why_not = prompts.error().message;
  if (task.why_not.empty())
    for (std::vector<int32_t>& prompt : *prompts) task.items.push_back({.prompt = std::move(prompt)});
  return {task};
}

}  // namespace ridge::lab
