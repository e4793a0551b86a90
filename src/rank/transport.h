// How the ranks of a job send bytes to each other. A rank is one process (MPI, mpi.h) or, in tests, one thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ridge {

using BytesOut = std::span<const std::byte>;
using BytesIn = std::span<std::byte>;

/// Seconds for whoever waits for work to come: no limit, and no hurry.
inline constexpr double kNoLimit = 1e8;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Sends to[r] to rank r and fills from[r] with what rank r sends, for every r but the own one; empty spans are left
  /// out. Both have size() entries. All ranks make the same calls in the same order, with sizes that match. Returns the
  /// ranks whose bytes had not come, or had not been taken, after `seconds`: none when all is well; nothing else can be
  /// exchanged after that. Throws Error(failure) when a message has another size than expected.
  virtual std::vector<int> exchange(std::span<const BytesOut> to, std::span<const BytesIn> from, double seconds) = 0;

  /// Whether a rank's process is known to be gone. exchange() does not wait for it any longer. Any thread may ask.
  virtual bool has_ended(int /*rank*/) const { return false; }
  /// From here on no exchange waits longer than so many seconds: the job is being ended. Any thread may call it.
  virtual void limit_waits(double /*seconds*/) {}

  /// Ends every rank of the job with this exit code; does not return.
  virtual void abort(int code) = 0;
};

}  // namespace ridge
