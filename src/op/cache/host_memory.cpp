#include "op/cache/host_memory.h"

#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "op/cache/append.h"

namespace ridge {
namespace {

/// Ridge that is added to a metric's diagonal of mean 1: directions that no query looks at today still have a cost.
constexpr float kMetricRidge = 0.05f;

}  // namespace

void check_metric(const KvTiles& t, std::span<const float> metric) {
  RIDGE_CHECK(int64_t(metric.size()) == int64_t(t.n_kv_heads) * t.head_dim * t.head_dim,
              "weighted rounding needs a metric of {} x {} x {}, got {} values", t.n_kv_heads, t.head_dim, t.head_dim,
              metric.size());
}

std::vector<float> metric_in_cache_space(const RowRotation& rotation, int head_dim, std::span<const float> metric) {
  const size_t dim = size_t(head_dim), size = dim * dim;
  std::vector<float> turned(metric.begin(), metric.end());
  for (size_t head = 0; head < metric.size() / size; ++head) {
    float* form = turned.data() + head * size;
    for (int side = 0; side < 2; ++side) {
      for (size_t i = 0; i < dim; ++i) rotation.forward(form + i * dim);
      for (size_t i = 0; i < dim; ++i)
        for (size_t j = 0; j < i; ++j) std::swap(form[i * dim + j], form[j * dim + i]);
    }
    for (size_t i = 0; i < dim; ++i) form[i * dim + i] += kMetricRidge;
    for (size_t i = 0; i < size; ++i)
      RIDGE_CHECK(std::abs(form[i]) <= kMostMetric && (i % (dim + 1) != 0 || form[i] >= 1 / kMostMetric),
                  "entry ({}, {}) of a metric is {}", i / dim, i % dim, form[i]);
  }
  return turned;
}

HostKvMemory::Side::Side(int layer, const KvLayout& of, std::span<const float> metric_of_model, RoundRow round,
                         int n_pages, SlotNumbers slots)
    : layout(of),
      tiles(of.tiles),
      rotation(of.config.policy.rotation, layer, of.tiles.head_dim),
      pages(n_pages * of.page_bytes() + kPadBytes),
      centre(size_t(slots.n * of.centre_bytes() / 4), 0.0f),
      head_scale(size_t(slots.n * of.head_scale_bytes() / 4), 0.0f),
      n_histories(slots.n_histories),
      counts(size_t(n_pages)) {
  if (of.ring_bytes() > 0) ring = AlignedBuffer(slots.n * of.ring_bytes() + kPadBytes);
  if (of.state_bytes() > 0) state = AlignedBuffer(slots.n_states() * of.state_bytes());
  if (of.sinks_bytes() > 0) sinks = AlignedBuffer(slots.n * of.sinks_bytes() + kPadBytes);
  if (of.config.policy.rounding == KvRounding::weighted) {
    check_metric(tiles, metric_of_model);
    metric = metric_in_cache_space(rotation, tiles.head_dim, metric_of_model);
    tiles.metric = metric.data();
    tiles.round = round;
  }
  tiles.pages = pages.data();
  tiles.ring = ring.data();
  tiles.sinks = sinks.data();
  tiles.centre = centre.empty() ? nullptr : centre.data();
  tiles.head_scale = head_scale.empty() ? nullptr : head_scale.data();
  tiles.rotation = rotation.view();
  tiles.counts = counts.data();
}

SideBytes HostKvMemory::Side::bytes(const SequencePlace& place) const {
  SideBytes bytes;
  for (const int32_t page : place.pages_of(page_class_of(tiles)))
    bytes.pages.push_back(page == kNoPage ? nullptr : tiles.pages + page * layout.page_bytes());
  bytes.sinks = tiles.sinks + place.slot * layout.sinks_bytes();
  bytes.ring = tiles.ring + place.slot * layout.ring_bytes();
  if (tiles.centre) bytes.centre = tiles.centre + place.slot * layout.centre_bytes() / 4;
  if (tiles.head_scale) bytes.head_scale = tiles.head_scale + place.slot * layout.head_scale_bytes() / 4;
  bytes.state = states().at(place.slot, place.n);
  return bytes;
}

HostKvMemory::HostKvMemory(std::span<const KvLayerConfig> layers, std::span<const KvMetricView> metrics, RoundRow round,
                           PageNumbers n_pages, SlotNumbers slots)
    : KvMemory(layers, false, n_pages, slots), lost_from_(size_t(slots.n), INT_MAX) {
  sides_.reserve(2 * layers.size());
  for (int layer = 0; layer < n_layers(); ++layer)
    for (const KvSide side : kKvSides)
      sides_.emplace_back(rotation_layer(layers, layer), layout(layer, side),
                          metrics.empty() ? std::span<const float>() : metrics[size_t(layer)].side(side), round,
                          n_pages[page_class(layer)], slots);
  for (const auto& [frequency, n_tiles] : turn_tiles(layouts_, this->n_pages()))
    turn_tables_[frequency] = turn_table(frequency, n_tiles);
  for (Side& side : sides_) {
    side.tiles.saturated = &side.saturated;
    if (!side.layout.frequency.empty()) side.tiles.turn.table = turn_tables_[side.layout.frequency].data();
  }
}

int64_t HostKvMemory::allocated_bytes(int layer, KvSide side) const {
  const Side& s = held(layer, side);
  return s.pages.bytes() + s.ring.bytes() + s.sinks.bytes() + s.state.bytes() +
         4 * int64_t(s.centre.size() + s.head_scale.size()) + int64_t(s.counts.size() * sizeof(PageCounts));
}

void HostKvMemory::clear_slot(int slot) {
  set_lost_from(slot, INT_MAX);
  for (Side& side : sides_) {
    const int64_t centre = side.layout.centre_bytes() / 4, scales = side.layout.head_scale_bytes() / 4;
    std::fill_n(side.centre.begin() + slot * centre, centre, 0.0f);
    std::fill_n(side.head_scale.begin() + slot * scales, scales, 0.0f);
    std::fill_n(side.states().at(slot, 0), side.layout.state_values, 0.0f);
  }
}

void HostKvMemory::copy_slot(int from, int to, int n) {
  set_lost_from(to, lost_from(from));
  for (Side& side : sides_) {
    const auto copy = [&](std::byte* base, int64_t bytes) {
      if (bytes > 0) std::memcpy(base + to * bytes, base + from * bytes, size_t(bytes));
    };
    copy(side.tiles.ring, side.layout.ring_bytes());
    copy(side.tiles.sinks, side.layout.sinks_bytes());
    copy(reinterpret_cast<std::byte*>(side.centre.data()), side.layout.centre_bytes());
    copy(reinterpret_cast<std::byte*>(side.head_scale.data()), side.layout.head_scale_bytes());
    std::copy_n(side.states().at(from, n), side.layout.state_values, side.states().at(to, n));
  }
}

void HostKvMemory::copy_page(PageClass of, int from, int to) {
  for (Side& side : sides_) {
    if (page_class_of(side.tiles) != of) continue;
    const int64_t bytes = side.layout.page_bytes();
    std::memcpy(side.tiles.pages + to * bytes, side.tiles.pages + from * bytes, size_t(bytes));
    side.counts[size_t(to)] = side.counts[size_t(from)];
  }
}

void HostKvMemory::clear_counts(PageClass of, int page) {
  for (Side& side : sides_)
    if (page_class_of(side.tiles) == of) side.counts[size_t(page)] = {};
}

SideImage HostKvMemory::read_side(int layer, KvSide side, const SequencePlace& place) {
  const Side& of = held(layer, side);
  return image_of_side(of.layout, of.bytes(place), place.n, place.ring_first[side_index(layer, side)],
                       place.first_of(page_class(layer)));
}

void HostKvMemory::write(const SequenceImage& image, const SequencePlace& place) {
  set_lost_from(place.slot, image.lost_from);
  for (size_t i = 0; i < sides_.size(); ++i)
    write_side(sides_[i].layout, image.sides[i].bytes.data(), image.n, image.sides[i].ring_first,
               sides_[i].bytes(place), image.sides[i].coded_first);
}

void HostKvMemory::fill(const SequencePlace& place, uint64_t seed) {
  for (size_t i = 0; i < sides_.size(); ++i) {
    Side& side = sides_[i];
    const KvTiles& t = side.tiles;
    Rng rng(seed + i);
    std::vector<float> row(static_cast<size_t>(t.head_dim));
    const auto random_row = [&] {
      for (float& x : row) x = float(rng.uniform() * 3.46 - 1.73);  // variance 1
      return row.data();
    };
    for (int head = 0; head < t.n_kv_heads; ++head) {
      if (t.head_scale) t.head_scale[place.slot * t.n_kv_heads + head] = 1;
      for (int p = 0; p < t.n_sinks; ++p) write_exact_row(t, place.slot, head, p, random_row());
      for (int p = t.n_sinks; p < t.n_sinks + side.layout.ring_rows(); ++p)
        write_exact_row(t, place.slot, head, p, random_row());
    }
    for (int64_t j = 0; j < side.layout.state_values; ++j)
      side.states().at(place.slot, place.n)[j] = float(rng.uniform() * 0.346 - 0.173);
    // One page of rows; the other pages are copies.
    const std::span<const int32_t> pages = place.held_pages_of(page_class_of(t));
    if (pages.empty()) continue;
    PageCounts& counts = t.counts[pages[0]];
    for (int head = 0; head < t.n_kv_heads; ++head)
      for (int p = 0; p < kPagePositions; ++p)
        encode_row(t, place.slot, head, random_row(), t.coded_row(pages.data(), head, p), counts);
    for (const int32_t page : pages.subspan(1)) {
      std::memcpy(t.pages + page * side.layout.page_bytes(), t.pages + pages[0] * side.layout.page_bytes(),
                  size_t(side.layout.page_bytes()));
      t.counts[page] = counts;
    }
  }
}

}  // namespace ridge
