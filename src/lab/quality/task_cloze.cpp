// Cloze: which of four sentences goes on a text. The others begin elsewhere in the same part of the text.
#include "lab/quality/task_words.h"
#include "lab/quality/tasks.h"

namespace ridge::lab {
namespace {

constexpr int kClozeEndings = 4;
constexpr int kNear = 40;  // sentences on either side among which the wrong ones are chosen

}  // namespace

std::vector<Task> cloze_tasks(const TaskSource& source) {
  const TaskSizes& sizes = source.options.sizes;
  const auto context = size_t(sizes.cloze_context), n_ending = size_t(sizes.cloze_ending);
  const std::span<const int32_t> text(source.corpus.tokens);
  Task task{.name = "cloze", .size = sizes.cloze_context, .chance = 1.0 / kClozeEndings};
  std::vector<size_t> begins;
  for (const size_t at : source.sentences)
    if (at >= context && at + n_ending <= text.size()) begins.push_back(at);
  if (ssize(begins) < std::max(sizes.n_cloze, 4 * kNear)) {
    task.why_not = fmt::format("the text has {} sentences behind {} tokens, {} are needed", begins.size(), context,
                               std::max(sizes.n_cloze, 4 * kNear));
    return {task};
  }
  const auto ending_at = [&](size_t at) {
    const auto part = text.subspan(at, n_ending);
    return std::vector<int32_t>(part.begin(), part.end());
  };
  Rng rng(source.options.seed);
  for (int i = 0; i < sizes.n_cloze; ++i) {
    const int right = int(int64_t(ssize(begins) - 1) * i / std::max(1, sizes.n_cloze - 1));
    const auto before = text.subspan(begins[size_t(right)] - context, context);
    TaskItem item{.prompt = {before.begin(), before.end()}, .endings = {ending_at(begins[size_t(right)])}};
    if (source.bos) item.prompt.front() = *source.bos;
    // Ends of the text have their neighbours on one side.
    const int low = std::clamp(right - kNear, 0, int(ssize(begins)) - 2 * kNear - 1);
    while (ssize(item.endings) < kClozeEndings) {
      std::vector<int32_t> wrong = ending_at(begins[size_t(whole(rng, low, low + 2 * kNear))]);
      if (std::ranges::find(item.endings, wrong) == item.endings.end()) item.endings.push_back(std::move(wrong));
    }
    task.items.push_back(std::move(item));
  }
  return {task};
}

}  // namespace ridge::lab
