// Pages that tools/report/report.py draws.
#pragma once

#include <string>

#include "cli/options.h"

namespace ridge::cli {

/// The page of a decision record, decision.html in the directory `out`; the exit code.
int draw_decision(const std::string& record, const std::string& out, const OutputFlags& output);

}  // namespace ridge::cli
