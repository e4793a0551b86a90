// The load that ridge bench serve sends: what it asks for, and what it makes of a server's answers.
#include "lab/serve/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <set>

#include "http/server.h"
#include "http/sse.h"

namespace ridge::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

LoadPlan small_plan() { return {.n_requests = 200, .prompt = {20, 200}, .answer = {1, 8}, .n_vocab = 1000, .seed = 3}; }

std::vector<LoadRequest> all_of(const LoadPlan& plan) {
  LoadSchedule schedule(plan);
  std::vector<LoadRequest> requests;
  while (const auto request = schedule.next()) requests.push_back(*request);
  return requests;
}

TEST(LoadPlan, LengthsAreReadAndWritten) {
  const auto text = [](std::string_view from) { return parse_lengths("--x", from, 5000).or_throw().text(); };
  EXPECT_EQ(text("64"), "64");
  EXPECT_EQ(text("200-2000"), "200-2000");
  EXPECT_EQ(text("7-7"), "7");
  for (const char* wrong : {"", "-", "0", "5-", "-5", "9-8", "1-5001", "1-2-3", "x", "5 "}) {
    const auto lengths = parse_lengths("--x", wrong, 5000);
    ASSERT_FALSE(lengths) << wrong;
    EXPECT_EQ(lengths.error().kind, ErrorKind::usage);
    EXPECT_THAT(lengths.error().message, HasSubstr("--x: '" + std::string(wrong) + "'"));
  }
}

TEST(LoadPlan, LengthsAreLogUniform) {
  const Lengths lengths{100, 1600};
  Rng rng(1);
  constexpr int kLengths = 40000;
  std::vector<int> below(4);
  for (int i = 0; i < kLengths; ++i) {
    const int n = lengths.random(rng);
    ASSERT_GE(n, 100);
    ASSERT_LE(n, 1600);
    ++below[size_t(n < 200 ? 0 : n < 400 ? 1 : n < 800 ? 2 : 3)];
  }
  // Four doublings, a quarter of the lengths each: six standard deviations are 520.
  for (const int n : below) EXPECT_NEAR(n, kLengths / 4, 520);
  std::set<int> all;
  for (int i = 0; i < 1000; ++i) all.insert(Lengths{1, 3}.random(rng));
  EXPECT_THAT(all, ElementsAre(1, 2, 3));
}

TEST(LoadPlan, TheSameSeedGivesTheSameRequests) {
  const LoadPlan plan = small_plan();
  const auto a = all_of(plan), b = all_of(plan);
  ASSERT_EQ(a.size(), 200u);
  LoadPlan other = plan;
  other.seed = 4;
  const auto c = all_of(other);
  int n_same = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].n_prompt, b[i].n_prompt);
    EXPECT_EQ(a[i].n_answer, b[i].n_answer);
    EXPECT_EQ(load_prompt(plan, a[i]), load_prompt(plan, b[i]));
    n_same += a[i].n_prompt == c[i].n_prompt;
  }
  EXPECT_LT(n_same, 40);
}

TEST(LoadPlan, OtherContentsKeepTheLengths) {
  LoadPlan other = small_plan();
  other.contents = 1;
  const auto a = all_of(small_plan()), b = all_of(other);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].n_prompt, b[i].n_prompt);
    EXPECT_NE(load_prompt(small_plan(), a[i]), load_prompt(other, b[i]));
  }
}

TEST(LoadPlan, PromptsHaveTheirPrefixAndIdsOfTheVocabulary) {
  LoadPlan plan = small_plan();
  plan.prefix_tokens = 50;
  plan.n_prefixes = 3;
  std::set<std::vector<int32_t>> prefixes, prompts;
  for (const LoadRequest& request : all_of(plan)) {
    const std::vector<int32_t> prompt = load_prompt(plan, request);
    ASSERT_EQ(prompt.size(), size_t(request.n_prompt));
    ASSERT_GE(request.n_prompt, 70);
    for (const int32_t id : prompt) ASSERT_TRUE(id >= 256 && id < 1000) << id;
    prefixes.emplace(prompt.begin(), prompt.begin() + 50);
    prompts.insert(prompt);
  }
  EXPECT_EQ(prefixes.size(), 3u);
  EXPECT_EQ(prompts.size(), 200u);
  plan.n_vocab = 200;
  for (const int32_t id : load_prompt(plan, {.n_prompt = 90})) ASSERT_TRUE(id >= 0 && id < 200) << id;
}

TEST(LoadPlan, ArrivalsArePoissonAndLeaveTheLengthsAlone) {
  LoadPlan plan = small_plan();
  plan.n_requests = 20000;
  const auto closed = all_of(plan);
  plan.rate = 50;
  const auto open = all_of(plan);
  ASSERT_EQ(open.size(), 20000u);
  double square = 0;
  for (size_t i = 0; i < open.size(); ++i) {
    EXPECT_EQ(open[i].n_prompt, closed[i].n_prompt);
    const double gap = open[i].at - (i > 0 ? open[i - 1].at : 0);
    ASSERT_GE(gap, 0);
    square += gap * gap;
  }
  // Mean 1/50, mean square 2/50^2; six standard deviations are 4 % and 10 %.
  EXPECT_NEAR(open.back().at / 20000 * 50, 1, 0.04);
  EXPECT_NEAR(square / 20000 * 2500 / 2, 1, 0.10);
  plan.n_requests = 0;
  plan.seconds = 10;
  const auto timed = all_of(plan);
  EXPECT_NEAR(double(timed.size()), 500, 134);  // six standard deviations
  EXPECT_LE(timed.back().at, 10);
}

TEST(Load, PercentilesAreInterpolated) {
  const std::vector<double> values = {1, 2, 3, 4, 5};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 0.5), 3);
  EXPECT_DOUBLE_EQ(percentile(values, 0.95), 4.8);
  EXPECT_DOUBLE_EQ(percentile(values, 1), 5);
  EXPECT_DOUBLE_EQ(percentile(std::vector<double>{7}, 0.99), 7);
  EXPECT_TRUE(std::isnan(percentile(std::vector<double>(), 0.5)));
  EXPECT_DOUBLE_EQ(percentiles({5, 1, 4, 2, 3}).p50, 3);
}

TEST(Load, ASummaryIsOfWholeAnswers) {
  LoadRun run;
  run.seconds = 2;
  run.samples.push_back({.status = 200,
                         .first = 0.1,
                         .last = 0.3,
                         .total = 0.4,
                         .gaps = {0.1, 0.1},
                         .n_prompt = 10,
                         .n_cached = 4,
                         .n_generated = 3});
  run.samples.push_back(
      {.status = 200, .first = 0.5, .last = 0.7, .total = 0.8, .gaps = {0.2}, .n_prompt = 30, .n_generated = 2});
  run.samples.push_back({.status = 200,
                         .late = 0.02,
                         .first = 0.1,
                         .last = 1.1,
                         .total = 1.1,
                         .gaps = {1},
                         .n_prompt = 20,
                         .n_generated = 2});
  run.samples.push_back({.status = 429, .error = "queue full", .total = 0.01});
  run.samples.push_back({.error = "no connection"});
  const LoadSummary s = summarize(run, 0.45, 0.25);
  EXPECT_EQ(s.n_ok, 3);
  EXPECT_EQ(s.n_failed, 2);
  EXPECT_EQ(s.errors, (std::map<int, int64_t>{{0, 1}, {429, 1}}));
  EXPECT_EQ(s.n_late, 1);
  EXPECT_EQ(s.n_good, 1) << "the second comes late, the third takes long between tokens";
  EXPECT_DOUBLE_EQ(s.requests_s, 1.5);
  EXPECT_DOUBLE_EQ(s.generated_s, 3.5);
  EXPECT_DOUBLE_EQ(s.prompt_s, 30);
  EXPECT_EQ(s.cached_tokens, 4);
  EXPECT_EQ(s.pieces, 7);
  EXPECT_DOUBLE_EQ(s.first.p50, 0.1);
  EXPECT_DOUBLE_EQ(s.gap.p50, 0.15);
}

/// A server that answers every completion in its own way.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(const Row& body, const http::Reply& reply)> complete) {
    http_ = http::Server::open({}, [complete](const http::Request& request, const http::Reply& reply) {
              if (request.path == "/v1/completions") return complete(Row::parse(request.body), reply);
              reply.send({.status = 404, .body = "{}"});
            }).or_throw();
  }
  LoadTarget target() const { return {LoadServer("127.0.0.1", http_->port(), ""), "fake", ""}; }

 private:
  std::unique_ptr<http::Server> http_;
};

/// One piece of text, then as much as `n_generated` says.
void answer(const Row& body, const http::Reply& reply, int n_generated) {
  const auto stream = reply.stream(200, http::kEventStream);
  stream->send(http::sse_event(R"({"choices": [{"text": "a"}]})"));
  stream->send(http::sse_event(R"({"choices": [{"text": "b"}]})"));
  const Row usage = {{"prompt_tokens", body["prompt"].size()}, {"completion_tokens", n_generated}};
  stream->send(http::sse_event(Row{{"choices", Row::array()}, {"usage", usage}}.dump()));
  stream->send(http::sse_event("[DONE]"));
  stream->finish();
}

TEST(Load, EveryRequestIsSentOnceAndCounted) {
  std::mutex mutex;
  std::multiset<std::string> prompts;
  const FakeServer server([&](const Row& body, const http::Reply& reply) {
    {
      const std::lock_guard lock(mutex);
      prompts.insert(body["prompt"].dump());
    }
    EXPECT_EQ(body["ignore_eos"], true);
    EXPECT_EQ(body["stream_options"]["include_usage"], true);
    EXPECT_FALSE(body.contains("kv_quant"));
    answer(body, reply, body["max_tokens"]);
  });
  LoadPlan plan = small_plan();
  plan.n_requests = 40;
  std::multiset<std::string> planned;
  for (const LoadRequest& request : all_of(plan)) planned.insert(Row(load_prompt(plan, request)).dump());
  for (const bool arrivals : {false, true}) {
    plan.n_clients = 4;
    plan.rate = arrivals ? 400 : 0;
    prompts.clear();
    const LoadRun run = run_load(server.target(), plan, [] { return false; });
    EXPECT_EQ(prompts, planned);
    const LoadSummary s = summarize(run, 60, 60);
    EXPECT_EQ(s.n_ok, 40) << run.samples[0].error;
    EXPECT_EQ(s.n_good, 40);
    EXPECT_EQ(s.pieces, 80);
    EXPECT_TRUE(std::isnan(run.server.steps) && std::isnan(run.kv_bytes_peak)) << "this server says nothing of itself";
  }
}

TEST(Load, FailedAndWrongAnswersAreNoMeasurements) {
  std::atomic<int> n = 0;
  const FakeServer server([&](const Row& body, const http::Reply& reply) {
    switch (n++ % 4) {
      case 0: return reply.send({.status = 429, .body = "{}"});
      case 1: return answer(body, reply, int(body["max_tokens"]) + 1);
      case 2: {
        const auto stream = reply.stream(200, http::kEventStream);
        stream->send(http::sse_event(R"({"error": {"message": "out of luck"}})"));
        return stream->finish();
      }
      default: {  // cut in the middle
        reply.stream(200, http::kEventStream)->send(http::sse_event(R"({"choices": [{"text": "a"}]})"));
      }
    }
  });
  LoadPlan plan = small_plan();
  plan.n_requests = 20;
  const LoadRun run = run_load(server.target(), plan, [] { return false; });
  const LoadSummary s = summarize(run, 60, 60);
  EXPECT_EQ(s.n_ok, 0);
  EXPECT_EQ(s.n_wrong, 5);
  EXPECT_EQ(s.errors.at(429), 5);
  EXPECT_EQ(s.n_failed, 20);
  EXPECT_THAT(run.samples[2].error, HasSubstr("out of luck"));
}

TEST(Load, AWarmUpThatFailsSaysWhy) {
  const FakeServer server([](const Row&, const http::Reply& reply) {
    reply.send({.status = 400, .body = R"({"error": {"message": "no such cache"}})"});
  });
  try {
    warm_up(server.target(), small_plan());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("no such cache"));
  }
}

}  // namespace
}  // namespace ridge::lab
