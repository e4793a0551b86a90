// NCCL's functions (gpu/nccl_library.h) where devices are emulated. Ranks are threads of this process: those of one
// ncclCommInitAll, or those that call ncclCommInitRank with one id. What NCCL leaves to chance, or makes hard, is so
// here: the order of adding changes from sum to sum; a rank's sum waits on its stream for the others, without a limit,
// until its own communicator is aborted; the first call waits on the host, and so do starting and, for ranks of one id,
// destroying.
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda_runtime.h"
#include "emulated_streams.h"
#include "gpu/nccl_library.h"

namespace {

using emulate::fail;

constexpr ncclResult_t kSuccess = 0, kInternalError = 3, kInvalidArgument = 4, kInvalidUsage = 5;
constexpr int kSumCall = -1;  // other kinds of calls are broadcasts, by root

/// One call of all ranks.
struct Meeting {
  int kind = 0, n_came = 0, n_left = 0;
  size_t count = 0;
  std::vector<std::vector<float>> given;  // by rank
};

/// The ranks of a communicator.
struct Group {
  explicit Group(int n_ranks, bool from_id) : n(n_ranks), has_id(from_id), devices(size_t(n_ranks), -1) {}
  const int n;
  const bool has_id;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> devices;  // by rank; -1: has not come
  int n_joined = 0, n_connected = 0, n_destroyed = 0;
  std::map<uint64_t, Meeting> meetings;  // by number of the call
};

/// One rank of a group.
struct Rank {
  std::shared_ptr<Group> group;
  int rank = 0;
  bool connected = false, aborted = false;  // the group's mutex
  uint64_t n_calls = 0;                     // that have begun, in the order of the stream
};

/// The sum of all ranks, from a rank on that changes.
std::vector<float> sum_of(const Meeting& meeting, uint64_t call) {
  const size_t n = meeting.given.size();
  std::vector<float> sum = meeting.given[call % n];
  for (size_t i = 1; i < n; ++i)
    for (size_t j = 0; j < sum.size(); ++j) sum[j] += meeting.given[(call + i) % n][j];
  return sum;
}

/// A rank's call as work of its stream.
class CallWork {
 public:
  CallWork(std::shared_ptr<Rank> rank, int kind, const void* from, void* to, size_t count)
      : rank_(std::move(rank)), kind_(kind), from_(from), to_(to), count_(count) {}

  bool operator()() {
    Group& group = *rank_->group;
    const std::scoped_lock lock(group.mutex);
    if (rank_->aborted || done_) return true;
    if (!call_) come(group);
    Meeting& meeting = group.meetings.at(*call_);
    if (meeting.n_came < group.n) return false;
    const std::vector<float> values = kind_ == kSumCall ? sum_of(meeting, *call_) : meeting.given[size_t(kind_)];
    std::memcpy(to_, values.data(), 4 * count_);
    if (++meeting.n_left == group.n) group.meetings.erase(*call_);
    return done_ = true;
  }

 private:
  void come(Group& group) {
    call_ = rank_->n_calls++;
    Meeting& meeting = group.meetings[*call_];
    if (meeting.given.empty()) meeting = {.kind = kind_, .count = count_, .given = {}};
    meeting.given.resize(size_t(group.n));
    if (meeting.kind != kind_ || meeting.count != count_) fail("ranks make different calls of NCCL");
    if (kind_ == kSumCall || kind_ == rank_->rank) {
      std::vector<float>& own = meeting.given[size_t(rank_->rank)];
      own.resize(count_);
      if (count_ > 0) std::memcpy(own.data(), from_, 4 * count_);
    }
    ++meeting.n_came;
  }

  std::shared_ptr<Rank> rank_;
  int kind_;
  const void* from_;
  void* to_;
  size_t count_;
  std::optional<uint64_t> call_;
  bool done_ = false;
};

/// Calls between ncclGroupStart and ncclGroupEnd, which wait for the others together.
struct CallGroup {
  int depth = 0;
  ridge::gpu::StreamHandle stream = nullptr;
  std::vector<CallWork> calls;
};
thread_local CallGroup open_group;

void queue_calls() {
  emulate::on_stream_when(open_group.stream, [calls = std::exchange(open_group.calls, {})]() mutable {
    bool all = true;
    for (CallWork& call : calls) all = call() && all;  // all come, whoever is missing
    return all;
  });
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Rank> rank;
};

namespace {

ncclResult_t queue(ncclComm* comm, int kind, const void* from, void* to, size_t count, int type,
                   ridge::gpu::StreamHandle stream) {
  if (type != ridge::gpu::kNcclFloat32) return kInvalidArgument;
  Rank& rank = *comm->rank;
  Group& group = *rank.group;
  {
    std::unique_lock lock(group.mutex);
    if (!rank.connected) {
      rank.connected = true;
      ++group.n_connected;
      group.changed.notify_all();
      group.changed.wait(lock, [&] { return group.n_connected == group.n || rank.aborted; });
    }
    if (rank.aborted) return kInternalError;
  }
  if (open_group.depth > 0 && !open_group.calls.empty() && open_group.stream != stream) return kInvalidUsage;
  open_group.stream = stream;
  open_group.calls.emplace_back(comm->rank, kind, from, to, count);
  if (open_group.depth == 0) queue_calls();
  return kSuccess;
}

ncclResult_t get_version(int* version) { return *version = 22803, kSuccess; }

ncclResult_t comm_init_all(ncclComm** comms, int n, const int* devices) {
  const auto group = std::make_shared<Group>(n, false);
  group->n_joined = n;
  for (int r = 0; r < n; ++r) comms[r] = new ncclComm{std::make_shared<Rank>(Rank{.group = group, .rank = r})};
  group->devices.assign(devices, devices + n);
  return kSuccess;
}

struct Groups {
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<Group>> by_id;
  uint64_t n_ids = 0;
};
Groups groups;

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const std::scoped_lock lock(groups.mutex);
  *id = {};
  const uint64_t number = ++groups.n_ids;
  std::memcpy(id->internal, &number, sizeof number);
  return kSuccess;
}

ncclResult_t comm_init_rank(ncclComm** comm, int n, ncclUniqueId id, int rank) {
  uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  std::shared_ptr<Group> group;
  {
    const std::scoped_lock lock(groups.mutex);
    std::shared_ptr<Group>& of_id = groups.by_id[number];
    if (!of_id) of_id = std::make_shared<Group>(n, true);
    group = of_id;
  }
  if (n != group->n || rank < 0 || rank >= n) return kInvalidArgument;
  int device = 0;
  cudaGetDevice(&device);
  std::unique_lock lock(group->mutex);
  if (group->devices[size_t(rank)] >= 0) return kInvalidUsage;
  group->devices[size_t(rank)] = device;
  ++group->n_joined;
  group->changed.notify_all();
  group->changed.wait(lock, [&] { return group->n_joined == group->n; });
  for (int r = 0; r < n; ++r)
    if (r != rank && group->devices[size_t(r)] == device) return kInvalidUsage;  // a device has one rank
  *comm = new ncclComm{std::make_shared<Rank>(Rank{.group = group, .rank = rank})};
  return kSuccess;
}

ncclResult_t comm_destroy(ncclComm* comm) {
  Group& group = *comm->rank->group;
  {
    std::unique_lock lock(group.mutex);
    ++group.n_destroyed;
    group.changed.notify_all();
    if (group.has_id) group.changed.wait(lock, [&] { return group.n_destroyed == group.n; });
  }
  delete comm;
  return kSuccess;
}

ncclResult_t comm_abort(ncclComm* comm) {
  Group& group = *comm->rank->group;
  {
    const std::scoped_lock lock(group.mutex);
    comm->rank->aborted = true;
    ++group.n_destroyed;
    group.changed.notify_all();
  }
  delete comm;
  return kSuccess;
}

ncclResult_t comm_get_async_error(ncclComm*, ncclResult_t* error) { return *error = kSuccess, kSuccess; }

ncclResult_t all_reduce(const void* from, void* to, size_t n, int type, int op, ncclComm* comm,
                        ridge::gpu::StreamHandle stream) {
  if (op != ridge::gpu::kNcclSum) return kInvalidArgument;
  return queue(comm, kSumCall, from, to, n, type, stream);
}
ncclResult_t broadcast(const void* from, void* to, size_t n, int type, int root, ncclComm* comm,
                       ridge::gpu::StreamHandle stream) {
  if (root < 0 || root >= comm->rank->group->n) return kInvalidArgument;
  return queue(comm, root, from, to, n, type, stream);
}
ncclResult_t group_start() { return ++open_group.depth, kSuccess; }
ncclResult_t group_end() {
  if (open_group.depth == 0) return kInvalidUsage;
  if (--open_group.depth == 0 && !open_group.calls.empty()) queue_calls();
  return kSuccess;
}

const char* error_string(ncclResult_t code) {
  return code == kInternalError     ? "internal error"
         : code == kInvalidArgument ? "invalid argument"
         : code == kInvalidUsage    ? "invalid usage"
                                    : "no error";
}

}  // namespace

namespace ridge::gpu {

NcclLibrary open_nccl() {
  return {.get_version = get_version,
          .comm_init_all = comm_init_all,
          .get_unique_id = get_unique_id,
          .comm_init_rank = comm_init_rank,
          .comm_destroy = comm_destroy,
          .comm_abort = comm_abort,
          .comm_get_async_error = comm_get_async_error,
          .all_reduce = all_reduce,
          .broadcast = broadcast,
          .group_start = group_start,
          .group_end = group_end,
          .error_string = error_string};
}

}  // namespace ridge::gpu
