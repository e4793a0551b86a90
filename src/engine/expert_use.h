// How often the experts of a layer in host memory are chosen, and which of them a device keeps because of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/expert_stream.h"
#include "ridge/engine.h"

namespace ridge {

/// Use of one layer's experts. One call at a time.
class ExpertUse {
 public:
  /// Counts fade: they are halved every so many tokens, so that they follow the text.
  static constexpr int kHalfLife = 1024;

  /// The device has `n_places` places, which are empty at first.
  ExpertUse(int n_experts, int n_used, int n_places);

  /// Counts the choices of tokens [n, n_used]. Other numbers than those of experts are of rows of padding.
  void count(std::span<const int32_t> numbers);
  /// count(), and numbers of experts that are on the device become -1: the host has nothing to do for them.
  void take(std::span<int32_t> numbers);

  /// Moves that fit the counts, for which the device makes room: those that gain most come first. Empty places are all
  /// filled; an expert is driven out by one that is chosen clearly more often, at most `most` times.
  std::vector<ExpertMove> exchange(int most);

  /// [n_experts]: the place of an expert, below 0: it is in host memory alone.
  std::span<const int32_t> places() const { return place_of_; }
  /// Hits among the choices that take() received.
  const ExpertHits& hits() const { return hits_; }

 private:
  bool is_expert(int32_t number) const { return number >= 0 && number < int32_t(counts_.size()); }

  const int n_used_;
  std::vector<float> counts_;       // [n_experts]
  std::vector<int32_t> place_of_;   // [n_experts]
  std::vector<int32_t> expert_at_;  // [n_places], below 0: none
  int n_tokens_ = 0;                // since counts were halved
  ExpertHits hits_;
};

}  // namespace ridge
