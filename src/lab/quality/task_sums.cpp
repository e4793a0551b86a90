// Sums of numbers of two digits, asked in a chat behind some with answers. The answer is chosen among four: models of
// 10^8 parameters seldom write the right one.
#include "lab/quality/task_words.h"
#include "lab/quality/tasks.h"

namespace ridge::lab {
namespace {

constexpr int kSumEndings = 4;
constexpr int kFurthest = 30;  // a wrong sum is off by so much at most

struct Sum {
  std::string question;
  int answer = 0;
};

/// Addition and subtraction of which all numbers have two digits.
Sum make_sum(Rng& rng) {
  const int a = whole(rng, 10, 89), b = whole(rng, 10, 99 - a), sum = a + b;
  return whole(rng, 0, 1) == 0 ? Sum{fmt::format("{} + {}", a, b), sum} : Sum{fmt::format("{} - {}", sum, b), a};
}

}  // namespace

std::vector<Task> sum_tasks(const TaskSource& source) {
  const TaskOptions& options = source.options;
  Task task{.name = "sums", .chance = 1.0 / kSumEndings};
  Rng rng(options.seed);
  std::vector<ChatTurn> turns;
  const auto says = [](const Sum& sum, int answer) { return fmt::format("{} = {}", sum.question, answer); };
  for (int i = 0; i < options.sizes.n_worked_sums; ++i) {
    const Sum sum = make_sum(rng);
    turns.push_back({"user", sum.question + " ="});
    turns.push_back({"assistant", says(sum, sum.answer)});
  }
  for (int i = 0; i < options.sizes.n_sums; ++i) {
    const Sum sum = make_sum(rng);
    turns.push_back({"user", sum.question + " ="});
    TaskItem item{.prompt = options.chat(turns)};
    turns.pop_back();
    std::vector<int> answers{sum.answer};
    while (ssize(answers) < kSumEndings) {
      const int wrong = whole(rng, std::max(10, sum.answer - kFurthest), std::min(99, sum.answer + kFurthest));
      if (std::ranges::find(answers, wrong) == answers.end()) answers.push_back(wrong);
    }
    for (const int answer : answers) item.endings.push_back(source.model.tokenize(" " + says(sum, answer), false));
    task.items.push_back(std::move(item));
  }
  return {task};
}

}  // namespace ridge::lab
