// Ranks as threads of one process: whatever ranks do can be tested without MPI.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "base/result.h"
#include "rank/ranks.h"

namespace ridge {

/// Messages of all pairs of threads, in order.
class ThreadMail {
 public:
  explicit ThreadMail(int n_ranks) : n_ranks_(n_ranks) {}
  int n_ranks() const { return n_ranks_; }
  void send(int from, int to, BytesOut bytes) {
    const std::lock_guard lock(mutex_);
    mail_[{from, to}].emplace_back(bytes.begin(), bytes.end());
    arrived_.notify_all();
  }
  /// From here on a rank is taken for gone.
  void end(int rank) { ended_ |= 1u << rank; }
  bool has_ended(int rank) const { return (ended_ >> rank & 1u) != 0; }
  /// False when nothing came within the time.
  bool receive(int from, int to, BytesIn bytes, double seconds) {
    std::unique_lock lock(mutex_);
    std::vector<std::vector<std::byte>>& box = mail_[{from, to}];
    if (!arrived_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !box.empty(); })) return false;
    if (box.front().size() != bytes.size())
      throw_error(ErrorKind::failure, "{} bytes, expected {}", box.front().size(), bytes.size());
    std::ranges::copy(box.front(), bytes.begin());
    box.erase(box.begin());
    return true;
  }

 private:
  const int n_ranks_;
  std::atomic<unsigned> ended_ = 0;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int, int>, std::vector<std::vector<std::byte>>> mail_;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(ThreadMail& mail, int rank) : mail_(mail), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return mail_.n_ranks(); }
  std::vector<int> exchange(std::span<const BytesOut> to, std::span<const BytesIn> from, double seconds) override {
    for (int r = 0; r < size(); ++r)
      if (r != rank_ && !to[size_t(r)].empty()) mail_.send(rank_, r, to[size_t(r)]);
    std::vector<int> late;
    for (int r = 0; r < size(); ++r)
      if (r != rank_ && !from[size_t(r)].empty() && !mail_.receive(r, rank_, from[size_t(r)], seconds))
        late.push_back(r);
    return late;
  }
  bool has_ended(int rank) const override { return mail_.has_ended(rank); }
  void abort(int code) override { throw_error(ErrorKind::failure, "abort with {}", code); }

 private:
  ThreadMail& mail_;
  const int rank_;
};

/// Runs `body` as each of n ranks. What a rank throws is a failure of the test.
inline void on_ranks(int n, const std::function<void(Ranks&)>& body, double timeout_s = 60) {
  ThreadMail mail(n);
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      Ranks ranks(std::make_unique<ThreadTransport>(mail, r), timeout_s);
      try {
        body(ranks);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ridge
