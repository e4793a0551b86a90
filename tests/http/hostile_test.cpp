// Hostile clients: every shape is refused with its status, every limit holds, and others are served all the while.
#include <atomic>

#include "base/rng.h"
#include "http/sse.h"
#include "wire.h"

namespace ridge::http {
namespace {

struct Shape {
  std::string bytes;
  int status;
};

/// The bytes of a request with these fields.
std::string with(std::string_view fields, std::string_view body = "") {
  return fmt::format("POST / HTTP/1.1\r\nHost: localhost\r\n{}\r\n{}", fields, body);
}

TEST(HostileRequests, AreRefusedAndTheConnectionCloses) {
  const std::string smuggled = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::vector<Shape> shapes = {
      // other protocols
      {"GET /\r\n", 400},
      {"GET / HTTP/0.9\r\n\r\n", 505},
      {"GET / HTTP/1.0 \r\nHost: localhost\r\n\r\n", 400},
      {"GET / HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
      {"GET / HTTP/1.0\r\nHost:\r\n\r\n", 400},
      {"GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n", 403},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, 400},
      {"GET / HTTP/1.2\r\nHost: localhost\r\n\r\n", 505},
      {"GET / HTTP/11\r\nHost: localhost\r\n\r\n", 505},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"\x16\x03\x01\x02\x01\x01", 400},
      {"\r\n" + smuggled, 400},
      {"get / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      // lengths
      {with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + smuggled), 400},
      {with("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n" + smuggled), 400},
      {with("Content-Length: 5\r\nContent-Length: 6\r\n", "12345" + smuggled), 400},
      {with("Content-Length: 5\r\nContent-Length: 5\r\n", "12345" + smuggled), 400},
      {with("Content-Length: 5, 5\r\n", "12345" + smuggled), 400},
      {with("Content-Length: +5\r\n", "12345" + smuggled), 400},
      {with("Content-Length: -1\r\n"), 400},
      {with("Content-Length: 0x5\r\n", "12345"), 400},
      {with("Content-Length: 5 5\r\n", "12345"), 400},
      {with("Content-Length:\r\n"), 400},
      {with("Content-Length: 99999999999999999999999\r\n"), 400},
      {with("Content-Length: 18446744073709551615\r\n"), 413},
      {with("Content-Length: 1001\r\n"), 413},
      // codings
      {with("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501},
      {with("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"), 501},
      {with("Transfer-Encoding: identity\r\n", smuggled), 501},
      {with("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), 501},
      {with("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"), 501},
      {with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400},
      {with("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n"), 400},
      {with("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"), 400},
      {with("Transfer-Encoding:\x0b"
            "chunked\r\n",
            "0\r\n\r\n"),
       400},
      // chunks
      {with("Transfer-Encoding: chunked\r\n", "10000000000000000\r\n"), 400},
      {with("Transfer-Encoding: chunked\r\n", "ffffffffffffffff\r\nabc"), 413},
      {with("Transfer-Encoding: chunked\r\n", "-1\r\nabc"), 400},
      {with("Transfer-Encoding: chunked\r\n", "0x3\r\nabc\r\n0\r\n\r\n"), 400},
      {with("Transfer-Encoding: chunked\r\n", "3\r\nabcd\r\n0\r\n\r\n"), 400},
      {with("Transfer-Encoding: chunked\r\n", "3\nabc\n0\n\n\r\n"), 400},
      {with("Transfer-Encoding: chunked\r\n", "\r\n"), 400},
      {with("Transfer-Encoding: chunked\r\n", "3;" + std::string(3000, 'x')), 400},
      {with("Transfer-Encoding: chunked\r\n", "0\r\nContent-Length: 7\r\n\r\n"), 400},
      {with("Transfer-Encoding: chunked\r\n", "3e9\r\n" + std::string(1001, 'x')), 413},
      {with("Transfer-Encoding: chunked\r\n", "3e8\r\n" + std::string(1000, 'x') + "\r\n1\r\nx\r\n0\r\n\r\n"), 413},
      // lines
      {"GET / HTTP/1.1\nHost: localhost\n\n", 400},
      {with("A: b\r\n c\r\n"), 400},
      {with("A: b\r\n\tc\r\n"), 400},
      {"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n", 400},
      {with("A: b\rc\r\n"), 400},
      {with("A: b\nContent-Length: 5\r\n", "12345"), 400},
      {with(std::string("A: b\0c\r\n", 8)), 400},
      {with("A: b\x01\r\n"), 400},
      {with("A b\r\n"), 400},
      {with(": b\r\n"), 400},
      {with("A(: b\r\n"), 400},
      {"GET / /x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"GET\t/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"G@T / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      // hosts and expectations
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
      {with("Expect: 200-ok\r\n"), 417},
      // targets
      {"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {get("/a%00b"), 400},
      {get(std::string("/a\0b", 4)), 400},
      {get("/../etc/passwd"), 400},
      {get("/a/%2e%2E/b"), 400},
      {get("/a/..%2fb"), 400},
      {get("/a/.."), 400},
      {get("/..\\b"), 400},
      {get("/./a"), 400},
      {get("/%"), 400},
      {get("/%4"), 400},
      {get("/%4g"), 400},
      {get("/%C3"), 400},
      {get("/%ED%A0%80"), 400},
      {get("/a%0d%0aX: y"), 400},
      {get("/?a=%00"), 400},
      {get("/a#b"), 400},
      // sizes
      {with("A: " + std::string(2000, 'x') + "\r\n"), 431},
      {"GET /" + std::string(3000, 'x'), 431},
      {std::string(3000, 'A'), 431},
  };
  std::atomic<int> served{0};
  const auto server = serve([&](const Request& request, const Reply& reply) { ++served, echo(request, reply); },
                            with_limits([](Limits& limits) { limits.header_bytes = 2000, limits.body_bytes = 1000; }));
  Wire other(server->port());
  for (const Shape& shape : shapes) {
    for (const size_t step : {shape.bytes.size(), size_t(1)}) {  // at once, and byte by byte
      Wire wire(server->port());
      for (size_t i = 0; i < shape.bytes.size() && wire.send(shape.bytes.substr(i, step));) i += step;
      const std::string answer = wire.rest();
      EXPECT_EQ(status_of(answer), shape.status) << testing::PrintToString(shape.bytes.substr(0, 200)) << answer;
      EXPECT_TRUE(wire.ended());
      EXPECT_EQ(answer.find("Date: "), answer.rfind("Date: ")) << answer;  // one answer
      EXPECT_NE(answer.find("Connection: close\r\n"), answer.npos);
    }
    EXPECT_EQ(served, 0) << testing::PrintToString(shape.bytes.substr(0, 200));
    other.send(get("/"));
    EXPECT_EQ(status_of(other.answer()), 200);
    served = 0;
  }
}

TEST(HostileRequests, LimitsAreNotOffByOne) {
  const auto server =
      serve(echo, with_limits([](Limits& limits) { limits.header_bytes = 200, limits.body_bytes = 100; }));
  const auto ask = [&](size_t header, size_t body) {
    std::string bytes = post("/", std::string(body, 'b'), "A: \r\n");
    const size_t now = bytes.size() - body;
    bytes.insert(bytes.find("A: ") + 3, std::string(header - now, 'x'));
    Wire wire(server->port());
    wire.send(bytes);
    return status_of(wire.answer());
  };
  EXPECT_EQ(ask(200, 100), 200);
  EXPECT_EQ(ask(201, 100), 431);
  EXPECT_EQ(ask(200, 101), 413);
}

TEST(HostileClients, SlowOnesAreSentAway) {
  const auto server = serve(echo, with_limits([](Limits& limits) {
                              limits.header_time = 200ms, limits.body_time = 400ms, limits.idle_time = 600ms;
                            }));
  const auto expect = [&](std::string_view begin, std::string_view drip, int status, std::chrono::milliseconds least) {
    Wire wire(server->port());
    const auto start = Clock::now();
    wire.send(begin);
    std::string answer;
    while (answer.empty() && !wire.ended() && Clock::now() - start < 20s) {
      if (!drip.empty()) wire.send(drip);
      answer = wire.rest(20ms);
    }
    EXPECT_EQ(status_of(answer), status) << begin;
    EXPECT_GE(Clock::now() - start, least) << begin;
    EXPECT_LT(Clock::now() - start, least + 5s) << begin;
  };
  expect("GET / HTTP/1.1\r\n", "A: b\r\n", 408, 200ms);
  expect("G", "", 408, 200ms);
  expect("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", "x", 408, 400ms);
  expect("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", 408, 400ms);
  expect("", "", 0, 600ms);
  Wire wire(server->port());  // and after a request
  wire.send(get("/"));
  EXPECT_EQ(status_of(wire.answer()), 200);
  EXPECT_EQ(wire.rest(), "");
  EXPECT_TRUE(wire.ended());
}

/// Sends chunks into `stream` until it is full and the kernel takes no more, for longer than a busy machine keeps the
/// server from its turn; how many bytes went in.
size_t fill(Stream& stream) {
  const std::string chunk(1000, 'x');
  size_t sent = 0;
  for (auto full_since = Clock::now(); Clock::now() - full_since < 150ms;) {
    while (stream.send(chunk) == Sent::ok) sent += chunk.size(), full_since = Clock::now();
    EXPECT_LT(sent, size_t(64) << 20) << "no limit";
    std::this_thread::sleep_for(1ms);
  }
  return sent;
}

TEST(SlowReaders, MakeAStreamWaitAndGetEverything) {
  std::shared_ptr<Stream> stream;
  std::atomic<bool> open{false}, ready{false};
  const auto server = serve([&](Request, Reply reply) { stream = reply.stream(200, "text/plain"), open = true; },
                            with_limits([](Limits& limits) { limits.write_bytes = 64 << 10; }));
  Wire wire(server->port());
  wire.send(get("/"));
  ASSERT_TRUE(wait_for([&] { return open.load(); }));
  const size_t sent = fill(*stream);
  EXPECT_GE(sent, size_t(64000));
  stream->on_ready([&] { ready = true; });
  EXPECT_EQ(stream->send("no"), Sent::full);
  EXPECT_FALSE(ready);
  std::string all;
  EXPECT_TRUE(wait_for([&] { return all += wire.rest(1ms), ready.load(); }));
  EXPECT_EQ(stream->send("yes"), Sent::ok);
  stream->finish();
  all += wire.until("0\r\n\r\n");
  EXPECT_TRUE(unchunked(body_of(all)) == std::string(sent, 'x') + "yes") << all.size() << " bytes came";
}

TEST(SlowReaders, WhoTakeNothingAreDropped) {
  std::shared_ptr<Stream> stream;
  std::atomic<bool> open{false}, gone{false}, ready{false};
  const auto server = serve(
      [&](Request, Reply reply) {
        reply.on_gone([&] { gone = true; });
        stream = reply.stream(200, "text/plain"), open = true;
      },
      with_limits([](Limits& limits) { limits.stall_time = 300ms; }));
  Wire wire(server->port(), 4096);
  wire.send(get("/"));
  ASSERT_TRUE(wait_for([&] { return open.load(); }));
  const auto start = Clock::now();
  fill(*stream);
  stream->on_ready([&] { ready = true; });
  EXPECT_TRUE(wait_for([&] { return gone.load(); }));
  EXPECT_GE(Clock::now() - start, 300ms);
  EXPECT_TRUE(stream->gone());
  EXPECT_EQ(stream->send("x"), Sent::gone);
  EXPECT_EQ(server->counts().stalled, 1);
  EXPECT_EQ(server->counts().connections, 0);
  EXPECT_FALSE(ready);
}

TEST(Leaving, IsNoticedWithoutAWrite) {
  std::atomic<int> open{0}, gone{0};
  std::vector<std::shared_ptr<Stream>> kept;
  std::vector<Reply> waiting;
  const auto server = serve([&](Request request, Reply reply) {
    if (request.path == "/stream") {
      kept.push_back(reply.stream(200, kEventStream));
      kept.back()->on_gone([&] { ++gone; });
    } else {
      reply.on_gone([&] { ++gone; });
      waiting.push_back(reply);
    }
    ++open;
  });
  for (const char* path : {"/stream", "/whole"})
    for (const bool reset : {false, true}) {
      open = gone = 0;
      Wire wire(server->port());
      wire.send(get(path));
      ASSERT_TRUE(wait_for([&] { return open == 1; }));
      if (path == std::string_view("/stream")) wire.until("\r\n\r\n");  // unread bytes would end it otherwise
      std::this_thread::sleep_for(10ms);
      EXPECT_EQ(gone, 0);
      const auto start = Clock::now();
      if (reset) wire.reset();
      else wire.leave();
      EXPECT_TRUE(wait_for([&] { return gone == 1; }));
      EXPECT_LT(Clock::now() - start, 2s);
    }
  for (const auto& stream : kept) EXPECT_TRUE(stream->gone());
  waiting.clear();  // streams that are held do not hold connections
  EXPECT_TRUE(wait_for([&] { return server->counts().connections == 0; }, 5s));
  std::atomic<int> at_once{0};
  kept[0]->on_gone([&] { ++at_once; });
  EXPECT_EQ(at_once, 1);
}

TEST(HostileClients, WhoSendFarAheadAreDropped) {
  std::atomic<bool> gone{false};
  std::optional<Reply> kept;
  const auto server = serve([&](Request, Reply reply) {
    reply.on_gone([&] { gone = true; });
    kept = std::move(reply);
  });
  Wire wire(server->port());
  wire.send(get("/"));
  ASSERT_TRUE(wait_for([&] { return server->counts().requests == 1; }));
  for (int i = 0; i < 1000 && wire.send(std::string(1000, 'x')); ++i) continue;
  EXPECT_TRUE(wait_for([&] { return gone.load(); }));
}

TEST(HostileClients, BodiesHaveALimitTogether) {
  const auto server = serve(echo, with_limits([](Limits& limits) { limits.bodies_bytes = 3000; }));
  std::vector<Wire> wires;
  for (int i = 0; i < 4; ++i) {
    wires.emplace_back(server->port());
    wires.back().send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" + std::string(900, 'x'));
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(status_of(wires.back().rest()), 503);
  for (Wire& wire : wires) wire.leave();
  Wire wire(server->port());
  EXPECT_TRUE(wait_for([&] { return server->counts().connections == 1; }));
  for (int i = 0; i < 5; ++i) {  // answered ones are not counted any more
    wire.send(post("/", std::string(1000, 'y')));
    EXPECT_EQ(status_of(wire.answer()), 200);
  }
}

TEST(HostileClients, TooManyConnectionsGet503) {
  const auto server = serve(echo, with_limits([](Limits& limits) { limits.connections = 3; }));
  std::vector<Wire> wires;
  for (int i = 0; i < 3; ++i) {
    wires.emplace_back(server->port());
    wires.back().send(get("/"));
    EXPECT_EQ(status_of(wires.back().answer()), 200);
  }
  Wire fourth(server->port());
  fourth.send(get("/"));
  const std::string answer = fourth.rest();
  EXPECT_EQ(status_of(answer), 503);
  EXPECT_NE(body_of(answer).find("too many connections"), answer.npos) << answer;
  std::vector<Wire> flood;
  for (int i = 0; i < 300; ++i) flood.emplace_back(server->port());
  EXPECT_TRUE(wait_for([&] { return server->counts().turned_away == 301; }));
  flood.clear();
  wires[0].send(get("/"));
  EXPECT_EQ(status_of(wires[0].answer()), 200);
  wires.clear();
  fourth.leave();
  EXPECT_TRUE(wait_for([&] { return server->counts().connections == 0; }));
  Wire again(server->port());
  again.send(get("/"));
  EXPECT_EQ(status_of(again.answer()), 200);
}

TEST(HostileClients, RandomBytesHarmNobody) {
  std::atomic<int> requests{0};
  Options options = with_limits([](Limits& limits) { limits.header_time = 300ms, limits.body_time = 300ms; });
  options.threads = 2;
  const auto server =
      serve([&](const Request& request, const Reply& reply) { ++requests, echo(request, reply); }, options);
  const std::vector<std::string> words = {"GET ",
                                          "POST ",
                                          "/",
                                          " HTTP/1.1\r\n",
                                          "Host: localhost\r\n",
                                          "\r\n",
                                          "\r\n\r\n",
                                          "0\r\n\r\n",
                                          "Content-Length: 3\r\n",
                                          "Transfer-Encoding: chunked\r\n",
                                          "Expect: 100-continue\r\n",
                                          "3\r\nabc\r\n",
                                          get("/"),
                                          post("/", "abc"),
                                          "%00",
                                          ":",
                                          " "};
  Rng rng(7);
  Wire other(server->port());
  for (int round = 0; round < 400; ++round) {
    Wire wire(server->port());
    std::string bytes;
    const bool plain = rng.next() % 4 == 0;
    for (uint64_t n = rng.next() % 40; n > 0; --n) {
      if (plain || rng.next() % 8 == 0) bytes += char(rng.next() & 0xFF);
      else bytes += words[rng.next() % words.size()];
    }
    wire.send(bytes);
    if (rng.next() % 3 == 0) wire.half_close();
    else if (rng.next() % 3 == 0) wire.reset();
    if (round % 20 == 0) {
      other.send(get("/"));
      ASSERT_EQ(status_of(other.answer()), 200);
    }
  }
  EXPECT_GT(requests, 20);
  other.leave();
  EXPECT_TRUE(wait_for([&] { return server->counts().connections == 0; }));
}

}  // namespace
}  // namespace ridge::http
