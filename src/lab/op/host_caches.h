// Caches of one layer in memory, for benches of single ops on the CPU: any number of equal sequences.
#pragma once

#include "base/view.h"
#include "lab/op/op_data.h"
#include "op/cache/host_memory.h"

namespace ridge::lab {

class HostCaches {
 public:
  /// `metrics` and `round` as HostKvMemory takes them; n_ctx is the most positions of a sequence.
  HostCaches(const KvLayerConfig& layer, std::span<const KvMetricView> metrics, RoundRow round, int n_sequences,
             int n_ctx);

  /// Fills the first sequence with n rows of the pools, head h's row at a position being RowPool::index(h, position),
  /// by the ordinary append; the rows of positions [skip_from, skip_to) are left out. The other sequences become
  /// copies.
  void fill(CpuContext& context, const RowPool& k, const RowPool& v, int n, int skip_from = 0, int skip_to = 0);
  /// Appends rows [n_new, n_kv_heads * head_dim] to a sequence that holds n_past; they are changed.
  void append(CpuContext& context, int sequence, int n_past, View2<float> k, View2<float> v) const;

  /// n_rows new tokens of a sequence behind n_past.
  KvSpan span(int sequence, int first_row, int n_rows, int n_past) const;
  const KvTiles& tiles(KvSide side) const { return memory_.tiles(0, side); }
  int64_t allocated_bytes() const { return memory_.allocated_bytes(); }
  static int64_t bytes(const KvLayerConfig& layer, int n_sequences, int n_ctx);

 private:
  int pages_each_;
  HostKvMemory memory_;
  std::vector<int32_t> pages_;  // [n_sequences, pages_each]
};

/// [n, n_kv_heads * head_dim]: rows of a pool at positions first, first + 1, ...
void pool_rows(const RowPool& pool, const KvTiles& tiles, int first, int n, float* out);

}  // namespace ridge::lab
