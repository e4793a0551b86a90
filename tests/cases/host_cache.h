// A memory on the host with one sequence of random rows, for tests of images.
#pragma once

#include "cases/attn_data.h"
#include "op/cache/host_memory.h"

namespace ridge {

/// A layer for every format: as its own policy has it on K's side, with everything on V's.
inline std::vector<KvLayerConfig> all_layers(int n_kv_heads, int head_dim) {
  std::vector<KvLayerConfig> layers;
  for (const KvFormat& format : kv_formats())
    layers.push_back({side_of(format, format.policy), side_of(format, kFullPolicy), n_kv_heads, head_dim});
  layers.push_back({side_of(kv("q8_0"), {.sinks = 5}), side_of(kv("rotor-3"), {.centre = true}), n_kv_heads, head_dim});
  return layers;
}

struct Host {
  HostKvMemory memory;
  std::vector<int32_t> pages;
  std::vector<int> ring_first;
  int first_head = 0, n_heads;  ///< of the model, whose first_head is this memory's head 0
  int n = 0;

  Host(std::span<const KvLayerConfig> layers, std::vector<int32_t> page_list)
      : Host(layers, std::move(page_list), 0, layers[0].n_kv_heads) {}
  Host(std::span<const KvLayerConfig> layers, std::vector<int32_t> page_list, int first, int n_model_heads)
      : memory(layers, {}, nullptr, 4, 3),
        pages(std::move(page_list)),
        ring_first(2 * layers.size(), 0),
        first_head(first),
        n_heads(n_model_heads) {}

  /// Tokens n .. n + count of every layer into slot 1: the memory's heads of the model's rows.
  void append(int count, uint64_t seed) {
    static CpuContext context(1);
    bool calibrates = false;
    for (int layer = 0; layer < memory.n_layers(); ++layer) {
      const KvTiles &k = memory.tiles(layer, KvSide::k), &v = memory.tiles(layer, KvSide::v);
      calibrates = n < kCalibration && (k.retention.calibration > 0 || v.retention.calibration > 0);
      const int64_t dim = k.head_dim, stride = n_heads * dim, width = k.n_kv_heads * dim, half = count * stride;
      std::vector<float> rows = random_floats(seed + uint64_t(layer), 2 * half);
      float* const first = rows.data() + first_head * dim;
      const KvSpan whole{.n_rows = count, .n_past = n, .slot = 1, .pages = pages.data()};
      for (const KvSpan& span : cut_span(whole, most_rows_at_once(k, v), calibrates))
        kv_append(context, k, v, {&span, 1}, {first, count, width, stride}, {first + half, count, width, stride});
    }
    n += count;
    // As far back as a ring holds whole tiles.
    for (size_t i = 0; i < ring_first.size(); ++i) {
      const KvLayout& layout = memory.layout(int(i / 2), kKvSides[i % 2]);
      const bool window = layout.tiles.retention.window > 0;
      ring_first[i] = layout.tiles.ring_tiles == 0 ? 0
                      : window || n < kCalibration ? std::max(0, (n + 31) / 32 * 32 - layout.ring_rows())
                                                   : n;
    }
  }
  SequencePlace place() const { return {1, n, pages, ring_first}; }
  SequenceImage image() { return memory.read(place(), n >= kCalibration); }
};

inline bool same_bytes(const SequenceImage& a, const SequenceImage& b) {
  return a.n == b.n && a.calibrated == b.calibrated &&
         std::ranges::equal(a.sides, b.sides, [](const auto& x, const auto& y) {
           return x.ring_first == y.ring_first && x.bytes == y.bytes;
         });
}

}  // namespace ridge
