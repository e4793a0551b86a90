// SHA-256 (FIPS 180-4) of bytes, in hex: golden files name tensors by it.
#pragma once

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ridge {

inline std::string sha256(std::span<const uint8_t> data) {
  // The constants are the first 32 bits of the fractions of square and cube roots of primes.
  std::array<uint32_t, 64> k{};
  std::array<uint32_t, 8> state{};
  const auto fraction = [](long double root) { return uint32_t((root - std::floor(root)) * 0x1p32L); };
  for (int n = 0, prime = 2; n < 64; ++prime) {
    bool is_prime = true;
    for (int d = 2; d * d <= prime; ++d) is_prime = is_prime && prime % d != 0;
    if (!is_prime) continue;
    if (n < 8) state[size_t(n)] = fraction(std::sqrt((long double)(prime)));
    k[size_t(n++)] = fraction(std::cbrt((long double)(prime)));
  }
  std::vector<uint8_t> padded(data.begin(), data.end());
  padded.push_back(0x80);
  while (padded.size() % 64 != 56) padded.push_back(0);
  for (int byte = 7; byte >= 0; --byte) padded.push_back(uint8_t(uint64_t(data.size()) * 8 >> (8 * byte)));

  for (size_t chunk = 0; chunk < padded.size(); chunk += 64) {
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 16; ++i)
      for (size_t b = 0; b < 4; ++b) w[i] = w[i] << 8 | padded[chunk + 4 * i + b];
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t first =
          h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + k[i] + w[i];
      const uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    const uint32_t added[8] = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state[i] += added[i];
  }
  std::string hex;
  for (const uint32_t word : state) hex += fmt::format("{:08x}", word);
  return hex;
}

}  // namespace ridge
