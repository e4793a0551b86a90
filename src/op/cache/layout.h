// Rules and sizes of one side (K or V) of one layer of a cache, wherever its bytes are.
#pragma once

#include <span>
#include <string>

#include "format/list.h"
#include "op/cache/states.h"
#include "op/cache/tiles.h"
#include "op/cpu.h"

namespace ridge {

/// Format and policy of one side of one layer.
struct KvSideConfig {
  const KvFormat* format = nullptr;
  KvPolicy policy;

  /// Format of the rows in the window.
  const KvFormat& recent() const { return *find_kv_format(policy.recent).or_throw(); }
};

/// A format with its own policy, as a model gets it unless told otherwise. Rows that serve as V, latent ones too, are
/// not centred.
KvSideConfig default_kv_side(const KvFormat& format, KvSide side);

/// Configuration of one layer's memory: rows of its KV heads, or, without KV heads, a state.
struct KvLayerConfig {
  KvSideConfig k, v;
  int n_kv_heads = 0;
  int head_dim = 0;
  int attention_window = 0;      ///< as KvTiles has it
  int64_t state_values = 0;      ///< float32 values of a state of fixed size, zero at the start; the K side has it
  bool state_elsewhere = false;  ///< other ranks have its state: sequences are bound by it here too
  int n_readers = 1;             ///< layers that read its rows: itself, and those that have none of their own
  int layer = -1;                ///< of the model, whose rotation both sides take; -1: its place in the list of layers

  KeyRope rope;         ///< how the rows of K were turned; without pairs where they were not
  bool v_is_k = false;  ///< the rows of K serve as V too: V has no rows of its own, and the settings of K
  int index_dim = 0;  ///< > 0, with v_is_k: V has one row of so many values, by which queries choose keys, settings too

  const KvSideConfig& side(KvSide side) const { return side == KvSide::k ? k : v; }
};

/// The greatest number that divides the head_dim of every layer.
int common_head_dim(std::span<const KvLayerConfig> layers);

struct KvLayout {
  /// `in_fragments`: tiles are in the order of tensor cores (device_tiles() must be ok); else they hold rows.
  KvLayout(const KvLayerConfig& layer, KvSide side, bool in_fragments);

  KvSideConfig config;
  KvTiles tiles;                  ///< rules and sizes; its pointers are null
  std::vector<double> frequency;  ///< of the pairs by which its centre turns; empty where it does not
  bool has_rope = false;          ///< its rows are turned by RoPE: of K, or of an index
  int64_t state_values = 0;
  bool state_elsewhere = false;
  int n_readers = 1;

  /// Bytes that a step of one token behind n - 1 others reads: rows, once a reader, and the state.
  int64_t step_bytes(int n) const;
  bool calibrates() const { return tiles.retention.calibration > 0; }
  int ring_rows() const { return tiles.ring_tiles * kTilePositions; }
  int64_t page_bytes() const { return tiles.page_bytes(); }
  /// Bytes of one more coded position.
  int64_t bytes_per_token() const { return tiles.n_kv_heads * tiles.row_bytes; }
  /// Parts of a sequence's slot.
  int64_t sinks_bytes() const { return tiles.n_kv_heads * tiles.sink_bytes; }
  int64_t ring_bytes() const { return int64_t(tiles.n_kv_heads) * tiles.ring_tiles * tiles.ring_tile_bytes; }
  int64_t centre_bytes() const { return config.policy.centre ? 4 * int64_t(tiles.n_kv_heads) * tiles.head_dim : 0; }
  int64_t head_scale_bytes() const { return config.format->head_scale ? 4 * int64_t(tiles.n_kv_heads) : 0; }
  int64_t state_bytes() const { return 4 * state_values; }
  /// Beside the parts of other slots.
  int64_t history_bytes() const { return (kStateHistory - 1) * state_bytes(); }
  int64_t slot_bytes() const {
    return sinks_bytes() + ring_bytes() + centre_bytes() + head_scale_bytes() + state_bytes();
  }
};

/// Bytes that attention of the n_new newest tokens reads of a side with n positions: each row that one of them sees
/// once, as a sink, coded or exact.
int64_t kv_read_bytes(const KvTiles& tiles, int n, int n_new = 1);

/// The two sides of a layer.
struct KvLayouts {
  KvLayouts(const KvLayerConfig& layer, bool in_fragments)
      : k(layer, KvSide::k, in_fragments), v(layer, KvSide::v, in_fragments) {}
  KvLayout k, v;
  const KvLayout& side(KvSide side) const { return side == KvSide::k ? k : v; }
};

/// Pages that hold the coded rows of n positions.
int pages_for(const KvRetention& retention, int n);

/// Layers share pages with those whose queries see as far: all positions, or the newest ones only (sliding layers,
/// which give pages back). A page of a class holds its positions of all layers of the class.
enum class PageClass : uint8_t { full, sliding };
inline constexpr int kPageClasses = 2;
inline PageClass page_class_of(const KvTiles& tiles) {
  return tiles.attention_window > 0 ? PageClass::sliding : PageClass::full;
}
/// The first position whose page a sequence of n positions needs for going on: what the next query sees coded, and what
/// is coded next.
int first_needed(const KvTiles& tiles, int n);

/// Whether a device holds the layer's tiles in the order of tensor cores, or why it holds rows: the fast kernels are
/// for head_dims of 64, 128 and 256 and code rows either as they come or when their tile leaves a window.
Support device_tiles(const KvLayerConfig& layer);

/// The first setting of the two that differs, as "name a, not b"; empty when none does.
std::string kv_side_difference(const KvSideConfig& a, const KvSideConfig& b);

/// Refuses a format, rotation, window or sink count that cannot work at this head_dim, naming the setting.
Status check_kv_side(const KvSideConfig& config, std::string_view side, int head_dim);

}  // namespace ridge
