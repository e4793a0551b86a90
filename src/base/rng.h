// Small deterministic random numbers: the same stream on every platform, so seeds in results mean something.
#pragma once

#include <cmath>
#include <cstdint>

namespace ridge {

/// 32-bit mixer used by the planar rotation (docs/formats/cache-space.md); constants are part of the format.
constexpr uint32_t splitmix32(uint32_t x) {
  x += 0x9E3779B9u;
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

/// Output number i (from 0) of SplitMix64 with seed s is splitmix64(s + (i + 1) * kSplitmixStep).
inline constexpr uint64_t kSplitmixStep = 0x9E3779B97F4A7C15ull;
constexpr uint64_t splitmix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/// SplitMix64 (Steele, Lea, Flood 2014): one 64-bit state, passes BigCrush, any seed is good.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t next() { return splitmix64(state_ += kSplitmixStep); }
  /// Uniform in [0, 1) with 53 bits.
  double uniform() { return double(next() >> 11) * 0x1p-53; }
  /// Standard normal by Box-Muller (one value per call; the twin is thrown away to keep the stream simple).
  double normal() {
    const double u = 1.0 - uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace ridge
