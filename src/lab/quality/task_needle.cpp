// Needles: a code is told in four equal sentences, one behind the other, at some depth of a text, and asked for at its
// end.
#include "lab/quality/task_words.h"
#include "lab/quality/tasks.h"

namespace ridge::lab {
namespace {

constexpr int kAnswerTokens = 10;
constexpr int kNeedleCopies = 4;

struct ToldNeedle {
  std::vector<int32_t> told, asked;
  std::string code;
  int n_tokens() const { return int(told.size() + asked.size()); }
};

ToldNeedle random_needle(const Model& model, Rng& rng) {
  const std::string question = filled(" The secret code of the $a $w is", rng), code = filled("$0$0$0$0$0", rng);
  std::string told;
  for (int i = 0; i < kNeedleCopies; ++i) told += question + " " + code + ".";
  return {model.tokenize(told, false), model.tokenize(question, false), code};
}

/// The sentence that begins at or behind `at`; `end` where there is none in front of it.
size_t next_sentence(const TaskSource& source, size_t at, size_t end) {
  const auto found = std::ranges::lower_bound(source.sentences, at);
  return found == source.sentences.end() || *found > end ? end : *found;
}

/// Text, needle, text, question: n tokens of which the text begins at token `first` of the corpus.
TaskItem needle_item(const TaskSource& source, const ToldNeedle& needle, size_t first, int n, double depth) {
  const size_t n_text = size_t(n) - needle.told.size() - needle.asked.size(), end = first + n_text;
  const size_t at = next_sentence(source, first + 1 + size_t(depth * double(n_text - 1)), end);
  const std::span<const int32_t> text(source.corpus.tokens);
  TaskItem item;
  const auto append = [&](std::span<const int32_t> part) {
    item.prompt.insert(item.prompt.end(), part.begin(), part.end());
  };
  append(text.subspan(first, at - first));
  append(needle.told);
  append(text.subspan(at, end - at));
  append(needle.asked);
  if (source.bos) item.prompt.front() = *source.bos;
  item.is_right = [code = needle.code](std::string_view answer) {
    const size_t begin = answer.find_first_not_of(" \n");
    return begin != answer.npos && answer.substr(begin).starts_with(code);
  };
  return item;
}

}  // namespace

std::vector<Task> needle_tasks(const TaskSource& source) {
  const TaskSizes& sizes = source.options.sizes;
  std::vector<Task> tasks;
  for (const int n_ctx : sizes.needle_contexts) {
    Task& task = tasks.emplace_back(Task{.name = "needle", .size = n_ctx, .n_generate = kAnswerTokens});
    const int n = n_ctx - kAnswerTokens;
    const int64_t room = ssize(source.corpus.tokens) - n;
    if (n_ctx > source.model.info().n_ctx_train)
      task.why_not = fmt::format("the model was trained for {} tokens", source.model.info().n_ctx_train);
    else if (room < 0) task.why_not = fmt::format("the text has {} tokens", source.corpus.tokens.size());
    if (!task.why_not.empty()) continue;
    Rng rng(source.options.seed + uint64_t(n_ctx));
    for (int i = 0; i < sizes.n_needles && task.why_not.empty(); ++i) {
      const ToldNeedle needle = random_needle(source.model, rng);
      if (needle.n_tokens() > n / 2) task.why_not = fmt::format("a needle has {} tokens", needle.n_tokens());
      else
        task.items.push_back(
            needle_item(source, needle, size_t(rng.uniform() * double(room + 1)), n, (i + 0.5) / sizes.n_needles));
    }
  }
  return tasks;
}

}  // namespace ridge::lab
