// The screen that `ridge top` shows until a key ends it: keys turn pages, scroll, and talk with the server.
#pragma once

#include <functional>

#include "top/client.h"

namespace ridge::top {

/// Shows a server on the terminal until a key or `ended` ends it; `url` is what the pages call it. Throws Error without
/// a terminal.
void watch(const Target& target, const std::string& url, const std::function<bool()>& ended);

}  // namespace ridge::top
