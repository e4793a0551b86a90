// Packets from device to device: 16 bytes that arrive whole or not at all, so that a stamp in them says that the rest
// is there. Nothing is said about the order of packets.
//
// One 128-bit access is one operation of PTX's memory model (.b128, the accesses behind CUDA's own 16-byte atomics), in
// system scope also for memory of another device over NVLink. sm_70 and later; tests/emulate delivers packets late and
// in another order.
#pragma once

#include "gpu/launch.h"

namespace ridge::gpu {

/// Sends a packet to memory of any device, aligned to 16.
__device__ void store_packet(uint4* at, uint4 packet);
/// Loads the packet that lies at `at` now, in this device's memory.
__device__ uint4 load_packet(const uint4* at);
/// A word of host memory as it is now.
__device__ uint32_t load_host_word(const uint32_t* at);
__device__ void store_host_word(uint32_t* at, uint32_t value);
/// Between two looks for a packet that has not come.
__device__ void wait_a_little();
/// A clock of the machine, in nanoseconds, in steps of up to a microsecond.
__device__ uint64_t clock_ns();

#ifndef __CUDA_EMULATED__

__device__ __forceinline__ void store_packet(uint4* at, uint4 packet) {
  asm volatile(
      "{.reg .b64 low, high; .reg .b128 all; mov.b64 low, {%1, %2}; mov.b64 high, {%3, %4}; mov.b128 all, {low, "
      "high};\n"
      "st.relaxed.sys.global.b128 [%0], all;}"
      :
      : "l"(at), "r"(packet.x), "r"(packet.y), "r"(packet.z), "r"(packet.w)
      : "memory");
}
__device__ __forceinline__ uint4 load_packet(const uint4* at) {
  uint4 packet;
  asm volatile(
      "{.reg .b64 low, high; .reg .b128 all; ld.relaxed.sys.global.b128 all, [%4];\n"
      "mov.b128 {low, high}, all; mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high;}"
      : "=r"(packet.x), "=r"(packet.y), "=r"(packet.z), "=r"(packet.w)
      : "l"(at)
      : "memory");
  return packet;
}
__device__ __forceinline__ uint32_t load_host_word(const uint32_t* at) {
  return *static_cast<const volatile uint32_t*>(at);
}
__device__ __forceinline__ void store_host_word(uint32_t* at, uint32_t value) {
  *static_cast<volatile uint32_t*>(at) = value;
}
__device__ __forceinline__ void wait_a_little() {}
__device__ __forceinline__ uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

#endif

}  // namespace ridge::gpu

#ifdef __CUDA_EMULATED__
#include <emulated_packet.h>  // tests/emulate
#endif
