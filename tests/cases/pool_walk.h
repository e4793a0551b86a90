// Random operations on a pool of sequences, for tests that make the same ones on two pools and compare.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/pool.h"

namespace ridge {

/// Sequences of a pool, and what happened to them.
class PoolWalk {
 public:
  virtual ~PoolWalk() = default;

  /// A random operation; a line that says what was decided.
  std::string step(Rng& rng) {
    const uint64_t kind = rng.next() % 12, pick = rng.next(), amount = rng.next();
    if (sequences_.empty() || kind == 0) return open(pick);
    const size_t i = size_t(pick % sequences_.size());
    const SeqId seq = sequences_[i];
    const int n = pool_->length(seq);
    const auto somewhere = [&](int most) { return int(amount % uint64_t(most + 1)); };
    if (pool_->is_parked(seq)) return said("unpark", pool_->unpark(seq));
    switch (kind) {
      case 1: return kept("fork", pool_->fork(seq, std::max(0, n - somewhere(40))));
      case 2: return said("trim", pool_->trim(seq, std::max(0, n - somewhere(40)), TrimMode::exact));
      case 3: return said("trim to coded rows", pool_->trim(seq, somewhere(n), TrimMode::coded_window));
      case 4: return pool_->park(seq), said("park", Status());
      case 5: {
        const Result<CheckpointId> made = pool_->checkpoint(seq);
        if (made) checkpoints_.push_back(*made);
        return said("checkpoint", made);
      }
      case 6: {
        if (checkpoints_.empty()) return said("nothing", Status());
        const size_t c = size_t(amount % checkpoints_.size());
        if (amount % 3 == 0) return kept("open a checkpoint", pool_->open(checkpoints_[c]));
        if (amount % 3 == 1) return pool_->restore(seq, checkpoints_[c]), said("restore", Status());
        pool_->release(checkpoints_[c]);
        checkpoints_.erase(checkpoints_.begin() + ptrdiff_t(c));
        return said("release", Status());
      }
      case 7:
        pool_->close(seq);
        sequences_.erase(sequences_.begin() + ptrdiff_t(i));
        return said("close", Status());
      case 8: {
        const int first = somewhere(n), removed = std::min(n - first, 10);
        return said("shift", pool_->shift(seq, first, removed, [&](int layer, KvSide side, float* row) {
          turn_row(layer, side, -removed, row);
        }));
      }
      default: return said("append", append(seq, pick, rng, 1 + somewhere(60)));
    }
  }

  /// Pages and slots in use, and the length and place of every sequence.
  std::string state() const {
    const PoolReport r = pool_->report();
    std::string text = fmt::format("{} {} {} {} {} {}:", r.pages_free, r.pages_shared, r.pages_of_checkpoints,
                                   r.slots_free, r.sequences, r.checkpoints);
    for (const SeqId seq : sequences_) {
      text += fmt::format(" {}", pool_->length(seq));
      if (!pool_->is_parked(seq)) text += fmt::format("/{}/{}", pool_->slot(seq), fmt::join(pool_->pages(seq), ","));
    }
    return text;
  }
  /// Of all sequences that are not parked.
  std::vector<SequenceImage> images() {
    std::vector<SequenceImage> all;
    for (const SeqId seq : sequences_)
      if (!pool_->is_parked(seq)) all.push_back(pool_->save(seq));
    return all;
  }
  SequencePool& pool() { return *pool_; }

 protected:
  /// Adds n tokens to the sequence; `pick` is a random number.
  virtual Status append(SeqId seq, uint64_t pick, Rng& rng, int n) = 0;
  /// What a row of K becomes that moves by so many positions.
  virtual void turn_row(int layer, KvSide side, int n_positions, float* row) = 0;

  std::unique_ptr<SequencePool> pool_;
  std::vector<SeqId> sequences_;

 private:
  std::string said(std::string_view what, const auto& result) {
    return fmt::format("{}: {}", what, result ? "done" : result.error().message);
  }
  std::string kept(std::string_view what, const Result<SeqId>& made) {
    if (made) sequences_.push_back(*made);
    return said(what, made);
  }
  std::string open(uint64_t pick) {
    if (checkpoints_.empty() || pick % 2 == 0) return kept("open", pool_->open());
    return kept("open a checkpoint", pool_->open(checkpoints_[size_t(pick / 2 % checkpoints_.size())]));
  }

  std::vector<CheckpointId> checkpoints_;
};

inline bool same(const SequenceImage& a, const SequenceImage& b) {
  return a.n == b.n && a.calibrated == b.calibrated &&
         std::ranges::equal(a.sides, b.sides, [](const SideImage& x, const SideImage& y) {
           return x.ring_first == y.ring_first && x.coded_first == y.coded_first && x.bytes == y.bytes;
         });
}

}  // namespace ridge
