// Two device primitives of compressed attention, written once for host C++, CUDA and HIP: the dot product of four
// signed bytes, and the lookup of four 3-bit codes in a table of eight bytes (rotor-3's levels). Hopper has one
// instruction for each (dp4a, prmt), and so has RDNA3 (v_dot4_i32_iu8, v_perm_b32). The host version is the oracle.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(__HIP__)
#define RIDGE_HOST_DEVICE __host__ __device__
#else
#define RIDGE_HOST_DEVICE
#endif

namespace ridge::gpu {

/// sum + a0*b0 + a1*b1 + a2*b2 + a3*b3 over the signed bytes of a and b. Wraps like two's complement.
RIDGE_HOST_DEVICE inline int32_t dot4_i8(uint32_t a, uint32_t b, int32_t sum) {
#if defined(__CUDA_ARCH__)
  return __dp4a(int32_t(a), int32_t(b), sum);
#elif defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_sudot4(true, int32_t(a), true, int32_t(b), sum, false);
#else
  for (int shift = 0; shift < 32; shift += 8) sum += int8_t(a >> shift) * int8_t(b >> shift);
  return sum;
#endif
}

/// Eight signed bytes: entries 0 to 3 in `low`, 4 to 7 in `high`, each from its lowest byte up.
struct ByteTable8 {
  uint32_t low = 0;
  uint32_t high = 0;
};

/// Packs eight values that fit in a signed byte.
RIDGE_HOST_DEVICE constexpr ByteTable8 byte_table8(const int (&values)[8]) {
  ByteTable8 table;
  for (int i = 0; i < 4; ++i) {
    table.low |= uint32_t(uint8_t(values[i])) << (8 * i);
    table.high |= uint32_t(uint8_t(values[i + 4])) << (8 * i);
  }
  return table;
}

/// The table's entries for four codes, one a byte; code k is bits 3k .. 3k+2 of `codes`, higher bits are ignored.
RIDGE_HOST_DEVICE inline uint32_t lookup4(ByteTable8 table, uint32_t codes) {
#if defined(__CUDA_ARCH__)
  const uint32_t nibbles = (codes & 0x7) | (codes << 1 & 0x70) | (codes << 2 & 0x700) | (codes << 3 & 0x7000);
  return __byte_perm(table.low, table.high, nibbles);
#elif defined(__HIP_DEVICE_COMPILE__)
  const uint32_t bytes = (codes & 0x7) | (codes << 5 & 0x700) | (codes << 10 & 0x70000) | (codes << 15 & 0x7000000);
  return __builtin_amdgcn_perm(table.high, table.low, bytes);
#else
  uint32_t entries = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t code = codes >> (3 * k) & 7u;
    const uint32_t entry = (code < 4 ? table.low >> (8 * code) : table.high >> (8 * (code - 4))) & 0xFFu;
    entries |= entry << (8 * k);
  }
  return entries;
#endif
}

}  // namespace ridge::gpu
