#include "lab/quality/divergence.h"

#include <algorithm>

#include "engine/finite.h"
#include "lab/quality/quality_report.h"

namespace ridge::lab {
namespace {

int32_t largest(std::span<const float> logits) {
  check_logits(logits);
  return int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

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

std::vector<int32_t> greedy_tokens(Timeline& timeline, std::span<const int32_t> prompt, int n,
                                   const std::vector<int32_t>* same_as) {
  RIDGE_CHECK(prompt.size() >= 2 && (!same_as || int(same_as->size()) == n), "prompt of {}", prompt.size());
  timeline.reset();
  timeline.prefill(prompt.first(prompt.size() - 1));
  std::vector<int32_t> tokens;
  int32_t last = prompt.back();
  for (int i = 0; i < n; ++i) {
    last = largest(timeline.decode(last));
    tokens.push_back(last);
    if (same_as && last != (*same_as)[size_t(i)]) break;
  }
  return tokens;
}

void run_divergence(const Model& model, const Corpus& corpus, const DivergenceOptions& options,
                    const DivergenceHooks& hooks) {
  const auto bos = model.info().add_bos ? model.bos() : std::nullopt;
  const auto prompts = pick_prompts(corpus.tokens, options.n_prompts, options.prompt_tokens, bos).or_throw();
  const auto open = [&](const KvChoice& kv) {
    return SessionTimeline(model, session_options(kv, options.prompt_tokens + options.n_generate, kTimelineUbatch));
  };
  const auto total = int64_t(prompts.size() * (1 + options.candidates.size()));
  int64_t done = 0;
  const auto advance = [&] {
    ++done;
    if (hooks.on_progress) hooks.on_progress(done, total);
    return !(hooks.stop && hooks.stop());
  };

  std::vector<std::vector<int32_t>> texts;
  SessionTimeline base = open(options.base);
  for (const auto& prompt : prompts) {
    texts.push_back(greedy_tokens(base, prompt, options.n_generate));
    if (!advance()) return;
  }
  for (const KvChoice& kv : options.candidates) {
    SessionTimeline candidate = open(kv);
    DivergenceResult result{.kv = kv, .cache = candidate.session.kv_report()};
    for (size_t i = 0; i < prompts.size(); ++i) {
      const std::vector<int32_t> tokens = greedy_tokens(candidate, prompts[i], options.n_generate, &texts[i]);
      const bool same = tokens.back() == texts[i][tokens.size() - 1];
      result.lengths.push_back(int(tokens.size()) - (same ? 0 : 1));
      if (!advance()) return;
    }
    if (hooks.on_result) hooks.on_result(result);
  }
}

Row to_row(const Row& subject, const DivergenceOptions& options, const DivergenceResult& result) {
  std::vector<float> sorted(result.lengths.begin(), result.lengths.end());
  std::sort(sorted.begin(), sorted.end());
  MeanStat length, same;
  for (const int n : result.lengths) {
    length.add(n);
    same.add(n == options.n_generate);
  }
  Row row = subject;
  row["n_prompts"] = options.n_prompts;
  row["prompt_tokens"] = options.prompt_tokens;
  row["n_generate"] = options.n_generate;
  row["kv"] = kv_text(result.kv);
  row["base"] = kv_text(options.base);
  row["kv_k"] = to_row(result.cache.k);
  row["kv_v"] = to_row(result.cache.v);
  row["bytes_per_token"] = result.cache.bytes_per_token();
  row["identical"] = number(same.mean().value);
  row["first_difference"] = {{"mean", to_row(length.mean())},
                             {"25%", number(percentile(sorted, 0.25))},
                             {"median", number(percentile(sorted, 0.5))},
                             {"75%", number(percentile(sorted, 0.75))},
                             {"minimum", number(sorted.front())}};
  row["lengths"] = result.lengths;
  return row;
}

std::string divergence_table(std::span<const Row> rows) {
  std::string text =
      "| KV cache K/V | identical | first difference: median | 25 % | 75 % | least | mean (at least) |\n"
      "|---|---:|---:|---:|---:|---:|---:|\n";
  for (const Row& row : rows) {
    const Row& first = row["first_difference"];
    const auto cell = [&](const char* name) {  // texts that never differ count with their full length
      const auto value = first[name].get<double>();
      return value >= row["n_generate"].get<double>() ? fmt::format("> {:.0f}", value) : fmt::format("{:.0f}", value);
    };
    text += fmt::format("| {} | {:.1f} % | {} | {} | {} | {} | {:.1f} ± {:.1f} |\n", row["kv"].get<std::string>(),
                        100 * row["identical"].get<double>(), cell("median"), cell("25%"), cell("75%"), cell("minimum"),
                        first["mean"]["value"].get<double>(), first["mean"]["error"].get<double>());
  }
  return text;
}

}  // namespace ridge::lab
