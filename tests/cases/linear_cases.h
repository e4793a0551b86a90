// The shapes every linear kernel is tested on.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

namespace ridge {

struct LinearCase {
  int n_out = 0;
  int n_in = 0;
  int n_tokens = 1;
  std::string name() const { return fmt::format("{}x{}x{}", n_tokens, n_out, n_in); }
};

/// Every row tail with every column tail at one token, then every token tail at shapes of one, several and many tiles.
/// n_in that a format's group does not divide is for the formats it does.
inline std::vector<LinearCase> linear_cases() {
  std::vector<LinearCase> cases;
  for (const int n_out : {1, 15, 16, 17, 33, 172})
    for (const int n_in : {8, 32, 64, 96, 172, 512, 1536, 2080}) cases.push_back({n_out, n_in, 1});
  for (const int n_tokens : {2, 7, 8, 9, 17, 64}) {
    for (const int n_in : {8, 32, 172, 544}) cases.push_back({33, n_in, n_tokens});
    cases.push_back({172, 96, n_tokens});
    cases.push_back({1, 1536, n_tokens});
  }
  cases.push_back({49, 2080, 9});
  for (const int n_tokens : {1, 2, 9}) cases.push_back({49, 768, n_tokens});  // a strip and a half, of super-blocks too
  return cases;
}

}  // namespace ridge
