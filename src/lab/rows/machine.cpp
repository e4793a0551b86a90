#include "lab/rows/machine.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>

#include "base/limits.h"
#include "op/cpu.h"

namespace ridge::lab {
namespace {

/// "266240K" in bytes; 0 for anything else.
int64_t size_with_unit(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return 0;
  const char unit = end < text.data() + text.size() ? *end : ' ';
  return unit == 'K' ? value << 10 : unit == 'M' ? value << 20 : unit == 'G' ? value << 30 : value;
}

/// Value of "name : value" in a /proc file.
std::string proc_field(const std::filesystem::path& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

int64_t meminfo_bytes(std::string_view name) { return std::atoll(proc_field("/proc/meminfo", name).c_str()) * 1024; }

/// The processor's name. ARM Linux has numbers alone, and on some boards the name of the board.
std::string cpu_model() {
  if (std::string name = proc_field("/proc/cpuinfo", "model name"); !name.empty()) return name;
  const std::string board = proc_field("/proc/cpuinfo", "Model"),
                    maker = proc_field("/proc/cpuinfo", "CPU implementer");
  const std::string numbers =
      maker.empty() ? "" : fmt::format("CPU implementer {} part {}", maker, proc_field("/proc/cpuinfo", "CPU part"));
  return board.empty() || numbers.empty() ? board + numbers : fmt::format("{}, {}", board, numbers);
}

std::vector<CacheInfo> caches_of_first_processor() {
  std::vector<CacheInfo> caches;
  for (int index = 0; index < 16; ++index) {
    const std::filesystem::path folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}", index);
    const std::string level = first_line(folder / "level");
    if (level.empty()) break;
    caches.push_back({std::atoi(level.c_str()), first_line(folder / "type"),
                      size_with_unit(first_line(folder / "size")), first_line(folder / "shared_cpu_list")});
  }
  return caches;
}

}  // namespace

int64_t MachineInfo::last_level_cache_bytes() const {
  int64_t largest = 0;
  for (const CacheInfo& cache : caches) largest = std::max(largest, cache.bytes);
  return largest;
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

MachineInfo machine_info() {
  MachineInfo info;
  info.cpu_model = cpu_model();
  info.n_processors = affine_processors();
  info.n_threads = available_processors();
  info.caches = caches_of_first_processor();
  info.memory_bytes = meminfo_bytes("MemTotal");
  info.available_bytes = available_memory().value_or(0);
  info.load_1min = std::atof(first_line("/proc/loadavg").c_str());
  info.isa = isa_name(detect_isa());
  info.abilities = cpu_abilities();
  return info;
}

}  // namespace ridge::lab
