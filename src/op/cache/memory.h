// The bytes of a pool of sequences: pages and slots of every layer, on some device. tiles.h says what the bytes mean,
// engine/pool.h who holds which page.
#pragma once

#include <climits>
#include <map>
#include <span>
#include <vector>

#include "op/cache/layout.h"
#include "op/cache/states.h"

namespace ridge {

/// Numbers of pages, of each class.
struct PageNumbers {
  PageNumbers(int of_each) : full(of_each), sliding(of_each) {}
  PageNumbers(int of_full, int of_sliding) : full(of_full), sliding(of_sliding) {}
  int operator[](PageClass of) const { return of == PageClass::full ? full : sliding; }
  int& operator[](PageClass of) { return of == PageClass::full ? full : sliding; }

  int full, sliding;
};
/// In a sequence's list of pages: given back.
inline constexpr int32_t kNoPage = -1;

/// Where a sequence is and how far its exact rows reach.
struct SequencePlace {
  int slot = 0;
  int n = 0;                        ///< positions held
  std::span<const int32_t> pages;   ///< of full layers: enough for the coded rows of every side
  std::span<const int> ring_first;  ///< [2 n_layers], K and V of each layer: the ring holds positions [ring_first, n)
  std::span<const int32_t> sliding_pages = {};  ///< of sliding layers; kNoPage where they are given back
  int sliding_first = 0;                        ///< their coded rows are held from this position on

  std::span<const int32_t> pages_of(PageClass of) const { return of == PageClass::full ? pages : sliding_pages; }
  int first_of(PageClass of) const { return of == PageClass::full ? 0 : sliding_first; }
  std::span<const int32_t> held_pages_of(PageClass of) const {
    return pages_of(of).subspan(size_t(first_of(of) / kPagePositions));
  }
};

/// One side of one layer of a sequence as bytes that are the same for every device: centre [n_kv_heads, head_dim] and
/// head scales [n_kv_heads] as f32 where the side has them, and its state; then for every kv head its f16 sinks, the
/// rows in the ring from ring_first on and the coded rows from coded_first on, each in order of position and in the
/// layout that the format defines. A sink is held as a sink only.
struct SideImage {
  int ring_first = 0;
  std::vector<std::byte> bytes;
  int coded_first = 0;  ///< above 0 in sliding layers only, all alike
};
/// A sequence in host memory, for files, parking and moves between pools and devices: bit for bit what it was.
struct SequenceImage {
  int n = 0;
  bool calibrated = false;
  std::vector<SideImage> sides;  ///< [2 n_layers], K and V of each layer
  int lost_from = INT_MAX;       ///< as KvMemory's; files have none: such a sequence goes into no file
};
/// Bytes of the image of a side with n positions.
int64_t side_image_bytes(const KvLayout& layout, int n, int ring_first, int coded_first = 0);
/// Whether the exact rows [ring_first, n) and the coded ones from coded_first on can be those of a side that holds n
/// positions, and `calibrated` its state.
Status check_side_state(const KvLayout& layout, int n, int ring_first, bool calibrated, int coded_first = 0);
/// Centre, head scales and state at the front of a side's bytes must be finite, scales not negative.
Status check_side_floats(const KvLayout& layout, const std::byte* bytes);

/// Frequencies whose centres turn (centre.h), with the tiles of the longest sequence that n_pages hold: a table each.
std::map<std::vector<double>, int> turn_tiles(std::span<const KvLayouts> layouts, int n_pages);

/// Bytes of the pages and slots of such caches; `fragments`: in the tiles of devices, where those have the format.
int64_t cache_bytes(std::span<const KvLayerConfig> layers, bool fragments, PageNumbers n_pages, SlotNumbers slots);

class KvMemory {
 public:
  virtual ~KvMemory() = default;

  int n_layers() const { return int(layouts_.size()); }
  const KvLayout& layout(int layer, KvSide side) const { return layouts_[size_t(layer)].side(side); }
  std::span<const KvLayouts> layouts() const { return layouts_; }
  PageClass page_class(int layer) const { return page_class_of(layout(layer, KvSide::k).tiles); }
  /// Classes that have layers: one, or both.
  std::span<const PageClass> page_classes() const { return classes_; }
  int n_pages(PageClass of) const { return n_pages_[of]; }
  /// Pages of full-attention layers; also the most pages in a sequence's list, of whatever class.
  int n_pages() const { return n_pages_.full; }
  int n_slots() const { return slots_.n; }
  SlotNumbers slots() const { return slots_; }
  /// States of a slot: its sequence can bring as many tokens to a step, or to several, and be taken back to any length
  /// behind the first of them.
  int states_kept(int slot) const { return numbers().kept(slot); }
  /// Bytes of one page of a class, of one page of each and of one slot without a history, over all layers.
  int64_t page_bytes(PageClass of) const { return page_bytes_[size_t(of)]; }
  int64_t page_bytes() const { return page_bytes_[0] + page_bytes_[1]; }
  int64_t slot_bytes() const { return slot_bytes_; }
  /// Bytes that a history adds to a slot, over all layers.
  int64_t history_bytes() const { return history_bytes_; }
  /// The part of this memory that this process has, where several share it.
  virtual const KvMemory& here() const { return *this; }
  /// Bytes that the allocator gave one side: its pages and slots, and overhead_bytes().
  virtual int64_t allocated_bytes(int layer, KvSide side) const = 0;
  /// Padding behind rows, and counts.
  int64_t overhead_bytes(int layer, KvSide side) const;
  int64_t allocated_bytes() const;
  /// Bytes that such a memory with n pages would have as allocated_bytes(). This one must have one page of each class.
  int64_t bytes_with_pages(PageNumbers n) const;

  /// A slot as an empty sequence needs it: no centre, no scales of heads.
  virtual void clear_slot(int slot) = 0;
  /// The slot of a sequence of n positions, whose newest state alone is copied.
  virtual void copy_slot(int from, int to, int n) = 0;
  virtual void copy_page(PageClass of, int from, int to) = 0;
  /// A page that is taken for new rows: its counts start again.
  virtual void clear_counts(PageClass of, int page) = 0;
  /// Entries first, first + 1, ... of a slot's list of pages, where a device has lists of its own.
  virtual void set_pages(PageClass of, int slot, int first, std::span<const int32_t> pages) = 0;
  /// Call the function of the same name for every page class: for caches of one layer, or of lists that are alike.
  void copy_page(int from, int to);
  void clear_counts(int page);
  void set_pages(int slot, int first, std::span<const int32_t> pages);

  /// The first position of a slot's sequence whose K or V was not finite, which no format can say; INT_MAX: none. No
  /// logits may come of what follows.
  virtual int lost_from(int /*slot*/) const { return INT_MAX; }

  SequenceImage read(const SequencePlace& place, bool calibrated);
  virtual SideImage read_side(int layer, KvSide side, const SequencePlace& place) = 0;
  virtual void write(const SequenceImage& image, const SequencePlace& place) = 0;
  /// Valid rows of unit variance in all pages and rings of a sequence, for benchmarks at depth: made quickly, unlike
  /// any other memory's, and the same for the same seed.
  virtual void fill(const SequencePlace& place, uint64_t seed) = 0;

  virtual PageCounts counts(int layer, KvSide side, int page) = 0;
  /// Counts of all pages of the layer's class: one copy from a device.
  virtual std::vector<PageCounts> counts(int layer, KvSide side) = 0;
  /// Values that were clamped while coding, since the memory was made.
  virtual int64_t saturated(int layer, KvSide side) = 0;

 protected:
  /// In lists of sides: K and V of each layer.
  static size_t side_index(int layer, KvSide side) { return 2 * size_t(layer) + size_t(side); }
  static int rotation_layer(std::span<const KvLayerConfig> layers, int i) {
    return layers[size_t(i)].layer >= 0 ? layers[size_t(i)].layer : i;
  }
  /// How the states of every layer are numbered.
  LayerStates numbers() const { return {.n_histories = slots_.n_histories}; }
  /// Number of the state behind n tokens of a slot's sequence, the same in every layer.
  int state_number(int slot, int n) const { return int(numbers().number(slot, n)); }
  static constexpr int64_t kPadBytes = 64;  ///< kernels may read this far past the last row
  /// `fragments`: tiles are in the order of tensor cores where kernels have one (device_tiles()).
  KvMemory(std::span<const KvLayerConfig> layers, bool fragments, PageNumbers n_pages, SlotNumbers slots);

  std::vector<KvLayouts> layouts_;
  const PageNumbers n_pages_;
  const SlotNumbers slots_;
  std::vector<PageClass> classes_;
  int64_t page_bytes_[kPageClasses] = {}, slot_bytes_ = 0, history_bytes_ = 0;
};

/// A side's pages and slot of one sequence in host memory, in the order of its layout.
struct SideBytes {
  std::vector<std::byte*> pages;  ///< null: given back
  std::byte* sinks = nullptr;
  std::byte* ring = nullptr;
  float* centre = nullptr;
  float* head_scale = nullptr;
  float* state = nullptr;
};
/// The image's bytes from a side's bytes, and back: rows of pages that are null are left out.
void read_side(const KvLayout& layout, const SideBytes& from, int n, int ring_first, std::byte* image,
               int coded_first = 0);
void write_side(const KvLayout& layout, const std::byte* image, int n, int ring_first, const SideBytes& to,
                int coded_first = 0);
SideImage image_of_side(const KvLayout& layout, const SideBytes& from, int n, int ring_first, int coded_first = 0);

/// How the rows of one kind of a side's tiles are held.
struct TileRowsForm {
  TileKind kind;
  int format;  ///< number in kv_formats()
  int64_t row_bytes;
};
TileRowsForm coded_form(const KvTiles& tiles);
TileRowsForm recent_form(const KvTiles& tiles);
TileRowsForm sink_form(const KvTiles& tiles);
/// The row of a position from its tile, as bytes of its format, whatever the tile's order.
void read_row(const TileRowsForm& form, const KvTiles& tiles, const std::byte* tile, int position, std::byte* row);

}  // namespace ridge
