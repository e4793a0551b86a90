#include "base/limits.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/aligned.h"

namespace ridge {
namespace {

int n_sharing = 1;  // processes on these processors

namespace fs = std::filesystem;

/// The whole number that a text begins with, behind spaces; nothing where it begins with none ("max") or a negative
/// one.
std::optional<int64_t> number_in(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  if (end != text.data() + text.size() && *end != ' ' && *end != '\t' && *end != '\n') return std::nullopt;
  return value;
}

std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The number of the line of a file that begins with `name`.
std::optional<int64_t> field_of(const fs::path& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name)) return number_in(std::string_view(line).substr(name.size()));
  return std::nullopt;
}

bool is_listed(std::string_view names, std::string_view name) {
  return ("," + std::string(names) + ",").find("," + std::string(name) + ",") != std::string::npos;
}

/// Folders of the control groups that may limit this process by `controller`: its own, those around it, and the mounts,
/// which are the process's own groups in a container. Folders that do not exist are harmless.
std::vector<fs::path> group_folders(const fs::path& root, std::string_view controller) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::vector<fs::path> folders{mounts, mounts / "unified", mounts / controller};
  const auto add = [&](const fs::path& mount, const std::string& group) {
    fs::path path = fs::path("/" + group).lexically_normal().relative_path();  // ".." ends at the mount
    for (; !path.empty(); path = path.parent_path()) folders.push_back(mount / path);
  };
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (names.empty()) {  // version 2, alone or beside version 1
      add(mounts, group);
      add(mounts / "unified", group);
    } else if (is_listed(names, controller)) {
      folders.push_back(mounts / names);
      for (const fs::path& mount : {mounts / names, mounts / controller}) add(mount, group);
    }
  }
  return folders;
}

double quota_of(const fs::path& group) {
  constexpr int64_t kPeriod = 100000;  // microseconds, where the file does not say
  const std::string line = line_of(group / "cpu.max");
  std::optional<int64_t> quota = number_in(line),
                         period = number_in(line.substr(std::min(line.find(' '), line.size())));
  if (!quota) {
    quota = number_in(line_of(group / "cpu.cfs_quota_us"));  // -1: none
    period = number_in(line_of(group / "cpu.cfs_period_us"));
  }
  const int64_t of = period.value_or(kPeriod);
  return quota && *quota > 0 && of > 0 ? double(*quota) / double(of) : INFINITY;
}

/// Bytes that a control group leaves; INT64_MAX where it has no limit.
int64_t left_in(const fs::path& group) {
  const auto number = [&](const char* name) { return number_in(line_of(group / name)); };
  std::optional<int64_t> limit = number("memory.max"), used = number("memory.current");
  if (const auto high = number("memory.high")) limit = std::min(limit.value_or(INT64_MAX), *high);
  int64_t files = 0;
  const fs::path stat = group / "memory.stat";
  if (limit) {
    files = field_of(stat, "inactive_file ").value_or(0) + field_of(stat, "active_file ").value_or(0);
  } else {
    limit = number("memory.limit_in_bytes"), used = number("memory.usage_in_bytes");
    files = field_of(stat, "total_inactive_file ").value_or(0) + field_of(stat, "total_active_file ").value_or(0);
  }
  if (!limit) return INT64_MAX;
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, used.value_or(0) - files));
}

int64_t status_bytes(const fs::path& root, std::string_view name) {
  return 1024 * field_of(root / "proc/self/status", name).value_or(0);
}

/// Bytes of address space that RLIMIT_AS and RLIMIT_DATA leave; INT64_MAX where neither is set.
int64_t addresses_left(const fs::path& root) {
  int64_t least = INT64_MAX;
  const auto apply = [&](decltype(RLIMIT_AS) which, std::string_view used) {
    rlimit limit{};
    if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    least = std::min(least, std::max<int64_t>(0, int64_t(limit.rlim_cur) - status_bytes(root, used)));
  };
  apply(RLIMIT_AS, "VmSize:");
  apply(RLIMIT_DATA, "VmData:");
  return least;
}

/// Bytes that the machine and the control groups have left; INT64_MAX where neither says.
int64_t memory_left(const fs::path& root) {
  int64_t least = INT64_MAX;
  if (const auto kib = field_of(root / "proc/meminfo", "MemAvailable:")) least = 1024 * *kib;
  for (const fs::path& group : group_folders(root, "memory")) least = std::min(least, left_in(group));
  return least;
}

}  // namespace

int affine_processors() {
#ifdef __linux__
  // A kernel may know of more processors than cpu_set_t has bits.
  for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 2) {
    cpu_set_t* const set = CPU_ALLOC(size_t(most));
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE(size_t(most));
    const int n = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (n > 0) return n;
  }
#endif
  return std::max(1, int(std::thread::hardware_concurrency()));
}

double processor_quota(const fs::path& root) {
  double least = INFINITY;
  for (const fs::path& group : group_folders(root, "cpu")) least = std::min(least, quota_of(group));
  return least;
}

int available_processors(const fs::path& root) {
  return int(std::max(1.0, std::min(double(affine_processors()), std::floor(processor_quota(root)))));
}

int default_threads() { return std::max(1, available_processors() / n_sharing); }
void share_processors(int n) { n_sharing = n; }

std::optional<int64_t> available_memory(const fs::path& root) {
  const int64_t least = std::min(memory_left(root), addresses_left(root));
  return least == INT64_MAX ? std::nullopt : std::optional(least);
}

int64_t free_memory(int64_t mapped, const fs::path& root) {
  const int64_t left = memory_left(root);
  if (left == INT64_MAX) return addresses_left(root);
  const int64_t touched = status_bytes(root, "RssAnon:") + status_bytes(root, "VmSwap:");
  const int64_t untouched = std::max<int64_t>(0, AlignedBuffer::all_bytes() - touched);
  return std::clamp<int64_t>(left - untouched - mapped, 0, addresses_left(root));
}

}  // namespace ridge
