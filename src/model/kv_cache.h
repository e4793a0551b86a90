// The KV cache of one sequence, every layer and side in its own format.
//
// Cache space: a row is rotated by the layer's R (op/kv_append/rotation.h) and, when centring is on, shifted by the
// per-channel mean c of the first tokens. Both are exact and cost nothing per cached token: Q is rotated once a step,
// softmax ignores a constant added to every key's score, attention weights sum to one so c comes back once on the
// output, and the output is un-rotated once.
//
// Exactness by position: the first `sinks` tokens and at least the newest `window` tokens stay exact (sinks
// in f16, the window in the policy's `recent` format); a tile of 32
// positions is coded when all of it has left the window; nothing is coded before `calibration` positions have set c
// and, for formats without a scale in the row, the scale of each kv head.
// All of it depends on positions only, never on how the tokens were batched: prefill equals decode.
//
// Going back (truncate, shift): the ring still holds the newest ring rows as f16, so a cache that goes back by so
// little that everything the shorter one wants exact is still there equals, bit for bit, a cache that never went
// further. What is gone from the ring is read back from its coded rows and is from then on the exact row (it is coded
// again when it leaves the window). Centre and scales stay frozen with the sequence, also below `calibration`
// positions; only going back to 0 forgets them.
#pragma once

#include <functional>
#include <vector>

#include "base/aligned.h"
#include "model/kv_metric.h"
#include "op/attn/attn.h"
#include "op/kv_append/rotation.h"
#include "op/kv_append/rounding.h"

namespace ridge {

/// Format and policy of one side of one layer.
struct KvSideConfig {
  const KvFormat* format = nullptr;
  KvPolicy policy;

  /// Format of the rows in the window.
  const KvFormat& recent() const { return *find_kv_format(policy.recent).or_throw(); }
};

/// A format with its own policy, as a model gets it unless told otherwise. Only K is centred, and only where the
/// model's K has a bias: elsewhere the mean of the first keys does not stay the mean (docs/decisions/0004).
KvSideConfig default_kv_side(const KvFormat& format, bool is_k, bool k_has_bias);

/// What weighted rounding needs; empty members mean that no store rounds so.
struct KvRoundingTools {
  const KvMetric* metric = nullptr;
  RoundRow round = nullptr;

  /// As KvStore takes it, empty without a metric.
  std::span<const float> metric_of(bool is_k, int layer) const {
    return metric ? metric->layer(is_k, layer) : std::span<const float>();
  }
};

/// Rules and sizes of one side of one layer, wherever its bytes are.
struct KvLayout {
  KvLayout(const KvSideConfig& config, int head_dim);

  KvRetention retention;
  int ring_rows = 0;         ///< rows per head in the ring: slot = position % ring_rows
  int64_t row_bytes = 0;     ///< of a coded row
  int64_t recent_bytes = 0;  ///< of a row in the ring
};

/// Bytes of one side of one layer as allocated: total(n_ctx), exactly. The rotation's constants (at most 4 bytes per
/// channel and layer), the metric of weighted rounding and the scratch of prefill, shared by all layers, are not cache
/// and not counted.
struct KvBytes {
  int64_t per_token = 0;  ///< coded rows of all kv heads
  int64_t fixed = 0;      ///< sinks, ring, centre and scales per head, whatever the context
  int64_t padding = 0;    ///< slack behind rows for kernels that read past the last one
  int64_t total(int n_ctx) const { return per_token * n_ctx + fixed + padding; }
};
KvBytes kv_bytes(const KvSideConfig& config, int n_kv_heads, int head_dim);
/// Bytes that the rows of n positions take, each counted once as it is read, coded or exact; and what all share.
int64_t kv_held_bytes(const KvSideConfig& config, int n_kv_heads, int head_dim, int n);

/// What a report needs of one side of one layer.
struct KvStoreFacts {
  KvSideConfig config;
  int64_t allocated_bytes = 0;
  int64_t saturated = 0;
};

/// What a saved side needs besides its rows.
struct KvSideState {
  bool calibrated = false;
  int ring_first = 0;  ///< the ring holds positions [ring_first, n)
  int64_t saturated = 0;
};
/// Metric [n_kv_heads, head_dim, head_dim] as encoders of rotated rows need it: R M R^T, with a ridge.
std::vector<float> metric_in_cache_space(const RowRotation& rotation, int head_dim, std::span<const float> metric);

/// Exact rows of the tokens being prefilled, as floats. One for K and one for V serve all layers in turn.
struct KvScratch {
  AlignedBuffer exact;  // [n_kv_heads, n - first, head_dim]
  AlignedBuffer sinks;  // [n_kv_heads, policy.sinks, head_dim]
  int first = 0;
};

/// One side (K or V) of one layer.
class KvStore {
 public:
  /// `metric` [n_kv_heads, head_dim, head_dim], not rotated: required where the policy rounds weighted.
  KvStore(const KvSideConfig& config, int layer, int n_kv_heads, int head_dim, int n_ctx,
          std::span<const float> metric = {}, RoundRow round = nullptr);

  /// Adds rows [n_new, n_kv_heads * head_dim] at positions n_past, n_past + 1, ... The rows are left in cache space.
  void append(CpuContext& context, int n_past, View2<float> rows, KvScratch& scratch);
  /// The store as decode attention reads it when it holds n positions.
  KvSide decode_side(int n) const;
  /// The store as prefill attention reads it, for the tokens of the append that filled `scratch`.
  PrefillSide prefill_side(int n, const KvScratch& scratch) const;

  /// Q rows [n_tokens, n_heads * head_dim] into cache space (K's rotation).
  void rotate_queries(CpuContext& context, View2<float> q) const;
  /// Attention output out of cache space: centre added back, un-rotated (V's rotation). n_heads share n_kv_heads rows.
  void restore_output(CpuContext& context, int n_heads, View2<float> out) const;

  void reset();
  /// Goes back from n_past positions to n.
  void truncate(int n_past, int n);
  /// Drops positions [keep, keep + discard) of n_past and moves the later ones down. `turn` takes a row of the model
  /// (not rotated, not centred) to its new position: RoPE for K, null for V. Lossy where it is not null: coded rows are
  /// decoded, turned and coded again.
  void discard(int n_past, int keep, int discard, const std::function<void(float* row)>& turn);

  /// Positions [0, n) as bytes, in the reference layout of the format: centre [n_kv_heads, head_dim] and head scales
  /// [n_kv_heads] as f32 where there are any; then per kv head its f16 sinks, the rows in the ring from ring_first on
  /// in their own format, and the coded rows, each in order of position and a sink only as a sink.
  int64_t state_bytes(int n, int ring_first) const;
  KvSideState export_state(int n, std::byte* out) const;
  /// Whether a state of n positions can be this store's; check_state() before its bytes are looked at, then
  /// check_floats() on them (centre and head scales must be finite).
  Status check_state(int n, const KvSideState& state) const;
  Status check_floats(const std::byte* in) const;
  /// Takes over what export_state() of a store of equal configuration wrote; any n that fits.
  void import_state(int n, const KvSideState& state, const std::byte* in);
  int ring_first() const { return ring_first_; }

  /// Fills positions [0, n) with random rows: benchmarks only.
  void fill_random(CpuContext& context, int n, uint64_t seed, KvScratch& scratch);

  const KvSideConfig& config() const { return config_; }
  int n_kv_heads() const { return n_kv_heads_; }
  int head_dim() const { return head_dim_; }
  const KvLayout& layout() const { return layout_; }
  KvStoreFacts facts() const { return {config_, allocated_bytes(), saturated_}; }
  int64_t allocated_bytes() const;  ///< what the allocator gave; equals kv_bytes()
  int64_t saturated() const { return saturated_; }

 private:
  bool keeps_exact() const { return layout_.ring_rows > 0 || config_.policy.sinks > 0; }
  std::byte* coded_row(int head, int position) {
    return coded_.data() + (int64_t(head) * n_ctx_ + position) * layout_.row_bytes;
  }
  bool is_sink(int position) const { return position < config_.policy.sinks; }
  std::byte* exact_row(int head, int position);
  int64_t round_to_exact(int position, std::span<float> rows) const;
  void read_exact(int head, int position, float* out) const;
  void write_exact(int head, int position, const float* values);
  const float* head_scales() const { return head_scale_.empty() ? nullptr : head_scale_.data(); }
  KvCoding coding(int head) const {
    return {.scale = config_.policy.scale,
            .fixed = head_scale_.empty() ? 0.0f : head_scale_[size_t(head)],
            .metric = metric_.empty() ? nullptr : metric_.data() + size_t(head) * size_t(head_dim_) * size_t(head_dim_),
            .round = round_};
  }
  bool is_centred() const { return calibrated_ && config_.policy.centre; }
  void calibrate(int n_past, View2<float> rows);
  void shift(float* row, int head, float sign) const;
  /// Calls visit(bytes, size) for every piece of the state of positions [0, n), in the order of export_state().
  template <class Visit>
  void for_each_piece(int n, int ring_first, const Visit& visit);

  KvSideConfig config_;
  RowRotation rotation_;
  int n_kv_heads_, head_dim_, n_ctx_;
  KvLayout layout_;
  const KvFormat* recent_;
  RoundRow round_;
  std::vector<float> metric_;      // [n_kv_heads, head_dim, head_dim] in cache space, where the policy rounds weighted
  int ring_first_ = 0;             // the ring holds the positions from here on; 0 while there is no ring
  AlignedBuffer coded_;            // [n_kv_heads, n_ctx] rows of the format
  AlignedBuffer sinks_;            // f16 [n_kv_heads, sinks, head_dim]
  AlignedBuffer ring_;             // [n_kv_heads, ring_rows] rows of the recent format
  std::vector<float> centre_;      // [n_kv_heads, head_dim] where the policy centres; zero until calibrated
  std::vector<float> head_scale_;  // [n_kv_heads] where the format has head_scale; zero until calibrated
  bool calibrated_ = false;
  int64_t saturated_ = 0;
};

/// All layers of one sequence.
class KvCache {
 public:
  /// `k` and `v` have one entry per layer.
  KvCache(std::span<const KvSideConfig> k, std::span<const KvSideConfig> v, int n_kv_heads, int head_dim, int n_ctx,
          const KvRoundingTools& tools = {});

  KvStore& k(int layer) { return k_[size_t(layer)]; }
  KvStore& v(int layer) { return v_[size_t(layer)]; }
  const KvStore& k(int layer) const { return k_[size_t(layer)]; }
  const KvStore& v(int layer) const { return v_[size_t(layer)]; }
  int n_layers() const { return int(k_.size()); }
  int n_ctx() const { return n_ctx_; }
  KvScratch k_scratch, v_scratch;
  int n_past = 0;  ///< positions held; the forward pass advances it after all layers have appended

  void reset();
  /// Goes back to n positions, 0 <= n <= n_past; see KvStore.
  void truncate(int n);
  /// Drops positions [keep, keep + discard) and moves the later ones down; `turn` as in KvStore::discard.
  void discard(int keep, int discard, const std::function<void(float* row)>& turn);
  /// Becomes a copy of `other`, which must be equal in all but n_ctx; usage error naming what differs, nothing changed.
  Status copy_from(const KvCache& other);

 private:
  int n_ctx_;
  std::vector<KvStore> k_, v_;
};

/// The first setting of the two that differs, as "name a, not b"; empty when none does.
std::string kv_side_difference(const KvSideConfig& a, const KvSideConfig& b);

/// Refuses a format, rotation, window or sink count that cannot work at this head_dim, naming the flag to change.
Status check_kv_side(const KvSideConfig& config, std::string_view side, int head_dim);

}  // namespace ridge
