#include "op/cache/device_memory.h"

#include <algorithm>
#include <atomic>

#include "base/rng.h"
#include "op/cache/host_memory.h"
#include "op/cache/rotation.h"
#include "op/cache/tile_formats.h"

namespace ridge {
namespace {

std::atomic<uint64_t> n_memories = 0;

/// Calls run(first, n) for the runs of pages that lie behind one another: pages[first + i] = pages[first] + i.
template <class Run>
void for_each_run(std::span<const int32_t> pages, const Run& run) {
  for (size_t first = 0, end = 0; first < pages.size(); first = end) {
    for (end = first + 1; end < pages.size() && pages[end] == pages[end - 1] + 1;) ++end;
    run(first, int64_t(end - first));
  }
}

}  // namespace

DeviceKvMemory::Side::Side(const gpu::Stream& stream, int layer, const KvLayout& of,
                           std::span<const float> metric_of_model, int n_pages, SlotNumbers slots)
    : layout(of),
      tiles(of.tiles),
      n_histories(slots.n_histories),
      pages(n_pages * of.page_bytes() + kPadBytes),
      ring(of.ring_bytes() > 0 ? slots.n * of.ring_bytes() + kPadBytes : 0),
      sinks(of.sinks_bytes() > 0 ? slots.n * of.sinks_bytes() + kPadBytes : 0),
      centre(slots.n * of.centre_bytes()),
      head_scale(slots.n * of.head_scale_bytes()),
      state(slots.n_states() * of.state_bytes()),
      counts(n_pages * int64_t(sizeof(PageCounts))) {
  const RowRotation turn(of.config.policy.rotation, layer, tiles.head_dim);
  rotation = gpu::to_device(stream, turn.table());
  if (of.config.policy.rounding == KvRounding::weighted) {
    check_metric(tiles, metric_of_model);
    metric =
        gpu::to_device(stream, std::span<const float>(metric_in_cache_space(turn, tiles.head_dim, metric_of_model)));
    tiles.metric = metric.as<float>();
  }
  tiles.rotation = turn.view();
  tiles.rotation.table = rotation.as<float>();
  tiles.pages = pages.as<std::byte>();
  tiles.ring = ring.as<std::byte>();
  tiles.sinks = sinks.as<std::byte>();
  tiles.centre = centre.as<float>();
  tiles.head_scale = head_scale.as<float>();
  tiles.counts = counts.as<PageCounts>();
}

DeviceKvMemory::DeviceKvMemory(const gpu::Stream& stream, std::span<const KvLayerConfig> layers,
                               std::span<const KvMetricView> metrics, PageNumbers n_pages, SlotNumbers slots)
    : KvMemory(layers, true, n_pages, slots),
      stream_(stream),
      serial_(++n_memories),
      saturated_(int64_t(2 * layers.size() * sizeof(unsigned long long))) {
  for (const auto& [frequency, n_tiles] : turn_tiles(layouts_, this->n_pages()))
    turn_tables_[frequency] = gpu::to_device(stream, std::span<const float>(turn_table(frequency, n_tiles)));
  std::vector<CachePart> of_page[kPageClasses], counts[kPageClasses], of_slot, slot_floats, states;
  const auto add = [](std::vector<CachePart>& parts, const gpu::Buffer& buffer, int64_t bytes) {
    if (bytes > 0) parts.push_back({buffer.as<void>(), bytes});
  };
  sides_.reserve(2 * layers.size());
  for (int layer = 0; layer < n_layers(); ++layer)
    for (const KvSide side : kKvSides) {
      const KvLayout& of = layout(layer, side);
      Side& s = sides_.emplace_back(stream, rotation_layer(layers, layer), of,
                                    metrics.empty() ? std::span<const float>() : metrics[size_t(layer)].side(side),
                                    n_pages[page_class(layer)], slots);
      if (!of.frequency.empty()) s.tiles.turn.table = turn_tables_[of.frequency].as<float>();
      s.tiles.saturated = saturated_.as<unsigned long long>() + (sides_.size() - 1);
      const auto its_class = size_t(page_class(layer));
      add(of_page[its_class], s.pages, of.page_bytes());
      add(of_page[its_class], s.counts, sizeof(PageCounts));
      add(counts[its_class], s.counts, sizeof(PageCounts));
      add(of_slot, s.ring, of.ring_bytes());
      add(of_slot, s.sinks, of.sinks_bytes());
      for (std::vector<CachePart>* parts : {&of_slot, &slot_floats}) {
        add(*parts, s.centre, of.centre_bytes());
        add(*parts, s.head_scale, of.head_scale_bytes());
      }
      add(states, s.state, of.state_bytes());
      if (of.tiles.n_kv_heads > 0) retentions_.add(of.tiles.retention);
    }
  const auto put = [&](Parts& to, const std::vector<CachePart>& parts) {
    to = {gpu::to_device(stream, std::span<const CachePart>(parts)), int(parts.size())};
  };
  for (const PageClass its_class : page_classes()) {
    OfClass& own = of_class_[size_t(its_class)];
    own.table = gpu::Buffer(4 * int64_t(slots.n) * n_pages.full);
    put(own.page, of_page[size_t(its_class)]);
    put(own.counts, counts[size_t(its_class)]);
  }
  put(of_slot_, of_slot);
  put(slot_floats_, slot_floats);
  put(states_, states);

  std::vector<std::vector<KvTiles>> members;
  for (const Side& s : sides_) {
    const KvTiles& t = s.tiles;
    if (t.n_kv_heads == 0) continue;
    const auto same = [&](const SideGroup& g) {
      return g.in_fragments == (t.kind != TileKind::rows) && g.n_kv_heads == t.n_kv_heads && g.head_dim == t.head_dim &&
             g.pages == page_class_of(t);
    };
    const auto found = std::ranges::find_if(groups_, same);
    const auto at = size_t(found - groups_.begin());
    if (found == groups_.end()) {
      SideGroup& group = groups_.emplace_back();
      group.pages = page_class_of(t);
      group.in_fragments = t.kind != TileKind::rows;
      group.n_kv_heads = t.n_kv_heads;
      group.head_dim = t.head_dim;
      members.emplace_back();
    }
    members[at].push_back(t);
    groups_[at].weighs = groups_[at].weighs || t.metric != nullptr;
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].n_sides = int(members[i].size());
    groups_[i].tiles = gpu::to_device(stream, std::span<const KvTiles>(members[i]));
  }
  stream.synchronize();
}

std::vector<std::byte> DeviceKvMemory::row_bytes(int layer, KvSide side, RowForm form, int place, int head,
                                                 int position) const {
  const KvTiles& t = tiles(layer, side);
  const int tile = position / kTilePositions;
  const auto [of, from] = form == RowForm::sink    ? std::pair(sink_form(t), t.sink_tile(place, head))
                          : form == RowForm::coded ? std::pair(coded_form(t), t.coded_tile(place, head, tile))
                                                   : std::pair(recent_form(t), t.ring_tile(place, head, tile));
  std::vector<std::byte> whole(size_t(of.kind == TileKind::rows ? (position % kTilePositions + 1) * of.row_bytes
                                                                : TileShape(of.kind, t.head_dim).bytes)),
      row(size_t(of.row_bytes));
  gpu::download(stream_, whole.data(), from, ssize(whole));
  stream_.synchronize();
  read_row(of, t, whole.data(), position, row.data());
  return row;
}

int64_t DeviceKvMemory::allocated_bytes(int layer, KvSide side) const { return held(layer, side).bytes(); }

void DeviceKvMemory::clear_slot(int slot) {
  device_clear_parts(stream_, slot_floats_.get(), slot_floats_.n, slot);
  device_clear_parts(stream_, states_.get(), states_.n, state_number(slot, 0));
}
void DeviceKvMemory::copy_slot(int from, int to, int n) {
  device_copy_parts(stream_, of_slot_.get(), of_slot_.n, from, to);
  device_copy_parts(stream_, states_.get(), states_.n, state_number(from, n), state_number(to, n));
}
void DeviceKvMemory::copy_page(PageClass of, int from, int to) {
  const Parts& parts = of_class(of).page;
  device_copy_parts(stream_, parts.get(), parts.n, from, to);
}
void DeviceKvMemory::clear_counts(PageClass of, int page) {
  const Parts& parts = of_class(of).counts;
  device_clear_parts(stream_, parts.get(), parts.n, page);
}

void DeviceKvMemory::set_pages(PageClass of, int slot, int first, std::span<const int32_t> pages) {
  RIDGE_CHECK(first + int(pages.size()) <= n_pages(), "{} pages after {} of {}", pages.size(), first, n_pages());
  gpu::upload(stream_, of_class(of).table.as<int32_t>() + int64_t(slot) * n_pages() + first, pages.data(),
              4 * int64_t(pages.size()));
}

/// A sequence's bytes of a side in host memory, on their way from or to the device.
struct DeviceKvMemory::HostSide {
  HostSide(const Side& of, const SequencePlace& at)
      : side(of),
        place(at),
        held(place.held_pages_of(page_class_of(of.tiles))),
        pages(held.size() * size_t(of.layout.page_bytes())),
        ring(size_t(of.layout.ring_bytes())),
        sinks(size_t(of.layout.sinks_bytes())),
        centre(size_t(of.layout.centre_bytes() / 4)),
        head_scale(size_t(of.layout.head_scale_bytes() / 4)),
        state(size_t(of.layout.state_values)) {}

  SideBytes bytes() {
    SideBytes bytes{.pages = {},
                    .sinks = sinks.data(),
                    .ring = ring.data(),
                    .centre = centre.data(),
                    .head_scale = head_scale.data(),
                    .state = state.data()};
    bytes.pages.resize(place.pages_of(page_class_of(side.tiles)).size() - held.size(), nullptr);
    for (size_t i = 0; i < held.size(); ++i)
      bytes.pages.push_back(pages.data() + int64_t(i) * side.layout.page_bytes());
    return bytes;
  }
  /// Calls move(on the device, here, bytes) for all pieces.
  template <class Move>
  void for_each_piece(const Move& move) {
    const KvLayout& l = side.layout;
    for_each_run(held, [&](size_t first, int64_t n) {
      move(side.tiles.pages + held[first] * l.page_bytes(), pages.data() + int64_t(first) * l.page_bytes(),
           n * l.page_bytes());
    });
    move(side.tiles.ring + place.slot * l.ring_bytes(), ring.data(), l.ring_bytes());
    move(side.tiles.sinks + place.slot * l.sinks_bytes(), sinks.data(), l.sinks_bytes());
    move(side.tiles.centre + place.slot * (l.centre_bytes() / 4), centre.data(), l.centre_bytes());
    move(side.tiles.head_scale + place.slot * (l.head_scale_bytes() / 4), head_scale.data(), l.head_scale_bytes());
    move(side.states().at(place.slot, place.n), state.data(), l.state_bytes());
  }

  const Side& side;
  const SequencePlace& place;
  const std::span<const int32_t> held;
  std::vector<std::byte> pages, ring, sinks;
  std::vector<float> centre, head_scale, state;
};

SideImage DeviceKvMemory::read_side(int layer, KvSide side, const SequencePlace& place) {
  const Side& of = held(layer, side);
  HostSide host(of, place);
  host.for_each_piece(
      [&](const void* device, void* here, int64_t bytes) { gpu::download(stream_, here, device, bytes); });
  stream_.synchronize();
  return image_of_side(of.layout, host.bytes(), place.n, place.ring_first[side_index(layer, side)],
                       place.first_of(page_class(layer)));
}

void DeviceKvMemory::write(const SequenceImage& image, const SequencePlace& place) {
  for (size_t i = 0; i < sides_.size(); ++i) {
    HostSide host(sides_[i], place);
    write_side(sides_[i].layout, image.sides[i].bytes.data(), image.n, image.sides[i].ring_first, host.bytes(),
               image.sides[i].coded_first);
    host.for_each_piece(
        [&](void* device, const void* here, int64_t bytes) { gpu::upload(stream_, device, here, bytes); });
    stream_.synchronize();
  }
}

void DeviceKvMemory::fill_in_fragments(const Side& s, const SequencePlace& place, uint64_t seed) {
  const KvTiles& t = s.tiles;
  const int64_t of_page = int64_t(t.n_kv_heads) * kPageTiles, of_ring = int64_t(t.n_kv_heads) * t.ring_tiles;
  const std::span<const int32_t> held = place.held_pages_of(page_class_of(t));
  for_each_run(held, [&](size_t first, int64_t n) {
    device_fill_tiles(stream_, t.kind, t.head_dim, n * of_page, seed + 3 * first,
                      t.pages + held[first] * s.layout.page_bytes());
  });
  device_fill_tiles(stream_, t.recent_kind, t.head_dim, of_ring, seed + 1, t.ring + place.slot * s.layout.ring_bytes());
  device_fill_tiles(stream_, TileKind::f16, t.head_dim, t.n_sinks > 0 ? t.n_kv_heads : 0, seed + 2,
                    t.sinks + place.slot * s.layout.sinks_bytes());
}

void DeviceKvMemory::fill_state(int layer, const SequencePlace& place, uint64_t seed) {
  const int64_t n = layout(layer, KvSide::k).state_values;
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values) x = float(rng.uniform() * 0.346 - 0.173);  // as the host has it
  gpu::upload(stream_, states(layer).at(place.slot, place.n), values.data(), 4 * n);
  stream_.synchronize();
}

/// One page of rows as the host fills it, and copies.
void DeviceKvMemory::fill_rows(int layer, const SequencePlace& place, uint64_t seed) {
  KvLayerConfig config{layout(layer, KvSide::k).config, layout(layer, KvSide::v).config,
                       tiles(layer, KvSide::k).n_kv_heads, tiles(layer, KvSide::k).head_dim};
  config.k.policy.rounding = config.v.policy.rounding = KvRounding::nearest;
  HostKvMemory host({&config, 1}, {}, nullptr, 1, 1);
  const int32_t page = 0;
  const int ring_first[2] = {};
  host.fill({0, kPagePositions, {&page, 1}, ring_first}, seed);
  for (const KvSide side : kKvSides) {
    const KvTiles &from = host.tiles(0, side), &to = tiles(layer, side);
    const KvLayout& l = layout(layer, side);
    for (const int32_t at : place.held_pages_of(page_class(layer)))
      gpu::upload(stream_, to.pages + at * l.page_bytes(), from.pages, l.page_bytes());
    gpu::upload(stream_, to.ring + place.slot * l.ring_bytes(), from.ring, l.ring_bytes());
    gpu::upload(stream_, to.sinks + place.slot * l.sinks_bytes(), from.sinks, l.sinks_bytes());
    if (l.head_scale_bytes() > 0)
      gpu::upload(stream_, to.head_scale + place.slot * to.n_kv_heads, from.head_scale, l.head_scale_bytes());
  }
  stream_.synchronize();
}

void DeviceKvMemory::fill(const SequencePlace& place, uint64_t seed) {
  for (int layer = 0; layer < n_layers(); ++layer) {
    const uint64_t own_seed = seed + 6 * uint64_t(layer) * uint64_t(n_pages() + 1);
    if (layout(layer, KvSide::k).state_values > 0) {
      fill_state(layer, place, own_seed);
      continue;
    }
    if (!in_fragments(layer)) {
      fill_rows(layer, place, own_seed);
      continue;
    }
    for (const KvSide side : kKvSides)
      fill_in_fragments(held(layer, side), place, own_seed + (side == KvSide::k ? 0 : 3 * uint64_t(n_pages() + 1)));
  }
}

PageCounts DeviceKvMemory::counts(int layer, KvSide side, int page) {
  PageCounts counts;
  gpu::download(stream_, &counts, tiles(layer, side).counts + page, sizeof counts);
  stream_.synchronize();
  return counts;
}

std::vector<PageCounts> DeviceKvMemory::counts(int layer, KvSide side) {
  std::vector<PageCounts> counts(static_cast<size_t>(n_pages(page_class(layer))));
  gpu::download(stream_, counts.data(), tiles(layer, side).counts, int64_t(counts.size() * sizeof(PageCounts)));
  stream_.synchronize();
  return counts;
}

int64_t DeviceKvMemory::saturated(int layer, KvSide side) {
  unsigned long long count = 0;
  gpu::download(stream_, &count, tiles(layer, side).saturated, sizeof count);
  stream_.synchronize();
  return int64_t(count);
}

}  // namespace ridge
