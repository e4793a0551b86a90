#include "rank/mpi.h"

#include "base/result.h"

namespace ridge {
namespace {

/// Flags as given: "--tp 2", "--pp 2" or "--tp 2 --pp 2".
std::string flags_text(int tp, int pp) {
  if (pp == 1) return fmt::format("--tp {}", tp);
  return tp == 1 ? fmt::format("--pp {}", pp) : fmt::format("--tp {} --pp {}", tp, pp);
}

}  // namespace
}  // namespace ridge

#if RIDGE_HAS_MPI
#include <mpi.h>
#define XXH_INLINE_ALL
#include <sched.h>
#include <signal.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "base/build_info.h"
#include "base/limits.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

/// MPI's own collectives wait for ever. While one of these lives the process ends after its time, saying why.
class Deadline {
 public:
  Deadline(double seconds, std::string message)
      : thread_([this, seconds, message = std::move(message)] {
          std::unique_lock lock(mutex_);
          if (done_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return over_; })) return;
          fmt::print(stderr, "error: {}\n", message);
          std::_Exit(int(ErrorKind::failure));
        }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    done_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool over_ = false;
  std::thread thread_;
};

void check_mpi(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw_error(ErrorKind::failure, "MPI: {}: {}", what, std::string_view(text, size_t(length)));
}

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "a communicator");
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "its errors");
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<int> exchange(std::span<const BytesOut> to, std::span<const BytesIn> from, double seconds) override;
  /// Processes of the ranks that are on this machine, by rank; 0 for the others.
  void know_processes(std::vector<pid_t> processes) { processes_ = std::move(processes); }
  bool has_ended(int rank) const override {
    const pid_t process = size_t(rank) < processes_.size() ? processes_[size_t(rank)] : 0;
    return process > 0 && kill(process, 0) != 0 && errno == ESRCH;
  }
  void limit_waits(double seconds) override { most_seconds_ = seconds; }
  void abort(int code) override {
    std::fflush(nullptr);
    MPI_Abort(comm_, code);
    std::_Exit(code);
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 0;
  std::vector<pid_t> processes_;
  std::atomic<double> most_seconds_ = kNoLimit;
};

/// A message's size as MPI counts it.
int count_of(size_t bytes) {
  if (bytes > size_t(INT_MAX))
    throw_error(ErrorKind::usage, "{} bytes are too many for one message (use a smaller -ub)", bytes);
  return int(bytes);
}

std::vector<int> MpiTransport::exchange(std::span<const BytesOut> to, std::span<const BytesIn> from, double seconds) {
  constexpr int kTag = 1, kSpins = 1000;
  constexpr double kLook = 0.05;  // seconds between looks at processes that are waited for
  constexpr double kIdle = 0.02;  // seconds after which whoever waits for work sleeps between looks
  constexpr std::chrono::milliseconds kIdleSleep{1};
  std::vector<MPI_Request> requests;
  std::vector<int> peers;  // of each request
  const auto add = [&](int peer, MPI_Request request) {
    requests.push_back(request);
    peers.push_back(peer);
  };
  MPI_Request request = MPI_REQUEST_NULL;
  for (int r = 0; r < size_; ++r)
    if (r != rank_ && !from[size_t(r)].empty()) {
      const BytesIn bytes = from[size_t(r)];
      check_mpi(MPI_Irecv(bytes.data(), count_of(bytes.size()), MPI_BYTE, r, kTag, comm_, &request), "receiving");
      add(r, request);
    }
  const size_t n_receives = requests.size();
  for (int r = 0; r < size_; ++r)
    if (r != rank_ && !to[size_t(r)].empty()) {
      const BytesOut bytes = to[size_t(r)];
      check_mpi(MPI_Isend(bytes.data(), count_of(bytes.size()), MPI_BYTE, r, kTag, comm_, &request), "sending");
      add(r, request);
    }
  // MPI moves messages on only while it is asked: this thread asks, and lets others run once it has waited a while.
  const Clock::time_point start = Clock::now();
  std::vector<int> late;
  size_t n_open = requests.size();
  double next_look = kLook;
  const auto add_late = [&](const auto& is_late) {
    for (size_t i = 0; i < requests.size(); ++i)
      if (requests[i] != MPI_REQUEST_NULL && is_late(peers[i]) && std::ranges::count(late, peers[i]) == 0)
        late.push_back(peers[i]);
  };
  for (int64_t spin = 0; n_open > 0; ++spin) {
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i] == MPI_REQUEST_NULL) continue;
      int done = 0;
      MPI_Status status;
      check_mpi(MPI_Test(&requests[i], &done, &status), fmt::format("a message of rank {}", peers[i]));
      if (!done) continue;
      --n_open;
      if (i >= n_receives) continue;
      int count = 0;
      MPI_Get_count(&status, MPI_BYTE, &count);
      const size_t expected = from[size_t(peers[i])].size();
      if (size_t(count) != expected)
        throw_error(ErrorKind::failure, "rank {} sent {} bytes, expected {}: it runs other steps than rank {}",
                    peers[i], count, expected, rank_);
    }
    if (spin < kSpins) continue;
    const double waited = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds == kNoLimit && waited > kIdle) std::this_thread::sleep_for(kIdleSleep);
    else std::this_thread::yield();
    if (waited > next_look) {
      next_look = waited + kLook;
      add_late([&](int peer) { return has_ended(peer); });
    }
    if (late.empty() && waited >= std::min<double>(seconds, most_seconds_)) add_late([](int) { return true; });
    if (!late.empty()) break;
  }
  std::ranges::sort(late);
  return late;
}

/// Which processors this process may use, on which machine: ranks with the same text share them.
std::string processors_text(const std::string& host) {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  return host + std::string(reinterpret_cast<const char*>(&set), sizeof set);
}

/// Version and bytes of this program's file.
std::string program_text() {
  const BuildInfo& build = build_info();
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<char> block(1 << 20);
  uint64_t hash = 0;
  while (file.read(block.data(), std::streamsize(block.size())), file.gcount() > 0)
    hash = XXH64(block.data(), size_t(file.gcount()), hash);
  return fmt::format("ridge {} ({}, {:016x})", build.version, build.commit, hash);
}

/// Processes of ranks by what each rank said, "HOST PROCESS": of this host alone, where their numbers mean something.
std::vector<pid_t> processes_here(const std::vector<std::string>& said, const std::string& host) {
  std::vector<pid_t> processes;
  for (const std::string& of_rank : said) {
    const size_t space = of_rank.rfind(' ');
    const pid_t process = of_rank.substr(0, space) == host ? pid_t(std::stol(of_rank.substr(space))) : 0;
    processes.push_back(process > 0 && kill(process, 0) == 0 ? process : 0);  // not in another container
  }
  return processes;
}

std::unique_ptr<Ranks> world;

}  // namespace

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, size_t(length));
  return all.substr(0, all.find(','));
}

bool in_mpi_job() { return std::getenv("OMPI_COMM_WORLD_SIZE") || std::getenv("PMIX_RANK") || std::getenv("PMI_RANK"); }

Ranks& join_mpi(int tp, int pp, double timeout_s) {
  RIDGE_CHECK(!world, "a process joins one job");
  const int n = tp * pp;
  const std::string_view how = pp == 1 ? "start it as mpirun -np N ridge ... --tp N"
                                       : "start it as mpirun -np N ridge ... --tp T --pp P, where N is T times P";
  if (!in_mpi_job())
    throw_error(ErrorKind::usage, "{}: this process is alone: no MPI job started it ({})", flags_text(tp, pp), how);
  {
    const Deadline deadline(timeout_s, fmt::format("the job's other ranks had not started after {:g} s (look at their "
                                                   "machines; --rank-timeout waits longer)",
                                                   timeout_s));
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "start");
    if (provided < MPI_THREAD_SERIALIZED)
      throw_error(
          ErrorKind::no_device,
          "{}: only one thread may call this MPI, and a server has another one for its steps (install an MPI with "
          "MPI_THREAD_SERIALIZED)",
          mpi_version());
  }
  auto transport = std::make_unique<MpiTransport>();
  MpiTransport& mpi = *transport;
  world = std::make_unique<Ranks>(std::move(transport), timeout_s);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  world->set_names(world->gather(fmt::format("rank {} (host {}, process {})", world->rank(), host, getpid())));
  mpi.know_processes(processes_here(world->gather(fmt::format("{} {}", host, getpid())), host));
  if (world->size() != n)
    throw_error(ErrorKind::usage, "{}: the job has {} rank{} ({})", flags_text(tp, pp), world->size(),
                world->size() == 1 ? "" : "s", how);
  world->set_stages(pp);
  world->require_same("the program", program_text(), "give every machine the same file", timeout_s);
  const std::vector<std::string> places = world->gather(processors_text(host));
  share_processors(int(std::ranges::count(places, places[size_t(world->rank())])));
  return *world;
}

void leave_mpi() {
  if (!world) return;
  const Deadline deadline(world->timeout_s(), world->name(world->rank()) + ": other ranks did not end");
  world.reset();
  MPI_Finalize();
}

Ranks* joined_ranks() { return world.get(); }

}  // namespace ridge

#else

namespace ridge {

std::string mpi_version() { return {}; }
bool in_mpi_job() { return false; }
Ranks& join_mpi(int tp, int pp, double) {
  throw_error(ErrorKind::no_device,
              "{}: this build has no MPI (apt-get install libopenmpi-dev openmpi-bin, then configure with "
              "-DRIDGE_MPI=ON and build again)",
              flags_text(tp, pp));
}
Ranks* joined_ranks() { return nullptr; }
void leave_mpi() {}

}  // namespace ridge

#endif
