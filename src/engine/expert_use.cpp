#include "engine/expert_use.h"

#include <algorithm>
#include <numeric>

namespace ridge {
namespace {

/// Counts of two experts differ by chance too: a newcomer has so much more than the one that it drives out.
constexpr float kClearly = 1.25f, kMore = 4;

}  // namespace

ExpertUse::ExpertUse(int n_experts, int n_used, int n_places)
    : n_used_(n_used),
      counts_(size_t(n_experts), 0.0f),
      place_of_(size_t(n_experts), -1),
      expert_at_(size_t(n_places), -1) {}

void ExpertUse::count(std::span<const int32_t> numbers) {
  for (size_t first = 0; first < numbers.size(); first += size_t(n_used_)) {
    const auto of_token = numbers.subspan(first, size_t(n_used_));
    if (std::ranges::none_of(of_token, [&](int32_t number) { return is_expert(number); })) continue;
    for (const int32_t number : of_token)
      if (is_expert(number)) counts_[size_t(number)] += 1;
    if (++n_tokens_ < kHalfLife) continue;
    n_tokens_ = 0;
    for (float& value : counts_) value /= 2;
  }
}

void ExpertUse::take(std::span<int32_t> numbers) {
  count(numbers);
  for (int32_t& number : numbers) {
    if (!is_expert(number)) continue;
    hits_.n_chosen += 1;
    if (place_of_[size_t(number)] < 0) continue;
    hits_.n_found += 1;
    number = -1;
  }
}

std::vector<ExpertMove> ExpertUse::exchange(int most) {
  std::vector<int32_t> wanted, places(expert_at_.size());
  for (size_t e = 0; e < counts_.size(); ++e)
    if (place_of_[e] < 0 && counts_[e] > 0) wanted.push_back(int32_t(e));
  std::ranges::stable_sort(wanted, std::greater(), [&](int32_t e) { return counts_[size_t(e)]; });
  std::iota(places.begin(), places.end(), 0);
  const auto count_at = [&](int32_t place) {
    const int32_t expert = expert_at_[size_t(place)];
    return expert < 0 ? -1 : counts_[size_t(expert)];
  };
  std::ranges::stable_sort(places, std::less(), count_at);
  std::vector<ExpertMove> moves;
  for (size_t i = 0; i < std::min(wanted.size(), places.size()); ++i) {
    const ExpertMove move{.expert = wanted[i], .place = places[i]};
    if (const int32_t there = expert_at_[size_t(move.place)]; there >= 0) {
      if (most-- <= 0 || counts_[size_t(move.expert)] < kClearly * counts_[size_t(there)] + kMore) break;
      place_of_[size_t(there)] = -1;
    }
    expert_at_[size_t(move.place)] = move.expert;
    place_of_[size_t(move.expert)] = move.place;
    moves.push_back(move);
  }
  return moves;
}

}  // namespace ridge
