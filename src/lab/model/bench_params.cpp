#include "lab/model/bench_params.h"

#include <charconv>

namespace ridge::lab {
namespace {

constexpr size_t kMaxValues = 1000;

/// Reads a whole number at the front of `text` and removes it.
bool take_int(std::string_view& text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  text.remove_prefix(size_t(end - text.data()));
  return true;
}

/// One item of a list: a value or a range. False when it is not one.
bool parse_item(std::string_view text, std::vector<int>& values) {
  int first = 0, last = 0, step = 1;
  if (!take_int(text, first)) return false;
  if (text.empty()) return values.push_back(first), true;
  if (text[0] != '-') return false;
  text.remove_prefix(1);
  if (!take_int(text, last) || last < first) return false;
  bool multiply = false;
  if (!text.empty()) {
    multiply = text[0] == '*';
    if (!multiply && text[0] != '+') return false;
    text.remove_prefix(1);
    if (!take_int(text, step) || !text.empty()) return false;
  }
  if (multiply ? step < 2 || first < 1 : step < 1) return false;
  for (int64_t value = first; value <= last; value = multiply ? value * step : value + step) {
    if (values.size() >= kMaxValues) return false;
    values.push_back(int(value));
  }
  return true;
}

}  // namespace

Result<std::vector<int>> parse_int_list(std::string_view flag, std::string_view text, int min, int max) {
  std::vector<int> values;
  for (const std::string& item : split(text, ',')) {
    if (!parse_item(item, values) || values.size() > kMaxValues)
      return fail(ErrorKind::usage,
                  "{}: '{}' is not a number, list or range (8  1,2,4  512-4096*2  1-9+2, at most {} values)", flag,
                  text, kMaxValues);
    for (const int value : values)
      if (value < min || value > max)
        return fail(ErrorKind::usage, "{}: {} is out of range ({} to {})", flag, value, min, max);
  }
  return values;
}

Result<PromptGen> parse_prompt_gen(std::string_view text) {
  const auto numbers = parse_int_list("-pg", text, 1, 1 << 24);
  if (!numbers || numbers->size() != 2)
    return fail(ErrorKind::usage, "-pg: '{}' is not a pair of counts (-pg 512,128)", text);
  return PromptGen{(*numbers)[0], (*numbers)[1]};
}

std::string BenchTest::name() const {
  std::string text;
  if (n_prompt > 0) text = fmt::format("pp{}", n_prompt);
  if (n_gen > 0) text += fmt::format("{}tg{}", n_prompt > 0 ? "+" : "", n_gen);
  if (n_depth > 0) text += fmt::format(" @ d{}", n_depth);
  return text;
}

std::vector<BenchTest> bench_tests(const BenchParams& params) {
  std::vector<BenchTest> tests;
  for (const int n_batch : params.n_batch)
    for (const int n_ubatch : params.n_ubatch)
      for (size_t i = 0; i < params.kv.size() + (params.by_record ? 1 : 0); ++i)
        for (const int n_depth : params.n_depth) {
          const bool by_record = i == params.kv.size();
          const KvChoice kv = by_record ? KvChoice{} : params.kv[i];
          const auto add = [&](int n_prompt, int n_gen) {
            if (n_prompt > 0 || n_gen > 0)
              tests.push_back({n_batch, n_ubatch, kv, n_depth, n_prompt, n_gen, by_record});
          };
          for (const int n_prompt : params.n_prompt) add(n_prompt, 0);
          for (const int n_gen : params.n_gen) add(0, n_gen);
          for (const PromptGen& pair : params.prompt_gen) add(pair.n_prompt, pair.n_gen);
        }
  return tests;
}

void check_layers_are_distinct(const std::string& model, std::string_view device) {
  if (device == "cpu" && model.starts_with("synth:") && model.find("@shared=1") != std::string::npos)
    throw_error(
        ErrorKind::usage,
        "{}: shared=1 is for devices, which hold every layer by itself; a CPU would read the shared layers from "
        "its caches (leave it out)",
        model);
}

}  // namespace ridge::lab
