// Steps of a sequence that brings draft tokens, some of them wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ridge {

/// Rows [first, first + right) of a sequence's input, and `wrong` rows behind them that are taken back.
struct DraftedStep {
  int first = 0, right = 0, wrong = 0;

  int n_rows() const { return right + wrong; }
  /// Its input: rows of `width` values, of the sequence's ones.
  std::vector<float> rows(const std::vector<float>& all, int64_t width) const {
    const auto begin = all.begin() + first * width;
    std::vector<float> rows(begin, begin + right * width);
    rows.resize(size_t(n_rows() * width), 3.0f);
    return rows;
  }
};

/// 11 rows, so that the last, the first and no row of a step is wrong, and every place of a history is written.
inline const std::vector<DraftedStep> kDraftedSteps = {{0, 1, 3}, {1, 4, 0}, {5, 2, 1},
                                                       {7, 1, 0}, {8, 1, 2}, {9, 2, 2}};

/// Steps without wrong rows, cut in front of the rows of `cuts`.
inline std::vector<DraftedStep> cut_steps(std::vector<int> cuts, int n) {
  cuts.push_back(n);
  std::vector<DraftedStep> steps;
  for (const int end : cuts) {
    const int first = steps.empty() ? 0 : steps.back().first + steps.back().right;
    steps.push_back({first, end - first, 0});
  }
  return steps;
}

}  // namespace ridge
