// The machine a figure was measured on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::lab {

struct CacheInfo {
  int level = 0;
  std::string type;  ///< "Data", "Instruction", "Unified"
  int64_t bytes = 0;
  std::string shared_cpus;  ///< as the kernel lists them, "0-1"
};

struct MachineInfo {
  std::string cpu_model;
  int n_processors = 0;           ///< this process may use
  int n_threads = 0;              ///< that run at once: n_processors, or what the quota of a container pays for
  std::vector<CacheInfo> caches;  ///< of the first processor
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;  ///< without swapping, limits of containers and of the process respected; 0: unknown
  double load_1min = 0;         ///< processes that wanted to run, averaged over the last minute
  std::string isa;              ///< best instruction set kernels exist for
  std::vector<std::string_view> abilities = {};  ///< cpu_abilities()

  /// Largest cache, 0 when unknown.
  int64_t last_level_cache_bytes() const;
};

/// The first line of a small file of /proc or /sys; empty when it cannot be read.
std::string first_line(const std::filesystem::path& path);

/// Reads /proc and /sys; what cannot be read stays empty or 0.
MachineInfo machine_info();

}  // namespace ridge::lab
