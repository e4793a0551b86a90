// The runtime's name and its types behind streams, recorded graphs and events, for code that names no header of CUDA or HIP.
#pragma once

#if defined(RIDGE_HIP) || defined(__HIP__)
struct ihipStream_t;
struct hipGraphExec;
struct ihipEvent_t;

namespace ridge::gpu {
inline constexpr const char* kRuntimeName = "HIP";
using StreamType = ihipStream_t;
using GraphType = hipGraphExec;
using EventType = ihipEvent_t;
}  // namespace ridge::gpu
#else
struct CUstream_st;
struct CUgraphExec_st;
struct CUevent_st;

namespace ridge::gpu {
inline constexpr const char* kRuntimeName = "CUDA";
using StreamType = CUstream_st;
using GraphType = CUgraphExec_st;
using EventType = CUevent_st;
}  // namespace ridge::gpu
#endif
