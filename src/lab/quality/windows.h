// The windows of a quality run and the pass over them, against anything that turns tokens into logits.
//
// Rules are llama-perplexity's: the text is cut into chunks of n_ctx tokens, the first token of each chunk is replaced
// by BOS when the model adds one, and rows from n_ctx/2 on are scored: row i predicts token i + 1, so a chunk scores
// n_ctx - n_ctx/2 - 1 tokens. All timelines advance in lockstep, so memory is a few rows of logits, whatever n_ctx.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/view.h"
#include "lab/quality/statistics.h"
#include "op/score/score.h"

namespace ridge::lab {

enum class EvalPath : uint8_t {
  prefill,  ///< batched, as prompts are processed
  decode,   ///< token by token through the cache, as users get text
};
std::string_view eval_path_name(EvalPath path);

/// One cache of an evaluation: equal sequences side by side that advance together.
class Timelines {
 public:
  virtual ~Timelines() = default;
  /// Most sequences.
  virtual int n_seq() const = 0;
  /// Forgets all tokens; the first n_active sequences take part from here on.
  virtual void reset(int n_active) = 0;
  /// Appends tokens [n_active, n] and keeps the logits of all of them, or of none.
  virtual void run(std::span<const int32_t> tokens, bool with_logits) = 0;
  /// Logits of the last run, [n_active * n, vocab_size]; valid until the next one.
  virtual View2<const float> logits() = 0;
  /// Scores these logits against those of `base` (null: none); targets [n_active * n]. Results queue up.
  virtual void score(Timelines* base, std::span<const int32_t> targets);
  virtual std::vector<RowScore> take_scores() { return std::exchange(scores_, {}); }

 protected:
  std::vector<RowScore> scores_;
};

struct Windows {
  int n_ctx = 0;
  int n_chunks = 0;
  std::optional<int32_t> bos;  ///< replaces the first token of each chunk

  int first_scored() const { return n_ctx / 2; }
  int scored_per_chunk() const { return n_ctx - n_ctx / 2 - 1; }
  /// Tokens of a chunk in the order of the input.
  std::vector<int32_t> chunk(std::span<const int32_t> text, int index) const;
};

/// As many whole chunks as the text has, at most `max_chunks` (negative: all). Fails when there is not one.
Result<Windows> plan_windows(int64_t n_tokens, int n_ctx, int max_chunks, std::optional<int32_t> bos);

/// Equal parts of a window that the curve over positions has.
inline constexpr int kCurveParts = 16;
inline int curve_part(int position, int n_ctx) { return int(int64_t(position) * kCurveParts / n_ctx); }
/// First position of a part; that of part kCurveParts is n_ctx.
inline int curve_begin(int part, int n_ctx) { return int((int64_t(part) * n_ctx + kCurveParts - 1) / kCurveParts); }

/// One candidate's statistics: pair and curve when there is a base, ppl otherwise.
struct Scores {
  PerplexityStat ppl;
  PairStat pair;
  std::array<MeanStat, kCurveParts> curve;  ///< divergence by position in the window
};

struct PassOptions {
  EvalPath path = EvalPath::prefill;
  int step_tokens = 1;                             ///< of a sequence in a step of the prefill path, at most
  bool whole_curve = false;                        ///< the curve also has the first half of the window
  std::function<bool()> stop;                      ///< asked often; true ends the pass, the open chunks are dropped
  std::function<void(int64_t steps)> on_progress;  ///< tokens fed since the last call, over all caches
  std::function<void(int chunks_done)> on_chunk;   ///< statistics are up to date
  /// The base as log-probabilities of scored row `row` (counted over all chunks); used when there is no base cache.
  std::function<void(int64_t row, std::span<float> log_probs)> base_log_probs;
  /// Gets the base's logits of scored rows; in the order of the text when caches have one sequence.
  std::function<void(View2<const float> rows)> on_base_rows;
};

/// Feeds every chunk to the base (a cache, or null and options.base_log_probs, or neither) and to all candidates, as
/// many chunks side by side as all of them have sequences, and fills `scores`, one per candidate. Returns the chunks
/// done. Logits that are not finite throw Error(failure) naming candidate, chunk and position.
int run_windows(const Windows& windows, std::span<const int32_t> text, Timelines* base,
                std::span<Timelines* const> candidates, const PassOptions& options, std::vector<Scores>& scores);

}  // namespace ridge::lab
