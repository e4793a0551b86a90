// New tokens on their way into the cache on a device: Q and K normed and turned to their position, K and V taken into
// cache space, rounded or coded, and written to their tiles. Positions are read on the device, so that a recorded
// launch serves every step. Given equal rows after RoPE the cache holds the bits that append.h leaves on the host.
#pragma once

#include <span>
#include <string_view>

#include "gpu/device.h"
#include "op/cache/step_rows.h"
#include "op/cache/tiles.h"

namespace ridge {

/// Largest head_dim of rows that a thread holds alone.
inline constexpr int kMaxDeviceHeadDim = 256;
/// Whether a device rounds rows of a format weighted: a thread alone holds up to kMaxDeviceHeadDim values, a warp the
/// largest rows of rotor-3 and rotor-4.
inline bool can_weigh_rows(std::string_view format, int head_dim) {
  return head_dim <= kMaxDeviceHeadDim ||
         (head_dim == kMostRowsHeadDim && (format == "rotor-3" || format == "rotor-4"));
}

struct DeviceAppend {
  StepRows rows;
  int n_heads = 0;  ///< query heads
  KvTiles k_tiles, v_tiles;
  /// Matrices [rows of the step]: q [n_heads * head_dim], k and v [n_kv_heads * head_dim], rows `pitch` floats apart.
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t q_pitch = 0, k_pitch = 0, v_pitch = 0;
  const float* q_norm = nullptr;  ///< [head_dim]: RMS norm of every head; null without
  const float* k_norm = nullptr;
  float norm_eps = 0;
  const float* cosines = nullptr;  ///< [rows.n, n_pairs] of device_rope_angles()
  const float* sines = nullptr;
  int n_pairs = 0;
  bool rope_halves = false;
  float* q_out = nullptr;  ///< [rows of the step, n_heads, head_dim], in K's cache space
  /// As q_out: the weights of a tile's angles (centre.h), for tile_attn() where the centre of K turns; null: not asked.
  float* q_weights = nullptr;
  bool overlap = false;       ///< not for tiles of rows
  bool queries_only = false;  ///< K and V are not looked at: the tiles are another layer's
};

/// Queues the launch: of both sides in the order of tensor cores, or both in rows. With `overlap` everything but q, k,
/// v and the tiles is read before the grid before has ended: a plain launch must lie between this one and whatever
/// wrote the rest. Rows of a sequence that completes calibration come with no later ones: device_calibrate() follows.
void device_append(gpu::StreamHandle stream, const DeviceAppend& a);

/// Latent rows (model/plan.h, LatentPlan): a row of K is [norm(kv latent), rope part], a query of a head its absorbed
/// latent part with the rope part behind it; width = rank + rope_dim is K's head_dim. V has no rows.
struct LatentAppend {
  StepRows rows;
  int n_heads = 0;
  KvTiles tiles;  ///< of K, with one kv head; tiles of rows
  int rank = 0;
  int query_dim = 0;                ///< of a head of `q`, whose last width - rank values are the rope part
  const float* absorbed = nullptr;  ///< [rows of the step, n_heads, rank]
  const float* q = nullptr;         ///< [rows of the step, n_heads, query_dim]
  const float* kv = nullptr;        ///< [rows of the step, width]
  const float* norm = nullptr;      ///< [rank]; null without
  float norm_eps = 0;
  const float* cosines = nullptr;  ///< [rows.n, n_pairs]
  const float* sines = nullptr;
  int n_pairs = 0;
  bool rope_halves = false;
  float* q_out = nullptr;  ///< [rows of the step, n_heads, width], in cache space
};
void device_append_latent(gpu::StreamHandle stream, const LatentAppend& a);

/// Whether the current device has the shared memory to calibrate a side.
bool can_calibrate(const KvTiles& side);
/// Sets the centres and the scales of heads of `side`, from the exact rows of the sequences in `rows`, each of which
/// has just come to kCalibration positions, and moves those rows to the centre of their tiles.
void device_calibrate(gpu::StreamHandle stream, const KvTiles& side, const StepRows& rows);

/// Tiles of any number of sides that leave their windows.
struct LeavingTiles {
  int n_sides = 0;
  const KvTiles* sides = nullptr;  ///< [n_sides] in device memory: one kind of order, one head_dim, one n_kv_heads
  KvTiles pair[2];                 ///< the sides, where `sides` is null
  bool in_fragments = false;       ///< the order of tensor cores
  bool weighs = false;             ///< some side rounds weighted
  bool near_metric = true;         ///< shared memory has room for a head's metric; the launch decides
  int n_kv_heads = 0;
  int head_dim = 0;
  const StepSpan* spans = nullptr;   ///< device memory
  const int32_t* n_spans = nullptr;  ///< how many there are, in device memory
  int most_spans = 0;                ///< as many take their turn side by side
  int most_tiles = 1;                ///< of a side that leave together
  const int32_t* pages = nullptr;    ///< as StepRows
  int page_pitch = 0;
  bool overlap = false;
};

/// Codes them where retention.coded_end(n) > coded_end(n_past). Rows that leave were in the ring before a step of up to
/// kSpareRows rows: one launch in front of the first layer will do for all layers.
void encode_leaving(gpu::StreamHandle stream, const LeavingTiles& a);

/// Angles of the rows' positions: cosines and sines [rows.n, n_pairs], times `magnitude`. Angles in double: at position
/// 128k a float angle would be off by up to 0.008 rad.
void device_rope_angles(gpu::StreamHandle stream, const StepRows& rows, int n_pairs, const double* frequency,
                        float magnitude, float* cosines, float* sines);

/// Heads of a matrix [rows of the step, n_heads * head_dim], in place.
struct TurnedHeads {
  StepRows rows;
  int n_heads = 0, head_dim = 0;
  const float* norm = nullptr;  ///< [head_dim]
  float norm_eps = 0;
  const float* cosines = nullptr;  ///< [rows.n, n_pairs] of device_rope_angles()
  const float* sines = nullptr;
  int n_pairs = 0;
  bool rope_halves = false;
  float* x = nullptr;
};
/// Turns each head by the angles of its row, then norms it: for models that norm Q and K behind RoPE.
void device_turn_and_norm(gpu::StreamHandle stream, const TurnedHeads& a);

/// The rules of retention that the sides of a cache have.
struct Retentions {
  static constexpr int kMost = 4;
  int n = 0;  ///< above kMost: too many to list, every row is taken to make a tile leave
  KvRetention at[kMost];
  void add(const KvRetention& r);
};
/// The spans of rows whose next token makes some tile leave: spans [rows.n], *n_spans.
void device_list_leaving(gpu::StreamHandle stream, const StepRows& rows, const Retentions& retentions, StepSpan* spans,
                         int32_t* n_spans);
/// The position of every row += 1.
void device_next_position(gpu::StreamHandle stream, int n, StepRow* rows);

/// Texts whose steps a device queues by itself, at most.
inline constexpr int kMostTextsAhead = 16;

/// Rows of a text in a step, where its place in the text is device data. Pointers to device memory.
struct TextRows {
  const int32_t* base = nullptr;  ///< position of the first row, less `offset`
  int offset = 0;
  const int32_t* n_valid = nullptr;  ///< rows that there are, at most n; null: n
  int n = 0;                         ///< rows of the step; those behind the valid ones are padding
  int slot = -1;                     ///< of the sequence; -1: all are padding
  const int32_t* from = nullptr;     ///< tokens of the valid rows
};
/// Rows that a step of such texts reads: one text's rows behind another's.
struct TextStep {
  int n_texts = 0;
  TextRows texts[kMostTextsAhead];
  int n_padded = 0;              ///< rows to write
  StepRow* rows = nullptr;       ///< [n_padded]
  int32_t* tokens = nullptr;     ///< [rows of the texts]
  int32_t* last_rows = nullptr;  ///< [n_texts]: get the number of each text's last valid row; null: nobody asks
};
/// Writes rows and tokens.
void device_text_rows(gpu::StreamHandle stream, const TextStep& step);

/// The ring of a step has the exact rows of a prompt that is too long for its sequence's own: the same kind of rows,
/// more tiles, a slot a span (StepSpan::ring).
enum class RingCopy : uint8_t {
  in,   ///< into the ring of the step: tiles of the sequence's own that queries may see, before the prompt is appended;
        ///< new tiles that get fewer than 32 rows are cleared
  out,  ///< back: the newest tiles
};
/// Of K and V. spans [n] in device memory; of_step.ring_tiles has room for what queries of each may see.
void copy_ring_tiles(gpu::StreamHandle stream, std::span<const KvTiles, 2> own, std::span<const KvTiles, 2> of_step,
                     const StepSpan* spans, int n, RingCopy direction);

/// Fills n_tiles tiles with random codes that are valid, finite and about as large as those of real rows.
void device_fill_tiles(gpu::StreamHandle stream, TileKind kind, int head_dim, int64_t n_tiles, uint64_t seed,
                       std::byte* tiles);

}  // namespace ridge
