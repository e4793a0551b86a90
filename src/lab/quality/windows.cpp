#include "lab/quality/windows.h"

#include <algorithm>

namespace ridge::lab {
namespace {

/// Tokens [first, first + n) of every chunk, [chunk, n].
std::vector<int32_t> columns(std::span<const std::vector<int32_t>> chunks, int first, int n) {
  std::vector<int32_t> tokens;
  tokens.reserve(chunks.size() * size_t(n));
  for (const std::vector<int32_t>& chunk : chunks)
    tokens.insert(tokens.end(), chunk.begin() + first, chunk.begin() + first + n);
  return tokens;
}

class Pass {
 public:
  Pass(const Windows& windows, Timelines* base, std::span<Timelines* const> candidates, const PassOptions& options,
       std::vector<Scores>& scores)
      : windows_(windows), base_(base), candidates_(candidates), options_(options), scores_(scores) {}

  bool has_base() const { return base_ || options_.base_log_probs; }
  /// Chunks first_chunk, first_chunk + 1, ... side by side. False when asked to stop: then nothing is added.
  bool chunks(std::span<const std::vector<int32_t>> chunks, int first_chunk) {
    const int first_scored = windows_.first_scored(), end = first_scored + windows_.scored_per_chunk();
    first_row_ = options_.whole_curve && base_ ? 0 : first_scored;  // logits are looked at from here on
    steps_.clear();
    std::vector<std::vector<RowScore>> against_file(candidates_.size());
    const auto reset = [&](Timelines& t) { t.reset(int(chunks.size())); };
    if (base_) reset(*base_);
    for (Timelines* candidate : candidates_) reset(*candidate);
    for (int begin = 0, n = 0; begin < end; begin += n) {
      // Steps end where logits begin to be looked at, and where rows begin to be scored.
      const int until = begin < first_row_ ? first_row_ : begin < first_scored ? first_scored : end;
      n = options_.path == EvalPath::decode ? 1 : std::min(options_.step_tokens, until - begin);
      const bool looked_at = begin >= first_row_;
      const std::vector<int32_t> inputs = columns(chunks, begin, n), targets = columns(chunks, begin + 1, n);
      if (looked_at) steps_.push_back(n);
      const auto advanced = [&] {
        if (options_.on_progress) options_.on_progress(int64_t(inputs.size()));
      };
      if (base_) {
        base_->run(inputs, looked_at);
        if (options_.on_base_rows && begin >= first_scored) options_.on_base_rows(base_->logits());
        advanced();
      }
      for (size_t c = 0; c < candidates_.size(); ++c) {
        candidates_[c]->run(inputs, looked_at);
        if (looked_at && options_.base_log_probs)
          score_against_file(*candidates_[c], targets, first_chunk, begin, n, against_file[c]);
        else if (looked_at) candidates_[c]->score(base_, targets);
        advanced();
      }
      if (options_.stop && options_.stop()) {
        for (Timelines* candidate : candidates_) candidate->take_scores();
        return false;
      }
    }
    for (size_t c = 0; c < candidates_.size(); ++c)
      add(options_.base_log_probs ? against_file[c] : candidates_[c]->take_scores(), chunks.size(), first_chunk,
          int(c));
    return true;
  }

 private:
  void score_against_file(Timelines& candidate, std::span<const int32_t> targets, int first_chunk, int begin, int n,
                          std::vector<RowScore>& scores) {
    const View2<const float> logits = candidate.logits();
    base_row_.resize(size_t(logits.cols));
    for (int64_t i = 0; i < logits.rows; ++i) {
      const int64_t chunk = first_chunk + i / n, position = begin + i % n;
      options_.base_log_probs(chunk * windows_.scored_per_chunk() + position - windows_.first_scored(), base_row_);
      scores.push_back(score_row_of_log_probs(base_row_, logits.row(i), targets[size_t(i)]));
    }
  }

  /// Scores of a candidate, [step][chunk][token of the step], into its statistics, chunk by chunk.
  void add(std::span<const RowScore> rows, size_t n_chunks, int first_chunk, int candidate) {
    Scores& to = scores_[size_t(candidate)];
    for (size_t chunk = 0; chunk < n_chunks; ++chunk) {
      size_t step_begin = 0;
      int position = first_row_;
      for (const int n : steps_) {
        for (int t = 0; t < n; ++t, ++position) {
          const RowScore& row = rows[step_begin + chunk * size_t(n) + size_t(t)];
          if (row.finite != (has_base() ? 3 : 1))
            throw_error(ErrorKind::bad_file,
                        "logits are not finite: {}, chunk {}, position {} (no statistics from such a model; "
                        "--check-finite names layer and tensor)",
                        has_base() && (row.finite & 2) == 0 ? "the base" : fmt::format("candidate {}", candidate + 1),
                        size_t(first_chunk) + chunk + 1, position);
          if (!has_base()) {
            to.ppl.add(row.nll);
            continue;
          }
          to.curve[size_t(curve_part(position, windows_.n_ctx))].add(row.kld);
          if (position >= windows_.first_scored()) to.pair.add(row);
        }
        step_begin += size_t(n) * n_chunks;
      }
    }
  }

  const Windows& windows_;
  Timelines* base_;
  std::span<Timelines* const> candidates_;
  const PassOptions& options_;
  std::vector<Scores>& scores_;
  int first_row_ = 0;
  std::vector<int> steps_;  // tokens of a sequence whose logits are looked at, step by step
  std::vector<float> base_row_;
};

}  // namespace

void Timelines::score(Timelines* base, std::span<const int32_t> targets) {
  const View2<const float> rows = logits(), base_rows = base ? base->logits() : View2<const float>();
  RIDGE_CHECK(rows.rows == ssize(targets), "{} targets for {} rows", targets.size(), rows.rows);
  for (int64_t i = 0; i < rows.rows; ++i)
    scores_.push_back(score_row(base ? base_rows.row(i) : std::span<const float>(), rows.row(i), targets[size_t(i)]));
}

std::string_view eval_path_name(EvalPath path) { return path == EvalPath::prefill ? "prefill" : "decode"; }

std::vector<int32_t> Windows::chunk(std::span<const int32_t> text, int index) const {
  const auto part = text.subspan(size_t(index) * size_t(n_ctx), size_t(n_ctx));
  std::vector<int32_t> tokens(part.begin(), part.end());
  if (bos) tokens.front() = *bos;
  return tokens;
}

Result<Windows> plan_windows(int64_t n_tokens, int n_ctx, int max_chunks, std::optional<int32_t> bos) {
  if (n_ctx < 4) return wrong_field("n_ctx", "a window of {} tokens scores nothing (use 4 or more)", n_ctx);
  if (max_chunks == 0) return wrong_field("max_chunks", "0 chunks score nothing (use 1 or more, or -1 for all)");
  const int64_t whole = n_tokens / n_ctx;
  if (whole == 0)
    return wrong_field("n_ctx", "the text has {} tokens, a window needs {} (give a longer text or a smaller window)",
                       n_tokens, n_ctx);
  const int64_t n_chunks = max_chunks < 0 ? whole : std::min<int64_t>(whole, max_chunks);
  return Windows{n_ctx, int(n_chunks), bos};
}

int run_windows(const Windows& windows, std::span<const int32_t> text, Timelines* base,
                std::span<Timelines* const> candidates, const PassOptions& options, std::vector<Scores>& scores) {
  scores.resize(candidates.size());
  Pass pass(windows, base, candidates, options, scores);
  int side_by_side = base ? base->n_seq() : windows.n_chunks;
  for (const Timelines* candidate : candidates) side_by_side = std::min(side_by_side, candidate->n_seq());
  for (int first = 0; first < windows.n_chunks; first += side_by_side) {
    std::vector<std::vector<int32_t>> chunks;
    for (int i = first; i < std::min(first + side_by_side, windows.n_chunks); ++i)
      chunks.push_back(windows.chunk(text, i));
    if (!pass.chunks(chunks, first)) return first;
    if (options.on_chunk) options.on_chunk(first + int(chunks.size()));
  }
  return windows.n_chunks;
}

}  // namespace ridge::lab
