#include "gpu/peer.h"

#include "gpu/launch.h"

namespace ridge::gpu {
namespace {

std::string device_name(int device) { return "cuda:" + std::to_string(device); }

std::string why_no_packets(int from, int to) {
  int can = 0, atomic = 0;
  check(cudaDeviceCanAccessPeer(&can, from, to), "peer access");
  if (!can) return device_name(from) + " cannot reach the memory of " + device_name(to);
  check(cudaDeviceGetP2PAttribute(&atomic, cudaDevP2PAttrNativeAtomicSupported, from, to), "link of two devices");
  if (!atomic)
    return "the link from " + device_name(from) + " to " + device_name(to) + " has no atomic operations, as NVLink has";
  return {};
}

}  // namespace

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "device");
  return device;
}

OnDeviceScope::OnDeviceScope(int device) : before_(current_device()) { use_device(device); }
OnDeviceScope::~OnDeviceScope() { cudaSetDevice(before_); }

std::string why_no_packets(std::span<const int> devices) {
  for (const int from : devices)
    for (const int to : devices)
      if (from != to)
        if (std::string why = why_no_packets(from, to); !why.empty()) return why;
  return {};
}

std::string open_peer_access(std::span<const int> devices) {
  if (std::string why = why_no_packets(devices); !why.empty()) return why;
  for (const int from : devices) {
    const OnDeviceScope scope(from);
    for (const int to : devices) {
      if (from == to) continue;
      const cudaError_t code = cudaDeviceEnablePeerAccess(to, 0);
      if (code == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();  // an error that belongs to no later call
      else check(code, "peer access");
    }
  }
  return {};
}

}  // namespace ridge::gpu
