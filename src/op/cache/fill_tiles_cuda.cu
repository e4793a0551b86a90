#include "gpu/launch.h"
#include "op/cache/append_cuda.h"

namespace ridge {
namespace {

constexpr int kThreads = 256;

/// splitmix64's mixing
__device__ uint32_t noise(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return uint32_t(x >> 32);
}

__global__ void fill_kernel(TileKind kind, TileShape shape, int64_t n_words, uint64_t seed, uint32_t* words) {
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < n_words; i += int64_t(gridDim.x) * kThreads) {
    uint32_t word = noise(seed * 0x100000001B3u + uint64_t(i));
    // Magnitudes of 0.125 to 2 where codes are floats.
    if (kind == TileKind::f16) word = (word & 0x8FFF8FFFu) + 0x30003000u;
    if (kind == TileKind::bf16) word = (word & 0x81FF81FFu) + 0x3E003E00u;
    if (i * 4 % shape.bytes >= shape.code_bytes) {
      // The scale of a row of deviation about 1.
      const uint32_t scale = shape.bits == 8 ? 0x2000u : kind == TileKind::q4 ? 0x3400u : 0x3C00u;
      word = scale << 16 | scale;
    }
    words[i] = word;
  }
}

}  // namespace

void device_fill_tiles(gpu::StreamHandle stream, TileKind kind, int head_dim, int64_t n_tiles, uint64_t seed,
                       std::byte* tiles) {
  if (n_tiles == 0) return;
  const TileShape shape(kind, head_dim);
  const int64_t n_words = n_tiles * shape.bytes / 4, blocks = gpu::ceil_div(n_words, kThreads);
  gpu::launch("fill of tiles", fill_kernel, {unsigned(blocks < 65536 ? blocks : 65536), kThreads, 0, stream}, kind,
              shape, n_words, seed, reinterpret_cast<uint32_t*>(tiles));
}

}  // namespace ridge
