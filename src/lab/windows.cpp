#include "lab/windows.h"

#include <algorithm>
#include <cstring>

namespace ridge::lab {
namespace {

/// A pass over the windows; the buffers live as long as the pass.
class Pass {
 public:
  Pass(const Windows& windows, const PassOptions& options, ThreadPool& pool, bool has_base)
      : windows_(windows),
        options_(options),
        pool_(pool),
        has_base_(has_base),
        base_rows_(has_base || options.base_log_probs ? buffer_size() : 0),
        rows_(buffer_size()),
        base_facts_(size_t(options.block_rows)),
        facts_(size_t(options.block_rows)),
        block_scores_(size_t(options.block_rows)) {}

  /// Scores of one chunk from first_row() on, [candidate][token]; nothing when asked to stop.
  std::optional<std::vector<std::vector<TokenScore>>> chunk(std::span<const int32_t> tokens, int index, Timeline* base,
                                                            std::span<Timeline* const> candidates);
  /// The first position of a window whose row is looked at.
  int first_row() const { return options_.whole_curve && has_base_ ? 0 : windows_.first_scored(); }

 private:
  size_t buffer_size() const { return size_t(options_.block_rows) * size_t(options_.vocab_size); }
  std::span<const float> row(const std::vector<float>& rows, int64_t i) const {
    return {rows.data() + i * options_.vocab_size, size_t(options_.vocab_size)};
  }
  bool stopped() const { return options_.stop && options_.stop(); }
  void advanced(size_t steps) const {
    if (options_.on_progress) options_.on_progress(int64_t(steps));
  }
  bool feed(Timeline& timeline, std::span<const int32_t> tokens);
  bool read_rows(Timeline& timeline, std::span<const int32_t> tokens, std::vector<float>& rows);
  void look_at(const std::vector<float>& rows, size_t n_rows, std::vector<RowFacts>& facts, int chunk_index,
               int first_position, int candidate);
  void score(std::span<const int32_t> targets);

  const Windows& windows_;
  const PassOptions& options_;
  ThreadPool& pool_;
  const bool has_base_;
  std::vector<float> base_rows_, rows_;  // [block_rows, vocab_size]
  std::vector<RowFacts> base_facts_, facts_;
  std::vector<TokenScore> block_scores_;
};

/// Appends tokens whose logits nobody scores. False when asked to stop.
bool Pass::feed(Timeline& timeline, std::span<const int32_t> tokens) {
  if (options_.path == EvalPath::prefill) {
    if (!tokens.empty()) timeline.prefill(tokens);
    advanced(tokens.size());
    return !stopped();
  }
  for (const int32_t token : tokens) {
    timeline.decode(token);
    advanced(1);
    if (stopped()) return false;
  }
  return true;
}

/// Appends tokens and keeps their logits. False when asked to stop.
bool Pass::read_rows(Timeline& timeline, std::span<const int32_t> tokens, std::vector<float>& rows) {
  const auto keep = [&](size_t first, size_t n_rows, const float* logits) {
    RIDGE_CHECK(first + n_rows <= tokens.size(), "row {} of {}", first + n_rows, tokens.size());
    std::memcpy(rows.data() + first * size_t(options_.vocab_size), logits,
                n_rows * size_t(options_.vocab_size) * sizeof(float));
    advanced(n_rows);
  };
  if (options_.path == EvalPath::prefill) {
    timeline.prefill(tokens,
                     [&](int first, int n_rows, const float* logits) { keep(size_t(first), size_t(n_rows), logits); });
    return !stopped();
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    keep(i, 1, timeline.decode(tokens[i]).data());
    if (stopped()) return false;
  }
  return true;
}

void Pass::look_at(const std::vector<float>& rows, size_t n_rows, std::vector<RowFacts>& facts, int chunk_index,
                   int first_position, int candidate) {
  pool_.for_each(int64_t(n_rows), [&](int64_t i, int) { facts[size_t(i)] = row_facts(row(rows, i)); });
  for (size_t i = 0; i < n_rows; ++i)
    if (!facts[i].finite)
      throw Error(ErrorKind::failure,
                  fmt::format("logits are not finite: {}, chunk {}, position {} (no statistics from such a model)",
                              candidate < 0 ? "the base" : fmt::format("candidate {}", candidate + 1), chunk_index + 1,
                              first_position + int(i)));
}

void Pass::score(std::span<const int32_t> targets) {
  pool_.for_each(int64_t(targets.size()), [&](int64_t i, int) {
    const size_t at = size_t(i);
    TokenScore& out = block_scores_[at];
    if (has_base_) out = score_token(row(base_rows_, i), base_facts_[at], row(rows_, i), facts_[at], targets[at]);
    else if (options_.base_log_probs)
      out = score_token_of_log_probs(row(base_rows_, i), row(rows_, i), facts_[at], targets[at]);
    else out = {.nll = nll(row(rows_, i), facts_[at], targets[at])};
  });
}

std::optional<std::vector<std::vector<TokenScore>>> Pass::chunk(std::span<const int32_t> tokens, int index,
                                                                Timeline* base, std::span<Timeline* const> candidates) {
  const int first = first_row(), first_scored = windows_.first_scored();
  const int end = first_scored + windows_.scored_per_chunk();
  const std::span<const int32_t> head = tokens.first(size_t(first));
  std::vector<std::vector<TokenScore>> scores(candidates.size());
  if (base) {
    base->reset();
    if (!feed(*base, head)) return std::nullopt;
  }
  for (Timeline* candidate : candidates) {
    candidate->reset();
    if (!feed(*candidate, head)) return std::nullopt;
  }
  for (int begin = first, n = 0; begin < end; begin += n) {
    n = std::min(options_.block_rows, (begin < first_scored ? first_scored : end) - begin);
    const auto n_rows = size_t(n);
    const auto inputs = tokens.subspan(size_t(begin), n_rows), targets = tokens.subspan(size_t(begin) + 1, n_rows);
    if (base) {
      if (!read_rows(*base, inputs, base_rows_)) return std::nullopt;
      look_at(base_rows_, n_rows, base_facts_, index, begin, -1);
      if (options_.on_base_rows && begin >= first_scored) options_.on_base_rows(base_rows_.data(), n);
    } else if (options_.base_log_probs) {
      const int64_t row = int64_t(index) * windows_.scored_per_chunk() + begin - first_scored;
      pool_.for_each(n, [&](int64_t i, int) {
        options_.base_log_probs(row + i, {base_rows_.data() + i * options_.vocab_size, size_t(options_.vocab_size)});
      });
    }
    for (size_t c = 0; c < candidates.size(); ++c) {
      if (!read_rows(*candidates[c], inputs, rows_)) return std::nullopt;
      look_at(rows_, n_rows, facts_, index, begin, int(c));
      score(targets);
      scores[c].insert(scores[c].end(), block_scores_.begin(), block_scores_.begin() + int64_t(n_rows));
    }
  }
  return scores;
}

}  // namespace

std::string_view eval_path_name(EvalPath path) { return path == EvalPath::prefill ? "prefill" : "decode"; }

std::vector<int32_t> Windows::chunk(std::span<const int32_t> text, int index) const {
  const auto part = text.subspan(size_t(index) * size_t(n_ctx), size_t(n_ctx));
  std::vector<int32_t> tokens(part.begin(), part.end());
  if (bos) tokens.front() = *bos;
  return tokens;
}

Result<Windows> plan_windows(int64_t n_tokens, int n_ctx, int max_chunks, std::optional<int32_t> bos) {
  if (n_ctx < 4)
    return fail(ErrorKind::usage, "a window of {} tokens scores nothing (use --ctx-size 4 or more)", n_ctx);
  if (max_chunks == 0) return fail(ErrorKind::usage, "0 chunks score nothing (use --chunks 1 or more, or -1 for all)");
  const int64_t whole = n_tokens / n_ctx;
  if (whole == 0)
    return fail(ErrorKind::usage,
                "the text has {} tokens, a window needs {} (give a longer text or a smaller --ctx-size)", n_tokens,
                n_ctx);
  const int64_t n_chunks = max_chunks < 0 ? whole : std::min<int64_t>(whole, max_chunks);
  return Windows{n_ctx, int(n_chunks), bos};
}

int run_windows(const Windows& windows, std::span<const int32_t> text, Timeline* base,
                std::span<Timeline* const> candidates, const PassOptions& options, ThreadPool& pool,
                std::vector<Scores>& scores) {
  RIDGE_CHECK(options.block_rows > 0 && options.vocab_size > 0, "{} rows of {}", options.block_rows,
              options.vocab_size);
  scores.resize(candidates.size());
  const bool has_base = base || options.base_log_probs;
  Pass pass(windows, options, pool, base != nullptr);
  for (int index = 0; index < windows.n_chunks; ++index) {
    const auto done = pass.chunk(windows.chunk(text, index), index, base, candidates);
    if (!done) return index;
    for (size_t c = 0; c < candidates.size(); ++c)
      for (size_t i = 0; i < (*done)[c].size(); ++i) {
        const TokenScore& score = (*done)[c][i];
        const int position = pass.first_row() + int(i);
        if (!has_base) {
          scores[c].ppl.add(score.nll);
          continue;
        }
        scores[c].curve[size_t(curve_part(position, windows.n_ctx))].add(score.kld);
        if (position >= windows.first_scored()) scores[c].pair.add(score);
      }
    if (options.on_chunk) options.on_chunk(index + 1);
  }
  return windows.n_chunks;
}

}  // namespace ridge::lab
