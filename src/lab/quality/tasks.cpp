#include "lab/quality/tasks.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "lab/quality/quality_report.h"
#include "lab/rows/columns.h"

namespace ridge::lab {
namespace {

struct TaskMaker {
  std::string_view name;
  std::vector<Task> (*make)(const TaskSource& source);
};
constexpr TaskMaker kMakers[] = {{"needle", needle_tasks},    {"json", json_canary_tasks},
                                 {"code", code_canary_tasks}, {"continuation", continuation_tasks},
                                 {"cloze", cloze_tasks},      {"sums", sum_tasks}};

/// Places behind a full stop where a capital letter begins.
std::vector<size_t> find_sentences(const Model& model, std::span<const int32_t> tokens) {
  std::vector<size_t> found;
  for (size_t i = 1; i < tokens.size(); ++i) {
    if (!model.piece(tokens[i - 1]).ends_with('.')) continue;
    const std::string piece = model.piece(tokens[i]);
    const size_t first = piece.find_first_not_of(' ');
    if (first != piece.npos && std::isupper(static_cast<unsigned char>(piece[first]))) found.push_back(i);
  }
  return found;
}

/// Text up to the first token that ends it.
std::string task_text(const Model& model, std::span<const int32_t> tokens) {
  const auto end = std::ranges::find_if(tokens, [&](int32_t token) { return model.is_end(token); });
  return model.detokenize(tokens.first(size_t(end - tokens.begin())));
}

using TaskAdvance = std::function<bool(int64_t n_tokens)>;

/// Reads the prompts but for their last tokens; returns these.
std::vector<int32_t> read_prompts(std::span<const TaskItem> items, Texts& texts) {
  std::vector<std::span<const int32_t>> prompts;
  std::vector<int32_t> last;
  for (const TaskItem& item : items) {
    prompts.push_back(std::span(item.prompt).first(item.prompt.size() - 1));
    last.push_back(item.prompt.back());
  }
  texts.reset();
  texts.append(prompts, LogitRows::none);
  return last;
}

int64_t n_prompt_tokens(std::span<const TaskItem> items) {
  int64_t n = 0;
  for (const TaskItem& item : items) n += ssize(item.prompt);
  return n;
}

int64_t n_ending_tokens(std::span<const TaskItem> items) {
  int64_t n = 0;
  for (const TaskItem& item : items)
    for (const auto& ending : item.endings) n += ssize(ending);
  return n;
}

bool write_texts(std::span<const TaskItem> items, int n, Texts& texts, const TaskAdvance& advance,
                 std::vector<std::vector<int32_t>>& written) {
  std::vector<int32_t> last = read_prompts(items, texts);
  if (!advance(n_prompt_tokens(items))) return false;
  const size_t first = written.size();
  written.resize(first + items.size());
  for (int step = 0; step < n; ++step) {
    std::vector<std::span<const int32_t>> tokens;
    for (const int32_t& token : last) tokens.push_back({&token, 1});
    texts.append(tokens, LogitRows::all);
    last = texts.likeliest();
    for (size_t i = 0; i < items.size(); ++i) written[first + i].push_back(last[i]);
    if (!advance(ssize(items))) return false;
  }
  return true;
}

/// Mean negative log-likelihood of ending number `which` of each item, in nats a token.
std::vector<double> score_endings(std::span<const TaskItem> items, size_t which, std::span<const int32_t> last,
                                  Texts& texts) {
  std::vector<std::vector<int32_t>> inputs;
  std::vector<int32_t> targets;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::vector<int32_t>& ending = items[i].endings[which];
    std::vector<int32_t>& input = inputs.emplace_back(1, last[i]);
    input.insert(input.end(), ending.begin(), ending.end() - 1);
    targets.insert(targets.end(), ending.begin(), ending.end());
  }
  texts.append(std::vector<std::span<const int32_t>>(inputs.begin(), inputs.end()), LogitRows::all);
  const std::vector<double> nll = texts.nll(targets);
  std::vector<double> means;
  size_t row = 0;
  for (const std::vector<int32_t>& input : inputs) {
    double sum = 0;
    for (size_t i = 0; i < input.size(); ++i) sum += nll[row++];
    means.push_back(sum / double(input.size()));
  }
  return means;
}

bool choose_endings(std::span<const TaskItem> items, Texts& texts, const TaskAdvance& advance,
                    std::vector<bool>& right) {
  const std::vector<int32_t> last = read_prompts(items, texts);
  texts.mark();
  if (!advance(n_prompt_tokens(items))) return false;
  const std::vector<double> of_right = score_endings(items, 0, last, texts);
  std::vector<bool> chosen(items.size(), true);
  for (size_t which = 1; which < items[0].endings.size(); ++which) {
    texts.go_back();
    const std::vector<double> of_wrong = score_endings(items, which, last, texts);
    for (size_t i = 0; i < items.size(); ++i) chosen[i] = chosen[i] && of_right[i] < of_wrong[i];
  }
  right.insert(right.end(), chosen.begin(), chosen.end());
  return advance(n_ending_tokens(items));
}

TaskLine count_line(const Task& task, const std::vector<bool>& base, const std::vector<bool>& cache) {
  TaskLine line{.task = task.name, .size = task.size, .chance = task.chance, .n_items = ssize(base)};
  for (size_t i = 0; i < base.size(); ++i) {
    line.n_right += cache[i], line.n_right_base += base[i];
    line.n_lost += base[i] && !cache[i], line.n_gained += cache[i] && !base[i];
  }
  return line;
}

Row share_row(const Share& share) {
  return {{"value", number(share.value)}, {"low", number(share.low)}, {"high", number(share.high)}};
}

/// Median and quartiles, in tokens; texts that never differ count with their whole length.
Row first_quartiles(std::span<const int> lengths) {
  std::vector<float> sorted(lengths.begin(), lengths.end());
  std::ranges::sort(sorted);
  return {{"25%", number(percentile(sorted, 0.25))},
          {"median", number(percentile(sorted, 0.5))},
          {"75%", number(percentile(sorted, 0.75))}};
}

Row line_row(const TaskLine& line) {
  Row row{{"task", line.task}, {"size", line.size}};
  if (!line.why_not.empty()) {
    row["why_not"] = line.why_not;
    return row;
  }
  row["n_items"] = line.n_items;
  row["right"] = line.n_right;
  row["right_base"] = line.n_right_base;
  row["lost"] = line.n_lost;
  row["gained"] = line.n_gained;
  row["share"] = share_row(share_of(line.n_right, line.n_items));
  row["share_base"] = share_row(share_of(line.n_right_base, line.n_items));
  row["p"] = number(mcnemar_p(line.n_lost, line.n_gained));
  row["chance"] = line.chance;
  if (line.n_generate == 0) return row;
  const auto is_equal = [&](int n) { return n >= line.n_generate; };
  row["n_generate"] = line.n_generate;
  row["equal"] = share_row(share_of(std::ranges::count_if(line.first_differences, is_equal), line.n_items));
  row["first_difference"] = first_quartiles(line.first_differences);
  return row;
}

std::string share_cell(const Row& share) {
  return fmt::format("{:.1f} ({:.1f} to {:.1f})", 100 * number_in(share, "value"), 100 * number_in(share, "low"),
                     100 * number_in(share, "high"));
}
/// A field of rows that have been measured; of rows with texts where it says something about these.
Row task_cell(const Row& row, const char* field) { return row.contains(field) ? row[field] : Row(""); }
Row difference_cell(const Row& row, const char* which) {
  if (!row.contains("first_difference")) return "";
  const double n = number_in(row["first_difference"], which);
  return fmt::format("{}{:.0f}", n >= row["n_generate"].get<double>() ? "> " : "", n);
}

std::string task_cell_text(const Row& row) {
  const std::string task = text_in(row, "task");
  return row["size"] == 0 ? task : fmt::format("{}, {} tokens", task, row["size"].get<int>());
}
std::string share_in(const Row& row, const char* field) { return row.contains(field) ? share_cell(row[field]) : ""; }

Columns<Row> task_columns() {
  return {
      {"", "-", "task and size", &task_cell_text, "task"},
      {"", "-", "cache formats", [](auto& r) { return r["kv"]; }, "KV cache K/V"},
      {"", "items", "asked, or why none", [](auto& r) { return r.contains("why_not") ? r["why_not"] : r["n_items"]; },
       ">items"},
      {"", "%", "of the items", [](auto& r) { return share_in(r, "share"); }, ">right % (95 %)"},
      {"", "%", "of the items, by the base", [](auto& r) { return share_in(r, "share_base"); }, ">base right % (95 %)"},
      {"", "items", "that the base has right alone", [](auto& r) { return task_cell(r, "lost"); }, ">lost"},
      {"", "items", "that this cache has right alone", [](auto& r) { return task_cell(r, "gained"); }, ">gained"},
      {"", "-", "chance of such a difference", [](auto& r) { return task_cell(r, "p"); }, ">p", "{:.3f}"},
      {"", "%", "texts that equal the base's", [](auto& r) { return share_in(r, "equal"); }, ">equal texts % (95 %)"},
      {"", "tokens", "quartile", [](auto& r) { return difference_cell(r, "25%"); }, ">first difference: 25 %"},
      {"", "tokens", "median", [](auto& r) { return difference_cell(r, "median"); }, ">median"},
      {"", "tokens", "quartile", [](auto& r) { return difference_cell(r, "75%"); }, ">75 %"},
  };
}

}  // namespace

TaskSizes quick_task_sizes() {
  return {.needle_contexts = {1024, 2048},
          .n_needles = 10,
          .n_canaries = 10,
          .n_continuations = 8,
          .continuation_lengths = {256},
          .n_cloze = 100,
          .n_sums = 40};
}

int Task::n_ctx() const {
  size_t most = 0;
  for (const TaskItem& item : items) {
    most = std::max(most, item.prompt.size() + size_t(n_generate));
    for (const auto& ending : item.endings) most = std::max(most, item.prompt.size() + ending.size());
  }
  return int(most);
}

int64_t Task::n_tokens() const { return ssize(items) * n_generate + n_prompt_tokens(items) + n_ending_tokens(items); }

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const TaskMaker& maker : kMakers) names.emplace_back(maker.name);
  return names;
}

std::vector<Task> make_tasks(const Model& model, const Corpus& corpus, const TaskOptions& options) {
  const std::vector<std::string> names = task_names();
  for (const std::string& name : options.only)
    if (std::ranges::find(names, name) == names.end())
      throw_wrong_field("only", "no task '{}' (there are: {})", name, fmt::join(names, ", "));
  if (!model.info().has_tokenizer) throw Error(ErrorKind::usage, "tasks are texts, and the model has no tokenizer");
  const TaskSource source{model, corpus, options, model.info().add_bos ? model.bos() : std::nullopt,
                          find_sentences(model, corpus.tokens)};
  std::vector<Task> tasks;
  for (const TaskMaker& maker : kMakers) {
    if (!options.only.empty() && std::ranges::find(options.only, maker.name) == options.only.end()) continue;
    for (Task& task : maker.make(source)) tasks.push_back(std::move(task));
  }
  return tasks;
}

std::optional<TaskAnswers> run_task(const Task& task, const Model& model, Texts& texts, const TaskAdvance& advance) {
  TaskAnswers answers;
  const std::span<const TaskItem> items(task.items);
  for (size_t first = 0; first < items.size(); first += size_t(texts.n_seq())) {
    const auto group = items.subspan(first, std::min(size_t(texts.n_seq()), items.size() - first));
    if (task.n_generate == 0) {
      if (!choose_endings(group, texts, advance, answers.right)) return std::nullopt;
    } else if (!write_texts(group, task.n_generate, texts, advance, answers.texts)) {
      return std::nullopt;
    }
  }
  for (size_t i = 0; i < answers.texts.size(); ++i)
    answers.right.push_back(!items[i].is_right || items[i].is_right(task_text(model, answers.texts[i])));
  return answers;
}

std::vector<TaskLine> compare_answers(const Task& task, const TaskAnswers& base, const TaskAnswers& cache) {
  RIDGE_CHECK(base.right.size() == cache.right.size() && !base.right.empty(), "{} and {} items", base.right.size(),
              cache.right.size());
  std::vector<int> equal;  // tokens
  for (size_t i = 0; i < base.texts.size(); ++i)
    equal.push_back(int(std::ranges::mismatch(base.texts[i], cache.texts[i]).in1 - base.texts[i].begin()));
  std::vector<TaskLine> lines;
  const auto add = [&](const std::vector<bool>& right, int n_generate) {
    TaskLine& line = lines.emplace_back(count_line(task, base.right, right));
    line.n_generate = n_generate;
    for (const int n : equal) line.first_differences.push_back(std::min(n, n_generate));
  };
  if (task.lengths.empty()) add(cache.right, task.n_generate);
  for (const int length : task.lengths) {
    std::vector<bool> right;
    for (const int n : equal) right.push_back(n >= length);
    add(right, length);
    lines.back().task = fmt::format("{} of {}", task.name, length);
  }
  return lines;
}

void run_tasks(const Model& model, const Corpus& corpus, const TaskOptions& options, const TaskHooks& hooks) {
  const std::vector<Task> tasks = make_tasks(model, corpus, options);
  int64_t done = 0, total = 0;
  for (const Task& task : tasks) total += task.n_tokens() * (1 + ssize(options.candidates));
  const TaskAdvance advance = [&](int64_t n) {
    done += n;
    if (hooks.on_progress) hooks.on_progress(done, total);
    return !(hooks.stop && hooks.stop());
  };
  const auto answer = [&](const Task& task, const KvChoice& kv, KvReport* cache) {
    const auto texts = EngineTexts::open(model, kv, task.n_ctx(), int(ssize(task.items)));
    const auto answers = run_task(task, model, *texts, advance);
    if (cache) *cache = texts->cache();
    return answers;
  };
  std::vector<TaskAnswers> base;
  for (const Task& task : tasks) {
    if (!task.why_not.empty()) {
      base.emplace_back();
      continue;
    }
    auto answers = answer(task, options.base, nullptr);
    if (!answers) return;
    base.push_back(std::move(*answers));
  }
  for (const KvChoice& kv : options.candidates) {
    TaskResult result{.kv = kv, .cache = {}, .lines = {}};
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (!tasks[i].why_not.empty()) {
        result.lines.push_back({.task = tasks[i].name, .size = tasks[i].size, .why_not = tasks[i].why_not});
        continue;
      }
      const auto answers = answer(tasks[i], kv, &result.cache);
      if (!answers) return;
      for (TaskLine& line : compare_answers(tasks[i], base[i], *answers)) result.lines.push_back(std::move(line));
    }
    if (hooks.on_result) hooks.on_result(result);
  }
}

std::vector<Row> to_rows(const Row& subject, const TaskOptions& options, const TaskResult& result) {
  std::vector<Row> rows;
  for (const TaskLine& line : result.lines) {
    Row& row = rows.emplace_back(subject);
    row.update(line_row(line));
    row["task_seed"] = options.seed;
    row["kv"] = kv_text(result.kv);
    row["base"] = kv_text(options.base);
    row["kv_k"] = kv_side_columns().fields(result.cache.k);
    row["kv_v"] = kv_side_columns().fields(result.cache.v);
  }
  return rows;
}

std::string task_table(std::span<const Row> rows) { return task_columns().table(rows); }

}  // namespace ridge::lab
