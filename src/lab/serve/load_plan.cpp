#include "lab/serve/load_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace ridge::lab {
namespace {

constexpr int kFirstIds = 256;

/// Streams of random numbers that one seed has.
enum class Stream : uint64_t { lengths, arrivals, prefixes, prompts };

Rng stream(uint64_t seed, Stream what, uint64_t contents = 0, uint64_t number = 0) {
  uint64_t state = seed;
  for (const uint64_t part : {uint64_t(what), contents, number}) state = splitmix64(state + kSplitmixStep) ^ part;
  return Rng(splitmix64(state));
}

void add_tokens(std::vector<int32_t>& tokens, int n, int n_vocab, Rng rng) {
  const int first = n_vocab > kFirstIds ? kFirstIds : 0;
  for (int i = 0; i < n; ++i) tokens.push_back(first + int32_t(rng.next() % uint64_t(n_vocab - first)));
}

}  // namespace

int Lengths::random(Rng& rng) const {
  const double ratio = double(most + 1) / least;
  return std::min(most, int(least * std::pow(ratio, rng.uniform())));
}

std::string Lengths::text() const {
  return least == most ? fmt::format("{}", least) : fmt::format("{}-{}", least, most);
}

Result<Lengths> parse_lengths(std::string_view flag, std::string_view text, int most) {
  const auto read = [&](std::string_view part, int& value) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size() && value >= 1 && value <= most;
  };
  const size_t dash = std::min(text.find('-'), text.size());
  Lengths lengths;
  const std::string_view last = dash == text.size() ? text : text.substr(dash + 1);
  if (!read(text.substr(0, dash), lengths.least) || !read(last, lengths.most))
    return fail(ErrorKind::usage, "{}: '{}' is neither a number nor A-B, from 1 to {}", flag, text, most);
  if (lengths.most < lengths.least) return fail(ErrorKind::usage, "{}: '{}' ends below its beginning", flag, text);
  return lengths;
}

LoadSchedule::LoadSchedule(const LoadPlan& plan)
    : plan_(plan), lengths_(stream(plan.seed, Stream::lengths)), arrivals_(stream(plan.seed, Stream::arrivals)) {}

std::optional<LoadRequest> LoadSchedule::next() {
  if (plan_.n_requests > 0 && n_ == plan_.n_requests) return {};
  LoadRequest request{.number = n_};
  if (plan_.rate > 0) {
    request.at = last_.at - std::log(1 - arrivals_.uniform()) / plan_.rate;
    if (plan_.seconds > 0 && request.at > plan_.seconds) return {};
  }
  ++n_;
  request.prefix = int(lengths_.next() % uint64_t(plan_.n_prefixes));
  request.n_prompt = plan_.prefix_tokens + plan_.prompt.random(lengths_);
  request.n_answer = plan_.answer.random(lengths_);
  return last_ = request;
}

std::vector<int32_t> load_prompt(const LoadPlan& plan, const LoadRequest& request) {
  std::vector<int32_t> tokens;
  add_tokens(tokens, plan.prefix_tokens, plan.n_vocab,
             stream(plan.seed, Stream::prefixes, plan.contents, uint64_t(request.prefix)));
  add_tokens(tokens, request.n_prompt - plan.prefix_tokens, plan.n_vocab,
             stream(plan.seed, Stream::prompts, plan.contents, uint64_t(request.number)));
  return tokens;
}

}  // namespace ridge::lab
