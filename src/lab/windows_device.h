// The pass of windows.h for a model on a device: many chunks side by side, statistics made where the logits are.
#pragma once

#include <memory>

#include "lab/windows.h"

namespace ridge {
class DeviceSession;
}

namespace ridge::lab {

/// Sessions of one base (optional) and all candidates on a device, each with as many sequences as fit.
class DeviceTimelines {
 public:
  /// Opens a session per cache; `n_rows` (at least 1) bounds the tokens of a step over all sequences.
  DeviceTimelines(const Model& model, const SessionOptions& base, bool has_base,
                  std::span<const SessionOptions> candidates, EvalPath path, int n_chunks, int64_t n_rows);
  ~DeviceTimelines();

  /// As run_windows(); options.block_rows is not used. Candidates' scores come chunk by chunk in the same order, so
  /// sums are the host's but for the last bits of each score. on_chunk is called once for every set of chunks side by
  /// side.
  int run(const Windows& windows, std::span<const int32_t> text, const PassOptions& options,
          std::vector<Scores>& scores);
  KvReport cache(size_t candidate) const;
  int n_seq() const { return n_seq_; }

 private:
  bool open(const SessionOptions& base, bool has_base, std::span<const SessionOptions> candidates);
  bool set_of_chunks(std::span<const std::vector<int32_t>> chunks, int first_chunk, const Windows& windows,
                     const PassOptions& options, std::vector<Scores>& scores);

  const Model& model_;
  int n_ubatch_ = 1;  // tokens a sequence takes in one step
  int n_seq_ = 1;
  std::unique_ptr<DeviceSession> base_;
  std::vector<std::unique_ptr<DeviceSession>> candidates_;
};

}  // namespace ridge::lab
