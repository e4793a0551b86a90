// A build for AMD works on one GPU: its devices do not write to each other's memory. Takes the place of peer.cu.
#include "gpu/peer.h"

#include "gpu/device_query.h"

namespace ridge::gpu {

std::string why_no_packets(std::span<const int> devices) { return devices.size() > 1 ? kOneGpu : ""; }

}  // namespace ridge::gpu
