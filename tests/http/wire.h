// Raw bytes over a socket to a server of the test's own, with time limits.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "http/server.h"

namespace ridge::http {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Waits until `done`; false after `limit`.
inline bool wait_for(const std::function<bool()>& done, std::chrono::milliseconds limit = 20s) {
  const auto end = Clock::now() + limit;
  while (!done()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

class Wire {
 public:
  explicit Wire(uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    const int one = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  ~Wire() { leave(); }
  Wire(Wire&& other) noexcept : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  bool connected() const { return connected_; }

  /// False when the server has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(size_t(n));
    }
    return true;
  }

  /// What comes until `mark` has come, the end, or the limit.
  std::string until(std::string_view mark, std::chrono::milliseconds limit = 20s) {
    std::string all;
    const auto end = Clock::now() + limit;
    char piece[4096];
    for (bool found = false; !found;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
      pollfd entry{fd_, POLLIN, 0};
      if (left <= 0 || ::poll(&entry, 1, int(left)) <= 0) break;
      const ssize_t n = ::recv(fd_, piece, sizeof piece, MSG_PEEK);
      if (n <= 0) {
        ended_ = true;
        break;
      }
      const size_t before = all.size();
      all.append(piece, size_t(n));
      const size_t at = mark.empty() ? all.npos : all.find(mark, before - std::min(before, mark.size()));
      found = at != all.npos;
      if (found) all.resize(at + mark.size());  // not a byte beyond the mark
      ::recv(fd_, piece, all.size() - before, 0);
    }
    return all;
  }
  /// Everything until the server closes; ended() says whether it did.
  std::string rest(std::chrono::milliseconds limit = 20s) { return until({}, limit); }
  bool ended() const { return ended_; }

  /// The head and a body of Content-Length bytes.
  std::string answer() {
    std::string all = until("\r\n\r\n");
    const size_t at = all.find("Content-Length: ");
    const size_t length = at == all.npos ? 0 : size_t(std::stoul(all.substr(at + 16)));
    std::string body(length, '\0');
    for (size_t got = 0; got < length;) {
      const ssize_t n = ::recv(fd_, body.data() + got, length - got, 0);
      if (n <= 0) return all + body.substr(0, got);
      got += size_t(n);
    }
    return all + body;
  }

  /// Reads to the end; whether it came as a reset.
  bool was_reset() {
    char piece[4096];
    ssize_t n = 0;
    while ((n = ::recv(fd_, piece, sizeof piece, 0)) > 0) continue;
    return n < 0 && errno == ECONNRESET;
  }

  void half_close() { ::shutdown(fd_, SHUT_WR); }
  void leave() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  /// Leaves as a machine does whose process died with unread bytes.
  void reset() {
    const linger at_once{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    leave();
  }

 private:
  int fd_;
  bool connected_ = false, ended_ = false;
};

/// A server on a free port of the loopback address.
inline std::unique_ptr<Server> serve(Handler handler, Options options = {}) {
  auto server = Server::open(std::move(options), std::move(handler));
  if (!server) throw std::runtime_error(server.error().message);
  return std::move(*server);
}

inline Options with_limits(const std::function<void(Limits&)>& change) {
  Options options;
  change(options.limits);
  return options;
}

/// "GET path" with the fields every request needs.
inline std::string get(std::string_view path, std::string_view fields = {}) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, fields);
}
inline std::string post(std::string_view path, std::string_view body, std::string_view fields = {}) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{}\r\n{}", path, body.size(), fields,
                     body);
}

/// Answers with method, path and body.
inline void echo(const Request& request, const Reply& reply) {
  reply.send({200, "text/plain", fmt::format("{} {} {}", request.method, request.path, request.body)});
}

inline int status_of(std::string_view answer) {
  return answer.starts_with("HTTP/1.1 ") ? std::stoi(std::string(answer.substr(9, 3))) : 0;
}
inline std::string body_of(std::string_view answer) {
  const size_t at = answer.find("\r\n\r\n");
  return at == answer.npos ? std::string() : std::string(answer.substr(at + 4));
}
/// The data of a chunked body; "" when it is cut.
inline std::string unchunked(std::string_view body) {
  std::string out;
  while (!body.empty()) {
    const size_t line = body.find("\r\n");
    if (line == body.npos) return {};
    const size_t n = std::stoul(std::string(body.substr(0, line)), nullptr, 16);
    if (n == 0) return out;
    if (body.size() < line + 4 + n) return {};
    out += body.substr(line + 2, n);
    body.remove_prefix(line + 4 + n);
  }
  return {};
}

/// How many clients and their connections this process may have open at once, at most `wanted`.
inline int clients_possible(int wanted) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return int(std::min<rlim_t>(rlim_t(wanted), (limit.rlim_max - 400) / 2));
}

}  // namespace ridge::http
