#include "format/i2_s.h"
#include "format/int4_g128.h"
#include "gpu/launch.h"
#include "op/gemv/int_weights_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kThreads = 128;

/// Where a matrix's rows go: its row i is packed row first + i, or the gated pair's half first / 8.
struct Place {
  int64_t first;
  bool gated;

  __host__ __device__ int64_t packed(int64_t row) const { return gated ? row / 8 * 16 + first + row % 8 : first + row; }
};

/// The matrix's bytes 16 p + 4 c .. of a group, p 0..3, c 0..3: columns that meet in one word of a fragment.
__device__ uint32_t load_bytes(const uint8_t* from) {  // blocks are aligned to 2 bytes or less
  return uint32_t(from[0]) | uint32_t(from[1]) << 8 | uint32_t(from[2]) << 16 | uint32_t(from[3]) << 24;
}

/// A thread packs one block: four values from column k on are two bytes of it.
__global__ void pack_int4_kernel(int64_t n_blocks, int64_t n_groups, Place place, const Int4G128::Block* blocks,
                                 uint8_t* tiles) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n_blocks) return;
  const Int4G128::Block& block = blocks[i];
  const int64_t row = place.packed(i / n_groups), group = i % n_groups;
  const int r = int(row % 8), below = int(row % 16 / 8);
  uint8_t* tile = tiles + (row / 16 * n_groups + group) * int_tile_bytes(IntKind::int4_g128);
  const auto nibble = [&](int k) { return (uint32_t(block.q[k / 2]) >> (k % 2 * 4) & 15u) ^ 8u; };
  for (int pair = 0; pair < 2; ++pair)
    for (int half = 0; half < 2; ++half)
      for (int c = 0; c < 4; ++c) {
        uint32_t word = 0;
        for (int e = 0; e < 4; ++e) {
          const int k = 64 * pair + 16 * half + 4 * c + e;
          word |= (nibble(k) << 4 | nibble(k + 32)) << (8 * e);
        }
        *reinterpret_cast<uint32_t*>(tile + 512 * pair + 16 * (4 * r + c) + 4 * (2 * half + below)) = word;
      }
  *reinterpret_cast<uint16_t*>(tile + 1024 + 2 * (2 * r + below)) = block.scale;
}

/// A thread packs one block, whose bytes have the columns 32 apart already: codes become two's complement.
__global__ void pack_ternary_kernel(int64_t n_blocks, int64_t n_groups, Place place, const I2_S::Block* blocks,
                                    uint8_t* tiles) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n_blocks) return;
  const int64_t row = place.packed(i / n_groups), group = i % n_groups;
  const int r = int(row % 8), below = int(row % 16 / 8);
  uint8_t* tile = tiles + (row / 16 * n_groups + group) * int_tile_bytes(IntKind::ternary);
  for (int half = 0; half < 2; ++half)
    for (int c = 0; c < 4; ++c) {
      const uint32_t codes = load_bytes(blocks[i].q + 16 * half + 4 * c);
      const uint32_t low = ~codes & 0x55555555u;  // minus 1 in every pair of bits
      *reinterpret_cast<uint32_t*>(tile + 16 * (4 * r + c) + 4 * (2 * half + below)) =
          low | ((codes & 0xAAAAAAAAu) ^ low << 1);
    }
}

__global__ void row_scale_kernel(int64_t n_out, Place place, float scale, float* row_scale) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n_out) row_scale[place.packed(i)] = scale;
}

}  // namespace

IntWeights pack_int_weights(gpu::StreamHandle stream, IntKind kind, int64_t n_in, std::span<const IntRows> matrices,
                            bool gated) {
  if (n_in % kIntGroup != 0 || n_in == 0 || matrices.empty() ||
      (gated && (matrices.size() != 2 || matrices[0].n_out != matrices[1].n_out)))
    throw Error(ErrorKind::failure, "pack_int_weights: rows of " + std::to_string(n_in) + " values, " +
                                        std::to_string(matrices.size()) + " matrices");
  IntWeights w{.kind = kind, .gated = gated, .n_in = n_in};
  for (const IntRows& m : matrices) w.n_out += m.n_out;
  if (gated) w.n_out /= 2;
  w.tiles = gpu::Buffer(w.tile_bytes());
  const bool ternary = kind == IntKind::ternary;
  if (ternary) w.row_scale = gpu::Buffer(w.row_scale_bytes());

  Place place{0, gated};
  for (const IntRows& m : matrices) {
    const int64_t n_blocks = m.n_out * w.n_groups();
    const auto grid = [&](int64_t n) { return gpu::Grid{unsigned(gpu::ceil_div(n, kThreads)), kThreads, 0, stream}; };
    auto* tiles = w.tiles.as<uint8_t>();
    if (n_blocks == 0) continue;
    if (ternary) {
      gpu::launch("pack_ternary", pack_ternary_kernel, grid(n_blocks), n_blocks, w.n_groups(), place,
                  static_cast<const I2_S::Block*>(m.rows), tiles);
      gpu::launch("row_scale", row_scale_kernel, grid(m.n_out), m.n_out, place, m.scale, w.row_scale.as<float>());
    } else {
      gpu::launch("pack_int4", pack_int4_kernel, grid(n_blocks), n_blocks, w.n_groups(), place,
                  static_cast<const Int4G128::Block*>(m.rows), tiles);
    }
    place.first += gated ? 8 : m.n_out;
  }
  return w;
}

}  // namespace ridge
