#include "gpu/nccl_library.h"

#include "gpu/shared_library.h"

namespace ridge::gpu {

NcclLibrary open_nccl() {
  constexpr const char* kNames[] = {"libnccl.so.2", "libnccl.so"};
  void* const handle = open_library(kNames);
  if (!handle)
    throw_error(
        ErrorKind::no_device,
        "NCCL was not found (tried {}); install it (libnccl2 of NVIDIA's repository, or the wheel nvidia-nccl-cu13) "
        "or add its folder to LD_LIBRARY_PATH",
        fmt::join(kNames, " "));
  NcclLibrary l;
  const auto find = [&](const char* name, auto& function) { find_function(handle, "libnccl", name, function); };
  find("ncclGetVersion", l.get_version);
  find("ncclCommInitAll", l.comm_init_all);
  find("ncclGetUniqueId", l.get_unique_id);
  find("ncclCommInitRank", l.comm_init_rank);
  find("ncclCommDestroy", l.comm_destroy);
  find("ncclCommAbort", l.comm_abort);
  find("ncclCommGetAsyncError", l.comm_get_async_error);
  find("ncclAllReduce", l.all_reduce);
  find("ncclBroadcast", l.broadcast);
  find("ncclGroupStart", l.group_start);
  find("ncclGroupEnd", l.group_end);
  find("ncclGetErrorString", l.error_string);
  return l;
}

}  // namespace ridge::gpu
