// One connection: reads requests in order, writes their answers, keeps the limits. Internal to this layer.
//
// A connection lives on one worker: one thread with its own event loop. Other threads touch only what `mutex_` guards.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "http/request_reader.h"
#include "http/server.h"

namespace ridge::http {

using Clock = std::chrono::steady_clock;
using Tcp = boost::asio::ip::tcp;

class Session;

/// One thread, its event loop and its connections.
struct Worker {
  boost::asio::io_context loop{1};
  boost::asio::steady_timer sweep{loop};
  std::unordered_set<std::shared_ptr<Session>> sessions;  // open ones
  std::string scratch = std::string(64 << 10, '\0');      // what a read fills
  std::thread thread;
  bool ended = false;
};

/// State that all connections of a server share. Answers that outlive the server keep it.
struct Hub {
  Options options;
  Handler handler;
  std::vector<std::unique_ptr<Worker>> workers;
  std::atomic<bool> stopping{false};
  std::atomic<int64_t> connections{0}, accepted{0}, turned_away{0}, requests{0}, refused{0}, stalled{0}, body_bytes{0};
  std::mutex mutex;
  std::condition_variable closed;  // a connection has
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<Hub> hub, Worker& worker, Tcp::socket socket);

  // On the worker's thread.
  void start();
  void turn_away();  ///< instead of start(): 503
  void tick(Clock::time_point now);
  void wind_down();  ///< closes now, or after the answer under way
  void close();

 private:
  friend class Exchange;

  void watch();
  void readable();
  void advance();
  void read_requests();
  bool head_passes();
  void dispatch();
  void refuse(int status, std::string_view why);
  void answer(const Response& response, bool head_only);
  void flush();
  void write_some();
  void answered();
  void linger();
  void leave();
  void wait_until(Clock::time_point deadline, int status) { deadline_ = deadline, late_status_ = status; }
  void wait_idle();
  void count_body(int64_t bytes);
  std::string head_of(int status, std::string_view content_type, const Headers& headers) const;

  // With mutex_ held.
  void queue(std::string_view bytes);

  const std::shared_ptr<Hub> hub_;
  const Limits& limits_;
  Worker& worker_;
  Tcp::socket socket_;
  RequestReader reader_;
  std::string remote_, writing_;
  size_t written_ = 0;
  int64_t counted_body_ = 0;
  bool watching_ = false;    // for bytes or the end of them
  bool in_request_ = false;  // its first byte is here
  bool busy_ = false;        // a request is being answered
  bool last_ = false;        // what still comes is thrown away
  bool eof_ = false;
  size_t discarded_ = 0;
  Clock::time_point deadline_ = Clock::time_point::max();
  int late_status_ = 0;  // what passing the deadline is answered with; 0: the connection is closed
  std::string cors_origin_;
  std::atomic<bool> close_after_{false};
  std::atomic<bool> http10_{false};  // the request under way came in HTTP/1.0

  std::mutex mutex_;
  std::string pending_;
  size_t in_flight_ = 0;  // bytes of writing_ that the kernel has not taken
  bool left_ = false;     // the client's side is closed, or the connection
  bool closed_ = false;
  bool finished_ = false;   // the answer is queued whole
  bool streaming_ = false;  // the answer has begun and may still get chunks
  bool events_ = false, was_full_ = false, flush_posted_ = false;
  Clock::time_point last_queued_;
  std::function<void()> on_gone_, on_ready_;
};

}  // namespace ridge::http
