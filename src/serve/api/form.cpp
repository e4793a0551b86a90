#include "serve/api/form.h"

#include <random>

namespace ridge::serve {

Usage AnswerData::usage() const {
  Usage sum;
  for (size_t i = 0; i < choices.size(); ++i) {
    const Usage& u = choices[i].usage;
    if (i % size_t(request.n_choices) == 0) sum.n_prompt += u.n_prompt, sum.n_cached += u.n_cached;
    sum.n_generated += u.n_generated;
    sum.n_proposed += u.n_proposed;
    sum.n_accepted += u.n_accepted;
  }
  return sum;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json timings_json(const Usage& u) {
  const int n_computed = u.n_prompt - u.n_cached;
  const auto rate = [](int n, double seconds) { return seconds > 0 ? n / seconds : 0.0; };
  return {{"queue_ms", 1e3 * u.queue_seconds},
          {"prompt_n", n_computed},
          {"cache_n", u.n_cached},
          {"prompt_ms", 1e3 * u.prompt_seconds},
          {"prompt_per_second", rate(n_computed, u.prompt_seconds)},
          {"predicted_n", u.n_generated},
          {"predicted_ms", 1e3 * u.decode_seconds},
          {"predicted_per_second", rate(u.n_generated - 1, u.decode_seconds)}};
}

std::string new_id(std::string_view prefix) {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, random(), random(), random());
}

void ApiForm::push_text(std::string_view data, std::string_view name) {
  if (events_ && !events_->push(data, name)) gone_ = true;
}

}  // namespace ridge::serve
