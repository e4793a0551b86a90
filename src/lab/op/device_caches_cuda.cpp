#include <algorithm>
#include <numeric>

#include "lab/op/device_caches.h"
#include "op/attn/device_attention.h"
#include "op/cache/host_memory.h"
#include "op/cache/tile_formats.h"
#include "op/cache/tile_rows.h"

namespace ridge::lab {
namespace {

int pages_of_sequence(const KvLayouts& layouts, int n_keys) {
  return std::max({1, pages_for(layouts.k.tiles.retention, n_keys), pages_for(layouts.v.tiles.retention, n_keys)});
}
KvLayouts layouts_of(const OpProblem& p) { return {p.layer(), device_tiles(p.layer()).ok}; }

/// Tiles of the ring of a step: what any of its queries sees exact.
int step_ring_tiles(const KvTiles& t, int n_keys, int n_new) {
  return (n_keys - 1) / kTilePositions - t.retention.coded_end(n_keys - n_new) / kTilePositions + 1;
}

/// A rotor row with the levels of tile_order.h.
template <class F>
std::vector<float> with_device_levels(const std::byte* row, int head_dim, float (*level)(int)) {
  std::vector<float> values;
  const float scale = f16_to_f32(TileRows<F>::scale(row, head_dim, 0));
  for (int d = 0; d < head_dim; ++d) values.push_back(level(int(TileRows<F>::code(row, d))) * scale);
  return values;
}

}  // namespace

DeviceCaches::DeviceCaches(const OpProblem& problem, const gpu::Stream& stream, int n_sets, int n_keys, uint64_t seed,
                           std::span<const float> metric)
    : p_(problem),
      n_sets_(n_sets),
      n_keys_(n_keys),
      pages_each_(pages_of_sequence(layouts_of(problem), n_keys)),
      memory_(stream, std::vector{metric.empty() ? problem.nearest_layer() : problem.layer()},
              std::vector{KvMetricView{metric, metric}}, kMade + n_sets * problem.n_seq * pages_each_,
              n_sets * problem.n_seq) {
  const std::vector<int> ring_first(2);
  for (int32_t page = 0; page < kMade; ++page)
    memory_.fill({made_slot(page), 0, {&page, 1}, ring_first}, seed + 100 * uint64_t(page));
  std::vector<StepRow> rows;
  std::vector<int32_t> pages(static_cast<size_t>(pages_each_));
  for (int set = 0; set < n_sets; ++set)
    for (int seq = 0; seq < p_.n_seq; ++seq) {
      const int to = slot(set, seq);
      if (to != made_slot(seq)) memory_.copy_slot(made_slot(seq), to, 0);
      std::iota(pages.begin(), pages.end(), kMade + to * pages_each_);
      memory_.set_pages(to, 0, pages);
      for (int i = 0; i < pages_each_; ++i) memory_.copy_page(made_page(seq, i), pages[size_t(i)]);
      for (int i = 0; i < p_.n_new; ++i)
        rows.push_back({.row = seq * p_.n_new + i, .position = n_keys - p_.n_new + i, .slot = to, .ring = to});
    }
  rows_ = gpu::to_device(stream, std::span<const StepRow>(rows));
  for (const KvSide side : kKvSides) {
    tiles_[size_t(side)] = memory_.tiles(0, side);
    if (is_long() && tiles(side).ring_tiles > 0) make_ring(stream, side);
  }
  stream.synchronize();
}

bool DeviceCaches::is_long() const { return p_.n_new > kShortTokens; }

/// The ring of the step: tiles of the sequence's own, over and over.
void DeviceCaches::make_ring(const gpu::Stream& stream, KvSide side) {
  const KvTiles& own = memory_.tiles(0, side);
  KvTiles& t = tiles_[size_t(side)];
  t.ring_tiles = step_ring_tiles(own, n_keys_, p_.n_new);
  const int64_t heads = int64_t(n_sets_) * p_.n_seq * own.n_kv_heads;
  ring_[size_t(side)] = gpu::Buffer(heads * t.ring_tiles * own.ring_tile_bytes + 64);
  t.ring = ring_[size_t(side)].as<std::byte>();
  for (int64_t i = 0; i < heads; ++i)
    for (int first = 0; first < t.ring_tiles; first += own.ring_tiles)
      gpu::copy(stream, t.ring + (i * t.ring_tiles + first) * own.ring_tile_bytes,
                own.ring + i * own.ring_tiles * own.ring_tile_bytes,
                std::min(own.ring_tiles, t.ring_tiles - first) * own.ring_tile_bytes);
}

StepRows DeviceCaches::rows(int set) const {
  const int n = p_.n_seq * p_.n_new;
  return {.n = n,
          .most = p_.n_new,
          .rows = rows_.as<StepRow>() + int64_t(set) * n,
          .pages = memory_.page_table(),
          .page_pitch = memory_.n_pages()};
}

std::vector<StepSpan> DeviceCaches::spans(int set) const {
  std::vector<StepSpan> spans;
  for (int seq = 0; seq < p_.n_seq; ++seq) {
    const int at = slot(set, seq);
    spans.push_back({.slot = at, .ring = at, .n_past = n_keys_ - p_.n_new, .n = n_keys_});
  }
  return spans;
}

std::vector<AttnBlock> DeviceCaches::blocks(int group, int queries) const {
  // As the engine cuts a step: rows of short sequences each on their own.
  const int n = is_long() ? p_.n_new : 1;
  std::vector<AttnBlock> blocks;
  for (int first = 0; first < p_.n_seq * p_.n_new; first += n)
    for (int query = (n * group - 1) / queries * queries; query >= 0; query -= queries)
      blocks.push_back({.first = first, .n = n, .first_query = query});
  return blocks;
}

DeviceKvMemory::RowForm DeviceCaches::form(const KvTiles& t, int position) const {
  if (position < t.n_sinks) return RowForm::sink;
  return position < t.retention.coded_end(n_keys_) ? RowForm::coded : RowForm::recent;
}

int DeviceCaches::index(KvSide side, int seq, int position) const {
  const KvTiles& own = memory_.tiles(0, side);
  const int ring_rows = own.ring_tiles * kTilePositions, rings = kMade * kPagePositions,
            sinks = rings + kMade * ring_rows;
  switch (form(own, position)) {
    case RowForm::coded: return made_page(seq, position / kPagePositions) * kPagePositions + position % kPagePositions;
    case RowForm::recent:
      return rings + made_slot(seq) * ring_rows + position % (tiles(side).ring_tiles * kTilePositions) % ring_rows;
    case RowForm::sink: return sinks + made_slot(seq) * own.n_sinks + position;
  }
  return 0;
}

RowPool DeviceCaches::pool(KvSide side, int head, bool device_levels) const {
  const KvTiles& t = memory_.tiles(0, side);
  std::vector<float> rows;
  const auto add = [&](RowForm form, int n_places, int n_rows) {
    for (int place = 0; place < n_places; ++place)
      for (int position = 0; position < n_rows; ++position) {
        const std::vector<float> row = decoded(side, form, place, head, position, device_levels);
        rows.insert(rows.end(), row.begin(), row.end());
      }
    // Slots that were not made: nothing reads them.
    rows.resize(rows.size() + size_t(kMade - n_places) * size_t(n_rows) * size_t(t.head_dim));
  };
  const int n_slots = std::min(kMade, p_.n_seq);
  add(RowForm::coded, kMade, kPagePositions);
  add(RowForm::recent, n_slots, t.ring_tiles * kTilePositions);
  add(RowForm::sink, n_slots, t.n_sinks);
  return {t.head_dim, std::move(rows)};
}

std::vector<float> DeviceCaches::decoded(KvSide side, RowForm form, int place, int head, int position,
                                         bool device_levels) const {
  const KvTiles& t = memory_.tiles(0, side);
  const std::vector<std::byte> bytes = memory_.row_bytes(0, side, form, place, head, position);
  const KvFormat& format = form == RowForm::sink ? *find_kv_format("f16").or_throw()
                                                 : kv_formats()[size_t(form == RowForm::coded ? t.format : t.recent)];
  const TileKind kind = form == RowForm::coded ? t.kind : TileKind::rows;
  if (device_levels && kind == TileKind::rotor3)
    return with_device_levels<KvRotor3>(bytes.data(), t.head_dim, tile_level3);
  if (device_levels && kind == TileKind::rotor4)
    return with_device_levels<KvRotor4>(bytes.data(), t.head_dim, tile_level4);
  std::vector<float> row(static_cast<size_t>(t.head_dim));
  format.decode(bytes.data(), t.head_dim, {.scale = t.scale, .fixed = 1.0f}, row.data());  // fill() sets scales of 1
  return row;
}

std::vector<std::byte> DeviceCaches::row_bytes(KvSide side, int set, int seq, int head, int position) const {
  const RowForm as = form(memory_.tiles(0, side), position);
  const int own = slot(set, seq), page = kMade + own * pages_each_ + position / kPagePositions;
  return memory_.row_bytes(0, side, as, as == RowForm::coded ? page : own, head, position);
}

std::vector<float> DeviceCaches::leaving_row(KvSide side, int seq, int head, int position) const {
  const bool is_sink = position < memory_.tiles(0, side).n_sinks;
  return decoded(side, is_sink ? RowForm::sink : RowForm::recent, made_slot(seq), head,
                 is_sink ? position : position % (tiles(side).ring_tiles * kTilePositions), false);
}

int64_t DeviceCaches::bytes(const OpProblem& p, int n_keys) {
  const KvLayouts layouts = layouts_of(p);
  int64_t each = 0;
  for (const KvLayout* l : {&layouts.k, &layouts.v}) {
    each += pages_of_sequence(layouts, n_keys) * l->page_bytes() + l->slot_bytes();
    if (p.n_new > kShortTokens && l->tiles.ring_tiles > 0)
      each += l->tiles.n_kv_heads * step_ring_tiles(l->tiles, n_keys, p.n_new) * l->tiles.ring_tile_bytes;
  }
  return p.n_seq * each;
}

}  // namespace ridge::lab
