// Tasks with an answer: what a cache costs in items that are right, beside how far its distributions are from f16's.
//
// A task is data: prompts, and what is right behind them. Every cache gets the same items, so caches are compared item
// by item with the base. The tasks are one file each, task_*.cpp.
#pragma once

#include "lab/quality/quality.h"
#include "lab/quality/texts.h"

namespace ridge::lab {

/// A prompt and what is right behind it: a text, or the first of several endings.
struct TaskItem {
  std::vector<int32_t> prompt;                                    ///< two tokens at least
  std::vector<std::vector<int32_t>> endings = {};                 ///< the likeliest a token is chosen; empty: text
  std::function<bool(std::string_view text)> is_right = nullptr;  ///< of text; null: right where equal to the base's
};

struct Task {
  std::string name;               ///< "needle"
  int size = 0;                   ///< tokens of the prompt; 0: items differ
  double chance = 0;              ///< share that guessing finds
  int n_generate = 0;             ///< tokens of greedy text; 0: endings are chosen
  std::vector<int> lengths = {};  ///< texts are compared with the base's to these lengths, a line each; empty: is_right
  std::string why_not = {};       ///< not applicable to the model or the text
  std::vector<TaskItem> items = {};

  int n_ctx() const;         ///< tokens of its longest text
  int64_t n_tokens() const;  ///< that a cache reads and writes
};

struct ChatTurn {
  std::string role, content;
};
/// Messages as tokens, with the begin of the next answer.
using ChatTokens = std::function<std::vector<int32_t>(std::span<const ChatTurn> turns)>;

/// How many items tasks have, and how long they are.
struct TaskSizes {
  std::vector<int> needle_contexts{1024, 2048, 4096, 7168};
  int n_needles = 50;  ///< a context
  int n_canaries = 50;
  int n_continuations = 64, continued_tokens = 256;  ///< texts, and tokens of the prompt of each
  std::vector<int> continuation_lengths{256, 1024};
  int n_cloze = 500, cloze_context = 384, cloze_ending = 8;  ///< items; tokens of the context and of an ending
  int n_sums = 200, n_worked_sums = 8;                       ///< items; sums with answers in front of each
};
/// Sizes of a look that takes minutes on a CPU.
TaskSizes quick_task_sizes();

struct TaskOptions {
  TaskSizes sizes;
  std::vector<std::string> only;  ///< names of tasks; empty: all
  uint64_t seed = 42;
  std::string device = "cpu";
  KvChoice base;
  std::vector<KvChoice> candidates;
  ChatTokens chat;  ///< of the task of sums
};

/// Source that tasks are made from.
struct TaskSource {
  const Model& model;
  const Corpus& corpus;
  const TaskOptions& options;
  std::optional<int32_t> bos;     ///< begins every prompt that is no chat
  std::vector<size_t> sentences;  ///< places in the corpus's tokens where one begins
};
std::vector<Task> needle_tasks(const TaskSource& source);
std::vector<Task> json_canary_tasks(const TaskSource& source);
std::vector<Task> code_canary_tasks(const TaskSource& source);
std::vector<Task> continuation_tasks(const TaskSource& source);
std::vector<Task> cloze_tasks(const TaskSource& source);
std::vector<Task> sum_tasks(const TaskSource& source);

/// Whether `text` up to its first line break makes `begun` a JSON object.
bool completes_json(std::string_view begun, std::string_view text);
/// Whether the brackets of `begun` and `text` match, and all are closed at the end of one of the text's lines. Brackets
/// between double quotes do not count.
bool closes_brackets(std::string_view begun, std::string_view text);

/// Names for --only, in the order of the rows.
std::vector<std::string> task_names();
/// The tasks that options name. Throws usage for an unknown name.
std::vector<Task> make_tasks(const Model& model, const Corpus& corpus, const TaskOptions& options);

/// Answers with one cache, by item.
struct TaskAnswers {
  std::vector<bool> right;                  ///< all true where texts are compared with the base's
  std::vector<std::vector<int32_t>> texts;  ///< empty where endings are chosen
};
/// Runs all items, as many side by side as `texts` has sequences. `advance(n)` hears of n tokens done and says whether
/// to go on; nothing is returned where it said no.
std::optional<TaskAnswers> run_task(const Task& task, const Model& model, Texts& texts,
                                    const std::function<bool(int64_t n_tokens)>& advance);

/// A cache beside the base on one task.
struct TaskLine {
  std::string task;
  int size = 0;
  std::string why_not{};  ///< not applicable: nothing below is set
  double chance = 0;
  int64_t n_items = 0, n_right = 0, n_right_base = 0;
  int64_t n_lost = 0, n_gained = 0;      ///< right with the base only; right with the cache only
  std::vector<int> first_differences{};  ///< of texts: tokens equal to the base's
  int n_generate = 0;
};
std::vector<TaskLine> compare_answers(const Task& task, const TaskAnswers& base, const TaskAnswers& cache);

struct TaskResult {
  KvChoice kv;
  KvReport cache;
  std::vector<TaskLine> lines;
};
using TaskHooks = StudyHooks<TaskResult>;  // progress in tokens

/// Runs the base, then every candidate. Stopped early, finished candidates have been handed over.
void run_tasks(const Model& model, const Corpus& corpus, const TaskOptions& options, const TaskHooks& hooks);

/// A row a task.
std::vector<Row> to_rows(const Row& subject, const TaskOptions& options, const TaskResult& result);
/// Markdown, a line a row.
std::string task_table(std::span<const Row> rows);

}  // namespace ridge::lab
