#include "lab/serve/load.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <stop_token>
#include <thread>

namespace ridge::lab {
namespace {

using LoadClock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPollEvery{250}, kLookEvery{20};
constexpr double kLate = 0.010;
/// Requests of a plan with arrivals that are on their way at a time; what is due beyond is sent late.
constexpr int kMostAtOnce = 512;
constexpr int kWarmUpPrompt = 64, kWarmUpAnswer = 4;

double seconds_between(LoadClock::time_point from, LoadClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// A number inside of objects, NaN where there is none.
double number_at(const Row& json, std::initializer_list<const char*> path) {
  const Row* at = &json;
  for (const char* name : path) {
    const auto found = at->find(name);
    if (found == at->end()) return NAN;
    at = &*found;
  }
  return at->is_number() ? at->get<double>() : NAN;
}
int64_t count_at(const Row& json, std::initializer_list<const char*> path) {
  const double n = number_at(json, path);
  return std::isnan(n) ? 0 : int64_t(n);
}

/// The server's counts; `newest`: the steps that the median is of.
ServerCounts server_counts(const LoadServer& server, double newest = 0) {
  const auto answer = server.get(newest > 0 ? fmt::format("/status?steps={:.0f}", newest) : "/status");
  const Row slots = answer ? *answer : Row();
  const auto total = [&](const char* name) { return number_at(slots, {"totals", name}); };
  return {total("steps"),
          total("step_seconds"),
          total("decode_rows"),
          total("prompt_tokens"),
          total("cached_tokens"),
          total("parked"),
          number_at(slots, {"step", "ms_p50"})};
}

/// An answer as its events come.
class AnswerReader {
 public:
  AnswerReader(LoadSample& sample, LoadClock::time_point due) : sample_(sample), due_(due) {}

  void take(std::string_view data) {
    const double now = seconds_between(due_, LoadClock::now());
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    const Result<Row> parsed = parse_within<Row>(data);
    if (!parsed || !parsed->is_object()) return fail_with("an event is no JSON object");
    const Row& json = *parsed;
    if (json.contains("error")) return fail_with(json["error"].dump());
    if (json.contains("usage") && json["usage"].is_object()) take_usage(json["usage"]);
    const auto choices = json.find("choices");
    if (choices == json.end() || !choices->is_array() || choices->empty()) return;
    const auto text = (*choices)[0].find("text");
    if (text == (*choices)[0].end() || !text->is_string() || text->get_ref<const std::string&>().empty()) return;
    if (sample_.first == 0) sample_.first = now;
    else sample_.gaps.push_back(now - sample_.last);
    sample_.last = now;
  }
  void end(const LoadRequest& request) {
    sample_.total = seconds_between(due_, LoadClock::now());
    if (sample_.first == 0) sample_.first = sample_.last = sample_.total;  // a text without a printable character
    if (!sample_.ok()) return;
    if (!done_) return fail_with("the answer is not whole");
    sample_.wrong = sample_.n_generated != request.n_answer || sample_.n_prompt != request.n_prompt;
    if (sample_.wrong)
      fail_with(fmt::format("{} tokens to {} of a prompt, {} to {} were asked for", sample_.n_generated,
                            sample_.n_prompt, request.n_answer, request.n_prompt));
  }
  void fail_with(const std::string& error) {
    if (sample_.error.empty()) sample_.error = error;
  }

 private:
  void take_usage(const Row& usage) {
    sample_.n_prompt = count_at(usage, {"prompt_tokens"});
    sample_.n_generated = count_at(usage, {"completion_tokens"});
    sample_.n_cached = count_at(usage, {"prompt_tokens_details", "cached_tokens"});
  }

  LoadSample& sample_;
  const LoadClock::time_point due_;
  bool done_ = false;
};

std::string request_body(const LoadTarget& target, const LoadPlan& plan, const LoadRequest& request) {
  Row body = {{"model", target.model},
              {"prompt", load_prompt(plan, request)},
              {"max_tokens", request.n_answer},
              {"ignore_eos", true},
              {"seed", plan.seed + uint64_t(request.number)},
              {"stream", true},
              {"stream_options", {{"include_usage", true}}}};
  if (!target.kv.empty()) body["kv_quant"] = target.kv;
  return body.dump();
}

LoadSample send(const LoadTarget& target, const std::string& body, const LoadRequest& request,
                LoadClock::time_point due, const std::function<bool()>& stop) {
  LoadSample sample;
  sample.late = seconds_between(due, LoadClock::now());
  AnswerReader reader(sample, due);
  const auto response = target.server.client().events("POST", "/v1/completions", body, target.server.headers(),
                                                      [&](std::string_view data) {
                                                        reader.take(data);
                                                        return !stop();
                                                      });
  if (!response) {
    reader.fail_with(response.error().message);
  } else {
    sample.status = response->status;
    if (sample.status != 200) reader.fail_with(response->body.substr(0, 500));
  }
  reader.end(request);
  return sample;
}

/// Watches a server while the load runs, for the largest number of bytes of its cache.
class PeakWatch {
 public:
  PeakWatch(const LoadTarget& target, LoadRun& run) : target_(target), run_(run) {
    run_.kv_bytes_peak = run_.kv_f16_bytes = NAN;
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const auto next = LoadClock::now() + kPollEvery;
        look();
        while (!stop.stop_requested() && LoadClock::now() < next) std::this_thread::sleep_for(kLookEvery);
      }
      look();
    });
  }
  void end() {
    thread_.request_stop();
    thread_.join();
  }

 private:
  void look() {
    const auto answer = target_.server.get("/kv");
    if (!answer || !answer->contains("pools")) return;
    const Row& pools = (*answer)["pools"];
    const auto standard = answer->find("kv_quant");
    std::string kv = target_.kv;
    if (kv.empty() && standard != answer->end() && standard->is_string()) kv = *standard;
    const auto pool = pools.find(kv);
    if (pool == pools.end()) return;
    run_.kv = *pool;
    const double bytes = number_at(*pool, {"used_bytes"});
    if (bytes <= run_.kv_bytes_peak) return;  // the first one is above NaN
    run_.kv_bytes_peak = bytes;
    run_.kv_f16_bytes = number_at(*pool, {"f16_bytes"});
  }

  const LoadTarget& target_;
  LoadRun& run_;
  std::jthread thread_;
};

/// The clients of one run; all of them take their requests from one schedule.
class Crowd {
 public:
  Crowd(const LoadTarget& target, const LoadPlan& plan, const std::function<bool()>& stop)
      : target_(target), plan_(plan), stop_(stop), schedule_(plan) {}

  std::vector<LoadSample> run() {
    int64_t n = plan_.rate > 0 ? kMostAtOnce : plan_.n_clients;
    if (plan_.n_requests > 0) n = std::min(n, plan_.n_requests);
    std::vector<std::jthread> threads;
    for (int64_t i = 0; i < n; ++i) threads.emplace_back([this] { client(); });
    threads.clear();
    return std::move(samples_);
  }

 private:
  void client() {
    while (const auto request = take()) {
      const std::string body = request_body(target_, plan_, *request);
      const auto due =
          start_ + std::chrono::duration_cast<LoadClock::duration>(std::chrono::duration<double>(request->at));
      for (auto now = LoadClock::now(); plan_.rate > 0 && now < due; now = LoadClock::now()) {
        if (stop_()) return;
        std::this_thread::sleep_for(std::min<LoadClock::duration>(due - now, kPollEvery));
      }
      LoadSample sample = send(target_, body, *request, plan_.rate > 0 ? due : LoadClock::now(), stop_);
      const std::lock_guard lock(mutex_);
      samples_.push_back(std::move(sample));
    }
  }
  std::optional<LoadRequest> take() {
    const std::lock_guard lock(mutex_);
    const bool over =
        plan_.rate == 0 && plan_.seconds > 0 && seconds_between(start_, LoadClock::now()) >= plan_.seconds;
    if (over || stop_()) return {};
    return schedule_.next();
  }

  const LoadTarget& target_;
  const LoadPlan& plan_;
  const std::function<bool()>& stop_;
  const LoadClock::time_point start_ = LoadClock::now();
  std::mutex mutex_;
  LoadSchedule schedule_;
  std::vector<LoadSample> samples_;
};

}  // namespace

LoadServer::LoadServer(std::string host, uint16_t port, const std::string& key) : host_(std::move(host)), port_(port) {
  headers_.add("Content-Type", "application/json");
  if (!key.empty()) headers_.add("Authorization", "Bearer " + key);
}

Result<Row> LoadServer::get(const std::string& path) const {
  RIDGE_TRY(const http::Response response, client().get(path, headers_));
  Result<Row> json = parse_within<Row>(response.body);
  if (response.status != 200 || !json)
    return fail(ErrorKind::failure, "{}: {} answers {}: {}", host_, path, response.status,
                response.body.substr(0, 500));
  return json;
}

void warm_up(const LoadTarget& target, const LoadPlan& plan) {
  LoadPlan small = plan;
  small.contents = ~plan.contents;  // no prompt of the load is found in the cache because of this one
  const LoadRequest request{.n_prompt = plan.prefix_tokens + std::min(plan.prompt.most, kWarmUpPrompt),
                            .n_answer = std::min(plan.answer.most, kWarmUpAnswer)};
  const LoadSample sample =
      send(target, request_body(target, small, request), request, LoadClock::now(), [] { return false; });
  if (!sample.ok())
    throw_error(sample.status == 400 ? ErrorKind::usage : ErrorKind::failure, "the first request failed ({}): {}",
                sample.status, sample.error);
}

LoadRun run_load(const LoadTarget& target, const LoadPlan& plan, const std::function<bool()>& stop) {
  LoadRun run;
  const ServerCounts before = server_counts(target.server);
  PeakWatch watch(target, run);
  const auto start = LoadClock::now();
  run.samples = Crowd(target, plan, stop).run();
  run.seconds = seconds_between(start, LoadClock::now());
  watch.end();
  ServerCounts& n = run.server = server_counts(target.server);
  n = server_counts(target.server, n.steps - before.steps);
  n.steps -= before.steps;
  n.step_seconds -= before.step_seconds;
  n.decode_rows -= before.decode_rows;
  n.prompt_tokens -= before.prompt_tokens;
  n.cached_tokens -= before.cached_tokens;
  n.parked -= before.parked;
  return run;
}

double percentile(std::span<const double> values, double fraction) {
  if (values.empty()) return NAN;
  const double at = fraction * double(values.size() - 1);
  const size_t below = size_t(at), above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - double(below)) * (values[above] - values[below]);
}

Percentiles percentiles(std::vector<double> values) {
  std::ranges::sort(values);
  return {percentile(values, 0.5), percentile(values, 0.95), percentile(values, 0.99)};
}

LoadSummary summarize(const LoadRun& run, double first_limit, double token_limit) {
  LoadSummary s;
  std::vector<double> first, gaps, total;
  for (const LoadSample& sample : run.samples) {
    if (sample.late > kLate) ++s.n_late;
    if (sample.wrong) ++s.n_wrong;
    if (!sample.ok()) {
      ++s.n_failed;
      ++s.errors[sample.status];
      continue;
    }
    ++s.n_ok;
    first.push_back(sample.first);
    total.push_back(sample.total);
    gaps.insert(gaps.end(), sample.gaps.begin(), sample.gaps.end());
    s.prompt_tokens += sample.n_prompt;
    s.cached_tokens += sample.n_cached;
    s.generated_tokens += sample.n_generated;
    s.pieces += ssize(sample.gaps) + 1;
    if (sample.first <= first_limit && sample.per_token() <= token_limit) ++s.n_good;
  }
  s.first = percentiles(std::move(first));
  s.gap = percentiles(std::move(gaps));
  s.total = percentiles(std::move(total));
  s.requests_s = double(s.n_ok) / run.seconds;
  s.generated_s = double(s.generated_tokens) / run.seconds;
  s.prompt_s = double(s.prompt_tokens) / run.seconds;
  return s;
}

}  // namespace ridge::lab
