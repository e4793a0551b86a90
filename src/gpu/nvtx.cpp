// A build without CUDA has no ranges.
#include "gpu/launch_log.h"

namespace ridge::gpu {

void push_range(const std::string&) {}
void pop_range() {}

}  // namespace ridge::gpu
