// The windows of a quality run and the pass over them, against anything that turns tokens into logits.
//
// Rules are llama-perplexity's: the text is cut into chunks of n_ctx tokens, the first token of each chunk is replaced
// by BOS when the model adds one, and rows from n_ctx/2 on are scored: row i predicts token i + 1, so a chunk scores
// n_ctx - n_ctx/2 - 1 tokens. All timelines advance in lockstep, so memory is a few rows of logits, whatever n_ctx.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "lab/statistics.h"
#include "ridge/engine.h"

namespace ridge::lab {

enum class EvalPath : uint8_t {
  prefill,  ///< batched, as prompts are processed
  decode,   ///< token by token through the cache, as users get text
};
std::string_view eval_path_name(EvalPath path);

/// Something that holds tokens and gives logits: a Session, or a test's double.
class Timeline {
 public:
  virtual ~Timeline() = default;
  virtual void reset() = 0;
  virtual void prefill(std::span<const int32_t> tokens) = 0;
  virtual void prefill(std::span<const int32_t> tokens, const LogitsCallback& logits) = 0;
  virtual std::span<const float> decode(int32_t token) = 0;
};

struct Windows {
  int n_ctx = 0;
  int n_chunks = 0;
  std::optional<int32_t> bos;  ///< replaces the first token of each chunk

  int first_scored() const { return n_ctx / 2; }
  int scored_per_chunk() const { return n_ctx - n_ctx / 2 - 1; }
  /// Tokens of a chunk as they are fed.
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
  int vocab_size = 0;
  int block_rows = 1;                              ///< rows of logits held at a time, per timeline
  bool whole_curve = false;                        ///< the curve also has the first half of the window
  std::function<bool()> stop;                      ///< asked often; true ends the pass, the open chunk is dropped
  std::function<void(int64_t steps)> on_progress;  ///< tokens fed since the last call, over all timelines
  std::function<void(int chunks_done)> on_chunk;   ///< statistics are up to date
  /// The base as log-probabilities of scored row `row` (counted over all chunks); used when there is no base timeline.
  std::function<void(int64_t row, std::span<float> log_probs)> base_log_probs;
  /// Gets the base timeline's logits of scored rows, in order.
  std::function<void(const float* rows, int n_rows)> on_base_rows;
};

/// Feeds every chunk to the base (a timeline, or null and options.base_log_probs, or neither) and to all candidates and
/// fills `scores`, one per candidate. Returns the chunks done. Logits that are not finite throw Error(failure) naming
/// candidate, chunk and position.
int run_windows(const Windows& windows, std::span<const int32_t> text, Timeline* base,
                std::span<Timeline* const> candidates, const PassOptions& options, ThreadPool& pool,
                std::vector<Scores>& scores);

}  // namespace ridge::lab
