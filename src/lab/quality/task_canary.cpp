// Canaries: lists of JSON objects and of pieces of code whose last one a cache completes. JSON must parse, brackets
// must match.
#include "lab/quality/task_words.h"
#include "lab/quality/tasks.h"

namespace ridge::lab {
namespace {

/// A kind of list: `whole` makes each entry, of the last one only the text in front of '~' stands in the prompt.
constexpr std::string_view kJsonKinds[] = {
    R"({"name":~ "$n", "age": $d, "city": "$c", "married": $b})",
    R"({"id":~ $d, "done": $b, "tags": ["$a", "$w"], "user": {"name": "$n", "level": $0}})",
    R"({"item":~ "$w", "price": $d.$0$0, "size": {"width": $d, "height": $d}, "colors": ["$a", "$a"]})",
    R"({"from":~ "$c", "to": "$c", "days": [$d, $d, $d], "driver": {"name": "$n"}})",
    R"({"user":~ {"name": "$n", "id": $d}, "items": [{"kind": "$w", "count": $d}, {"kind": "$w", "count": $d}]})"};
constexpr std::string_view kCodeKinds[] = {
    "int $v_$w(int a, int b) {~\n  if (a > $d) {\n    return (a + $d) * b;\n  }\n  return b - $d;\n}\n\n",
    "function $v$w(items) {~\n  return items.filter((x) => x.$w > $d).map((x) => [x.$a, x.$w]);\n}\n\n",
    "const $a_$w = {~\n  name: \"$n\",\n  places: [\"$c\", \"$c\"],\n  size: { width: $d, height: $d },\n};\n\n",
    "for (int i = 0; i < $d; ++i) {~\n  $w[i] = ($w[i] + $d) * (i + $d);\n}\n\n",
    "void test_$v_$w() {~\n  assert(equal($v_$w($d), $d));\n  print(\"$w (%d)\\n\", $v_$w($d, $d));\n}\n\n"};
constexpr int kEntries = 10;  // whole ones

/// `behind` stands between entries.
Task canary_task(const TaskSource& source, std::string name, std::span<const std::string_view> kinds,
                 std::string_view behind, bool (*is_right)(std::string_view begun, std::string_view text)) {
  Task task{.name = std::move(name), .n_generate = 96};
  Rng rng(source.options.seed);
  for (int i = 0; i < source.options.sizes.n_canaries; ++i) {
    const std::string_view kind = kinds[size_t(i) % kinds.size()];
    const size_t cut = kind.find('~');
    const std::string entry = std::string(kind.substr(0, cut)) + std::string(kind.substr(cut + 1));
    std::string prompt;
    for (int j = 0; j < kEntries; ++j) prompt += filled(entry, rng) + std::string(behind);
    const std::string begun = filled(kind.substr(0, cut), rng);
    task.items.push_back({.prompt = source.model.tokenize(prompt + begun),
                          .is_right = [begun, is_right](std::string_view text) { return is_right(begun, text); }});
  }
  return task;
}

}  // namespace

bool completes_json(std::string_view begun, std::string_view text) {
  const std::string line = std::string(begun) + std::string(text.substr(0, text.find('\n')));
  return Row::parse(line, nullptr, false).is_object();
}

bool closes_brackets(std::string_view begun, std::string_view text) {
  constexpr std::string_view kOpening = "([{", kClosing = ")]}";
  const std::string all = std::string(begun) + std::string(text);
  std::string open;
  bool quoted = false;
  for (size_t i = 0; i < all.size(); ++i) {
    const char c = all[i];
    if (c == '\n' && i >= begun.size() && open.empty()) return true;
    if (quoted && c == '\\') ++i;
    else if (c == '"') quoted = !quoted;
    if (quoted || c == '"') continue;
    if (const size_t which = kOpening.find(c); which != kOpening.npos) open += kClosing[which];
    if (kClosing.find(c) == kClosing.npos) continue;
    if (open.empty() || open.back() != c) return false;
    open.pop_back();
  }
  return open.empty();
}

std::vector<Task> json_canary_tasks(const TaskSource& source) {
  return {canary_task(source, "json", kJsonKinds, "\n", completes_json)};
}
std::vector<Task> code_canary_tasks(const TaskSource& source) {
  return {canary_task(source, "code", kCodeKinds, "", closes_brackets)};
}

}  // namespace ridge::lab
