#include "lab/windows_device.h"

#include <algorithm>

#include "engine/model_impl.h"

namespace ridge::lab {
namespace {

constexpr int kMaxSequences = 256;
constexpr int64_t kMaxLogitBytes = int64_t(1) << 30;  // of one session
constexpr int64_t kReserve = int64_t(1) << 30;        // activations and what the driver wants

/// Tokens [first, first + n) of every chunk, [chunk, n].
std::vector<int32_t> columns(std::span<const std::vector<int32_t>> chunks, int first, int n) {
  std::vector<int32_t> tokens;
  tokens.reserve(chunks.size() * size_t(n));
  for (const std::vector<int32_t>& chunk : chunks)
    tokens.insert(tokens.end(), chunk.begin() + first, chunk.begin() + first + n);
  return tokens;
}

TokenScore to_token_score(const RowScore& row) {
  return {
      .nll = row.nll, .nll_base = row.nll_base, .kld = row.kld, .delta_p = row.delta_p, .same_top = row.same_top != 0};
}

}  // namespace

DeviceTimelines::DeviceTimelines(const Model& model, const SessionOptions& base, bool has_base,
                                 std::span<const SessionOptions> candidates, EvalPath path, int n_chunks,
                                 int64_t n_rows)
    : model_(model) {
  const ModelInfo& info = model.info();
  n_rows = std::clamp<int64_t>(kMaxLogitBytes / (4 * int64_t(info.vocab_size)), 1, n_rows);
  if (path == EvalPath::prefill) n_ubatch_ = int(std::min<int64_t>(n_rows, std::min(base.n_ubatch, base.n_ctx)));
  n_seq_ = int(std::clamp<int64_t>(n_rows / n_ubatch_, 1, std::min(n_chunks, kMaxSequences)));
  for (; !open(base, has_base, candidates); n_seq_ /= 2)
    if (n_seq_ == 1)
      throw Error(ErrorKind::no_memory,
                  fmt::format("{}: not enough memory for {} caches of {} tokens (use a smaller --ctx-size or fewer "
                              "caches at a time)",
                              info.device, candidates.size() + (has_base ? 1 : 0), base.n_ctx));
}

DeviceTimelines::~DeviceTimelines() = default;

/// False when the device has not the memory for n_seq_ sequences.
bool DeviceTimelines::open(const SessionOptions& base, bool has_base, std::span<const SessionOptions> candidates) {
  base_.reset();
  candidates_.clear();
  try {
    if (has_base) base_ = open_device_session(model_, base, n_seq_);
    for (const SessionOptions& options : candidates)
      candidates_.push_back(open_device_session(model_, options, n_seq_));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::no_memory) throw;
    return false;
  }
  // Still to come: logits of every session, and the rows of a layer as floats, coded and exact, K and V.
  const ModelInfo& info = model_.info();
  const int64_t logits = 4 * int64_t(n_seq_) * n_ubatch_ * info.vocab_size * int64_t(candidates.size() + 1);
  const int64_t rows = 2 * 2 * 4 * int64_t(n_seq_) * base.n_ctx * info.n_kv_heads * info.head_dim;
  return logits + rows + kReserve <= model_.impl().device->free_bytes();
}

KvReport DeviceTimelines::cache(size_t candidate) const {
  return device_kv_report(model_.impl(), *candidates_[candidate]);
}

int DeviceTimelines::run(const Windows& windows, std::span<const int32_t> text, const PassOptions& options,
                         std::vector<Scores>& scores) {
  scores.resize(candidates_.size());
  for (int first = 0; first < windows.n_chunks; first += n_seq_) {
    std::vector<std::vector<int32_t>> chunks;
    for (int i = first; i < std::min(first + n_seq_, windows.n_chunks); ++i) chunks.push_back(windows.chunk(text, i));
    if (!set_of_chunks(chunks, first, windows, options, scores)) return first;
    if (options.on_chunk) options.on_chunk(first + int(chunks.size()));
  }
  return windows.n_chunks;
}

/// Feeds chunks side by side and adds their scores. False when asked to stop: then nothing is added.
bool DeviceTimelines::set_of_chunks(std::span<const std::vector<int32_t>> chunks, int first_chunk,
                                    const Windows& windows, const PassOptions& options, std::vector<Scores>& scores) {
  const int first_scored = windows.first_scored(), end = first_scored + windows.scored_per_chunk();
  const int first_row = options.whole_curve && base_ ? 0 : first_scored;  // logits are looked at from here on
  const auto n_active = int(chunks.size());
  std::vector<DeviceSession*> sessions;
  if (base_) sessions.push_back(base_.get());
  for (const auto& candidate : candidates_) sessions.push_back(candidate.get());
  for (DeviceSession* session : sessions) session->reset(n_active);

  std::vector<int> steps;  // tokens of a sequence whose logits are looked at, step by step
  for (int begin = 0, n = 0; begin < end; begin += n) {
    const bool scored = begin >= first_row;
    n = std::min(n_ubatch_, (scored ? end : first_row) - begin);
    const std::vector<int32_t> inputs = columns(chunks, begin, n), targets = columns(chunks, begin + 1, n);
    if (scored) steps.push_back(n);
    for (DeviceSession* session : sessions) {
      session->forward(inputs, scored ? LogitRows::all : LogitRows::none);
      if (scored && session != base_.get()) session->score(base_.get(), targets);
      if (options.on_progress) options.on_progress(int64_t(n) * n_active);
    }
    if (options.stop && options.stop()) {
      for (const auto& candidate : candidates_) candidate->take_scores();
      return false;
    }
  }

  for (size_t c = 0; c < candidates_.size(); ++c) {
    const std::vector<RowScore> rows = candidates_[c]->take_scores();  // [step][sequence][token of the step]
    for (int s = 0; s < n_active; ++s) {
      size_t step_begin = 0;
      int position = first_row;
      for (const int n : steps) {
        for (int t = 0; t < n; ++t, ++position) {
          const RowScore& row = rows[step_begin + size_t(s) * size_t(n) + size_t(t)];
          if (row.finite != (base_ ? 3 : 1))
            throw Error(
                ErrorKind::failure,
                fmt::format("logits are not finite: {}, chunk {}, position {} (no statistics from such a model)",
                            base_ && (row.finite & 2) == 0 ? "the base" : fmt::format("candidate {}", c + 1),
                            first_chunk + s + 1, position));
          if (!base_) {
            scores[c].ppl.add(row.nll);
            continue;
          }
          scores[c].curve[size_t(curve_part(position, windows.n_ctx))].add(row.kld);
          if (position >= first_scored) scores[c].pair.add(to_token_score(row));
        }
        step_begin += size_t(n) * size_t(n_active);
      }
    }
  }
  return true;
}

}  // namespace ridge::lab
