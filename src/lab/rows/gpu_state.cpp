#include "lab/rows/gpu_state.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>

#include "engine/kv_choice.h"

namespace ridge::lab {

std::optional<GpuState> parse_gpu_state(std::string_view line) {
  int values[3] = {};
  const std::vector<std::string> words = split(line, ',');
  if (words.size() != std::size(values)) return std::nullopt;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const char* const end = word.data() + word.size();
    const char* const first = std::find_if(word.data(), end, [](char c) { return c != ' '; });
    const auto [rest, error] = std::from_chars(first, end, values[i]);
    if (error != std::errc() || std::any_of(rest, end, [](char c) { return c != ' ' && c != '\n' && c != '\r'; }))
      return std::nullopt;
  }
  return GpuState{values[0], values[1], values[2]};
}

namespace {

/// The only line of nvidia-smi's answer; nothing when it has none or several.
std::optional<GpuState> ask(const std::string& which) {
  const std::string command =
      "nvidia-smi --query-gpu=clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader,nounits" + which +
      " 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (!pipe) return std::nullopt;
  char line[128] = "", second[8] = "";
  if (!std::fgets(line, sizeof line, pipe.get()) || std::fgets(second, sizeof second, pipe.get())) return std::nullopt;
  return parse_gpu_state(line);
}

}  // namespace

std::optional<GpuState> read_gpu_state(const std::string& pci_bus_id) {
  // Into a shell goes nothing but hexadecimal digits and their separators.
  if (pci_bus_id.find_first_not_of("0123456789abcdefABCDEF:.") != std::string::npos) return std::nullopt;
  if (!pci_bus_id.empty())
    if (const auto state = ask(" -i " + pci_bus_id)) return state;
  return ask("");
}

Row to_row(const std::optional<GpuState>& state) {
  if (!state) return nullptr;
  return {{"sm_mhz", state->sm_mhz}, {"memory_mhz", state->memory_mhz}, {"temperature_c", state->temperature_c}};
}

}  // namespace ridge::lab
