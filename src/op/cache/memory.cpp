#include "op/cache/memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "op/cache/tile_formats.h"

namespace ridge {
namespace {

void write_row(const TileRowsForm& form, const KvTiles& t, std::byte* tile, int position, const std::byte* row) {
  const int p = position % kTilePositions;
  if (form.kind == TileKind::rows) std::memcpy(tile + p * form.row_bytes, row, size_t(form.row_bytes));
  else write_tile_row(form.format, row, t.side, p, t.head_dim, tile);
}

/// Calls visit(form, tile, position) for every row of an image, in its order; tile is null where the page is given
/// back.
template <class Visit>
void for_each_row(const KvLayout& layout, const SideBytes& side, int n, int ring_first, int coded_first,
                  const Visit& visit) {
  const KvTiles& t = layout.tiles;
  const int sinks = std::min(t.n_sinks, n), coded_end = t.retention.coded_end(n);
  const TileRowsForm sink = sink_form(t), recent = recent_form(t), coded = coded_form(t);
  for (int head = 0; head < t.n_kv_heads; ++head) {
    for (int p = 0; p < sinks; ++p) visit(sink, side.sinks + head * t.sink_bytes, p);
    if (t.ring_tiles > 0)
      for (int p = std::max(ring_first, sinks); p < n; ++p)
        visit(recent,
              side.ring + (int64_t(head) * t.ring_tiles + p / kTilePositions % t.ring_tiles) * t.ring_tile_bytes, p);
    for (int p = std::max(sinks, coded_first); p < coded_end; ++p) {
      std::byte* const page = side.pages[size_t(p / kPagePositions)];
      visit(coded, page ? page + (int64_t(head) * kPageTiles + p / kTilePositions % kPageTiles) * t.tile_bytes : page,
            p);
    }
  }
}

}  // namespace

TileRowsForm coded_form(const KvTiles& t) { return {t.kind, t.format, t.row_bytes}; }
TileRowsForm recent_form(const KvTiles& t) { return {t.recent_kind, t.recent, t.recent_row_bytes}; }
TileRowsForm sink_form(const KvTiles& t) {
  static const int f16 = int(*find_kv_format("f16") - kv_formats().data());
  return {t.kind == TileKind::rows ? TileKind::rows : TileKind::f16, f16, 2 * int64_t(t.head_dim)};
}

void read_row(const TileRowsForm& form, const KvTiles& t, const std::byte* tile, int position, std::byte* row) {
  const int p = position % kTilePositions;
  if (form.kind == TileKind::rows) std::memcpy(row, tile + p * form.row_bytes, size_t(form.row_bytes));
  else read_tile_row(form.format, tile, t.side, p, t.head_dim, row);
}

std::map<std::vector<double>, int> turn_tiles(std::span<const KvLayouts> layouts, int n_pages) {
  std::map<std::vector<double>, int> tiles;
  for (const KvLayouts& layer : layouts) {
    if (layer.k.frequency.empty()) continue;
    int& most = tiles[layer.k.frequency];
    most = std::max(most, n_pages * kPageTiles + layer.k.tiles.ring_tiles);
  }
  return tiles;
}

int64_t cache_bytes(std::span<const KvLayerConfig> layers, bool fragments, PageNumbers n_pages, SlotNumbers slots) {
  int64_t bytes = 0;
  for (const KvLayerConfig& layer : layers) {
    const KvLayouts layouts(layer, fragments && device_tiles(layer).ok);
    for (const KvLayout* side : {&layouts.k, &layouts.v})
      bytes += n_pages[page_class_of(side->tiles)] * side->page_bytes() + slots.n * side->slot_bytes() +
               slots.n_histories * side->history_bytes();
  }
  return bytes;
}

KvMemory::KvMemory(std::span<const KvLayerConfig> layers, bool fragments, PageNumbers n_pages, SlotNumbers slots)
    : n_pages_(n_pages), slots_(slots) {
  for (const KvLayerConfig& layer : layers) layouts_.emplace_back(layer, fragments && device_tiles(layer).ok);
  RIDGE_CHECK(!layouts_.empty() && n_pages.full > 0 && n_pages.sliding > 0 && slots.n > 0,
              "{} layers, {} and {} pages, {} slots", layouts_.size(), n_pages.full, n_pages.sliding, slots.n);
  RIDGE_CHECK(slots.n_histories >= 0 && slots.n_histories <= slots.n, "{} of {} slots with a history",
              slots.n_histories, slots.n);
  for (const PageClass of : {PageClass::full, PageClass::sliding}) {
    const auto is_of = [&](const KvLayouts& layer) { return page_class_of(layer.k.tiles) == of; };
    if (std::ranges::any_of(layouts_, is_of)) classes_.push_back(of);
  }
  for (const KvLayouts& layer : layouts_)
    for (const KvSide side : kKvSides) {
      page_bytes_[size_t(page_class_of(layer.k.tiles))] += layer.side(side).page_bytes();
      slot_bytes_ += layer.side(side).slot_bytes();
      history_bytes_ += layer.side(side).history_bytes();
    }
}

void KvMemory::copy_page(int from, int to) {
  for (const PageClass of : classes_) copy_page(of, from, to);
}
void KvMemory::clear_counts(int page) {
  for (const PageClass of : classes_) clear_counts(of, page);
}
void KvMemory::set_pages(int slot, int first, std::span<const int32_t> pages) {
  for (const PageClass of : classes_) set_pages(of, slot, first, pages);
}

SequenceImage KvMemory::read(const SequencePlace& place, bool calibrated) {
  SequenceImage image{.n = place.n, .calibrated = calibrated, .lost_from = lost_from(place.slot)};
  for (int layer = 0; layer < n_layers(); ++layer)
    for (const KvSide side : kKvSides) image.sides.push_back(read_side(layer, side, place));
  return image;
}

int64_t KvMemory::allocated_bytes() const {
  int64_t bytes = 0;
  for (int layer = 0; layer < n_layers(); ++layer)
    bytes += allocated_bytes(layer, KvSide::k) + allocated_bytes(layer, KvSide::v);
  return bytes;
}

int64_t KvMemory::overhead_bytes(int layer, KvSide side) const {
  const KvLayout& l = layout(layer, side);
  return kPadBytes * (1 + (l.ring_bytes() > 0) + (l.sinks_bytes() > 0)) +
         n_pages_[page_class(layer)] * int64_t(sizeof(PageCounts));
}

int64_t KvMemory::bytes_with_pages(PageNumbers n) const {
  RIDGE_CHECK(n_pages_.full == 1 && n_pages_.sliding == 1, "a memory of {} and {} pages says nothing about one",
              n_pages_.full, n_pages_.sliding);
  int64_t bytes = allocated_bytes();
  for (int layer = 0; layer < n_layers(); ++layer)
    for (const KvSide side : kKvSides)
      bytes += (n[page_class(layer)] - 1) * (layout(layer, side).page_bytes() + int64_t(sizeof(PageCounts)));
  return bytes;
}

int64_t side_image_bytes(const KvLayout& layout, int n, int ring_first, int coded_first) {
  const KvTiles& t = layout.tiles;
  const int64_t sinks = std::min(t.n_sinks, n),
                coded = std::max<int64_t>(0, t.retention.coded_end(n) - std::max<int64_t>(sinks, coded_first));
  const int64_t recent = t.ring_tiles > 0 ? std::max<int64_t>(0, n - std::max<int64_t>(ring_first, sinks)) : 0;
  return layout.centre_bytes() + layout.head_scale_bytes() + layout.state_bytes() +
         t.n_kv_heads * (sinks * 2 * t.head_dim + recent * t.recent_row_bytes + coded * t.row_bytes);
}

Status check_side_state(const KvLayout& layout, int n, int ring_first, bool calibrated, int coded_first) {
  const bool must = layout.calibrates() && n >= kCalibration;
  if (calibrated ? !layout.calibrates() || n == 0 : must)
    return bad_file("calibrated is {} at {} positions", calibrated, n);
  // Requires the rows that attention reads as exact, and no more rows than the ring has room for.
  const bool has_ring = layout.tiles.ring_tiles > 0;
  const int least = has_ring ? std::max(0, n - layout.ring_rows()) : 0,
            most = has_ring ? std::max(least, layout.tiles.retention.coded_end(n)) : 0;
  if (ring_first < least || ring_first > most)
    return bad_file("ring_first is {}, expected {} to {}", ring_first, least, most);
  const int needed = page_class_of(layout.tiles) == PageClass::sliding ? first_needed(layout.tiles, n) : 0;
  if (coded_first < 0 || coded_first > needed)
    return bad_file("coded_first is {}, expected 0 to {}", coded_first, needed);
  return {};
}

Status check_side_floats(const KvLayout& layout, const std::byte* bytes) {
  const int64_t n_centre = layout.centre_bytes() / 4, n_scaled = n_centre + layout.head_scale_bytes() / 4,
                n = n_scaled + layout.state_values;
  for (int64_t i = 0; i < n; ++i, bytes += 4) {
    float value;
    std::memcpy(&value, bytes, 4);
    const bool is_state = i >= n_scaled, is_scale = i >= n_centre && !is_state;
    if (!std::isfinite(value) || (is_scale && value < 0))
      return bad_file("{} {} is {}",
                      is_state   ? "state"
                      : is_scale ? "head scale"
                                 : "centre",
                      is_state   ? i - n_scaled
                      : is_scale ? i - n_centre
                                 : i,
                      value);
  }
  return {};
}

void read_side(const KvLayout& layout, const SideBytes& from, int n, int ring_first, std::byte* image,
               int coded_first) {
  const auto floats = [&](const float* values, int64_t bytes) {
    if (bytes > 0) std::memcpy(image, values, size_t(bytes));
    image += bytes;
  };
  floats(from.centre, layout.centre_bytes());
  floats(from.head_scale, layout.head_scale_bytes());
  floats(from.state, layout.state_bytes());
  const auto read = [&](const TileRowsForm& form, const std::byte* tile, int position) {
    RIDGE_CHECK(tile, "the page of position {} is given back", position);
    read_row(form, layout.tiles, tile, position, image);
    image += form.row_bytes;
  };
  for_each_row(layout, from, n, ring_first, coded_first, read);
}

void write_side(const KvLayout& layout, const std::byte* image, int n, int ring_first, const SideBytes& to,
                int coded_first) {
  const auto floats = [&](float* values, int64_t bytes) {
    if (bytes > 0) std::memcpy(values, image, size_t(bytes));
    image += bytes;
  };
  floats(to.centre, layout.centre_bytes());
  floats(to.head_scale, layout.head_scale_bytes());
  floats(to.state, layout.state_bytes());
  const auto write = [&](const TileRowsForm& form, std::byte* tile, int position) {
    if (tile) write_row(form, layout.tiles, tile, position, image);
    image += form.row_bytes;
  };
  for_each_row(layout, to, n, ring_first, coded_first, write);
}

SideImage image_of_side(const KvLayout& layout, const SideBytes& from, int n, int ring_first, int coded_first) {
  SideImage image{ring_first, std::vector<std::byte>(size_t(side_image_bytes(layout, n, ring_first, coded_first))),
                  coded_first};
  read_side(layout, from, n, ring_first, image.bytes.data(), coded_first);
  return image;
}

}  // namespace ridge
