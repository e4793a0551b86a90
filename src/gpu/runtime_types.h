// The runtime of GPUs that a build is for, CUDA or HIP: its name and the types behind streams, recorded graphs and
// events, for code that names no header of either.
#pragma once

#if defined(RIDGE_HIP) || defined(__HIP__)
struct ihipStream_t;
struct hipGraphExec;
struct ihipEvent_t;

namespace ridge::gpu {
inline constexpr bool kIsHip = true;
using StreamType = ihipStream_t;
using GraphType = hipGraphExec;
using EventType = ihipEvent_t;
}  // namespace ridge::gpu
#else
struct CUstream_st;
struct CUgraphExec_st;
struct CUevent_st;

namespace ridge::gpu {
inline constexpr bool kIsHip = false;
using StreamType = CUstream_st;
using GraphType = CUgraphExec_st;
using EventType = CUevent_st;
}  // namespace ridge::gpu
#endif

namespace ridge::gpu {

inline constexpr const char* kRuntimeName = kIsHip ? "HIP" : "CUDA";
}  // namespace ridge::gpu
