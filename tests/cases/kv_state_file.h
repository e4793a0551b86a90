// State files for tests and the fuzz target: pools of small caches, and files whose checksums are made right again.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "engine/kv_state.h"
#include "op/cache/append.h"

namespace ridge {

/// Sizes of the two headers (docs/formats/kv-state.md).
inline constexpr size_t kStateHeader = 56, kStateSide = 80;

/// A pool in host memory, where rounding is by the reference.
inline std::unique_ptr<SequencePool> host_pool(const std::vector<KvLayerConfig>& layers,
                                               const std::vector<KvMetricView>& metrics, int n_pages, int n_slots) {
  auto memory = std::make_unique<HostKvMemory>(layers, metrics, nullptr, n_pages, n_slots);
  return std::make_unique<SequencePool>(
      std::move(memory), [=](int n) { return std::make_unique<HostKvMemory>(layers, metrics, nullptr, n, 1); });
}

/// The cache of fuzz_kv_state: every kind of section.
inline std::vector<KvLayerConfig> fuzz_layers() {
  const auto format = [](std::string_view name) { return find_kv_format(name).or_throw(); };
  const KvPolicy full{.rotation = Rotation::hadamard, .centre = true, .window = 32, .sinks = 4, .scale = KvScale::norm};
  KvPolicy small_ring = full;
  small_ring.recent = "i8r";
  return {{{format("rotor-3s"), full}, {format("rotor-3"), small_ring}, 1, 32},
          {{format("q8_0"), format("q8_0")->policy}, {format("f16"), format("f16")->policy}, 1, 32}};
}

/// Makes sizes and checksums right where the bytes look like sections, so that what is behind them is reached.
inline void sign_state(std::vector<std::byte>& file) {
  const auto put = [&](size_t at, uint64_t value) { std::memcpy(&file[at], &value, 8); };
  if (file.size() < kStateHeader) return;
  put(40, file.size());
  put(48, XXH64(file.data(), 48, 0));
  for (size_t at = kStateHeader; at + kStateSide <= file.size();) {
    uint64_t payload;
    std::memcpy(&payload, &file[at + 64], 8);
    if (payload > file.size() - at - kStateSide) return;
    put(at + 72, XXH64(file.data() + at + kStateSide, size_t(payload), XXH64(&file[at], 72, 0)));
    at += kStateSide + size_t(payload);
  }
}

/// All that attention of the next query reads of a sequence.
inline std::vector<float> read_back(SequencePool& pool, SeqId seq) {
  auto& memory = static_cast<HostKvMemory&>(pool.memory());
  std::vector<float> out;
  for (int i = 0; i < 2 * memory.n_layers(); ++i) {
    const KvTiles& t = memory.tiles(i / 2, kKvSides[i % 2]);
    const KvSpan at = pool.span(seq, 0, 0, memory.page_class(i / 2));
    for (int p = t.first_seen(at.n_past + 1); p < at.n_past; ++p)
      for (int h = 0; h < t.n_kv_heads; ++h) {
        out.resize(out.size() + size_t(t.head_dim));
        read_cached_row(t, at, h, p, at.n_past, &*out.end() - t.head_dim);
      }
  }
  return out;
}

}  // namespace ridge
