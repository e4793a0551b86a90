// Pages and slots in the memory of a device. Tiles are in the order of tensor cores where kernels have one for the
// layer (device_tiles()), else they hold rows as on the host. Everything is queued on one stream.
#pragma once

#include "gpu/device.h"
#include "op/cache/append_cuda.h"
#include "op/cache/copy_parts_cuda.h"
#include "op/cache/memory.h"

namespace ridge {

struct KvMetricView;

/// Sides with one kind of order, one class of pages, one head_dim and as many kv heads: what one launch can code.
struct SideGroup {
  PageClass pages = PageClass::full;
  bool in_fragments = false, weighs = false;
  int n_kv_heads = 0, head_dim = 0, n_sides = 0;
  gpu::Buffer tiles;  ///< [n_sides] KvTiles
};

class DeviceKvMemory final : public KvMemory {
 public:
  /// On the current device; `stream` outlives the memory. `metrics` has an entry a layer, or none where nothing rounds
  /// weighted. Throws Error no_memory.
  DeviceKvMemory(const gpu::Stream& stream, std::span<const KvLayerConfig> layers,
                 std::span<const KvMetricView> metrics, PageNumbers n_pages, SlotNumbers slots);

  /// No other memory of this process has or had the same.
  uint64_t serial() const { return serial_; }
  /// As kernels read and write a side.
  const KvTiles& tiles(int layer, KvSide side) const { return held(layer, side).tiles; }
  LayerStates states(int layer) const { return held(layer, KvSide::k).states(); }
  bool in_fragments(int layer) const { return tiles(layer, KvSide::k).kind != TileKind::rows; }
  std::span<const SideGroup> groups() const { return groups_; }
  const Retentions& retentions() const { return retentions_; }
  /// Lists of pages of every slot's sequence, [n_slots, n_pages()]; of the first class that has layers.
  const int32_t* page_table(PageClass of) const { return of_class(of).table.as<int32_t>(); }
  const int32_t* page_table() const { return page_table(page_classes()[0]); }

  /// The bytes of a row in its format, for checks: of a coded row the place is a page, else a slot.
  enum class RowForm : uint8_t { coded, recent, sink };
  std::vector<std::byte> row_bytes(int layer, KvSide side, RowForm form, int place, int head, int position) const;

  using KvMemory::allocated_bytes;
  int64_t allocated_bytes(int layer, KvSide side) const override;
  void clear_slot(int slot) override;
  void copy_slot(int from, int to, int n) override;
  using KvMemory::clear_counts;
  using KvMemory::copy_page;
  using KvMemory::set_pages;
  void copy_page(PageClass of, int from, int to) override;
  void clear_counts(PageClass of, int page) override;
  void set_pages(PageClass of, int slot, int first, std::span<const int32_t> pages) override;
  SideImage read_side(int layer, KvSide side, const SequencePlace& place) override;
  void write(const SequenceImage& image, const SequencePlace& place) override;
  /// Codes at random, in no time.
  void fill(const SequencePlace& place, uint64_t seed) override;
  PageCounts counts(int layer, KvSide side, int page) override;
  std::vector<PageCounts> counts(int layer, KvSide side) override;
  int64_t saturated(int layer, KvSide side) override;

 private:
  struct Side {
    Side(const gpu::Stream& stream, int layer, const KvLayout& layout, std::span<const float> metric_of_model,
         int n_pages, SlotNumbers slots);
    LayerStates states() const { return {state.as<float>(), layout.state_values, n_histories}; }
    int64_t bytes() const {
      return pages.bytes() + ring.bytes() + sinks.bytes() + centre.bytes() + head_scale.bytes() + state.bytes() +
             counts.bytes();
    }

    KvLayout layout;
    KvTiles tiles;
    int n_histories;
    gpu::Buffer pages, ring, sinks, centre, head_scale, state, metric, rotation, counts;
  };
  struct Parts {
    gpu::Buffer list;  // CachePart
    int n = 0;
    const CachePart* get() const { return list.as<CachePart>(); }
  };
  struct OfClass {
    gpu::Buffer table;
    Parts page, counts;
  };
  struct HostSide;

  const OfClass& of_class(PageClass of) const { return of_class_[size_t(of)]; }
  const Side& held(int layer, KvSide side) const { return sides_[side_index(layer, side)]; }
  void fill_in_fragments(const Side& side, const SequencePlace& place, uint64_t seed);
  void fill_state(int layer, const SequencePlace& place, uint64_t seed);
  void fill_rows(int layer, const SequencePlace& place, uint64_t seed);

  const gpu::Stream& stream_;
  const uint64_t serial_;
  std::map<std::vector<double>, gpu::Buffer> turn_tables_;  // by frequencies
  std::vector<Side> sides_;                                 // [2 n_layers]
  gpu::Buffer saturated_;                                   // [2 n_layers]
  OfClass of_class_[kPageClasses];
  Parts of_slot_, slot_floats_, states_;
  std::vector<SideGroup> groups_;
  Retentions retentions_;
};

}  // namespace ridge
