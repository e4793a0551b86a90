#include "op/cache/rewrite.h"

#include <algorithm>
#include <cstring>

#include "op/cache/append.h"

namespace ridge {
namespace {

void decode_coded(const KvTiles& t, const SequencePlace& place, int head, int position, float* row) {
  const std::span<const int32_t> pages = place.pages_of(page_class_of(t));
  kv_formats()[size_t(t.format)].decode(t.coded_row(pages.data(), head, position), t.head_dim,
                                        t.coding(place.slot, head), row);
}

}  // namespace

int read_window_as_coded(HostKvMemory& memory, const SequencePlace& place, int n, std::vector<int>& ring_first) {
  int most = 0;
  for (size_t i = 0; i < ring_first.size(); ++i) {
    const KvTiles& t = memory.tiles(int(i / 2), kKvSides[i % 2]);
    if (t.ring_tiles == 0) continue;
    const int wanted = t.retention.coded_end(n), first = std::max(wanted, t.n_sinks), last = std::min(n, ring_first[i]);
    std::vector<float> row(size_t(t.head_dim));
    for (int position = first; position < last; ++position)
      for (int head = 0; head < t.n_kv_heads; ++head) {
        decode_coded(t, place, head, position, row.data());
        write_exact_row(t, place.slot, head, position, row.data());
      }
    most = std::max(most, last - first);
    ring_first[i] = std::min(ring_first[i], wanted);
  }
  return most;
}

void move_rows_down(HostKvMemory& memory, const SequencePlace& place, int first, int n_removed, const TurnRow& turn) {
  const int n = place.n - n_removed;
  for (int layer = 0; layer < memory.n_layers(); ++layer)
    for (const KvSide side : kKvSides) {
      const KvTiles& t = memory.tiles(layer, side);
      const KvLayout& layout = memory.layout(layer, side);
      const int old_ring_first = place.ring_first[2 * size_t(layer) + size_t(side)],
                coded_end = t.retention.coded_end(n);
      const int32_t* const pages = place.pages_of(page_class_of(t)).data();
      const int old_first = place.first_of(page_class_of(t));  // earlier rows are given back
      // Rows move to lower positions in order, so coded rows can be read where they are; ring slots cannot.
      std::vector<std::byte> old_ring(t.ring + place.slot * layout.ring_bytes(),
                                      t.ring + (place.slot + 1) * layout.ring_bytes());
      std::vector<std::byte> old_sinks(t.sinks + place.slot * layout.sinks_bytes(),
                                       t.sinks + (place.slot + 1) * layout.sinks_bytes());
      KvTiles old = t;  // slot 0 of the copies
      old.ring = old_ring.data();
      old.sinks = old_sinks.data();
      const auto is_exact = [&](int position) {
        return position < t.n_sinks || (t.ring_tiles > 0 && position >= old_ring_first);
      };
      std::vector<float> row(size_t(t.head_dim));
      for (int head = 0; head < t.n_kv_heads; ++head)
        for (int to = 0; to < n; ++to) {
          const int from = to < first ? to : to + n_removed;
          const bool turned = layout.has_rope && from != to, becomes_coded = to >= t.n_sinks && to < coded_end;
          if (!is_exact(from) && from < old_first) continue;
          std::byte* const home = becomes_coded ? t.coded_row(pages, head, to) : nullptr;
          if (becomes_coded && !turned && !is_exact(from)) {
            std::memmove(home, t.coded_row(pages, head, from), size_t(t.row_bytes));
            continue;
          }
          if (is_exact(from)) read_exact_row(old, 0, head, from, row.data());
          else decode_coded(t, place, head, from, row.data());
          if (turned) {
            t.rotation.backward(row.data());
            t.move_row(place.slot, head, from / kTilePositions, 1, row.data());
            turn(layer, side, row.data());
            t.move_row(place.slot, head, to / kTilePositions, -1, row.data());
            t.rotation.forward(row.data());
          }
          PageCounts ignored;
          if (becomes_coded) *t.saturated += unsigned(encode_row(t, place.slot, head, row.data(), home, ignored));
          else write_exact_row(t, place.slot, head, to, row.data());
        }
    }
}

}  // namespace ridge
