#include "http/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <future>

#include "http/session.h"

namespace ridge::http {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using namespace std::chrono_literals;

constexpr int kOtherFiles = 192;  // models, logs, clients of our own
constexpr int kTurnedAwayAtOnce = 64;
constexpr auto kAcceptPause = 50ms;

/// How many connections the process may have open, after raising its soft limit as far as `wanted` needs.
int connections_allowed(int wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const rlim_t needed = rlim_t(wanted) + kTurnedAwayAtOnce + kOtherFiles;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  const rlim_t kept = kTurnedAwayAtOnce + kOtherFiles;
  return limit.rlim_cur >= needed ? wanted : int(std::max<rlim_t>(limit.rlim_cur, kept + 1) - kept);
}

/// Short beside every limit of time.
std::chrono::milliseconds sweep_period(const Limits& limits) {
  const auto least =
      std::min({limits.header_time, limits.body_time, limits.idle_time, limits.stall_time, limits.comment_time});
  return std::clamp(least / 4, std::chrono::milliseconds(10), std::chrono::milliseconds(250));
}

}  // namespace

struct Server::State {
  explicit State(std::shared_ptr<Hub> h)
      : hub(std::move(h)), acceptor(hub->workers[0]->loop), pause(hub->workers[0]->loop) {}

  Status listen();
  void accept();
  void sweep(Worker& worker);
  void on_sessions(void (Session::*call)());

  std::shared_ptr<Hub> hub;
  Tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> guards;
  size_t next_worker = 0;
  uint16_t port = 0;
};

Status Server::State::listen() {
  Options& options = hub->options;
  const auto failed = [&](const ErrorCode& error, ErrorKind kind = ErrorKind::failure) {
    return fail(kind, "{}",
                four_parts("cannot listen", fmt::format("{}:{}", options.host, options.port), error.message(),
                           "choose another address or port"));
  };
  ErrorCode error;
  const auto found = Tcp::resolver(acceptor.get_executor())
                         .resolve(options.host, std::to_string(options.port), Tcp::resolver::passive, error);
  if (error) return failed(error, ErrorKind::usage);
  const Tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(Tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(4096, error);
  if (error) return failed(error);
  port = acceptor.local_endpoint().port();
  if (options.hosts.empty() && endpoint.address().is_loopback()) {
    options.hosts = {"localhost", "127.0.0.1", "[::1]", options.host};
    if (endpoint.address().is_v6()) options.hosts.push_back("[" + options.host + "]");
  }
  return {};
}

void Server::State::accept() {
  Worker& worker = *hub->workers[next_worker++ % hub->workers.size()];
  acceptor.async_accept(worker.loop, [this, &worker](ErrorCode error, Tcp::socket socket) {
    if (!acceptor.is_open()) return;
    if (error) {  // out of files or memory: some will be free again
      pause.expires_after(kAcceptPause);
      return pause.async_wait([this](ErrorCode stopped) {
        if (!stopped) accept();
      });
    }
    const int64_t open = hub->connections++, limit = hub->options.limits.connections;
    ++(open < limit ? hub->accepted : hub->turned_away);
    if (open < limit + kTurnedAwayAtOnce) {
      const auto call = open < limit ? &Session::start : &Session::turn_away;
      const auto session = std::make_shared<Session>(hub, worker, std::move(socket));
      asio::post(worker.loop, [session, call] { ((*session).*call)(); });
    } else {
      --hub->connections;
    }
    accept();
  });
}

void Server::State::sweep(Worker& worker) {
  worker.sweep.expires_after(sweep_period(hub->options.limits));
  worker.sweep.async_wait([this, &worker](ErrorCode stopped) {
    if (stopped || worker.ended) return;
    const std::vector<std::shared_ptr<Session>> all(worker.sessions.begin(),
                                                    worker.sessions.end());  // it changes meanwhile
    for (const auto& session : all) session->tick(Clock::now());
    sweep(worker);
  });
}

void Server::State::on_sessions(void (Session::*call)()) {
  for (const auto& worker : hub->workers)
    asio::post(worker->loop, [worker = worker.get(), call] {
      const std::vector<std::shared_ptr<Session>> all(worker->sessions.begin(), worker->sessions.end());
      for (const auto& session : all) ((*session).*call)();
    });
}

Result<std::unique_ptr<Server>> Server::open(Options options, Handler handler) {
  if (options.threads < 1 || options.threads > 64)
    return wrong_field("threads", "threads = {}: 1 to 64 I/O threads", options.threads);
  if (options.limits.connections < 1)
    return wrong_field("connections", "connections = {}: at least 1", options.limits.connections);
  auto hub = std::make_shared<Hub>();
  hub->options = std::move(options);
  hub->handler = std::move(handler);
  hub->options.limits.connections = connections_allowed(hub->options.limits.connections);
  for (int i = 0; i < hub->options.threads; ++i) hub->workers.push_back(std::make_unique<Worker>());
  auto state = std::make_unique<State>(hub);
  RIDGE_TRY_STATUS(state->listen());
  state->accept();
  for (const auto& worker : hub->workers) {
    state->guards.emplace_back(worker->loop.get_executor());
    state->sweep(*worker);
  }
  for (const auto& worker : hub->workers) worker->thread = std::thread([loop = &worker->loop] { loop->run(); });
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}
Server::~Server() { stop(0ms); }

uint16_t Server::port() const { return state_->port; }

Counts Server::counts() const {
  const Hub& hub = *state_->hub;
  return {hub.connections, hub.accepted, hub.turned_away, hub.requests, hub.refused, hub.stalled};
}

void Server::stop(std::chrono::milliseconds patience) {
  Hub& hub = *state_->hub;
  if (hub.stopping.exchange(true)) return;
  std::promise<void> closed;  // from then on no worker gets a new connection
  asio::post(hub.workers[0]->loop, [&] {
    ErrorCode ignored;
    state_->acceptor.close(ignored);
    state_->pause.cancel();
    closed.set_value();
  });
  closed.get_future().wait();
  state_->on_sessions(&Session::wind_down);
  {
    std::unique_lock lock(hub.mutex);
    hub.closed.wait_for(lock, patience, [&] { return hub.connections == 0; });
  }
  state_->on_sessions(&Session::close);
  for (const auto& worker : hub.workers)
    asio::post(worker->loop, [worker = worker.get()] {
      worker->ended = true;
      worker->sweep.cancel();
    });
  state_->guards.clear();
  for (const auto& worker : hub.workers) worker->thread.join();
  hub.handler = nullptr;
  hub.options.gate = nullptr;
}

}  // namespace ridge::http
