#include "http/client.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <cerrno>
#include <cstring>
#include <memory>

#include "http/sse.h"

namespace ridge::http {
namespace {

namespace beast = boost::beast::http;
using namespace std::chrono_literals;
using OnBytes = std::function<bool(std::string_view bytes)>;

/// Hands pieces of the body on as they come.
struct PiecesBody {
  struct value_type {
    OnBytes on_bytes;
    bool stopped = false;
  };
  struct reader {
    value_type& body;
    template <bool is_request, class Fields>
    reader(beast::header<is_request, Fields>&, value_type& b) : body(b) {}
    void init(const boost::optional<uint64_t>&, boost::system::error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      error = {};
      size_t n = 0;
      for (auto it = boost::asio::buffer_sequence_begin(buffers); it != boost::asio::buffer_sequence_end(buffers);
           ++it) {
        n += it->size();
        if (!body.stopped) body.stopped = !body.on_bytes({static_cast<const char*>(it->data()), it->size()});
      }
      return n;
    }
    void finish(boost::system::error_code& error) { error = {}; }
  };
};

class Socket {
 public:
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }

  explicit Socket(const std::atomic<bool>* stop) : stop_(stop) {}
  Status connect(const std::string& host, uint16_t port, std::chrono::milliseconds time) {
    where_ = fmt::format("{}:{}", host, port);
    addrinfo hints{}, *list = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int wrong = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list))
      return failed("cannot connect", gai_strerror(wrong));
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(list, freeaddrinfo);
    for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
      if (fd_ >= 0) ::close(fd_);
      fd_ = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol);  // macOS has no flags here
      if (fd_ < 0 || ::fcntl(fd_, F_SETFD, FD_CLOEXEC) != 0 || ::fcntl(fd_, F_SETFL, O_NONBLOCK) != 0) continue;
      if (::connect(fd_, a->ai_addr, a->ai_addrlen) == 0) return {};
      socklen_t size = sizeof errno;
      if (errno == EINPROGRESS && ready(POLLOUT, time) && getsockopt(fd_, SOL_SOCKET, SO_ERROR, &errno, &size) == 0 &&
          errno == 0)
        return {};
    }
    return failed("cannot connect", std::strerror(errno));
  }

  Status send(std::string_view bytes, std::chrono::milliseconds time) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n > 0) bytes.remove_prefix(size_t(n));
      else if (errno == EPIPE || errno == ECONNRESET) return {};  // there may be an answer all the same
      else if ((errno != EAGAIN && errno != EINTR) || !ready(POLLOUT, time))
        return failed("cannot send", std::strerror(errno));
    }
    return {};
  }

  /// 0 at the end.
  Result<size_t> receive(std::string& into, std::chrono::milliseconds time) {
    for (;;) {
      const ssize_t n = ::recv(fd_, into.data(), into.size(), 0);
      if (n >= 0) return size_t(n);
      if ((errno != EAGAIN && errno != EINTR) || !ready(POLLIN, time)) return failed("no answer", std::strerror(errno));
    }
  }

  Failure failed(std::string_view what, std::string_view why) const {
    return fail(ErrorKind::failure, "{}", four_parts(what, where_, why, "is the server running?"));
  }

 private:
  bool ready(short events, std::chrono::milliseconds time) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kSlice{50};
    const auto end = Clock::now() + time;
    for (;;) {
      pollfd entry{fd_, events, 0};
      const auto left = std::max(std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()), 0ms);
      const int n = ::poll(&entry, 1, int((stop_ ? std::min(left, kSlice) : left).count()));
      if (n > 0) return true;
      if (n < 0 && errno != EINTR) return false;
      errno = stop_ && *stop_ ? ECANCELED : ETIMEDOUT;
      if (errno == ECANCELED || (n == 0 && Clock::now() >= end)) return false;
    }
  }

  int fd_ = -1;
  const std::atomic<bool>* stop_;
  std::string where_;
};

}  // namespace

Result<Response> Client::pieces(std::string_view method, std::string_view target, std::string_view body,
                                const Headers& headers, const OnBytes& on_bytes) const {
  Socket socket(times_.stop);
  RIDGE_TRY_STATUS(socket.connect(host_, port_, times_.connect));
  std::string out = fmt::format("{} {} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n", method, target,
                                host_.find(':') == host_.npos ? host_ : "[" + host_ + "]", port_);
  for (const auto& [name, value] : headers.fields) out += fmt::format("{}: {}\r\n", name, value);
  if (method != "GET" && method != "HEAD") out += fmt::format("Content-Length: {}\r\n", body.size());
  out.append("\r\n").append(body);
  RIDGE_TRY_STATUS(socket.send(out, times_.idle));

  Response response;
  beast::response_parser<PiecesBody> parser;
  parser.body_limit(boost::none);
  parser.eager(true);
  parser.skip(method == "HEAD");
  parser.get().body().on_bytes = [&](std::string_view bytes) {
    if (parser.get().result_int() == 200) return on_bytes(bytes);
    response.body += bytes;
    return response.body.size() <= kMaxBody;
  };
  std::string piece(64 << 10, '\0'), left;
  while (!parser.is_done() && !parser.get().body().stopped) {
    RIDGE_TRY(const size_t n, socket.receive(piece, times_.idle));
    boost::system::error_code error;
    if (n == 0) {
      if (parser.got_some()) parser.put_eof(error);
      if (error || !parser.is_done()) return socket.failed("no whole answer", "the server closed the connection");
      break;
    }
    left.append(piece, 0, n);
    size_t used = 0;
    while (!error && used < left.size() && !parser.is_done())
      used += parser.put(boost::asio::buffer(left.data() + used, left.size() - used), error);
    if (error && error != beast::error::need_more) return socket.failed("not an HTTP answer", error.message());
    left.erase(0, used);
  }
  response.status = int(parser.get().result_int());
  for (const auto& field : parser.get())
    response.headers.add({field.name_string().data(), field.name_string().size()},
                         {field.value().data(), field.value().size()});
  response.content_type = response.headers.get("Content-Type");
  return response;
}

Result<Response> Client::events(std::string_view method, std::string_view target, std::string_view body,
                                const Headers& headers,
                                const std::function<bool(std::string_view data)>& on_data) const {
  SseReader reader;
  return pieces(method, target, body, headers, [&](std::string_view bytes) { return reader.feed(bytes, on_data); });
}

Result<Response> Client::get(std::string_view target, const Headers& headers) const {
  return request("GET", target, {}, headers);
}
Result<Response> Client::post(std::string_view target, std::string_view body, const Headers& headers) const {
  return request("POST", target, body, headers);
}

Result<Response> Client::request(std::string_view method, std::string_view target, std::string_view body,
                                 const Headers& headers) const {
  std::string whole;
  RIDGE_TRY(Response response, pieces(method, target, body, headers, [&](std::string_view bytes) {
              whole += bytes;
              return whole.size() <= kMaxBody;
            }));
  if (whole.size() > kMaxBody)
    return fail(ErrorKind::failure, "the answer of {}:{} is longer than {} bytes", host_, port_, kMaxBody);
  if (response.status == 200) response.body = std::move(whole);
  return response;
}

}  // namespace ridge::http
