// Reads the real machine for the doctor.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "gpu/nccl.h"
#include "lab/sweep/doctor.h"

namespace ridge::lab {
namespace {

std::optional<std::string> first_line_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  char line[512] = "";
  if (!pipe || !std::fgets(line, sizeof line, pipe.get())) return std::nullopt;
  std::string text = line;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty()) return std::nullopt;
  return text;
}

/// Ticks of all processors since boot: (worked, all).
struct Ticks {
  double busy = 0, all = 0;
};
Ticks read_ticks() {
  std::ifstream file("/proc/stat");
  std::string line, name;
  std::getline(file, line);
  std::istringstream words(line);
  words >> name;
  Ticks ticks;
  constexpr int kIdle = 3, kWait = 4, kGuest = 8;  // guest time is in user time already
  double value = 0;
  for (int i = 0; i < kGuest && words >> value; ++i) {
    ticks.all += value;
    if (i != kIdle && i != kWait) ticks.busy += value;
  }
  return ticks;
}

/// Processors kept busy by others while this thread sleeps.
double busy_processors(int n_processors) {
  const Ticks before = read_ticks();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const Ticks after = read_ticks();
  const double all = after.all - before.all;
  return all > 0 ? (after.busy - before.busy) / all * n_processors : 0;
}

std::vector<std::filesystem::path> files_of(const std::vector<std::filesystem::path>& results) {
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::path& path : results) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::filesystem::path> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path, error))
      if (entry.path().extension() == ".jsonl") inside.push_back(entry.path());
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

std::string sanitizer_name() {
#if defined(__SANITIZE_ADDRESS__)
  return "AddressSanitizer";
#elif defined(__SANITIZE_THREAD__)
  return "ThreadSanitizer";
#else
  return "";
#endif
}

}  // namespace

Surroundings look_around(const std::vector<std::filesystem::path>& results) {
  Surroundings here{.ask = first_line_of, .machine = machine_info(), .build = build_info()};
  here.sanitizer = sanitizer_name();
  here.busy_others = busy_processors(std::max(1, int(std::thread::hardware_concurrency())));
  here.gpus = gpu::query_devices();
  if (here.gpus.devices.size() > 1) here.why_no_links = gpu::why_no_links();
  if (!here.gpus.devices.empty()) {
    here.nccl = gpu::nccl_version();
    here.why_no_nccl = gpu::why_no_nccl();
  }
  for (const std::filesystem::path& file : files_of(results)) {
    Result<std::vector<Row>> rows = read_rows(file);
    if (!rows) here.rows_trouble = rows.error().message;
    else here.rows.insert(here.rows.end(), rows->begin(), rows->end());
  }
  return here;
}

}  // namespace ridge::lab
