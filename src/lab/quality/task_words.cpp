#include "lab/quality/task_words.h"

#include <span>

#include "base/check.h"

namespace ridge::lab {
namespace {

constexpr std::string_view kAdjectives[] = {
    "amber",  "brave",  "calm",   "dusty",  "eager", "faint", "gentle", "hollow", "icy",   "jolly",  "keen",   "lively",
    "mellow", "narrow", "orange", "purple", "quiet", "rapid", "silver", "tidy",   "vivid", "wooden", "yellow", "young"};
constexpr std::string_view kThings[] = {"anchor", "barrel", "candle",  "desert", "engine", "forest",
                                        "garden", "hammer", "island",  "jacket", "kettle", "ladder",
                                        "market", "needle", "orchard", "pepper", "quarry", "ribbon",
                                        "saddle", "temple", "valley",  "violin", "window", "zipper"};
constexpr std::string_view kVerbs[] = {"add", "count", "draw", "find", "join", "load", "move", "open", "read", "send"};
constexpr std::string_view kPeople[] = {"Alice", "Bob",  "Carol", "David", "Emma", "Frank", "Grace", "Henry",
                                        "Iris",  "Jack", "Kate",  "Leo",   "Mary", "Nick",  "Olga",  "Paul"};
constexpr std::string_view kCities[] = {"London", "Paris",  "Berlin", "Madrid", "Rome",   "Vienna", "Prague", "Dublin",
                                        "Oslo",   "Athens", "Lisbon", "Warsaw", "Zurich", "Milan",  "Cairo",  "Tokyo"};

std::string random_word(std::span<const std::string_view> of, Rng& rng) {
  return std::string(of[size_t(whole(rng, 0, int(of.size()) - 1))]);
}

std::string random_part(char kind, Rng& rng) {
  switch (kind) {
    case 'a': return random_word(kAdjectives, rng);
    case 'w': return random_word(kThings, rng);
    case 'v': return random_word(kVerbs, rng);
    case 'n': return random_word(kPeople, rng);
    case 'c': return random_word(kCities, rng);
    case 'd': return std::to_string(whole(rng, 1, 99));
    case '0': return std::to_string(whole(rng, 0, 9));
    case 'b': return whole(rng, 0, 1) == 1 ? "true" : "false";
  }
  RIDGE_CHECK(false, "no part ${}", kind);
  return {};
}

}  // namespace

std::string filled(std::string_view pattern, Rng& rng) {
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '$') text += random_part(pattern[++i], rng);
    else text += pattern[i];
  }
  return text;
}

}  // namespace ridge::lab
