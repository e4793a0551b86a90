#include "gpu/nccl.h"

#include "gpu/launch_log.h"
#include "gpu/shared_library.h"

extern "C" {
// The part of nccl.h that is used.
using ncclComm_t = ncclComm*;
using ncclResult_t = int;  // ncclSuccess is 0, ncclInProgress 7
}

namespace ridge::gpu {
namespace {

constexpr int kSuccess = 0, kInProgress = 7;
constexpr int kFloat32 = 7, kSum = 0;  // ncclDataType_t, ncclRedOp_t

struct Library {
  ncclResult_t (*get_version)(int* version) = nullptr;
  ncclResult_t (*comm_init_all)(ncclComm_t* comms, int n_devices, const int* devices) = nullptr;
  ncclResult_t (*comm_destroy)(ncclComm_t comm) = nullptr;
  ncclResult_t (*comm_abort)(ncclComm_t comm) = nullptr;
  ncclResult_t (*comm_get_async_error)(ncclComm_t comm, ncclResult_t* error) = nullptr;
  ncclResult_t (*all_reduce)(const void* from, void* to, size_t n, int type, int op, ncclComm_t comm,
                             StreamHandle stream) = nullptr;
  ncclResult_t (*broadcast)(const void* from, void* to, size_t n, int type, int root, ncclComm_t comm,
                            StreamHandle stream) = nullptr;
  ncclResult_t (*group_start)() = nullptr;
  ncclResult_t (*group_end)() = nullptr;
  const char* (*error_string)(ncclResult_t code) = nullptr;
  int version = 0;  // 10000 * major + 100 * minor + patch
};

Library open() {
  constexpr const char* kNames[] = {"libnccl.so.2", "libnccl.so"};
  void* const handle = open_library(kNames);
  if (!handle)
    throw_error(
        ErrorKind::no_device,
        "NCCL was not found (tried {}); install it (libnccl2 of NVIDIA's repository, or the wheel nvidia-nccl-cu13) "
        "or add its folder to LD_LIBRARY_PATH",
        fmt::join(kNames, " "));
  Library l;
  const auto find = [&](const char* name, auto& function) { find_function(handle, "libnccl", name, function); };
  find("ncclGetVersion", l.get_version);
  find("ncclCommInitAll", l.comm_init_all);
  find("ncclCommDestroy", l.comm_destroy);
  find("ncclCommAbort", l.comm_abort);
  find("ncclCommGetAsyncError", l.comm_get_async_error);
  find("ncclAllReduce", l.all_reduce);
  find("ncclBroadcast", l.broadcast);
  find("ncclGroupStart", l.group_start);
  find("ncclGroupEnd", l.group_end);
  find("ncclGetErrorString", l.error_string);
  constexpr int kRecordable = 20900;  // its calls can be recorded into graphs
  if (l.get_version(&l.version) != kSuccess || l.version < kRecordable)
    throw_error(ErrorKind::no_device, "NCCL {} is too old: 2.9 and later can be recorded into graphs (install another)",
                l.version);
  return l;
}

/// The library, or why there is none.
struct Loaded {
  Loaded() {
    try {
      library = open();
    } catch (const Error& error) {
      why_not = error.what();
    }
  }
  Library library;
  std::string why_not;
};
const Loaded& loaded() {
  static const Loaded the_only;
  return the_only;
}

void check_nccl(ncclResult_t code, const char* what) {
  if (code == kSuccess || code == kInProgress) return;
  throw_error(ErrorKind::failure, "NCCL {}: {} (NCCL_DEBUG=WARN says more)", what, loaded().library.error_string(code));
}

}  // namespace

std::string nccl_version() {
  if (!loaded().why_not.empty()) return {};
  const int v = loaded().library.version;
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}
std::string why_no_nccl() { return loaded().why_not; }

Nccl::Nccl(std::span<const int> devices) : comms_(devices.size()) {
  if (!loaded().why_not.empty()) throw Error(ErrorKind::no_device, loaded().why_not);
  check_nccl(loaded().library.comm_init_all(comms_.data(), int(devices.size()), devices.data()), "start");
}

Nccl::~Nccl() {
  if (aborted_) return;
  for (ncclComm* const comm : comms_) loaded().library.comm_destroy(comm);
}

ncclComm* Nccl::comm(int rank) const {
  const std::scoped_lock lock(mutex_);
  if (aborted_) throw_error(ErrorKind::failure, "NCCL rank {}: the ranks were ended", rank);
  return comms_.at(size_t(rank));
}

void Nccl::all_reduce(int rank, StreamHandle stream, float* values, int64_t n) {
  check_nccl(loaded().library.all_reduce(values, values, size_t(n), kFloat32, kSum, comm(rank), stream), "sum");
  log_launch("nccl_all_reduce");  // it is one kernel
}

void Nccl::gather(int rank, StreamHandle stream, const float* own, std::span<float* const> parts,
                  std::span<const int64_t> counts) {
  const Library& l = loaded().library;
  ncclComm* const to = comm(rank);
  check_nccl(l.group_start(), "group");
  for (size_t r = 0; r < parts.size(); ++r)
    if (counts[r] > 0)
      check_nccl(l.broadcast(own, parts[r], size_t(counts[r]), kFloat32, int(r), to, stream), "gather");
  check_nccl(l.group_end(), "gather");
  log_launch("nccl_gather");
}

void Nccl::check(int rank) const {
  const std::scoped_lock lock(mutex_);
  if (aborted_) throw_error(ErrorKind::failure, "NCCL rank {}: the ranks were ended", rank);
  ncclResult_t error = kSuccess;
  check_nccl(loaded().library.comm_get_async_error(comms_.at(size_t(rank)), &error), "state");
  check_nccl(error, "collective");
}

void Nccl::abort() {
  const std::scoped_lock lock(mutex_);
  if (aborted_) return;
  aborted_ = true;
  for (ncclComm* const comm : comms_) loaded().library.comm_abort(comm);
}

}  // namespace ridge::gpu
