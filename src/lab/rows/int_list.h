// Lists of whole numbers as llama-bench takes them.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"

namespace ridge::lab {

/// "512", "128,256", "512-2048*2", "1-8+1", "1-8" (step 1), and mixtures. Refuses values outside [min, max], empty or
/// endless ranges and more than 1000 values; the failure names `flag`.
Result<std::vector<int>> parse_int_list(std::string_view flag, std::string_view text, int min, int max);

}  // namespace ridge::lab
