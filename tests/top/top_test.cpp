// What the pages of ridge top show at sizes and with answers nobody would wish for, and what they ask a server.
#include "top/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "top/client.h"
#include "top/fake_server.h"

namespace ridge::top {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kHostile =
    "a\x1b[2J\x1b]0;title\x07"
    "b\x9b"
    "31m\xc2\x9b"
    "c\r\b\x7f\xe2\x80\xae"
    "d\xff\xc0\xaf"
    "e";

std::string screen_of(const Canvas& canvas) {
  std::string text;
  for (int row = 0; row < canvas.rows(); ++row) text += canvas.line(row) + "\n";
  return text;
}

std::string draw_at(const View& view, int rows, int columns) {
  Canvas canvas(rows, columns);
  draw(view, canvas);
  return screen_of(canvas);
}

/// What a terminal must not get: controls but line feeds, in any coding.
bool is_safe(std::string_view text) {
  for (const char32_t code : safe_text(text, true))
    if (code != '\n' && columns_of(code) < 0) return false;
  return text.find_first_of(std::string("\x1b\r\b\x07\x7f\0", 6)) == text.npos && text.find("\xc2\x9b") == text.npos &&
         text.find("\xe2\x80\xae") == text.npos;
}

View busy_view() {
  View view{.url = "http://127.0.0.1:8123"};
  view.known.connected = true;
  view.known.props =
      read_props(R"({"model":"ref","weight_format":"q8_0","kv_quant":"rotor-3","n_ctx":2048,"device":"cpu",
      "template":"plain"})")
          .or_throw();
  view.known.status = read_status(R"({"queue":3,"parallel":16,"running":[
      {"id":7,"state":"prompt","kv_quant":"rotor-3","n_prompt":900,"n_prompt_done":512,"n_cached":128,"n_generated":0,"tok_s":0},
      {"id":8,"state":"decode","kv_quant":"rotor-3","n_prompt":90,"n_prompt_done":90,"n_cached":0,"n_generated":41,"tok_s":33.25}],
      "step":{"ms_p50":12.5,"parts_ms_p50":{"planning":0.25,"model":11,"sampling":1.125,"events":0.125},"decode_seqs":1,"prompt_tokens":512,"tok_s":80.5,"prompt_tok_s":4000},
      "totals":{"finished":12,"generated_tokens":3456}})")
                          .or_throw();
  view.known.pools = read_pools(R"({"kv_quant":"rotor-3","pools":{"rotor-3":{"kv_formats":{"k":"rotor-3","v":"rotor-3"},
      "kv_bytes_per_token":1000,"kv_ratio":4.9,"pages":{"total":40,"free":20,"used":10,"shared":4,"cached":6},
      "slots":{"total":48,"free":40},"sequences":2,"checkpoints":6,"page_tokens":128,"page_bytes":128000,"slot_bytes":4096,
      "used_bytes":2560000,"allocated_bytes":5120000,"sequence_bytes":2560000,"sequence_f16_bytes":12544000,"tokens":553,
      "layers":[{"layer":0,"k":{"norm":8,"relative_error":0.1,"saturated":2,"pages":[{"norm":4,"relative_error":0.05,"page":0},
      {"norm":8,"relative_error":0.15,"page":1}]},"v":{"norm":1,"relative_error":0.2,"saturated":0,"pages":[]}},
      {"layer":1,"k":{},"v":{}}]}}})")
                         .or_throw();
  view.known.tok_s = {0, 20, 40, 80};
  view.chat.turns = {{.user = true, .text = "hello"}, {.text = "a long answer of many words that has to be broken"}};
  view.chat.note = "waiting";
  return view;
}

TEST(TopText, NothingThatSteersATerminalComesThrough) {
  const std::u32string safe = safe_text(kHostile);
  EXPECT_THAT(safe, Each(testing::Truly([](char32_t code) { return columns_of(code) >= 0; })));
  EXPECT_EQ(safe.find(U'\x1b'), safe.npos);
  EXPECT_NE(safe.find(U'\uFFFD'), safe.npos);
  EXPECT_EQ(safe_text("a\tb\nc"), U"a b c");
  EXPECT_EQ(safe_text("a\nb", true), U"a\nb");
}

TEST(TopText, WideLettersAndMarksKeepTheirColumns) {
  Canvas canvas(1, 6);
  EXPECT_EQ(canvas.put(0, 0, "日e\u0301x"), 4);
  EXPECT_EQ(canvas.at(0, 1).text, U"");
  EXPECT_EQ(canvas.at(0, 2).text, U"e\u0301");
  EXPECT_EQ(canvas.put(0, 5, "日"), 5) << "half a letter does not fit";
  std::string marks = "e";
  for (int i = 0; i < 1000; ++i) marks += "\u0301";
  canvas.put(0, 0, marks);
  EXPECT_LE(canvas.at(0, 0).text.size(), 5u);
}

TEST(TopText, LinesBreakAtSpacesAndLongWordsAnywhere) {
  EXPECT_THAT(wrap(U"one two three", 7), testing::ElementsAre(U"one two", U"three"));
  EXPECT_THAT(wrap(U"abcdefgh", 3), testing::ElementsAre(U"abc", U"def", U"gh"));
  EXPECT_THAT(wrap(U"a\n\nb", 9), testing::ElementsAre(U"a", U"", U"b"));
  for (const std::u32string& line : wrap(safe_text("日本語の文字 と words"), 5)) EXPECT_LE(width_of(line), 5);
}

TEST(TopHeat, LevelsSpanTheRangeAndNonsenseIsNone) {
  EXPECT_EQ(heat_level(1, 1, 2), 1);
  EXPECT_EQ(heat_level(2, 1, 2), kHeatLevels);
  EXPECT_EQ(heat_level(1.5, 1, 2), 5);
  EXPECT_EQ(heat_level(5, 5, 5), kHeatLevels / 2);
  EXPECT_EQ(heat_level(9, 1, 2), kHeatLevels);
  EXPECT_EQ(heat_level(0, 0, 2), 0);
  EXPECT_EQ(heat_level(-1, 0, 2), 0);
  EXPECT_EQ(heat_level(std::nan(""), 0, 2), 0);
  EXPECT_EQ(heat_level(std::numeric_limits<double>::infinity(), 0, 2), 0);
  for (int level = 0; level <= kHeatLevels; ++level) EXPECT_NE(ascii_of(heat_glyph(level)), '?');
  EXPECT_EQ(sparkline({0, 0.5, 8}, 2), U"▁█");
  EXPECT_EQ(sparkline({}, 5), U"");
}

TEST(TopLayout, RequestsAtTheUsualSize) {
  const std::string text = draw_at(busy_view(), 24, 80);
  for (const char* part :
       {"2 of 16", "queue 3", "80.5 made", "12.50 ms", "planning 0.25  model 11.00  sampling 1.12  events 0.12 ms",
        "1 decode + 512 prompt", "512/900", "33.2", "used 10  shared 4  cached 6  free 20 of 40", "(4.90x)",
        "2 requests", "q quits", "8123"})
    EXPECT_THAT(text, HasSubstr(part)) << text;
}

TEST(TopLayout, EveryPageKeepsWhatMattersIn40By10) {
  View view = busy_view();
  EXPECT_THAT(draw_at(view, 10, 40), testing::AllOf(HasSubstr("80.5 made"), HasSubstr("512/900")));
  view.page = Page::chat;
  EXPECT_THAT(draw_at(view, 10, 40), testing::AllOf(HasSubstr("> hello"), HasSubstr("broken"), HasSubstr("waiting")));
  view.page = Page::cache;
  EXPECT_THAT(draw_at(view, 10, 40), testing::AllOf(HasSubstr("layer 0 K  norm 8"), HasSubstr("▁█")));
  view.page = Page::pools;
  EXPECT_THAT(draw_at(view, 10, 40), testing::AllOf(HasSubstr("K rotor-3"), HasSubstr("used 10")));
}

TEST(TopLayout, NoSizeBreaksAPage) {
  View view = busy_view();
  for (int page = 0; page < kPages; ++page)
    for (int rows = 1; rows < 30; ++rows)
      for (int columns = 2; columns < 100; columns += rows < 12 ? 1 : 13) {
        view.page = Page(page);
        view.layer = rows, view.scroll = columns, view.pool = columns;
        Canvas canvas(rows, columns);
        draw(view, canvas);
        EXPECT_NE(canvas.line(0), "") << rows << "x" << columns;
      }
}

TEST(TopLayout, CacheShowsErrorsOfTheChosenLayer) {
  View view = busy_view();
  view.page = Page::cache, view.shows_error = true;
  EXPECT_THAT(draw_at(view, 24, 80),
              testing::AllOf(HasSubstr("coding error of 2 pages"), HasSubstr("5.00 % to 15.00 %"),
                             HasSubstr("error 10.00 %  saturated 2"), HasSubstr("▁█")));
}

TEST(TopLayout, ALostServerIsSaidAndTheLastFiguresStay) {
  View view = busy_view();
  view.known.connected = false, view.known.trouble = "no answer, trying again: cannot connect";
  EXPECT_THAT(draw_at(view, 24, 80), testing::AllOf(HasSubstr("trying again"), HasSubstr("80.5 made")));
}

TEST(TopLayers, TimesOfTheNewestPassesByLayerAndOp) {
  View view = busy_view();
  view.page = Page::layers;
  EXPECT_THAT(draw_at(view, 24, 80), HasSubstr("ridge serve --trace-ops"));
  const auto slots = [](int passes, double seconds) {
    std::string layers = fmt::format(R"({{"layer":-1,"seconds":{{"embed":{}}}}})", 0.02 * seconds);
    for (int i = 0; i < 8; ++i)
      layers +=
          fmt::format(R"(,{{"layer":{},"seconds":{{"gemv":{},"attention":{}}}}})", i, 0.08 * seconds, 0.03 * seconds);
    return read_status(fmt::format(R"({{"ops":{{"passes":{},"seconds":{},"layers":[{}]}}}})", passes, seconds, layers))
        .or_throw();
  };
  view.known.status = slots(0, 0);
  EXPECT_THAT(draw_at(view, 24, 80), HasSubstr("no pass has run yet"));
  view.known.status = slots(30, 3);
  view.known.ops = view.known.status.ops.since(slots(10, 1).ops);
  const std::string text = draw_at(view, 24, 80);
  for (const char* part : {"100.000 ms a pass (last 20): gemv 64 %, attention 24 %, embed 2 %, gaps 10 %",
                           "layer             ms       gemv  attention      embed",
                           "0             11.000      8.000      3.000      0.000",
                           "outside        2.000      0.000      0.000      2.000",
                           "all           90.000     64.000     24.000      2.000"})
    EXPECT_THAT(text, HasSubstr(part)) << text;
  const std::string small = draw_at(view, 10, 40);
  EXPECT_THAT(small, testing::AllOf(HasSubstr("0-2           33.000"), HasSubstr("6-7 "), HasSubstr("all ")))
      << "several layers a line" << small;
  view.page = Page::requests;
  EXPECT_THAT(draw_at(view, 24, 100), HasSubstr("ops       100.000 ms a pass (last 20): gemv 64 %"));
  EXPECT_EQ(slots(2, 1).ops.since(slots(10, 1).ops).passes, 2) << "the server began anew";
}

TEST(TopLayers, HostileTimesReadAsNothing) {
  for (const char* ops :
       {"3", "[]", "{}", R"({"passes":2})", R"({"passes":2,"seconds":-1,"layers":[3,{"layer":"x"}]})",
        R"({"passes":1e300,"layers":[{"layer":1e300,"seconds":[1]},{"seconds":{"a":"b","c":-1}}]})"}) {
    View view;
    view.known.status = read_status(fmt::format(R"({{"ops":{}}})", ops)).or_throw();
    view.known.ops = view.known.status.ops;
    view.page = Page::layers;
    for (const int rows : {1, 3, 24}) EXPECT_TRUE(is_safe(draw_at(view, rows, 80))) << ops;
  }
}

TEST(TopData, WrongFieldsReadAsNothing) {
  for (const char* text : {"{}", R"({"running":5,"step":[],"totals":"x","queue":"3","parallel":null})",
                           R"({"queue":-1,"step":{"ms_p50":"9","tok_s":{}},"totals":{"finished":true}})"}) {
    const ServerStatus slots = read_status(text).or_throw();
    EXPECT_EQ(slots.queue + slots.parallel + slots.finished, 0) << text;
    EXPECT_EQ(slots.ms_p50 + slots.tok_s, 0) << text;
    EXPECT_TRUE(slots.running.empty()) << text;
  }
  const ServerStatus odd =
      read_status(R"({"queue":1e300,"running":[1,null,"x",{"id":[],"n_prompt":"9","tok_s":"5"}]})").or_throw();
  EXPECT_EQ(odd.queue, int64_t(1) << 53);
  ASSERT_EQ(odd.running.size(), 4u);
  EXPECT_EQ(odd.running[3].n_prompt, 0);
  const auto pools =
      read_pools(R"({"pools":{"x":3,"y":{"pages":"no","layers":[{"k":{"pages":[1,{"norm":"2"}]}},7]}}})").or_throw();
  ASSERT_EQ(pools.size(), 2u);
  View view{.known = {.status = odd, .pools = pools}};
  for (int page = 0; page < kPages; ++page)
    for (const int pool : {0, 1}) {
      view.page = Page(page), view.pool = pool;
      EXPECT_TRUE(is_safe(draw_at(view, 24, 80)));
    }
  for (const char* text : {"", "[]", "null", "{", "<html>", "{\"a\":1,\"a\":2}"}) {
    EXPECT_FALSE(read_status(text)) << text;
    EXPECT_FALSE(read_props(text)) << text;
    EXPECT_FALSE(read_pools(text)) << text;
  }
  EXPECT_FALSE(read_status(std::string(100000, '[')));
}

TEST(TopData, TextOfModelsAndServersIsCleanedOnEveryPage) {
  View view = busy_view();
  view.chat.turns = {{.user = true, .text = kHostile}, {.text = kHostile, .reasoning = kHostile}};
  view.chat.note = view.input = view.url = view.known.trouble = kHostile;
  view.known.props.model = view.known.props.device = view.known.props.weights = kHostile;
  view.known.status.running[0].id = view.known.status.running[0].state = view.known.status.running[0].kv = kHostile;
  view.known.pools[0].kv = view.known.pools[0].k_format = kHostile;
  for (int page = 0; page < kPages; ++page) {
    view.page = Page(page);
    const std::string text = draw_at(view, 24, 80);
    EXPECT_TRUE(is_safe(text)) << page;
    EXPECT_THAT(text, HasSubstr("[2J")) << "the letters stay, what made them a command went";
  }
}

TEST(TopChat, EventsOfBothKindsAndErrors) {
  EXPECT_EQ(read_delta(R"({"choices":[{"delta":{"content":"hi"}}]})").or_throw().text, "hi");
  EXPECT_EQ(read_delta(R"({"choices":[{"text":"ho","finish_reason":"stop"}]})").or_throw().finish, "stop");
  EXPECT_EQ(read_delta("[DONE]").or_throw().text, "");
  for (const char* text : {"{}", R"({"choices":[]})", R"({"choices":[7]})", R"({"choices":{"text":"x"}})",
                           R"({"choices":[{"delta":"x","text":["y"]}]})"})
    EXPECT_EQ(read_delta(text).or_throw().text, "") << text;
  EXPECT_EQ(read_delta(R"({"error":{"message":"no room"}})").error().message, "no room");
  EXPECT_FALSE(read_delta("nonsense"));
  EXPECT_EQ(error_text(400, R"({"error":{"message":"too long"}})"), "too long");
  EXPECT_THAT(error_text(502, "<html>"), HasSubstr("502"));
  EXPECT_THAT(error_text(401, ""), HasSubstr("--api-key-file"));
}

TEST(TopChat, APlainServerGetsATranscriptAndOthersMessages) {
  const std::vector<Turn> turns = {{.user = true, .text = "a"}, {.text = "b"}, {.user = true, .text = "c\xff"}};
  const auto [plain, prompt] = request_of(turns, "plain");
  EXPECT_EQ(plain, "/v1/completions");
  EXPECT_THAT(prompt, HasSubstr(R"(User: a\nAssistant: b\nUser: c)"));
  EXPECT_THAT(prompt, HasSubstr(R"(\nAssistant:")"));
  const auto [chat, messages] = request_of(turns, "model");
  EXPECT_EQ(chat, "/v1/chat/completions");
  EXPECT_THAT(messages, HasSubstr(R"({"content":"b","role":"assistant"})"));
}

TEST(TopPoller, PageCountsAreAskedForOnlyWhileTheyAreShown) {
  FakeServer server;
  Poller poller(server.target(5));
  ASSERT_TRUE(http::wait_for([&] { return server.plain() >= 3; }));
  EXPECT_EQ(server.by_page(), 0);
  View view{.known = poller.known(), .page = Page::cache};
  EXPECT_THAT(draw_at(view, 24, 80), HasSubstr("asking for the counts of pages"));

  poller.ask_by_page(true);
  ASSERT_TRUE(http::wait_for([&] { return server.by_page() >= 3; }));
  view.known = poller.known();
  EXPECT_THAT(draw_at(view, 24, 80), HasSubstr("layer 0 K  norm 8"));

  poller.ask_by_page(false);
  const int before = server.plain();
  ASSERT_TRUE(http::wait_for([&] { return server.plain() >= before + 2; }));
  const int by_page = server.by_page();
  ASSERT_TRUE(http::wait_for([&] { return server.plain() >= before + 5; }));
  EXPECT_EQ(server.by_page(), by_page);
}

TEST(TopPoller, TheFirstQuestionForPageCountsDoesNotWait) {
  FakeServer server;
  Poller poller(server.target(3'600'000));
  ASSERT_TRUE(http::wait_for([&] { return server.plain() == 1; }));
  poller.ask_by_page(true);
  EXPECT_TRUE(http::wait_for([&] { return server.by_page() == 1; }));
}

}  // namespace
}  // namespace ridge::top
