#include "gpu/nccl.h"

#include <cstring>

#include "base/result.h"
#include "gpu/device_query.h"
#include "gpu/launch_log.h"
#include "gpu/nccl_library.h"

namespace ridge::gpu {
namespace {

/// The library, or why there is none.
struct Loaded {
  Loaded() {
    if (kIsHip) {
      why_not = fmt::format("NCCL is NVIDIA's and left out: {}", kOneGpu);
      return;
    }
    try {
      library = open_nccl();
      constexpr int kRecordable = 20900;  // its calls can be recorded into graphs
      if (library.get_version(&version) != kNcclSuccess || version < kRecordable)
        throw_error(ErrorKind::no_device,
                    "NCCL {} is too old: 2.9 and later can be recorded into graphs (install another)", version);
    } catch (const Error& error) {
      why_not = error.what();
    }
  }
  NcclLibrary library;
  int version = 0;  // 10000 * major + 100 * minor + patch
  std::string why_not;
};
const Loaded& loaded() {
  static const Loaded the_only;
  return the_only;
}

void check_nccl(ncclResult_t code, const char* what) {
  if (code == kNcclSuccess || code == kNcclInProgress) return;
  throw_error(ErrorKind::failure, "NCCL {}: {} (NCCL_DEBUG=WARN says more)", what, loaded().library.error_string(code));
}

void check_is_there() {
  if (!loaded().why_not.empty()) throw Error(ErrorKind::no_device, loaded().why_not);
}

}  // namespace

std::string nccl_version() {
  if (!loaded().why_not.empty()) return {};
  const int v = loaded().version;
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}
std::string why_no_nccl() { return loaded().why_not; }

NcclId make_nccl_id() {
  check_is_there();
  ncclUniqueId id;
  check_nccl(loaded().library.get_unique_id(&id), "id");
  NcclId bytes;
  static_assert(sizeof id == sizeof bytes);
  std::memcpy(bytes.data(), &id, sizeof id);
  return bytes;
}

Nccl::Nccl(std::span<const int> devices) : comms_(devices.size()) {
  check_is_there();
  check_nccl(loaded().library.comm_init_all(comms_.data(), int(devices.size()), devices.data()), "start");
}

Nccl::Nccl(const NcclId& id, int rank, int n_ranks) : comms_(size_t(n_ranks)) {
  check_is_there();
  ncclUniqueId of_all;
  std::memcpy(&of_all, id.data(), sizeof of_all);
  check_nccl(loaded().library.comm_init_rank(&comms_.at(size_t(rank)), n_ranks, of_all, rank), "start");
}

Nccl::~Nccl() {
  if (aborted_ || left_) return;
  for (ncclComm* const comm : comms_)
    if (comm) loaded().library.comm_destroy(comm);
}

ncclComm* Nccl::comm(int rank) const {
  const std::scoped_lock lock(mutex_);
  if (aborted_) throw_error(ErrorKind::failure, "NCCL rank {}: the ranks were ended", rank);
  return comms_.at(size_t(rank));
}

void Nccl::all_reduce(int rank, StreamHandle stream, float* values, int64_t n) {
  check_nccl(loaded().library.all_reduce(values, values, size_t(n), kNcclFloat32, kNcclSum, comm(rank), stream), "sum");
  log_launch("nccl_all_reduce");  // it is one kernel
}

void Nccl::gather(int rank, StreamHandle stream, const float* own, std::span<float* const> parts,
                  std::span<const int64_t> counts) {
  const NcclLibrary& l = loaded().library;
  ncclComm* const to = comm(rank);
  check_nccl(l.group_start(), "group");
  for (size_t r = 0; r < parts.size(); ++r)
    if (counts[r] > 0)
      check_nccl(l.broadcast(own, parts[r], size_t(counts[r]), kNcclFloat32, int(r), to, stream), "gather");
  check_nccl(l.group_end(), "gather");
  log_launch("nccl_gather");
}

void Nccl::check(int rank) const {
  const std::scoped_lock lock(mutex_);
  if (aborted_) throw_error(ErrorKind::failure, "NCCL rank {}: the ranks were ended", rank);
  ncclResult_t error = kNcclSuccess;
  check_nccl(loaded().library.comm_get_async_error(comms_.at(size_t(rank)), &error), "state");
  check_nccl(error, "collective");
}

void Nccl::abort() {
  const std::scoped_lock lock(mutex_);
  if (aborted_) return;
  aborted_ = true;
  for (ncclComm* const comm : comms_)
    if (comm) loaded().library.comm_abort(comm);
}

}  // namespace ridge::gpu
