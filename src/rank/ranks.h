// The ranks that hold one model together: each has a slice of its matrices (model/slice.h) and runs the same steps.
// What they make of a step is added, or put side by side, here: every rank gets the same bits, so that ranks that do
// the same with them stay together without further messages.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/view.h"
#include "rank/transport.h"

namespace ridge {

/// Not thread-safe. Whoever waits for another rank longer than the time limit, or for one that has ended, throws
/// Error(failure) naming that rank; nothing is exchanged after that, every call throws.
class Ranks {
 public:
  Ranks(std::unique_ptr<Transport> transport, double timeout_s);

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  bool is_first() const { return rank() == 0; }
  double timeout_s() const { return timeout_s_; }

  /// Stages that the model's layers are split over, in order: `--pp`. Ranks of a stage follow each other, and each
  /// stage has as many. Throws usage where they do not share the ranks evenly.
  void set_stages(int n);
  int n_stages() const { return n_stages_; }
  /// The ranks of this rank's stage among themselves. Valid while this object is; not to be used at the same time.
  std::unique_ptr<Ranks> of_stage() const;

  /// values = sum over ranks of their values, added in the order of ranks: ((v0 + v1) + v2) + ...
  void all_reduce(std::span<float> values);
  /// whole [n, borders.back()]: columns [borders[r], borders[r + 1]) are `own` [n, ..] of rank r.
  void gather_columns(View2<const float> own, std::span<const int64_t> borders, View2<float> whole);
  /// Rank `to` gets into `into` the `bytes` of rank `from`, equally many; other ranks may call it, for nothing.
  void send(int from, int to, BytesOut bytes, BytesIn into, double seconds);
  void send(int from, int to, BytesOut bytes, BytesIn into) { send(from, to, bytes, into, timeout_s_); }
  /// What each rank gave, by rank.
  std::vector<std::string> gather(const std::string& own, double seconds);
  std::vector<std::string> gather(const std::string& own) { return gather(own, timeout_s_); }
  /// Sends to[r] to rank r, whatever its size, and gives what each rank sent here, by rank; the own text among them.
  /// Nobody sends more than `most` bytes at a time.
  std::vector<std::string> trade(std::span<const BytesOut> to, double seconds, int64_t most = kMostBytes);
  /// What the first rank gave.
  std::string from_first(const std::string& own);
  /// The first rank sends a text to all others.
  void tell(const std::string& text);
  /// The others wait for it, however long.
  std::string hear();
  /// Returns when every rank is here.
  void barrier();
  /// Throws Error(usage) on every rank when a rank gave another text than the first one: "WHAT of rank 1 (...) is B,
  /// that of rank 0 (...) is A (NEXT)". Waits so many seconds for ranks that are late.
  void require_same(std::string_view what, const std::string& text, std::string_view next, double seconds);

  /// From here on messages call the ranks by these names: "rank 1 (host b, process 4711)".
  void set_names(std::vector<std::string> names) { names_ = std::move(names); }
  std::string name(int rank) const;

  /// The first rank tells the others what to do (engine/lead.h). Said before a model is loaded; where it is not said,
  /// every rank has a slice and the caller makes the same calls on all of them.
  void be_led() { led_ = true; }
  bool led() const { return led_; }
  /// A rank whose process is known to be gone; -1: none. Any thread may ask.
  int ended() const;
  /// A rank was waited for in vain elsewhere (its GPU): nothing is exchanged after that.
  void fail(const std::string& message) {
    if (failure_.empty()) failure_ = message;
  }
  /// Whether a rank was waited for in vain.
  bool failed() const { return !failure_.empty(); }

  /// As Transport has it.
  void limit_waits(double seconds) {
    most_seconds_ = seconds;
    transport_->limit_waits(seconds);
  }
  void abort(int code) { transport_->abort(code); }

 private:
  static constexpr int64_t kMostBytes = int64_t(1) << 30;  // a message's size is an int in MPI

  void exchange(std::string_view what, double seconds);
  void send_to_all(BytesOut bytes);

  std::unique_ptr<Transport> transport_;
  double timeout_s_;
  bool led_ = false;
  std::string failure_;  // what ended all exchanges
  std::atomic<double> most_seconds_ = kNoLimit;
  int n_stages_ = 1;
  std::vector<std::string> names_;
  std::vector<BytesOut> to_;  // of the exchange that is being made
  std::vector<BytesIn> from_;
  AlignedBuffer parts_, packed_;
};

/// How long ranks wait for what stands behind a file, a whole cache or a computation of the first rank alone: no wait
/// in a pass is longer.
double file_seconds(const Ranks& ranks);

/// Floats from which on all_reduce() adds a part of the values on each rank and sends the sums around; below every rank
/// adds all values, which takes one exchange in place of two.
inline constexpr int64_t kSplitSum = 16384;

}  // namespace ridge
