// Questions and news of a run of the lab, for its caller.
#pragma once

#include <functional>
#include <string>

namespace ridge::lab {

struct RunHooks {
  std::function<bool()> stop = [] { return false; };  ///< asked often
  std::function<void(const std::string& what, int done, int total)> on_status = [](const std::string&, int, int) {};
};

}  // namespace ridge::lab
