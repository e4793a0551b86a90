// An HTTP/1.1 server: transport only. It reads requests within limits, hands them to one handler and writes what the
// handler answers, at once or piece by piece from any thread. Requests of HTTP/1.0, as proxies send them, are answered
// too: their connection ends with the answer unless they keep it, and streams end with it, for there are no chunks.
//
// Refused with a status and a closed connection: whatever is not plain HTTP/1.x (0.9, prefaces of HTTP/2, TLS), a
// length and a transfer coding together, unknown codings, folded lines, unlawful characters, bad escapes, paths with
// NUL or "..", and requests whose Host or Origin is not allowed. Requests of one connection are answered in order.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/result.h"
#include "http/message.h"

namespace ridge::http {

enum class Sent {
  ok,    ///< queued
  full,  ///< not queued: the client reads too slowly. Pause, and send again after on_ready()
  gone,  ///< not queued: the client has left or the stream is finished. Stop
};

/// An answer under way. Usable from any thread. Dropping it without finish() cuts the connection, so that the client
/// knows the answer is not whole.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Queues one chunk of the body; does not block. An empty chunk is ok and sends nothing.
  virtual Sent send(std::string_view chunk) = 0;
  /// The answer is whole. Later calls change nothing.
  virtual void finish() = 0;
  /// The client closed its connection or its sending side, was too slow, or the server stops.
  virtual bool gone() const = 0;
  /// Calls `call` once when the client goes before finish(): on an I/O thread, or here when it has gone. Must not
  /// block.
  virtual void on_gone(std::function<void()> call) = 0;
  /// Calls `call` once when a stream that was full takes chunks again: on an I/O thread, or here when it does. Never
  /// called after the client has gone.
  virtual void on_ready(std::function<void()> call) = 0;
};

class Exchange;  // one request and its answer

/// The right to answer one request, exactly once: with send() or with stream(). Copies share that right; a second
/// answer is an Error. When the last copy goes without an answer the client gets status 500.
class Reply {
 public:
  explicit Reply(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  void send(Response response) const;
  /// Sends the head; chunks follow. Streams of type "text/event-stream" get a comment line whenever nothing was sent
  /// for Limits::comment_time. To HEAD only the head is sent, and the stream is gone.
  std::shared_ptr<Stream> stream(int status, std::string_view content_type, Headers headers = {}) const;
  /// As those of Stream, for work that begins before its answer.
  bool gone() const;
  void on_gone(std::function<void()> call) const;

 private:
  std::shared_ptr<Exchange> exchange_;
};

/// Called on an I/O thread and must not block. It may keep the Reply and answer later from any thread. What it throws
/// becomes status 500.
using Handler = std::function<void(Request, Reply)>;

struct Limits {
  using Time = std::chrono::milliseconds;
  size_t header_bytes = 16 << 10;   ///< request line and fields: 431 beyond
  size_t body_bytes = 16 << 20;     ///< one body: 413 beyond
  size_t bodies_bytes = 256 << 20;  ///< bodies of all requests not answered yet: 503 beyond
  size_t write_bytes = 1 << 20;     ///< queued for one client: send() says full beyond
  size_t ahead_bytes = 256 << 10;   ///< sent by a client behind a request that is not answered yet: dropped beyond
  int connections = 12000;          ///< 503 beyond; lowered to what the process may open
  Time header_time{10'000};         ///< from the first byte of a request to the end of its head: 408 beyond
  Time body_time{60'000};           ///< from there to the end of its body: 408 beyond
  Time idle_time{75'000};           ///< without a request: closed beyond
  Time stall_time{20'000};          ///< bytes are queued and the client takes none: dropped beyond
  Time comment_time{15'000};        ///< see Reply::stream
};

struct Options {
  std::string host = "127.0.0.1";  ///< address to bind, or a name
  uint16_t port = 0;               ///< 0: any free one
  int threads = 1;                 ///< I/O threads
  Limits limits = {};
  /// Names that the Host field may have, without ports. Empty: on a loopback address its usual names (a page that
  /// rebinds its DNS name reaches nothing then), elsewhere any.
  std::vector<std::string> hosts = {};
  /// Origins of pages ("https://example.org", or "*" for all) that may call besides our own. Empty: CORS is off.
  std::vector<std::string> origins = {};
  /// Called with the head of a request before its body is read: an answer here refuses it (keys, unknown paths, load).
  std::function<std::optional<Response>(const Request& head)> gate = {};
};

struct Counts {
  int64_t connections = 0;  ///< open now
  int64_t accepted = 0;
  int64_t turned_away = 0;  ///< over the limit of connections
  int64_t requests = 0;     ///< handed to the handler
  int64_t refused = 0;      ///< answered 4xx or 5xx by the transport
  int64_t stalled = 0;      ///< dropped because the client took nothing
};

class Server {
 public:
  /// Binds, listens and starts the threads. Fails with the reason when the address is taken or not ours.
  static Result<std::unique_ptr<Server>> open(Options options, Handler handler);
  ~Server();  ///< stop() without patience

  uint16_t port() const;
  Counts counts() const;

  /// Stops accepting, closes idle connections, lets answers under way finish until the deadline, then cuts them and
  /// joins the threads. Not from an I/O thread. Calling it again does nothing.
  void stop(std::chrono::milliseconds patience);

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ridge::http
