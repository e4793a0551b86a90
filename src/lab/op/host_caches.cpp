#include "lab/op/host_caches.h"

#include <algorithm>
#include <numeric>

#include "op/cache/append.h"

namespace ridge::lab {
namespace {

int pages_of(const KvLayerConfig& layer, int n_ctx) {
  int most = 1;
  for (const KvSide side : kKvSides)
    most = std::max(most, pages_for(KvLayout(layer, side, false).tiles.retention, n_ctx));
  return most;
}

}  // namespace

HostCaches::HostCaches(const KvLayerConfig& layer, std::span<const KvMetricView> metrics, RoundRow round,
                       int n_sequences, int n_ctx)
    : pages_each_(pages_of(layer, n_ctx)),
      memory_({&layer, 1}, metrics, round, n_sequences * pages_each_, n_sequences),
      pages_(size_t(n_sequences * pages_each_)) {
  std::iota(pages_.begin(), pages_.end(), 0);
}

int64_t HostCaches::bytes(const KvLayerConfig& layer, int n_sequences, int n_ctx) {
  int64_t bytes = 0;
  for (const KvSide side : kKvSides) {
    const KvLayout layout(layer, side, false);
    bytes += n_sequences * (pages_of(layer, n_ctx) * layout.page_bytes() + layout.slot_bytes());
  }
  return bytes;
}

KvSpan HostCaches::span(int sequence, int first_row, int n_rows, int n_past) const {
  return {.first_row = first_row,
          .n_rows = n_rows,
          .n_past = n_past,
          .slot = sequence,
          .pages = pages_.data() + int64_t(sequence) * pages_each_};
}

void HostCaches::append(CpuContext& context, int sequence, int n_past, View2<float> k, View2<float> v) const {
  const KvTiles &k_tiles = tiles(KvSide::k), &v_tiles = tiles(KvSide::v);
  const bool calibrates = k_tiles.retention.calibration > 0 || v_tiles.retention.calibration > 0;
  for (const KvSpan& part :
       cut_span(span(sequence, 0, int(k.rows), n_past), most_rows_at_once(k_tiles, v_tiles), calibrates))
    kv_append(context, k_tiles, v_tiles, {&part, 1}, k, v);
}

void HostCaches::fill(CpuContext& context, const RowPool& k, const RowPool& v, int n, int skip_from, int skip_to) {
  constexpr int kBatch = 256;
  const int64_t width = int64_t(tiles(KvSide::k).n_kv_heads) * tiles(KvSide::k).head_dim;
  std::vector<float> rows(size_t(2 * kBatch * width));
  for (int past = 0; past < n;) {
    if (past == skip_from) past = std::max(past, skip_to);
    const int count = std::min(kBatch, (past < skip_from ? std::min(skip_from, n) : n) - past);
    const View2<float> k_rows(rows.data(), count, width), v_rows(rows.data() + kBatch * width, count, width);
    pool_rows(k, tiles(KvSide::k), past, count, k_rows.data);
    pool_rows(v, tiles(KvSide::v), past, count, v_rows.data);
    append(context, 0, past, k_rows, v_rows);
    past += count;
  }
  for (int sequence = 1; sequence < memory_.n_slots(); ++sequence) {
    memory_.copy_slot(0, sequence, 0);
    for (int page = 0; page < pages_each_; ++page) memory_.copy_page(page, sequence * pages_each_ + page);
  }
}

void pool_rows(const RowPool& pool, const KvTiles& tiles, int first, int n, float* out) {
  for (int i = 0; i < n; ++i)
    for (int head = 0; head < tiles.n_kv_heads; ++head)
      out = std::ranges::copy(pool.row(RowPool::index(head, first + i)), out).out;
}

}  // namespace ridge::lab
