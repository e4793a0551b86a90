// Runs the tree of a template.
#pragma once

#include "text/jinja_parser.h"

namespace ridge::text::jinja {

/// The text that `body` gives with these variables. Throws Trouble.
std::string evaluate(Run& run, const Node& body, std::vector<std::pair<std::string_view, Value>> variables);

}  // namespace ridge::text::jinja
