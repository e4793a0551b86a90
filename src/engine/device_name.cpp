#include "engine/device_name.h"

#include <algorithm>
#include <charconv>

#include "base/result.h"
#include "gpu/device_query.h"

namespace ridge {

std::vector<int> parse_devices(std::string_view devices) {
  if (devices == "cpu") return {};
  constexpr std::string_view kWord = gpu::kDeviceWord;
  std::string_view list;
  for (const std::string_view word : {kWord, std::string_view("cuda")}) {  // CUDA's in any build, as elsewhere
    if (devices == word) return {0};
    if (devices.starts_with(word) && devices.substr(word.size()).starts_with(":"))
      list = devices.substr(word.size() + 1);
  }
  std::vector<int> indices;
  for (size_t at = 0, end = 0; at <= list.size(); at = end + 1) {
    end = std::min(list.find(',', at), list.size());
    int index = -1;
    const auto [stop, error] = std::from_chars(list.data() + at, list.data() + end, index);
    if (error != std::errc() || stop != list.data() + end || index < 0)
      throw_error(ErrorKind::usage, "device: expects cpu or {0}[:N], or {0}:N,M,... for several, found '{1}'", kWord,
                  devices);
    if (std::ranges::find(indices, index) != indices.end())
      throw_error(ErrorKind::usage, "device: '{}' names {} twice", devices, index);
    indices.push_back(index);
  }
  return indices;
}

std::optional<int> parse_device(std::string_view device) {
  const std::vector<int> indices = parse_devices(device);
  if (indices.size() > 1)
    throw_error(ErrorKind::usage, "device: expects cpu or {}[:N], one device, found '{}'", gpu::kDeviceWord, device);
  return indices.empty() ? std::nullopt : std::optional(indices[0]);
}

void check_stages(std::span<const int> devices, int n_stages) {
  const auto n_devices = ssize(devices);
  if (n_stages == 1 || (n_stages > 1 && n_devices > 0 && n_devices % n_stages == 0)) return;
  throw_error(ErrorKind::usage,
              "--pp {}: {} device{} not form stages of as many devices each (name a multiple of {} as --device "
              "cuda:0,1,..., or leave out --pp)",
              n_stages, n_devices, n_devices == 1 ? " does" : "s do", n_stages);
}

}  // namespace ridge
