#include "lab/quality/greedy.h"

#include <algorithm>

#include "engine/finite.h"

namespace ridge::lab {

Result<std::vector<std::vector<int32_t>>> pick_prompts(std::span<const int32_t> text, int n, int length,
                                                       std::optional<int32_t> bos) {
  const int64_t room = int64_t(text.size()) - length;
  if (n < 1 || length < 2 || room < n - 1)
    return fail(ErrorKind::usage, "{} prompts of {} tokens do not fit in a text of {} (fewer or shorter prompts)", n,
                length, text.size());
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < n; ++i) {
    const auto part = text.subspan(size_t(n == 1 ? 0 : room * i / (n - 1)), size_t(length));
    prompts.emplace_back(part.begin(), part.end());
    if (bos) prompts.back().front() = *bos;
  }
  return prompts;
}

std::vector<int32_t> greedy_tokens(Timeline& timeline, std::span<const int32_t> prompt, int n) {
  RIDGE_CHECK(prompt.size() >= 2, "prompt of {}", prompt.size());
  timeline.reset();
  timeline.prefill(prompt.first(prompt.size() - 1));
  std::vector<int32_t> tokens;
  int32_t last = prompt.back();
  for (int i = 0; i < n; ++i) {
    const std::span<const float> logits = timeline.decode(last);
    check_logits(logits);
    last = int32_t(std::ranges::max_element(logits) - logits.begin());
    tokens.push_back(last);
  }
  return tokens;
}

}  // namespace ridge::lab
