// The parts that need no server: targets, addresses, keys, events.
#include <gtest/gtest.h>

#include "http/auth.h"
#include "http/request_reader.h"
#include "http/sse.h"
#include "http/url.h"

namespace ridge::http {
namespace {

TEST(Target, IsDecodedOnce) {
  const auto target = parse_target("/a%2541/%E2%82%AC+?a=%2B+b&&=x&c=d=e&%F0%9F%98%80");
  ASSERT_TRUE(target) << target.error().message;
  EXPECT_EQ(target->path, "/a%41/€+");
  EXPECT_EQ(target->query,
            (std::vector<std::pair<std::string, std::string>>{{"a", "+ b"}, {"", "x"}, {"c", "d=e"}, {"😀", ""}}));
  for (const char* fine : {"/", "//", "/...", "/.a/a.", "/?", "/a?b/../c"}) EXPECT_TRUE(parse_target(fine)) << fine;
}

TEST(Target, TextThatIsNotUtf8IsRefused) {
  for (const char* bad : {"%80", "%C0%AF", "%C1%81", "%E0%80%AF", "%ED%BF%BF", "%F0%80%80%80", "%F4%90%80%80",
                          "%F5%80%80%80", "%E2%82", "%FF"})
    EXPECT_FALSE(percent_decoded(bad, false)) << bad;
  for (const char* good : {"%C2%80", "%E0%A0%80", "%ED%9F%BF", "%EE%80%80", "%F0%90%80%80", "%F4%8F%BF%BF"})
    EXPECT_TRUE(percent_decoded(good, false)) << good;
}

/// What a reader says of a head, then of a body that comes in three pieces.
std::string chunked(std::string_view body, size_t first, size_t second) {
  const Limits limits;
  RequestReader reader(limits);
  reader.feed("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(reader.step(), RequestReader::Step::head);
  auto step = RequestReader::Step::more;
  for (const auto piece : {body.substr(0, first), body.substr(first, second - first), body.substr(second)})
    if (step == RequestReader::Step::more) reader.feed(piece), step = reader.step();
  if (step == RequestReader::Step::refused) return fmt::format("{}", reader.status());
  return step == RequestReader::Step::whole ? reader.take().body : "more";
}

TEST(RequestReader, ChunksAreTheSameHoweverTheyAreCut) {
  const std::pair<const char*, const char*> bodies[] = {{"0\r\n\r\n", ""},
                                                        {"00\r\n\r\n", ""},
                                                        {"0;a=b\r\n\r\n", ""},
                                                        {"1\r\n0\r\n0\r\n\r\n", "0"},
                                                        {"3\r\n0\r\n\r\n0\r\n\r\n", "0\r\n"},
                                                        {"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", "abc"},
                                                        {"0\r\nA: b\r\n\r\n", ""},
                                                        {"0\r\nContent-Length: 7\r\n\r\n", "400"},
                                                        {"3\r\nabcd\r\n0\r\n\r\n", "400"},
                                                        {"\r\n\r\n", "400"}};
  for (const auto& [body, expected] : bodies)
    for (size_t second = 0; second <= strlen(body); ++second)
      for (size_t first = 0; first <= second; ++first)
        EXPECT_EQ(chunked(body, first, second), expected) << body << " cut at " << first << " and " << second;
}

TEST(Url, IsTakenApart) {
  const auto parts = [](std::string_view text) {
    const auto url = parse_url(text);
    return url ? fmt::format("{} {} {}", url->host, url->port, url->target) : url.error().message;
  };
  EXPECT_EQ(parts("http://localhost"), "localhost 80 /");
  EXPECT_EQ(parts("10.0.0.1:8080"), "10.0.0.1 8080 /");
  EXPECT_EQ(parts("http://[::1]:9/v1/x?y=z"), "::1 9 /v1/x?y=z");
  EXPECT_EQ(parts("host?y"), "host 80 /?y");
  for (const char* bad : {"", "https://a", "http://", "http://:80", "a:", "a:x", "a:65536", "u:p@a", "a b",
                          "http://a/\n", "[::1", "[::1]x", "[]:9"}) {
    const auto url = parse_url(bad);
    ASSERT_FALSE(url) << bad;
    EXPECT_EQ(url.error().kind, ErrorKind::usage);
  }
}

TEST(Keys, AreReadALineEach) {
  const auto keys = Keys::parse("# ours\nalpha\r\n\nbeta-2", "keys.txt");
  ASSERT_TRUE(keys);
  EXPECT_EQ(keys->size(), 2u);
  EXPECT_EQ(keys->find("alpha"), 0u);
  EXPECT_EQ(keys->find("beta-2"), 1u);
  for (const char* wrong : {"", "alph", "alphaa", "alphA", "# ours", "beta-2\n"})
    EXPECT_FALSE(keys->find(wrong)) << wrong;
  EXPECT_TRUE(Keys::parse("# none\n", "keys.txt")->empty());
  for (const std::string& bad :
       {std::string("ok\nse cret"), std::string("se\tcret"), std::string("s\xC3\xA9"), std::string(513, 'k')}) {
    const auto refused = Keys::parse(bad, "keys.txt");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message.find("cret"), std::string::npos) << refused.error().message;
  }
}

TEST(Keys, AreTakenFromHeaders) {
  const auto keys = Keys::parse("alpha\nbeta", "keys.txt");
  const auto shown = [&](std::string_view name, std::string_view value) {
    return keys->find(Headers{{{std::string(name), std::string(value)}}});
  };
  EXPECT_EQ(shown("authorization", "Bearer beta"), 1u);
  EXPECT_EQ(shown("Authorization", "bearer alpha"), 0u);
  EXPECT_EQ(shown("x-api-key", "alpha"), 0u);
  EXPECT_FALSE(shown("Authorization", "alpha"));
  EXPECT_FALSE(shown("Authorization", "Basic alpha"));
  EXPECT_FALSE(shown("Authorization", "Bearer"));
  EXPECT_FALSE(shown("X-Other", "alpha"));
  EXPECT_FALSE(keys->find(Headers{{{"Authorization", "Bearer wrong"}, {"X-Api-Key", "alpha"}}}));
}

TEST(Events, SurviveEveryCut) {
  const std::string wire = ": hello\n\n" + sse_event("one") +
                           "event: x\r\ndata:two\r\ndata\r\ndata:  three\r\n\r\nid: 4\n\n" + sse_event("a\nb\r\nc\rd") +
                           sse_event("") + "data: lost";
  const std::vector<std::string> expected = {"one", "two\n\n three", "a\nb\nc\nd", ""};
  for (size_t cut = 0; cut <= wire.size(); ++cut) {
    SseReader reader;
    std::vector<std::string> got;
    const auto keep = [&](std::string_view data) { return got.emplace_back(data), true; };
    EXPECT_TRUE(reader.feed(wire.substr(0, cut), keep) && reader.feed(wire.substr(cut), keep));
    ASSERT_EQ(got, expected) << cut;
  }
  SseReader reader;
  int events = 0;
  EXPECT_FALSE(reader.feed(wire, [&](std::string_view) { return ++events < 2; }));
  EXPECT_EQ(events, 2);
  SseReader endless;
  const std::string piece(1 << 20, 'x');
  EXPECT_THROW(for (int i = 0; i < 20; ++i) endless.feed(piece, [](std::string_view) { return true; }), Error);
}

}  // namespace
}  // namespace ridge::http
