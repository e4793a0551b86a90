// Is B faster than A, beyond the noise? The rule by which every comparison of the lab is judged.
//
// Three sets of times: A, A measured again in the same run (A'), and B. The noise is what A and A' differ by, or three
// times the spread of single calls, whichever is more. An effect inside the noise, or below what matters (the budget),
// or whose 95 % interval includes "no difference", gives no verdict: neither "faster" nor "the same".
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lab/rows/columns.h"

namespace ridge::lab {

struct Verdict {
  enum class Answer : uint8_t { none, faster, slower };  ///< of B
  Answer answer = Answer::none;
  double ratio = 0;          ///< how many times as fast B is as A: medians, A and A' taken together
  double low = 0, high = 0;  ///< 95 % interval of the ratio
  /// ratio - 1, or 1 - 1/ratio below 1, so that 5 % slower is -0.05; against A or A', whichever B differs less from.
  double effect = 0;
  double aa_effect = 0;      ///< the same of A' against A; 0 without A'
  double spread = 0;         ///< 3 x median absolute deviation / median, the largest of the three
  double noise = 0;          ///< max(|aa_effect|, spread)
  double budget = 0;         ///< effects up to this do not matter
  std::string why_none;      ///< "the effect of 0.4 % is inside the noise of 2.1 %"
  bool has_control = false;  ///< whether there was an A'
  int n_a = 0, n_again = 0, n_b = 0;
};

inline constexpr double kEffectBudget = 0.01;
inline constexpr int kFewestSamples = 5;  ///< of each set; with fewer there is no verdict

/// Times in any unit, equal for all three; `again` (A') may be empty. The interval is a bootstrap of the ratio of
/// medians with a fixed seed: equal samples give equal verdicts.
Verdict judge(std::span<const double> a, std::span<const double> again, std::span<const double> b,
              double budget = kEffectBudget);

std::string_view answer_name(Verdict::Answer answer);  ///< "NO VERDICT", "FASTER", "SLOWER"
/// "1.21x [1.17, 1.25]"
std::string ratio_text(const Verdict& verdict);
/// "FASTER: 1.21x [1.17, 1.25], noise 2.1 % (A/A 0.4 %, 3 MAD 2.1 %)"
std::string verdict_text(const Verdict& verdict);
Columns<Verdict> verdict_columns();

}  // namespace ridge::lab
