// Server: answers in order, streams from any thread, early refusals, hosts and origins, stopping.
#include <atomic>
#include <future>
#include <mutex>

#include "http/sse.h"
#include "wire.h"

namespace ridge::http {
namespace {

TEST(Server, AnswersOnOneConnectionInTheOrderOfTheRequests) {
  std::mutex mutex;
  std::vector<std::thread> threads;
  const auto server = serve([&](Request request, Reply reply) {
    const std::lock_guard lock(mutex);  // later requests would be ready sooner
    const int wait = 20 - std::stoi(*request.param("i"));
    threads.emplace_back([=] {
      std::this_thread::sleep_for(std::chrono::milliseconds(wait));
      echo(request, reply);
    });
  });
  Wire wire(server->port());
  std::string all;
  for (int i = 0; i < 20; ++i) all += post(fmt::format("/{}?i={}", i, i), fmt::format("body {}", i));
  wire.send(all);
  for (int i = 0; i < 20; ++i) {
    const std::string answer = wire.answer();
    EXPECT_EQ(status_of(answer), 200);
    EXPECT_EQ(body_of(answer), fmt::format("POST /{} body {}", i, i));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server->counts().accepted, 1);
  EXPECT_EQ(server->counts().requests, 20);
}

TEST(Server, HandsOnWhatTheRequestSays) {
  Request seen;
  const auto server = serve([&](Request request, Reply reply) {
    seen = std::move(request);
    reply.send({201, "text/plain", "made", {{{"X-One", "1"}}}});
  });
  Wire wire(server->port());
  wire.send(
      "PUT /a%20b/%C3%A9%2Fc?x=1+2&y&z=%26 HTTP/1.1\r\nHost: localhost\r\nX-Key: v w \r\nTransfer-Encoding: "
      "chunked\r\n\r\n"
      "3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nTrailer: no\r\n\r\n");
  const std::string answer = wire.answer();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 201 Created\r\n")) << answer;
  for (const char* field :
       {"Content-Type: text/plain\r\n", "Content-Length: 4\r\n", "X-One: 1\r\n", "Date: ", " GMT\r\n"})
    EXPECT_NE(answer.find(field), answer.npos) << field << answer;
  EXPECT_EQ(answer.find("Access-Control"), answer.npos);
  EXPECT_EQ(seen.method, "PUT");
  EXPECT_EQ(seen.path, "/a b/é/c");
  EXPECT_EQ(seen.query, (std::vector<std::pair<std::string, std::string>>{{"x", "1 2"}, {"y", ""}, {"z", "&"}}));
  EXPECT_EQ(seen.headers.get("x-kEY"), "v w");
  EXPECT_EQ(seen.headers.find("Trailer"), nullptr);
  EXPECT_EQ(seen.body, "abcde");
  EXPECT_EQ(seen.remote, "127.0.0.1");
}

TEST(Server, SendsOnlyTheHeadToHead) {
  const auto server = serve([](Request request, Reply reply) {
    if (request.path == "/whole") return reply.send({200, "text/plain", "1234"});
    const auto stream = reply.stream(200, kEventStream);
    EXPECT_EQ(stream->send("x"), Sent::gone);
    stream->finish();
  });
  Wire wire(server->port());
  for (const char* path : {"/whole", "/stream"}) {
    wire.send(fmt::format("HEAD {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path));
    EXPECT_EQ(status_of(wire.until("\r\n\r\n")), 200);
  }
  EXPECT_EQ(wire.rest(50ms), "");
  EXPECT_FALSE(wire.ended());
}

TEST(Server, ClosesWhenTheClientAsksForIt) {
  const auto server = serve(echo);
  Wire wire(server->port());
  wire.send(post("/", "whole body", "Connection: close\r\n") + get("/never"));
  const std::string all = wire.rest();
  EXPECT_TRUE(wire.ended());
  EXPECT_TRUE(all.ends_with("POST / whole body")) << all;
  EXPECT_NE(all.find("Connection: close\r\n"), all.npos);
}

// HTTP/1.0, which proxies speak that were told nothing else.

TEST(Http10, AnswersEndWithTheConnectionUnlessItIsKept) {
  const auto server = serve(echo);
  for (const char* host : {"Host: localhost\r\n", ""}) {
    Wire closing(server->port());
    closing.send(fmt::format("POST /a HTTP/1.0\r\n{}Content-Length: 4\r\nExpect: 100-continue\r\n\r\nbody", host));
    const std::string all = closing.rest();
    EXPECT_TRUE(closing.ended());
    EXPECT_EQ(status_of(all), 200) << all;
    EXPECT_EQ(body_of(all), "POST /a body");
    EXPECT_NE(all.find("Connection: close\r\n"), all.npos) << all;
  }
  Wire kept(server->port());
  for (int i = 0; i < 3; ++i) {
    kept.send("GET /b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    const std::string answer = kept.answer();
    EXPECT_EQ(body_of(answer), "GET /b ");
    EXPECT_NE(answer.find("Connection: keep-alive\r\n"), answer.npos) << answer;
  }
  kept.send(get("/c"));  // the newer version on the same connection
  EXPECT_EQ(body_of(kept.answer()), "GET /c ");
  kept.send("GET /d HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(kept.rest().ends_with("GET /d "));
  EXPECT_TRUE(kept.ended());
}

TEST(Http10, AStreamHasNoChunksAndEndsWithTheConnection) {
  const auto server = serve([](Request request, Reply reply) {
    const auto stream = reply.stream(200, kEventStream);
    EXPECT_EQ(stream->send("data: 1\n\n"), Sent::ok);
    if (request.path == "/cut") return;  // dropped without its end
    EXPECT_EQ(stream->send("data: 2\n\n"), Sent::ok);
    stream->finish();
  });
  for (const char* keep : {"", "Connection: keep-alive\r\n"}) {
    Wire wire(server->port());
    wire.send(fmt::format("GET /whole HTTP/1.0\r\n{}\r\n", keep));
    const std::string all = wire.rest();
    EXPECT_TRUE(wire.ended());
    EXPECT_EQ(body_of(all), "data: 1\n\ndata: 2\n\n");
    EXPECT_EQ(all.find("Transfer-Encoding"), all.npos) << all;
    EXPECT_NE(all.find("Connection: close\r\n"), all.npos) << all;
  }
  // An answer that is not whole must not look like one: the connection is reset.
  Wire wire(server->port());
  wire.send("GET /cut HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(wire.was_reset());
}

TEST(Http10, CommentsOfAnIdleStreamHaveNoChunks) {
  std::shared_ptr<Stream> held;
  std::mutex mutex;
  const auto server = serve(
      [&](Request, Reply reply) {
        const std::lock_guard lock(mutex);
        held = reply.stream(200, kEventStream);
      },
      with_limits([](Limits& limits) { limits.comment_time = 40ms; }));
  Wire wire(server->port());
  wire.send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(body_of(wire.until(":\n\n:\n\n")), ":\n\n:\n\n");
  const std::lock_guard lock(mutex);
  held->finish();
}

TEST(Server, AnswersAClientThatClosedItsSendingSide) {
  const auto server = serve(echo);
  Wire wire(server->port());
  wire.send(get("/one") + get("/two"));
  wire.half_close();
  const std::string all = wire.rest();
  EXPECT_TRUE(wire.ended());
  EXPECT_NE(all.find("GET /one "), all.npos) << all;
  EXPECT_NE(all.find("GET /two "), all.npos) << all;
}

TEST(Server, SaysContinueWhereTheBodyIsAwaited) {
  const auto server = serve(echo, with_limits([](Limits& limits) { limits.body_bytes = 10; }));
  Wire wire(server->port());
  const std::string_view head = "POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: ";
  wire.send(fmt::format("{}4\r\n\r\n", head));
  EXPECT_EQ(wire.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  wire.send("abcd");
  EXPECT_EQ(body_of(wire.answer()), "POST / abcd");
  wire.send(fmt::format("{}4\r\n\r\nabcd", head));  // it is here already
  EXPECT_EQ(status_of(wire.answer()), 200);
  wire.send(fmt::format("{}11\r\n\r\n", head));
  EXPECT_EQ(status_of(wire.rest()), 413);
}

TEST(Server, TheGateAnswersBeforeBodiesAreRead) {
  Options options;
  options.gate = [](const Request& head) -> std::optional<Response> {
    if (head.path == "/open" && head.remote == "127.0.0.1") return {};
    return Response{401, "text/plain", "no key"};
  };
  const auto server = serve(echo, options);
  Wire wire(server->port());
  wire.send(get("/a") + "HEAD /a HTTP/1.1\r\nHost: localhost\r\n\r\n" + get("/open"));
  EXPECT_EQ(body_of(wire.answer()), "no key");
  EXPECT_EQ(status_of(wire.until("\r\n\r\n")), 401);
  EXPECT_EQ(body_of(wire.answer()), "GET /open ");
  wire.send("POST /a HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(status_of(wire.rest()), 401);
  EXPECT_TRUE(wire.ended());
  EXPECT_EQ(server->counts().requests, 1);
  EXPECT_EQ(server->counts().refused, 3);
}

TEST(Server, AnErrorOrAForgottenReplyIs500) {
  const auto server = serve([](Request request, Reply reply) {
    if (request.path == "/throw") throw std::runtime_error("planted");
    if (request.path == "/split") reply.send({200, "text/plain", "", {{{"X", "a\r\nY: b"}}}});
  });
  Wire wire(server->port());
  for (const char* path : {"/throw", "/forget", "/split", "/forget"}) {
    wire.send(get(path));
    EXPECT_EQ(status_of(wire.answer()), 500) << path;
  }
}

TEST(Server, ASecondAnswerIsAnError) {
  std::atomic<int> errors{0};
  const auto server = serve([&](Request, Reply reply) {
    reply.send({});
    try {
      reply.send({});
    } catch (const Error&) {
      ++errors;
    }
  });
  Wire wire(server->port());
  wire.send(get("/"));
  EXPECT_EQ(status_of(wire.answer()), 200);
  EXPECT_TRUE(wait_for([&] { return errors == 1; }));
}

TEST(Server, ManyThreadsWriteIntoManyStreams) {
  constexpr int kStreams = 24, kThreads = 4, kChunks = 200;
  std::mutex mutex;
  std::vector<std::shared_ptr<Stream>> streams;
  Options options;
  options.threads = 3;
  const auto server = serve(
      [&](Request, Reply reply) {
        const std::lock_guard lock(mutex);
        streams.push_back(reply.stream(200, "text/plain"));
      },
      options);
  std::vector<Wire> wires;
  for (int i = 0; i < kStreams; ++i) {
    wires.emplace_back(server->port());
    wires.back().send(get("/") + get("/next"));
  }
  ASSERT_TRUE(wait_for([&] {
    const std::lock_guard lock(mutex);
    return streams.size() == kStreams;
  }));
  const auto first = streams;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kChunks; ++i)
        for (const auto& stream : first) EXPECT_EQ(stream->send(std::string(1, char('a' + t))), Sent::ok);
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& stream : first) stream->finish();
  for (Wire& wire : wires) {
    const std::string body = unchunked(body_of(wire.until("0\r\n\r\n")));
    ASSERT_EQ(body.size(), size_t(kThreads * kChunks));
    for (int t = 0; t < kThreads; ++t) EXPECT_EQ(std::count(body.begin(), body.end(), char('a' + t)), kChunks);
  }
  EXPECT_TRUE(wait_for([&] {  // the connections go on with their second requests
    const std::lock_guard lock(mutex);
    return streams.size() == 2 * kStreams;
  }));
  for (const auto& stream : first) EXPECT_EQ(stream->send("late"), Sent::gone);
}

TEST(Server, AStreamThatIsDroppedIsCut) {
  const auto server = serve([](Request, Reply reply) {
    const auto stream = reply.stream(200, "text/plain");
    stream->send("half");
    std::thread([stream] { std::this_thread::sleep_for(50ms); }).detach();  // the last to hold it
  });
  Wire wire(server->port());
  wire.send(get("/"));
  const std::string all = wire.rest();
  EXPECT_TRUE(wire.ended());
  EXPECT_EQ(body_of(all), "4\r\nhalf\r\n");
}

TEST(Server, QuietEventStreamsGetComments) {
  std::shared_ptr<Stream> stream;
  const auto server = serve([&](Request, Reply reply) { stream = reply.stream(200, kEventStream, sse_headers()); },
                            with_limits([](Limits& limits) { limits.comment_time = 40ms; }));
  Wire wire(server->port());
  wire.send(get("/"));
  EXPECT_NE(wire.until("\r\n\r\n").find("Cache-Control: no-cache\r\n"), std::string::npos);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(wire.until(":\n\n\r\n"), "3\r\n:\n\n\r\n");
  stream->send(sse_event("x"));
  EXPECT_TRUE(wire.until("data: x\n\n\r\n").ends_with("9\r\ndata: x\n\n\r\n"));
  stream->finish();
}

TEST(Server, ALoopbackAddressServesItsOwnNamesOnly) {
  const auto server = serve(echo);
  const auto ask = [&](std::string_view host, std::string_view fields = "") {
    Wire wire(server->port());
    wire.send(fmt::format("GET / HTTP/1.1\r\nHost: {}\r\n{}\r\n", host, fields));
    return status_of(wire.answer());
  };
  for (const char* host : {"localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]:1"}) EXPECT_EQ(ask(host), 200) << host;
  for (const char* host : {"evil.example", "localhost.evil.example:80", "127.0.0.2", "[::2]"})
    EXPECT_EQ(ask(host), 403) << host;
  for (const char* host : {"", "a:b", "a:70000", "[::1", ":80"}) EXPECT_EQ(ask(host), 400) << host;
  EXPECT_EQ(ask("localhost:81", "Origin: http://localhost:81\r\n"), 200);
  EXPECT_EQ(ask("localhost:81", "Origin: http://localhost:82\r\n"), 403);
  EXPECT_EQ(ask("localhost", "Origin: null\r\n"), 403);
  EXPECT_EQ(ask("localhost", "Origin: https://evil.example\r\n"), 403);
}

TEST(Server, OriginsOnTheListMayCall) {
  Options options;
  options.origins = {"https://good.example"};
  options.hosts = {"model.example"};
  const auto server = serve(echo, options);
  const auto ask = [&](std::string_view method, std::string_view origin) {
    Wire wire(server->port());
    wire.send(fmt::format(
        "{} /v1 HTTP/1.1\r\nHost: model.example:1\r\nOrigin: {}\r\nAccess-Control-Request-Method: POST\r\n\r\n", method,
        origin));
    return wire.answer();
  };
  const std::string preflight = ask("OPTIONS", "https://good.example"), got = ask("GET", "https://good.example");
  EXPECT_EQ(status_of(preflight), 204);
  EXPECT_NE(preflight.find("Access-Control-Allow-Headers: Authorization, "), preflight.npos);
  EXPECT_EQ(preflight.find("Content-Length"), preflight.npos);
  EXPECT_EQ(body_of(got), "GET /v1 ");
  for (const std::string& answer : {preflight, got})
    EXPECT_NE(answer.find("Access-Control-Allow-Origin: https://good.example\r\nVary: Origin\r\n"), answer.npos)
        << answer;
  for (const char* method : {"OPTIONS", "GET"}) EXPECT_EQ(status_of(ask(method, "https://evil.example")), 403);
}

TEST(Server, StopLetsAnswersFinish) {
  std::promise<std::shared_ptr<Stream>> opened;
  auto server = serve([&](Request, Reply reply) { opened.set_value(reply.stream(200, "text/plain")); });
  const uint16_t port = server->port();
  Wire idle(port), wire(port);
  wire.send(get("/"));
  const auto stream = opened.get_future().get();
  std::thread stopper([&] { server->stop(20s); });
  EXPECT_EQ(idle.rest(), "");
  EXPECT_TRUE(idle.ended());
  EXPECT_FALSE(Wire(port).connected());
  EXPECT_EQ(stream->send("the end"), Sent::ok);
  EXPECT_FALSE(stream->gone());
  stream->finish();
  EXPECT_EQ(unchunked(body_of(wire.rest())), "the end");
  wire.leave();
  stopper.join();
  EXPECT_EQ(server->counts().connections, 0);
}

TEST(Server, StopCutsWhatIsNotDoneInTime) {
  std::atomic<int> gone{0};
  std::promise<std::shared_ptr<Stream>> opened;
  std::optional<Reply> kept;
  auto server = serve([&](Request request, Reply reply) {
    reply.on_gone([&] { ++gone; });
    if (request.path == "/keep") kept = reply;
    else opened.set_value(reply.stream(200, "text/plain"));
  });
  Wire keeper(server->port()), wire(server->port());
  keeper.send(get("/keep"));
  wire.send(get("/"));
  const auto stream = opened.get_future().get();
  ASSERT_TRUE(wait_for([&] { return server->counts().requests == 2; }));
  const auto start = Clock::now();
  server->stop(100ms);
  EXPECT_GE(Clock::now() - start, 100ms);
  EXPECT_EQ(gone, 2);
  EXPECT_TRUE(stream->gone());
  EXPECT_EQ(stream->send("late"), Sent::gone);
  server.reset();  // answers may outlive it
  kept->send({});
  stream->finish();
  kept.reset();
  wire.rest();
  EXPECT_TRUE(wire.ended());
}

TEST(Server, RefusalsNameTheFlagsThatAllow) {
  const auto server = serve(echo);
  const auto ask = [&](const char* fields) {
    Wire wire(server->port());
    wire.send(fmt::format("GET / HTTP/1.1\r\n{}\r\n", fields));
    return wire.answer();
  };
  EXPECT_NE(ask("Host: other\r\n").find("--allow-host"), std::string::npos);
  EXPECT_NE(ask("Host: localhost\r\nOrigin: http://other\r\n").find("--allow-origin"), std::string::npos);
}

TEST(Server, SaysWhyItCannotListen) {
  const auto first = serve(echo);
  Options options;
  options.port = first->port();
  const auto taken = Server::open(options, echo);
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().message.find("Address already in use"), std::string::npos) << taken.error().message;
  EXPECT_EQ(taken.error().kind, ErrorKind::failure);  // the command line is right
  options.host = "192.0.2.1";
  EXPECT_FALSE(Server::open(options, echo));
}

}  // namespace
}  // namespace ridge::http
