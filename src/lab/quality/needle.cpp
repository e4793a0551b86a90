#include "lab/quality/needle.h"

#include <algorithm>

#include "base/rng.h"

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

std::vector<bool> found_tokens(Timeline& timeline, const NeedleProbe& probe) {
  const std::span<const int32_t> tokens(probe.tokens);
  const auto first = size_t(probe.first_answer);
  timeline.reset();
  timeline.prefill(tokens.first(first - 1));
  std::vector<bool> found;
  for (size_t i = first; i < tokens.size(); ++i) {
    const RowFacts facts = row_facts(timeline.decode(tokens[i - 1]));
    if (!facts.finite) throw Error(ErrorKind::bad_file, "logits are not finite (no statistics from such a model)");
    found.push_back(facts.top == tokens[i]);
  }
  return found;
}

}  // namespace ridge::lab
