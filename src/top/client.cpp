#include "top/client.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace ridge::top {
namespace {

constexpr size_t kHistory = 1024;
constexpr int kPlainTokens = 256;  // a base model does not end by itself
constexpr size_t kMostText = size_t(4) << 20;

/// Whatever was typed or said, as JSON: bytes that are not UTF-8 become U+FFFD.
std::string dumped(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void remember(std::vector<double>& values, double value) {
  values.push_back(value);
  if (values.size() > kHistory) values.erase(values.begin());
}

Status ask(const Target& target, bool by_page, const std::atomic<bool>* stop, Known& known) {
  if (!known.connected) {
    RIDGE_TRY(const std::string text, target.get("/props", stop));
    RIDGE_TRY(known.props, read_props(text));
  }
  RIDGE_TRY(const std::string status, target.get("/status", stop));
  const OpTimes before = std::move(known.status.ops);
  RIDGE_TRY(known.status, read_status(status));
  // The last passes that were timed stay in sight while nothing runs.
  if (known.status.ops.passes != before.passes) known.ops = known.status.ops.since(before);
  RIDGE_TRY(const std::string kv, target.get(by_page ? "/kv?by=page" : "/kv", stop));
  RIDGE_TRY(known.pools, read_pools(kv));
  remember(known.tok_s, known.status.tok_s);
  remember(known.prompt_tok_s, known.status.prompt_tok_s);
  return {};
}

}  // namespace

http::Client Target::client(int idle_ms, const std::atomic<bool>* stop) const {
  return {url.host,
          url.port,
          {.connect = std::chrono::milliseconds(3000), .idle = std::chrono::milliseconds(idle_ms), .stop = stop}};
}

http::Headers Target::headers() const {
  http::Headers headers;
  headers.add("Content-Type", "application/json");
  if (!key.empty()) headers.add("Authorization", "Bearer " + key);
  return headers;
}

std::string Target::path(std::string_view of) const {
  std::string base = url.target.substr(0, url.target.find('?'));
  while (base.ends_with('/')) base.pop_back();
  return base + std::string(of);
}

Result<std::string> Target::get(std::string_view of, const std::atomic<bool>* stop) const {
  RIDGE_TRY(http::Response response, client(10'000, stop).get(path(of), headers()));
  if (response.status != 200) return fail(ErrorKind::failure, "{}: {}", of, error_text(response.status, response.body));
  return std::move(response.body);
}

void poll_once(const Target& target, bool by_page, const std::atomic<bool>* stop, Known& known) {
  const Status status = ask(target, by_page, stop, known);
  known.connected = status.has_value();
  known.trouble = known.connected ? "" : status.error().message;
}

Poller::Poller(Target target) : target_(std::move(target)), thread_([this] { work(); }) {}

Poller::~Poller() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Known Poller::known() const {
  const std::lock_guard lock(mutex_);
  return known_;
}

void Poller::ask_by_page(bool on) {
  if (by_page_.exchange(on) == on || !on) return;
  {
    const std::lock_guard lock(mutex_);
    at_once_ = true;
  }
  wake_.notify_all();
}

void Poller::work() {
  Known known;
  while (!stop_) {
    try {
      poll_once(target_, by_page_, &stop_, known);
    } catch (const std::exception& error) {
      known.connected = false;
      known.trouble = error.what();
    }
    if (!known.connected) known.trouble = "no answer, trying again: " + known.trouble;
    std::unique_lock lock(mutex_);
    known_ = known;
    ++changes_;
    wake_.wait_for(lock, std::chrono::milliseconds(known.connected ? target_.interval_ms : 1000),
                   [this] { return stop_ || std::exchange(at_once_, false); });
  }
}

std::pair<std::string, std::string> request_of(const std::vector<Turn>& turns, const std::string& chat_template) {
  nlohmann::json body = {{"stream", true}};
  if (chat_template == "plain") {
    std::string transcript;
    for (const Turn& turn : turns) transcript += (turn.user ? "User: " : "Assistant: ") + turn.text + "\n";
    body["prompt"] = transcript + "Assistant:";
    body["stop"] = {"\nUser:", "\nAssistant:"};
    body["max_tokens"] = kPlainTokens;
    return {"/v1/completions", dumped(body)};
  }
  body["messages"] = nlohmann::json::array();
  for (const Turn& turn : turns)
    body["messages"].push_back({{"role", turn.user ? "user" : "assistant"}, {"content", turn.text}});
  return {"/v1/chat/completions", dumped(body)};
}

void Talk::send(const std::string& text, const std::string& chat_template) {
  if (chat().streams) return;
  stop();
  const std::lock_guard lock(mutex_);
  if (chat_template == "none") {
    chat_.note = "this model has no tokenizer: no chat";
    return;
  }
  chat_.turns.push_back({.user = true, .text = text});
  auto [path, body] = request_of(chat_.turns, chat_template);
  chat_.turns.push_back({});
  chat_.streams = true;
  chat_.note = "waiting";
  stop_ = false;
  thread_ = std::thread([this, to = std::move(path), what = std::move(body)] { answer(to, what); });
}

void Talk::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Talk::reset() {
  stop();
  const std::lock_guard lock(mutex_);
  chat_ = {};
}

Chat Talk::chat() const {
  const std::lock_guard lock(mutex_);
  return chat_;
}

void Talk::answer(std::string path, std::string body) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  const auto start = Clock::now();
  auto first = start;
  std::string trouble, finish;
  int64_t pieces = 0;
  try {
    const auto on_data = [&](std::string_view data) {
      const Result<Delta> delta = read_delta(data);
      const std::lock_guard lock(mutex_);
      ++changes_;
      if (!delta) {
        trouble = delta.error().message;
        return false;
      }
      Turn& turn = chat_.turns.back();
      if (!delta->text.empty() || !delta->reasoning.empty()) {
        if (pieces++ == 0) first = Clock::now();
        // The space between "Assistant:" and the answer is the transcript's.
        turn.text += turn.text.empty() && delta->text.starts_with(' ') ? delta->text.substr(1) : delta->text;
        turn.reasoning += delta->reasoning;
        chat_.note =
            fmt::format("{} pieces, {:.0f} ms to the first, {:.1f} a second", pieces, 1e3 * seconds(first - start),
                        double(pieces - 1) / std::max(1e-3, seconds(Clock::now() - first)));
      }
      if (!delta->finish.empty()) finish = delta->finish;
      if (turn.text.size() + turn.reasoning.size() > kMostText) trouble = "the answer is too long to show";
      return !stop_ && trouble.empty();
    };
    const Result<http::Response> response =
        target_.client(600'000, &stop_).events("POST", target_.path(path), body, target_.headers(), on_data);
    if (stop_) finish = "stopped";
    else if (!response) trouble = response.error().message;
    else if (response->status != 200) trouble = error_text(response->status, response->body);
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  const std::lock_guard lock(mutex_);
  if (!trouble.empty()) chat_.note = trouble;
  else chat_.note = pieces > 0 ? fmt::format("{}: {}", finish.empty() ? "ended" : finish, chat_.note) : finish;
  if (chat_.turns.back().text.empty() && chat_.turns.back().reasoning.empty()) chat_.turns.pop_back();
  chat_.streams = false;
  ++changes_;
}

}  // namespace ridge::top
