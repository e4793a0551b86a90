// The whole program as a function: parse, run, report errors, give the exit code.
#pragma once

#include <string>
#include <vector>

namespace ridge::cli {

/// `args` include the program's name. Results go to stdout, everything else to stderr.
int run_program(const std::vector<std::string>& args);

}  // namespace ridge::cli
