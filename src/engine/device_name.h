// Names of devices as people type them.
#pragma once

#include <optional>
#include <string_view>

namespace ridge {

/// The number N of "cuda[:N]", nothing for "cpu"; throws usage on other texts.
std::optional<int> parse_device(std::string_view device);

}  // namespace ridge
