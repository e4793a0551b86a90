// Names of devices as people type them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace ridge {

/// The number N of "cuda[:N]", nothing for "cpu"; throws usage on other texts.
std::optional<int> parse_device(std::string_view device);
/// The numbers of "cuda[:N[,M...]]", each once; none for "cpu". Throws usage on other texts.
std::vector<int> parse_devices(std::string_view devices);

/// The numbers of "cuda[:N[,M...]]", in order, none for "cpu"; throws usage on other texts, and for a device named twice.
std::vector<int> parse_devices(std::string_view devices);

}  // namespace ridge
