// Tokens on their way from the device to a host that does not wait for the device.
//
// A decode step writes its tokens into page-locked memory by itself, and the host looks there: no copy is queued, no
// event waited for, and steps can be queued long before their tokens are known.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/device.h"

namespace ridge::gpu {

/// Pointers by which device code puts tokens into a ring (gpu/token_ring_device.h); words == nullptr: no ring.
struct TokenRingView {
  /// [n_slots, n_seq] in host memory: step + 1 in the high half, the token in the low one. A word is written at once,
  /// so the host sees a token and its step or neither.
  uint64_t* words = nullptr;
  uint32_t* steps = nullptr;  ///< [n_seq] on the device: the next step of each sequence
  int n_seq = 0, n_slots = 0;
};

class TokenRing {
 public:
  /// Room for the tokens of n_slots steps: the most that may be queued or unread at any time.
  TokenRing(int n_seq, int n_slots);

  /// Starts again at step 0, with tokens of n_seq sequences a step, at most as many as there is room for. Nothing that
  /// writes to the ring may be queued or running.
  void reset(StreamHandle stream, int n_seq);
  void reset(StreamHandle stream) { reset(stream, view_.n_seq); }
  /// Queues the step's tokens [n_seq] (device memory) into the ring; the step is counted on the device, so a graph can
  /// record it. A kernel that has the tokens in hand may do the same by put_token().
  void publish(StreamHandle stream, const int32_t* tokens) const;
  TokenRingView view() const { return view_; }

  /// The tokens [n_seq] of `step` (below 2^31), if all have come; never waits. Throws failure when a later step has
  /// overwritten them.
  bool read(int64_t step, std::span<int32_t> tokens) const;

  int n_seq() const { return view_.n_seq; }
  int n_slots() const { return view_.n_slots; }

 private:
  PinnedBuffer words_;
  Buffer steps_;
  int most_seqs_;
  TokenRingView view_;
};

}  // namespace ridge::gpu
