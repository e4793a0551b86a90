// Pages and slots in the memory of the CPU: tiles hold rows as their formats define them.
#pragma once

#include "base/aligned.h"
#include "op/cache/memory.h"
#include "op/cache/rotation.h"
#include "op/cache/rounding.h"

namespace ridge {

/// Metrics of one layer for weighted rounding: forms [n_kv_heads, head_dim, head_dim] of K and V, not rotated; empty
/// where no side of the layer rounds so.
struct KvMetricView {
  std::span<const float> k, v;
  std::span<const float> side(KvSide side) const { return side == KvSide::k ? k : v; }
};

/// Whether weighted rounding of a side was given a metric of its shape.
void check_metric(const KvTiles& tiles, std::span<const float> metric);
/// Metric [n_kv_heads, head_dim, head_dim] as encoders of rotated rows need it: R M R^T, with a ridge.
std::vector<float> metric_in_cache_space(const RowRotation& rotation, int head_dim, std::span<const float> metric);

class HostKvMemory final : public KvMemory {
 public:
  /// `metrics` has an entry a layer, or none where nothing rounds weighted; `round` is the kernel for it. Throws Error
  /// no_memory.
  HostKvMemory(std::span<const KvLayerConfig> layers, std::span<const KvMetricView> metrics, RoundRow round,
               PageNumbers n_pages, SlotNumbers slots);

  /// As ops read and write a side; good as long as this object.
  const KvTiles& tiles(int layer, KvSide side) const { return sides_[side_index(layer, side)].tiles; }
  /// States of a layer; null where it has none.
  LayerStates states(int layer) const { return held(layer, KvSide::k).states(); }

  using KvMemory::allocated_bytes;
  int64_t allocated_bytes(int layer, KvSide side) const override;
  int lost_from(int slot) const override { return lost_from_[size_t(slot)]; }
  void set_lost_from(int slot, int position) { lost_from_[size_t(slot)] = position; }
  void clear_slot(int slot) override;
  void copy_slot(int from, int to, int n) override;
  using KvMemory::clear_counts;
  using KvMemory::copy_page;
  using KvMemory::set_pages;
  void copy_page(PageClass of, int from, int to) override;
  void clear_counts(PageClass of, int page) override;
  void set_pages(PageClass, int, int, std::span<const int32_t>) override {}
  SideImage read_side(int layer, KvSide side, const SequencePlace& place) override;
  void write(const SequenceImage& image, const SequencePlace& place) override;
  void fill(const SequencePlace& place, uint64_t seed) override;
  PageCounts counts(int layer, KvSide side, int page) override { return tiles(layer, side).counts[page]; }
  std::vector<PageCounts> counts(int layer, KvSide side) override { return held(layer, side).counts; }
  int64_t saturated(int layer, KvSide side) override { return int64_t(*tiles(layer, side).saturated); }

 private:
  struct Side {
    Side(int layer, const KvLayout& layout, std::span<const float> metric_of_model, RoundRow round, int n_pages,
         SlotNumbers slots);
    SideBytes bytes(const SequencePlace& place) const;
    LayerStates states() const {
      auto* const values = reinterpret_cast<float*>(const_cast<std::byte*>(state.data()));
      return {values, layout.state_values, n_histories};
    }

    KvLayout layout;
    KvTiles tiles;
    RowRotation rotation;
    std::vector<float> metric;
    AlignedBuffer pages, ring, sinks;
    std::vector<float> centre, head_scale;
    AlignedBuffer state;  // LayerStates
    int n_histories;
    std::vector<PageCounts> counts;
    unsigned long long saturated = 0;
  };

  const Side& held(int layer, KvSide side) const { return sides_[side_index(layer, side)]; }

  std::map<std::vector<double>, std::vector<float>> turn_tables_;  // by frequencies
  std::vector<Side> sides_;     // [2 n_layers], never moved after construction: tiles point into them
  std::vector<int> lost_from_;  // [n_slots]
};

}  // namespace ridge
