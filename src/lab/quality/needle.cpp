#include "lab/quality/needle.h"

#include <algorithm>

#include "base/rng.h"
#include "lab/quality/quality_report.h"

namespace ridge::lab {
namespace {

/// Tokens that stand for text and that the text uses: the model has learnt to tell them apart.
std::vector<int32_t> text_tokens(const Model& model, const Corpus& corpus) {
  constexpr int kFewest = 16;  // occurrences
  std::vector<int> count(size_t(model.info().vocab_size), 0);
  for (const int32_t id : corpus.tokens) ++count[size_t(id)];
  const int fewest = int64_t(corpus.tokens.size()) >= int64_t(kFewest) * model.info().vocab_size ? kFewest : 1;
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < model.info().vocab_size; ++id)
    if (count[size_t(id)] >= fewest && !model.piece(id).empty() && !model.is_end(id) && id != model.bos())
      ids.push_back(id);
  return ids;
}

struct Trial {
  std::vector<int32_t> needle;
  std::span<const int32_t> text;
};

/// Needles of different tokens, texts spread over the corpus.
std::vector<Trial> make_trials(const Model& model, const Corpus& corpus, const NeedleOptions& options) {
  const std::vector<int32_t> ids = text_tokens(model, corpus);
  if (int(ids.size()) < options.needle)
    throw_error(ErrorKind::usage, "the text has {} different tokens to choose from, a needle needs {}", ids.size(),
                options.needle);
  const int64_t room = int64_t(corpus.tokens.size()) - options.n_ctx;
  if (room < 0)
    throw_wrong_field("n_ctx", "the text has {} tokens, a probe needs {} (give a longer text or smaller probes)",
                      corpus.tokens.size(), options.n_ctx);
  Rng rng(options.seed);
  std::vector<Trial> trials;
  for (int i = 0; i < options.n_trials; ++i) {
    Trial trial;
    while (int(trial.needle.size()) < options.needle) {
      const int32_t id = ids[size_t(rng.uniform() * double(ids.size()))];
      if (std::find(trial.needle.begin(), trial.needle.end(), id) == trial.needle.end()) trial.needle.push_back(id);
    }
    const int64_t at = options.n_trials == 1 ? 0 : room * i / (options.n_trials - 1);
    trial.text = std::span(corpus.tokens).subspan(size_t(at), size_t(options.n_ctx));
    trials.push_back(std::move(trial));
  }
  return trials;
}

Row to_row(const NeedleScore& score) {
  return {{"nll", to_row(score.nll.mean())},
          {"tokens_found", to_row(score.top.mean())},
          {"exact", number(score.exact.mean().value)},
          {"tokens", score.nll.count()}};
}

}  // namespace

NeedleProbe make_probe(const NeedleOptions& options, std::span<const int32_t> text, std::span<const int32_t> needle,
                       std::optional<double> depth, std::optional<int32_t> bos) {
  const int n_needle = int(needle.size()), cue = options.cue;
  // The tail repeats all of the needle: cue and answer.
  const int n_text = options.n_ctx - n_needle - (depth ? options.copies * n_needle : 0);
  RIDGE_CHECK(n_text > 0 && int(text.size()) >= n_text && cue > 0 && cue < n_needle, "{} of text, cue {} of {}", n_text,
              cue, n_needle);
  NeedleProbe probe;
  const auto append = [&](std::span<const int32_t> tokens) {
    probe.tokens.insert(probe.tokens.end(), tokens.begin(), tokens.end());
  };
  // BOS stays in front.
  const int before = depth ? 1 + int(*depth * (n_text - 1) + 0.5) : n_text;
  append(text.first(size_t(before)));
  if (depth) {
    probe.needle_at = before;
    for (int i = 0; i < options.copies; ++i) append(needle);
    append(text.subspan(size_t(before), size_t(n_text - before)));
  }
  append(needle);
  probe.first_answer = options.n_ctx - n_needle + cue;
  if (bos) probe.tokens.front() = *bos;
  return probe;
}

std::vector<NeedleProbe> make_probes(const Model& model, const Corpus& corpus, const NeedleOptions& options,
                                     std::optional<double> depth) {
  const auto bos = model.info().add_bos ? model.bos() : std::nullopt;
  std::vector<NeedleProbe> probes;
  for (const Trial& trial : make_trials(model, corpus, options))
    probes.push_back(make_probe(options, trial.text, trial.needle, depth, bos));
  return probes;
}

void score_probe(Timeline& timeline, const NeedleProbe& probe, NeedleScore& score, std::vector<bool>* found_tokens) {
  const std::span<const int32_t> tokens(probe.tokens);
  const auto first = size_t(probe.first_answer);
  timeline.reset();
  timeline.prefill(tokens.first(first - 1));
  bool all = true;
  for (size_t i = first; i < tokens.size(); ++i) {
    const std::span<const float> logits = timeline.decode(tokens[i - 1]);
    const RowFacts facts = row_facts(logits);
    if (!facts.finite) throw Error(ErrorKind::bad_file, "logits are not finite (no statistics from such a model)");
    const bool found = facts.top == tokens[i];
    score.nll.add(nll(logits, facts, tokens[i]));
    score.top.add(found);
    if (found_tokens) found_tokens->push_back(found);
    all = all && found;
  }
  score.exact.add(all);
}

void run_needle(const Model& model, const Corpus& corpus, const NeedleOptions& options, const NeedleHooks& hooks) {
  if (options.cue < 1 || options.cue >= options.needle || options.n_depths < 1 || options.copies < 1 ||
      options.n_ctx < (options.copies + 1) * options.needle + 2)
    throw_wrong_field(
        "n_ctx",
        "{} needles of {} with a cue of {} do not fit in {} tokens (a shorter needle, a cue below it, or more tokens)",
        options.copies, options.needle, options.cue, options.n_ctx);
  const std::vector<Trial> trials = make_trials(model, corpus, options);
  const auto bos = model.info().add_bos ? model.bos() : std::nullopt;
  const auto total = int64_t(options.candidates.size() * trials.size()) * (options.n_depths + 1);
  int64_t done = 0;
  for (const KvChoice& kv : options.candidates) {
    SessionTimeline timeline(model, session_options(kv, options.n_ctx, kTimelineUbatch));
    NeedleResult result{.kv = kv, .cache = timeline.session.kv_report()};
    const auto run = [&](std::optional<double> depth, NeedleScore& score) {
      for (const Trial& trial : trials) {
        score_probe(timeline, make_probe(options, trial.text, trial.needle, depth, bos), score);
        if (hooks.on_progress) hooks.on_progress(++done, total);
        if (hooks.stop && hooks.stop()) return false;
      }
      return true;
    };
    for (int i = 0; i < options.n_depths; ++i) {
      const double depth = options.n_depths == 1 ? 0 : double(i) / (options.n_depths - 1);
      result.depths.push_back({.depth = depth});
      if (!run(depth, result.depths.back())) return;
    }
    if (!run(std::nullopt, result.absent)) return;
    if (hooks.on_result) hooks.on_result(result);
  }
}

Row to_row(const Row& subject, const NeedleOptions& options, const NeedleResult& result) {
  Row row = subject;
  row["n_ctx"] = options.n_ctx;
  row["n_trials"] = options.n_trials;
  row["needle"] = options.needle;
  row["copies"] = options.copies;
  row["cue"] = options.cue;
  row["needle_seed"] = options.seed;
  row["kv"] = kv_text(result.kv);
  row["kv_k"] = to_row(result.cache.k);
  row["kv_v"] = to_row(result.cache.v);
  row["bytes_per_token"] = result.cache.bytes_per_token();
  row["depths"] = Row::array();
  for (const NeedleScore& score : result.depths) {
    Row depth{{"depth", score.depth}};
    depth.update(to_row(score));
    row["depths"].push_back(std::move(depth));
  }
  row["absent"] = to_row(result.absent);
  return row;
}

std::string needle_table(std::span<const Row> rows) {
  if (rows.empty()) return "";
  std::string text = "| KV cache K/V |", rule = "|---|";
  for (const Row& depth : rows[0]["depths"]) {
    text += fmt::format(" depth {:.0f} % |", 100 * depth["depth"].get<double>());
    rule += "---:|";
  }
  text += " not planted |\n" + rule + "---:|\n";
  const auto cell = [](const Row& score) {
    return fmt::format(" {:.1f} % ({:.2f}) |", 100 * score["tokens_found"]["value"].get<double>(),
                       score["nll"]["value"].get<double>());
  };
  for (const Row& row : rows) {
    text += "| " + row["kv"].get<std::string>() + " |";
    for (const Row& depth : row["depths"]) text += cell(depth);
    text += cell(row["absent"]) + "\n";
  }
  return text;
}

}  // namespace ridge::lab
