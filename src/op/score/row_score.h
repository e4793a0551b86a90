// Scores of one row of logits for quality runs (lab/quality/statistics.h has the definitions).
#pragma once

#include <cstdint>

namespace ridge {

/// One scored position. Without a base its fields are 0.
struct RowScore {
  double nll;       ///< -ln p(target) of the candidate
  double nll_base;  ///< of the base
  double kld;       ///< KL(base || candidate), nats
  double delta_p;   ///< p(target) of the candidate minus that of the base
  int32_t same_top;
  int32_t finite;  ///< bit 0: the candidate's logits are finite; bit 1: the base's
};

}  // namespace ridge
