// NCCL's library as functions. Nothing of it is needed to build: the few functions are declared here by their C
// interface, which has been the same since NCCL 2.9.
#pragma once

#include <cstddef>

#include "gpu/device.h"

struct ncclComm;

extern "C" {
// The part of nccl.h that is used.
using ncclComm_t = ncclComm*;
using ncclResult_t = int;  // ncclSuccess is 0, ncclInProgress 7
struct ncclUniqueId {
  char internal[128];
};
}

namespace ridge::gpu {

struct NcclLibrary {
  ncclResult_t (*get_version)(int* version) = nullptr;
  ncclResult_t (*comm_init_all)(ncclComm_t* comms, int n_devices, const int* devices) = nullptr;
  ncclResult_t (*get_unique_id)(ncclUniqueId* id) = nullptr;
  ncclResult_t (*comm_init_rank)(ncclComm_t* comm, int n_ranks, ncclUniqueId id, int rank) = nullptr;
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
};

inline constexpr ncclResult_t kNcclSuccess = 0, kNcclInProgress = 7;
inline constexpr int kNcclFloat32 = 7, kNcclSum = 0;  // ncclDataType_t, ncclRedOp_t

/// Opens it. Throws Error(no_device) where it is not found or lacks a function.
NcclLibrary open_nccl();

}  // namespace ridge::gpu
