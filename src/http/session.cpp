#include "http/session.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/beast/http/status.hpp>
#include <ctime>

#include "http/sse.h"
#include "http/url.h"

namespace ridge::http {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

constexpr std::chrono::seconds kLingerTime{2};
constexpr size_t kLingerBytes = 4 << 20;
constexpr size_t kKeptBuffer = 16 << 10;  // an idle connection gives larger ones back

std::string reason_of(int status) {
  const auto known = boost::beast::http::obsolete_reason(boost::beast::http::int_to_status(unsigned(status)));
  return {known.data(), known.size()};
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc;
  gmtime_r(&now, &utc);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

void add_field(std::string& head, std::string_view name, std::string_view value) {
  for (const std::string_view text : {name, value})
    for (const char c : text) RIDGE_CHECK(uint8_t(c) >= 0x20 && c != 0x7F, "a control character in the field {}", name);
  head.append(name).append(": ").append(value).append("\r\n");
}

bool may_have_body(int status) { return status >= 200 && status != 204 && status != 304; }

Response refusal(int status, std::string_view why) {
  const char* type = status == 503 ? "unavailable_error" : status >= 500 ? "server_error" : "invalid_request_error";
  return {status, "application/json",
          fmt::format(R"({{"error":{{"message":"{}","type":"{}","param":null,"code":null}}}})", why, type)};
}

bool contains(const std::vector<std::string>& list, std::string_view name) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& item) { return same_name(item, name); });
}

}  // namespace

// One request and its answer. The session's mutex guards it; when it is done nothing that is asked of it has an effect.
class Exchange final : public Stream {
 public:
  Exchange(std::shared_ptr<Session> session, bool head_only)
      : session_(std::move(session)), head_only_(head_only), chunked_(!session_->http10_) {}
  ~Exchange() override { abandon(); }

  void answer(const Response& response) {
    const bool has_body = may_have_body(response.status);
    std::string bytes = session_->head_of(response.status, response.content_type, response.headers);
    if (has_body) add_field(bytes, "Content-Length", std::to_string(response.body.size()));
    bytes += "\r\n";
    if (has_body && !head_only_) bytes += response.body;
    begin(bytes, true);
  }

  void open(int status, std::string_view content_type, const Headers& headers) {
    if (!chunked_) session_->close_after_ = true;
    std::string bytes = session_->head_of(status, content_type, headers);
    bytes += chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
    begin(bytes, head_only_, content_type.starts_with(kEventStream));
  }

  Sent send(std::string_view chunk) override {
    const std::lock_guard lock(session_->mutex_);
    if (state_ != State::streaming || session_->left_) return Sent::gone;
    if (chunk.empty()) return Sent::ok;
    if (session_->pending_.size() + session_->in_flight_ >= session_->limits_.write_bytes) {
      session_->was_full_ = true;
      return Sent::full;
    }
    session_->queue(chunked_ ? fmt::format("{:x}\r\n{}\r\n", chunk.size(), chunk) : std::string(chunk));
    return Sent::ok;
  }

  void finish() override {
    std::function<void()> dropped;  // what it holds must not go while the lock is held
    const std::lock_guard lock(session_->mutex_);
    if (state_ != State::streaming) return;
    dropped.swap(session_->on_gone_);
    end(chunked_ ? "0\r\n\r\n" : "");
  }

  bool gone() const override {
    const std::lock_guard lock(session_->mutex_);
    return state_ == State::done || session_->left_;
  }

  void on_gone(std::function<void()> call) override {
    {
      const std::lock_guard lock(session_->mutex_);
      if (state_ == State::done) return;
      if (!session_->left_) {
        session_->on_gone_.swap(call);
        return;
      }
    }
    call();
  }

  void on_ready(std::function<void()> call) override {
    {
      const std::lock_guard lock(session_->mutex_);
      if (state_ != State::streaming || session_->left_) return;
      if (session_->was_full_) {
        session_->on_ready_.swap(call);
        return;
      }
    }
    call();
  }

  /// Nobody will answer any more.
  void abandon() {
    std::unique_lock lock(session_->mutex_);
    if (state_ == State::done) return;
    if (state_ == State::waiting) {
      lock.unlock();
      return answer(refusal(500, "the request was given up"));
    }
    state_ = State::done;
    cut();
  }

 private:
  enum class State { waiting, streaming, done };

  void begin(std::string_view bytes, bool whole, bool events = false) {
    std::function<void()> dropped;
    const std::lock_guard lock(session_->mutex_);
    RIDGE_CHECK(state_ == State::waiting, "a request was answered twice");
    session_->events_ = events && !whole;
    if (whole) {
      dropped.swap(session_->on_gone_);
      return end(bytes);
    }
    state_ = State::streaming;
    if (session_->left_) return cut();
    session_->streaming_ = true;
    session_->queue(bytes);
  }

  void cut() {
    if (!session_->closed_) asio::post(session_->socket_.get_executor(), [session = session_] { session->close(); });
  }

  void end(std::string_view bytes) {
    state_ = State::done;
    session_->streaming_ = false;
    session_->finished_ = true;
    session_->queue(bytes);
  }

  const std::shared_ptr<Session> session_;
  const bool head_only_, chunked_;  // without chunks a stream ends with its connection
  State state_ = State::waiting;
};

void Reply::send(Response response) const { exchange_->answer(response); }
std::shared_ptr<Stream> Reply::stream(int status, std::string_view content_type, Headers headers) const {
  exchange_->open(status, content_type, headers);
  return exchange_;
}
bool Reply::gone() const { return exchange_->gone(); }
void Reply::on_gone(std::function<void()> call) const { exchange_->on_gone(std::move(call)); }

Session::Session(std::shared_ptr<Hub> hub, Worker& worker, Tcp::socket socket)
    : hub_(std::move(hub)),
      limits_(hub_->options.limits),
      worker_(worker),
      socket_(std::move(socket)),
      reader_(limits_) {}

void Session::start() {
  ErrorCode error;
  socket_.non_blocking(true, error);
  socket_.set_option(Tcp::no_delay(true), error);
  socket_.set_option(asio::socket_base::keep_alive(true), error);
#ifdef TCP_USER_TIMEOUT  // Linux; elsewhere the system's own limit ends a connection to a machine that is gone
  const unsigned stall = unsigned(2 * limits_.stall_time.count());
  setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &stall, sizeof stall);
#endif
  const auto peer = socket_.remote_endpoint(error);
  if (!error) remote_ = peer.address().to_string();
  worker_.sessions.insert(shared_from_this());
  if (hub_->stopping) return close();
  wait_idle();
  watch();
}

void Session::turn_away() {
  ErrorCode error;
  socket_.non_blocking(true, error);
  worker_.sessions.insert(shared_from_this());
  if (hub_->stopping) return close();
  refuse(503, "too many connections");
}

void Session::wait_idle() {
  wait_until(Clock::now() + limits_.idle_time, 0);
  in_request_ = false;
}

void Session::watch() {
  if (watching_ || closed_ || eof_) return;
  watching_ = true;
  socket_.async_wait(Tcp::socket::wait_read, [self = shared_from_this()](ErrorCode error) {
    self->watching_ = false;
    if (!self->closed_ && !error) self->readable();
  });
}

void Session::readable() {
  ErrorCode error;
  const size_t n = socket_.read_some(asio::buffer(worker_.scratch), error);
  if (error == asio::error::would_block || error == asio::error::try_again) return watch();
  if (error == asio::error::eof) {
    eof_ = true;
    if (!busy_ && (last_ || !reader_.under_way())) return close();
    leave();
  } else if (error) {
    return close();
  }
  if (last_) {
    discarded_ += n;
    return discarded_ > kLingerBytes ? close() : watch();
  }
  reader_.feed({worker_.scratch.data(), n});
  if (busy_ && reader_.buffered() > limits_.ahead_bytes) return close();
  if (!busy_) advance();
  watch();
}

void Session::advance() {
  try {
    read_requests();
  } catch (const std::exception&) {  // no memory, a gate that throws: the others go on
    close();
  }
}

/// Reads what has come until there is a request to answer, or more must come.
void Session::read_requests() {
  while (!busy_ && !closed_) {
    const RequestReader::Step step = reader_.step();
    const auto body = int64_t(reader_.body_bytes());
    const bool grew = body > counted_body_;
    count_body(body);
    if (grew && hub_->body_bytes > int64_t(limits_.bodies_bytes)) return refuse(503, "too many bodies at once");
    switch (step) {
      case RequestReader::Step::refused: return refuse(reader_.status(), reader_.why());
      case RequestReader::Step::head:
        wait_until(Clock::now() + limits_.body_time, 408);
        close_after_ = !reader_.keep_alive();
        http10_ = reader_.head().http10;
        if (head_passes() && reader_.expects_continue()) {
          const std::lock_guard lock(mutex_);
          queue("HTTP/1.1 100 Continue\r\n\r\n");
        }
        break;
      case RequestReader::Step::whole: return dispatch();
      case RequestReader::Step::more:
        if (eof_) return close();
        if (!in_request_ && reader_.under_way()) {
          in_request_ = true;
          wait_until(Clock::now() + limits_.header_time, 408);
        }
        return;
    }
  }
}

/// Answers and returns false where the head decides: hosts, origins, preflights and the gate.
bool Session::head_passes() {
  in_request_ = true;
  const Request& head = reader_.head();
  const Options& options = hub_->options;
  const std::string_view host = head.headers.get("Host"), origin = head.headers.get("Origin");
  cors_origin_.clear();
  std::optional<Response> early;
  // A page in a browser always says a host.
  const bool says_none = http10_ && host.empty();
  if (!options.hosts.empty() && !says_none && !contains(options.hosts, host_name(host))) {
    early = refusal(403, "the Host field names a host that is not served here (allow it with --allow-host)");
  } else if (!origin.empty() && !same_name(origin, fmt::format("http://{}", host)) &&
             !same_name(origin, fmt::format("https://{}", host))) {
    if (!contains(options.origins, origin) && !contains(options.origins, "*")) {
      early = refusal(403, "pages of this origin may not call here (allow it with --allow-origin)");
    } else {
      cors_origin_ = origin;
      if (head.method == "OPTIONS" && head.headers.find("Access-Control-Request-Method"))
        early = Response{204,
                         "",
                         "",
                         {{{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                           {"Access-Control-Allow-Headers", "Authorization, *"},
                           {"Access-Control-Max-Age", "600"}}}};
    }
  }
  if (!early && options.gate) {
    Request shown = head;
    shown.remote = remote_;
    early = options.gate(shown);
  }
  if (!early) return true;
  if (early->status >= 400) ++hub_->refused;
  const bool head_only = head.method == "HEAD";
  if (reader_.has_body()) close_after_ = true;  // what follows is a body that nobody reads
  else reader_.take();
  answer(*early, head_only);
  return false;
}

void Session::dispatch() {
  busy_ = true;
  last_ = close_after_;
  wait_until(Clock::time_point::max(), 0);
  Request request = reader_.take();
  request.remote = remote_;
  ++hub_->requests;
  const auto exchange = std::make_shared<Exchange>(shared_from_this(), request.method == "HEAD");
  if (eof_) leave();
  try {
    hub_->handler(std::move(request), Reply(exchange));
  } catch (const std::exception&) {
    exchange->abandon();
  }
}

void Session::refuse(int status, std::string_view why) {
  ++hub_->refused;
  close_after_ = true;
  answer(refusal(status, why), false);
}

/// An answer of the transport's own.
void Session::answer(const Response& response, bool head_only) {
  busy_ = true;
  last_ = close_after_;
  wait_until(Clock::time_point::max(), 0);
  std::make_shared<Exchange>(shared_from_this(), head_only)->answer(response);
}

std::string Session::head_of(int status, std::string_view content_type, const Headers& headers) const {
  RIDGE_CHECK(status >= 200 && status < 600, "status {}", status);
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_of(status));
  add_field(head, "Date", date_now());
  if (!content_type.empty()) add_field(head, "Content-Type", content_type);
  add_field(head, "X-Content-Type-Options", "nosniff");
  if (!cors_origin_.empty()) {
    add_field(head, "Access-Control-Allow-Origin", cors_origin_);
    add_field(head, "Vary", "Origin");
  }
  for (const auto& [name, value] : headers.fields) add_field(head, name, value);
  if (close_after_ || hub_->stopping) add_field(head, "Connection", "close");
  else if (http10_) add_field(head, "Connection", "keep-alive");
  return head;
}

void Session::queue(std::string_view bytes) {
  if (closed_) return;
  pending_ += bytes;
  last_queued_ = Clock::now();
  if (std::exchange(flush_posted_, true)) return;
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->flush(); });
}

void Session::flush() {
  bool whole = false;
  {
    const std::lock_guard lock(mutex_);
    flush_posted_ = false;
    if (closed_ || written_ < writing_.size()) return;
    writing_.clear();
    written_ = 0;
    writing_.swap(pending_);
    in_flight_ = writing_.size();
    whole = writing_.empty() && std::exchange(finished_, false);
  }
  if (whole) return answered();
  if (writing_.empty()) return;
  write_some();
}

void Session::write_some() {
  if (busy_) wait_until(Clock::now() + limits_.stall_time, 0);
  const auto rest = asio::buffer(writing_.data() + written_, writing_.size() - written_);
  socket_.async_write_some(rest, [self = shared_from_this()](ErrorCode error, size_t n) {
    if (self->closed_) return;
    if (error) return self->close();
    self->written_ += n;
    std::function<void()> ready;
    {
      const std::lock_guard lock(self->mutex_);
      self->in_flight_ -= n;
      if (self->was_full_ && self->in_flight_ + self->pending_.size() <= self->limits_.write_bytes / 2) {
        self->was_full_ = false;
        ready.swap(self->on_ready_);
      }
    }
    if (ready) ready();
    if (self->written_ < self->writing_.size()) return self->write_some();
    if (self->busy_) self->wait_until(Clock::time_point::max(), 0);
    self->flush();
  });
}

/// The answer is with the kernel, whole.
void Session::answered() {
  std::function<void()> dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(on_ready_);
    was_full_ = events_ = false;
    if (pending_.capacity() > kKeptBuffer) pending_ = {};
  }
  if (writing_.capacity() > kKeptBuffer) writing_ = {};
  busy_ = false;
  count_body(0);
  if (close_after_ || hub_->stopping) return linger();
  wait_idle();
  advance();
  watch();
}

/// Closes so that the client can read the answer although bytes of its own were not read.
void Session::linger() {
  if (eof_) return close();
  ErrorCode error;
  socket_.shutdown(Tcp::socket::shutdown_send, error);
  if (error) return close();
  last_ = true;
  wait_until(Clock::now() + kLingerTime, 0);
  watch();
}

/// The client no longer sends. Its answer is still written if it comes whole; a stream gets no more chunks and is cut,
/// though its owner may hold it for long.
void Session::leave() {
  std::function<void()> gone, dropped;
  bool cut = false;
  {
    const std::lock_guard lock(mutex_);
    left_ = true;
    cut = streaming_ && !closed_;
    dropped.swap(on_ready_);
    gone.swap(on_gone_);
  }
  if (gone) gone();
  if (cut) close();
}

void Session::close() {
  bool is_cut = false;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    pending_ = {};
    is_cut = streaming_ && http10_;
  }
  ErrorCode error;
  // Without chunks the end of the connection is the end of the answer: one that is cut ends with a reset.
  if (is_cut) socket_.set_option(asio::socket_base::linger(true, 0), error);
  socket_.close(error);
  leave();
  count_body(0);
  const auto self = shared_from_this();
  worker_.sessions.erase(self);
  const std::lock_guard lock(hub_->mutex);
  --hub_->connections;
  hub_->closed.notify_all();
}

void Session::wind_down() {
  if (busy_) close_after_ = true;
  else if (!last_) close();
}

void Session::count_body(int64_t bytes) { hub_->body_bytes += bytes - std::exchange(counted_body_, bytes); }

void Session::tick(Clock::time_point now) {
  if (now >= deadline_) {
    if (late_status_ != 0) return refuse(late_status_, "the request did not come in time");
    if (busy_) ++hub_->stalled;
    return close();
  }
  if (!busy_) return;
  const std::lock_guard lock(mutex_);
  if (events_ && !finished_ && pending_.empty() && in_flight_ == 0 && now - last_queued_ >= limits_.comment_time)
    queue(http10_ ? ":\n\n" : "3\r\n:\n\n\r\n");
}

}  // namespace ridge::http
