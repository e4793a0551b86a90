// Client: whole answers, events as they come, and servers that misbehave.
#include "http/client.h"

#include <atomic>

#include "http/sse.h"
#include "wire.h"

namespace ridge::http {
namespace {

TEST(Client, GetsAndPosts) {
  const auto server = serve([](Request request, Reply reply) {
    if (request.path == "/missing") return reply.send({404, "text/plain", "nothing here"});
    reply.send({200, "text/plain",
                fmt::format("{} {} {} {}", request.method, request.path, request.headers.get("X-A"), request.body)});
  });
  const Client client("localhost", server->port());
  const auto got = client.get("/a", {{{"X-A", "1"}}});
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->body, "GET /a 1 ");
  EXPECT_EQ(got->content_type, "text/plain");
  const std::string large(3'000'000, 'x');
  EXPECT_EQ(client.post("/b", large)->body, "POST /b  " + large);
  EXPECT_EQ(client.get("/missing")->status, 404);
  EXPECT_EQ(client.get("/missing")->body, "nothing here");
  EXPECT_EQ(client.request("HEAD", "/a", "", {})->status, 200);
}

TEST(Client, HandsEventsOnAsTheyCome) {
  std::atomic<int> sent{0}, gone{0};
  std::atomic<bool> next{true};
  std::thread writer;
  const auto server = serve([&](Request request, Reply reply) {
    if (request.path == "/busy") return reply.send({429, "text/plain", "later"});
    const auto stream = reply.stream(200, kEventStream);
    stream->on_gone([&] { ++gone; });
    writer = std::thread([&, stream] {
      for (int i = 0; i < 5; ++i) {
        if (!wait_for([&] { return next.exchange(false) || gone > 0; })) break;
        ++sent;
        stream->send(sse_event(std::to_string(i)));
      }
      stream->finish();
    });
  });
  const Client client("127.0.0.1", server->port());
  std::string all;
  const auto whole = client.events("POST", "/", "{}", {}, [&](std::string_view data) {
    EXPECT_EQ(all.size() + 1, size_t(sent));  // the server waits for us before the next one
    all += data;
    return next = true;
  });
  writer.join();
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_EQ(all, "01234");
  EXPECT_EQ(gone, 0);

  next = true;
  EXPECT_EQ(client.events("POST", "/", "{}", {}, [](std::string_view) { return false; })->status, 200);
  EXPECT_TRUE(wait_for([&] { return gone == 1; }));  // stopping is leaving
  writer.join();
  const auto busy = client.events("POST", "/busy", "{}", {}, [](std::string_view) { return true; });
  EXPECT_EQ(busy->status, 429);
  EXPECT_EQ(busy->body, "later");
}

TEST(Client, SaysWhatWentWrong) {
  uint16_t closed_port = 0;
  {
    const auto server = serve([](Request request, Reply reply) {
      const auto stream = reply.stream(200, "text/plain");
      stream->send("half");
      if (request.path == "/hang") std::thread([stream] { std::this_thread::sleep_for(1s); }).detach();
    });
    closed_port = server->port();
    Client::Times times;
    times.idle = 100ms;
    const Client client("127.0.0.1", server->port(), times);
    const auto cut = client.get("/cut"), hang = client.get("/hang");
    ASSERT_FALSE(cut);
    EXPECT_NE(cut.error().message.find("no whole answer"), std::string::npos) << cut.error().message;
    ASSERT_FALSE(hang);
    EXPECT_NE(hang.error().message.find("timed out"), std::string::npos) << hang.error().message;
  }
  const auto refused = Client("127.0.0.1", closed_port).get("/");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("Connection refused"), std::string::npos) << refused.error().message;
  EXPECT_FALSE(Client("no.such.name.invalid", 80).get("/"));
}

}  // namespace
}  // namespace ridge::http
