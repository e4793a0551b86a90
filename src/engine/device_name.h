// Names of devices as people type them.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace ridge {

/// The numbers of "cuda[:N[,M...]]", in a build for AMD also of "hip[:N[,M...]]", in order, none for "cpu"; throws
/// usage on other texts, and for a device named twice.
std::vector<int> parse_devices(std::string_view devices);
/// The same where there may be one at most.
std::optional<int> parse_device(std::string_view device);

/// Refuses numbers of devices that do not form `n_stages` groups of as many each; usage.
void check_stages(std::span<const int> devices, int n_stages);

}  // namespace ridge
