// Ranges as NVTX, which tools like Nsight Systems read; free when no tool is attached.
#include "gpu/launch_log.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

namespace ridge::gpu {

void push_range(const std::string& name) { nvtxRangePushA(name.c_str()); }
void pop_range() { nvtxRangePop(); }

}  // namespace ridge::gpu
#else
namespace ridge::gpu {

void push_range(const std::string&) {}
void pop_range() {}

}  // namespace ridge::gpu
#endif
