// Crowds: thousands of clients that vanish in mid-stream, and connections that do nothing.
#include <atomic>
#include <mutex>

#include "http/sse.h"
#include "wire.h"

namespace ridge::http {
namespace {

TEST(Crowd, FiveThousandClientsVanishInMidStream) {
  const int clients = clients_possible(5000);
  ASSERT_GT(clients, 100);
  std::atomic<int> gone{0};
  std::mutex mutex;
  std::vector<std::shared_ptr<Stream>> streams;
  Options options;
  options.threads = 2;
  const auto server = serve(
      [&](Request, Reply reply) {
        reply.on_gone([&] { ++gone; });
        const auto stream = reply.stream(200, kEventStream, sse_headers());
        stream->send(sse_event("first"));
        const std::lock_guard lock(mutex);
        streams.push_back(stream);
      },
      options);
  std::vector<Wire> wires;
  wires.reserve(size_t(clients));
  for (int i = 0; i < clients; ++i) {
    wires.emplace_back(server->port());
    ASSERT_TRUE(wires.back().send(get("/"))) << i;
  }
  for (Wire& wire : wires) ASSERT_TRUE(wire.until("first\n\n\r\n").ends_with("data: first\n\n\r\n"));
  EXPECT_EQ(server->counts().connections, clients);
  std::atomic<bool> done{false};
  std::thread writer([&] {  // writes go on while they leave
    while (!done)
      for (const auto& stream : streams) stream->send(sse_event("more"));
  });
  for (size_t i = 0; i < wires.size(); ++i) i % 2 == 0 ? wires[i].leave() : wires[i].reset();
  EXPECT_TRUE(wait_for([&] { return gone == clients; })) << gone;
  EXPECT_TRUE(wait_for([&] { return server->counts().connections == 0; }));
  done = true;
  writer.join();
  for (const auto& stream : streams) ASSERT_EQ(stream->send("x"), Sent::gone);
  Wire wire(server->port());
  wire.send(get("/"));
  EXPECT_EQ(status_of(wire.until("first")), 200);
}

TEST(Crowd, TenThousandIdleConnectionsHarmNobody) {
  const int clients = clients_possible(10000);
  const auto server = serve(echo);
  std::vector<Wire> wires;
  wires.reserve(size_t(clients));
  for (int i = 0; i < clients; ++i) {
    wires.emplace_back(server->port());
    ASSERT_TRUE(wires.back().connected()) << i;
  }
  EXPECT_TRUE(wait_for([&] { return server->counts().connections == clients; }));
  for (int i = 0; i < clients; i += 97) {  // each of them still serves
    wires[size_t(i)].send(get("/"));
    ASSERT_EQ(status_of(wires[size_t(i)].answer()), 200);
  }
  EXPECT_EQ(server->counts().turned_away, 0);
  server->stop(10s);
  EXPECT_EQ(server->counts().connections, 0);
}

TEST(Crowd, FilesThatRunOutAreWaitedFor) {
  const auto server = serve(echo);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int next = dup(0);
  const rlimit tight{rlim_t(next) + 1, limit.rlim_max};
  close(next);
  setrlimit(RLIMIT_NOFILE, &tight);
  Wire wire(server->port());  // has the last file
  wire.send(get("/"));
  EXPECT_EQ(wire.rest(150ms), "");
  EXPECT_EQ(server->counts().accepted, 0);
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_TRUE(wire.connected());
  EXPECT_EQ(status_of(wire.answer()), 200);
}

}  // namespace
}  // namespace ridge::http
