#include "lab/op/cpu_counters.h"

#include <unistd.h>
#ifdef __linux__
#include <linux/perf_event.h>
#include <sys/syscall.h>
#endif

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

namespace ridge::lab {
namespace {

#ifdef __linux__
constexpr std::array<uint64_t, 3> kEvents{PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_HW_INSTRUCTIONS,
                                          PERF_COUNT_HW_CACHE_MISSES};

/// Opens an event of one thread, in the group of `leader` (-1 begins one); negative errno on failure.
int open_event(uint64_t event, int thread, int leader) {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.config = event;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  attributes.read_format = PERF_FORMAT_GROUP;
  const long fd = syscall(SYS_perf_event_open, &attributes, thread, -1, leader, PERF_FLAG_FD_CLOEXEC);
  return fd < 0 ? -errno : int(fd);
}
#else
constexpr std::array<uint64_t, 3> kEvents{};
int open_event(uint64_t, int, int) { return -ENOSYS; }
#endif

std::string why_not(int error) {
  if (error == ENOENT || error == EOPNOTSUPP || error == ENODEV)
    return "this processor, or the virtual machine, has no hardware counters";
  if (error == EACCES || error == EPERM) return "the system forbids it (as root: sysctl kernel.perf_event_paranoid=2)";
  if (error == ENOSYS) return "this kernel has no perf events";
  return std::strerror(error);
}

}  // namespace

struct CpuCounters::Threads {
  std::vector<int> fds;      ///< every event
  std::vector<int> leaders;  ///< one a thread: reads its group
  ~Threads() {
    for (const int fd : fds) ::close(fd);
  }
};

CpuCounters::CpuCounters(std::unique_ptr<Threads> threads) : threads_(std::move(threads)) {}
CpuCounters::CpuCounters(CpuCounters&& other) noexcept = default;
CpuCounters& CpuCounters::operator=(CpuCounters&& other) noexcept = default;
CpuCounters::~CpuCounters() = default;

Result<CpuCounters> CpuCounters::open() {
  auto threads = std::make_unique<Threads>();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const int thread = std::stoi(entry.path().filename().native());
    int leader = -1;
    for (const uint64_t event : kEvents) {
      const int fd = open_event(event, thread, leader);
      if (fd < 0) return fail(ErrorKind::failure, "no counters: {}", why_not(-fd));
      threads->fds.push_back(fd);
      if (leader < 0) threads->leaders.push_back(leader = fd);
    }
  }
  if (threads->leaders.empty()) return fail(ErrorKind::failure, "no counters: /proc/self/task cannot be read");
  return CpuCounters(std::move(threads));
}

OpCounters CpuCounters::read() const {
  OpCounters sum;
  for (const int leader : threads_->leaders) {
    struct {
      uint64_t n;
      uint64_t values[kEvents.size()];
    } group{};
    if (::read(leader, &group, sizeof group) != ssize_t(sizeof group)) continue;
    sum.cycles += int64_t(group.values[0]);
    sum.instructions += int64_t(group.values[1]);
    sum.cache_misses += int64_t(group.values[2]);
  }
  return sum;
}

}  // namespace ridge::lab
