// gpu/packet.h between host threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ridge::gpu {

inline void store_packet(uint4* at, uint4 packet) { emulate::send_packet(at, packet); }
/// The stamp first: where it is the one that is looked for, the rest is there.
inline uint4 load_packet(const uint4* at) {
  auto& p = const_cast<uint4&>(*at);
  const unsigned stamp = std::atomic_ref(p.w).load(std::memory_order_acquire);
  const auto word = [](unsigned& of) { return std::atomic_ref(of).load(std::memory_order_relaxed); };
  return {word(p.x), word(p.y), word(p.z), stamp};
}
inline uint32_t load_host_word(const uint32_t* at) {
  return std::atomic_ref(const_cast<uint32_t&>(*at)).load(std::memory_order_acquire);
}
inline void store_host_word(uint32_t* at, uint32_t value) {
  std::atomic_ref(*at).store(value, std::memory_order_release);
}
inline void wait_a_little() { emulate::wait_for_packet(); }
inline uint64_t clock_ns() { return uint64_t(std::chrono::steady_clock::now().time_since_epoch().count()); }

}  // namespace ridge::gpu
