// A model on several ranks of one process: each has a slice of the weights (model/slice.h), the cache of its own heads
// and a thread. Everything above (sessions, sampling, the server, benches) sees one backend and one memory.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/backend.h"
#include "model/slice.h"
#include "op/cache/image_parts.h"

namespace ridge {

/// One thread a rank; rank 0 runs on the caller's.
class RankThreads {
 public:
  explicit RankThreads(int n_ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int n_ranks() const { return int(threads_.size()) + 1; }
  /// Calls body(rank) on every rank's thread and returns when all have ended. Throws what a rank threw first. Not
  /// reentrant.
  void for_all(const std::function<void(int)>& body);
  /// Within body(): returns when every rank has come here; throws Error(failure) when one of them will not.
  void meet();

 private:
  void work(int rank);
  void serve(int rank);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* body_ = nullptr;
  uint64_t region_ = 0, meeting_ = 0;  // numbers of the newest ones
  int n_running_ = 0, n_met_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;  // the first of the region
  std::vector<std::thread> threads_;
};

/// Ranks of one model in this process, and the parts that they share.
struct RankedParts {
  std::shared_ptr<RankThreads> threads;
  std::vector<std::unique_ptr<Backend>> ranks;
  std::vector<std::vector<SidePart>> sides;  ///< of each rank, K and V of each layer: side_parts() of model/slice.h
  bool on_device = false;
  std::string name;
  std::function<void(const std::function<void()>& queue)> step;  ///< queues a step of a rank, for who watches; or null
  std::function<void()> check;                                   ///< throws when a rank was waited for in vain
  std::function<void()> end;                                     ///< a rank has failed: ends the others' waits for it
  std::shared_ptr<void> keeps_alive;                             ///< what the ranks work with
};
std::unique_ptr<Backend> make_ranked_backend(RankedParts parts);

/// Memory that is free for a rank's cache.
struct FreeMemory {
  std::string place;  ///< the machine or the GPU: ranks of one place share it
  int64_t bytes = 0;
};
/// Bytes of the largest cache of all ranks of whose layers every place has room for its ranks' sides[r], by KV heads.
int64_t room_for_all(std::span<const std::vector<SidePart>> sides, std::span<const FreeMemory> free);

}  // namespace ridge
