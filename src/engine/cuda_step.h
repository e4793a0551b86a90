// A step of any sequences as a CUDA device runs it: which rows go together, and the lists that kernels read.
#pragma once

#include <algorithm>
#include <array>
#include <map>

#include "engine/batch.h"
#include "model/plan.h"
#include "op/attn/attn_cuda.h"
#include "op/cache/device_memory.h"
#include "op/delta/delta_cuda.h"

namespace ridge {

struct StepShape;  // engine/cpu_workspace.h

/// Kernels of attention that take blocks of queries from a list.
enum class BlockKernel : uint8_t { prefill, rows_f16, rows };
/// Of latent rows, which are both sides, v has no heads.
BlockKernel block_kernel(const KvTiles& k, const KvTiles& v);

/// Layers whose blocks are the same.
struct BlockKey {
  BlockKernel kernel;
  int n_kv_heads, group;  ///< query heads of a kv head
  int head_dim, window;

  auto operator<=>(const BlockKey&) const = default;
};
/// Their blocks in a list of all.
struct BlockRange {
  int first = 0, n = 0;
  int queries = 0;             ///< of a block
  int part_rows = 0;           ///< PrefillList's
  bool by_warpgroups = false;  ///< PrefillPlan's
};

/// Rows of different sequences that are appended and then attend together. Sub-batches run one after another: a prompt
/// that completes calibration comes in up to three.
struct SubBatch {
  int first_row = 0, n_rows = 0;    ///< of the list of rows
  int first_span = 0, n_spans = 0;  ///< of the list of spans
  int most = 1;                     ///< rows of one sequence, at most
  bool is_long = false;     ///< sequences with more than kShortTokens rows: their exact rows have a ring of the step
  bool calibrates = false;  ///< each row completes its sequence's calibration
  int ring_tiles = 0;       ///< of the ring of the step
  int leaving_tiles = 0;    ///< of a side, that leave at once at most
  std::vector<KvSpan> kv_spans;  ///< for the launch log
  std::map<BlockKey, BlockRange> blocks;
};

/// What the kernels of a step read from device memory, as the host makes it.
struct StepPlan {
  int64_t n_tokens = 0;
  bool recorded = false;  ///< one sub-batch of short sequences that calibrates nothing: a graph may run it
  bool overlap = false;   ///< its launches start while the one before drains (programmatic dependent launch)
  bool alone = false;     ///< TileAttnPlan's
  std::vector<SubBatch> sub_batches;
  std::vector<StepRow> rows;
  std::vector<StepSpan> spans;
  std::vector<AttnBlock> blocks;
  std::vector<int32_t> n_spans;  ///< of each sub-batch
  std::vector<DeltaSpan>
      sequences;        ///< not cut; of a recorded step as many as rows, behind those of the batch empty ones
  int most_tokens = 1;  ///< of one sequence
  int n_delta_chunks = 0, n_chunked = 0;  ///< of `sequences`: chunks of kDeltaChunk tokens, and those that have some
  std::vector<int32_t> logit_rows;        ///< rows of the step's matrices that get logits
  bool logits_in_order = false;           ///< they are all rows, in order
  int n_leaving = 0;                      ///< sequences of a recorded step of which some tile leaves

  /// Rows of its matrices: tokens, and padding of a recorded step.
  int64_t n_rows() const { return std::max<int64_t>(n_tokens, ssize(rows)); }
  /// Rows of logits. Padding rows get logits too, where all rows do: nobody reads them.
  int64_t n_logits() const {
    return logits_in_order && !logit_rows.empty() ? std::max(ssize(logit_rows), ssize(rows)) : ssize(logit_rows);
  }
};

/// A cache as plan_step() looks at it: rules and sizes of its sides, no memory.
struct PlannedSides {
  explicit PlannedSides(std::span<const KvLayerConfig> layers);

  int n_layers() const { return int(sides.size() / 2); }
  const KvTiles& tiles(int layer, KvSide side) const { return sides[2 * size_t(layer) + size_t(side)]; }
  bool in_fragments(int layer) const { return tiles(layer, KvSide::k).kind != TileKind::rows; }

  std::vector<KvTiles> sides;  ///< K and V of each layer
  bool calibrates = false;
};
/// The plan of a step of this shape, with lists as long as those of such a batch. Sequences with a past are calibrated.
/// A step has as many of the sequences as it has room for.
StepPlan plan_shape(const StepShape& shape, const PlannedSides& sides, const ModelPlan& model, int least_rows);

/// What steps of a runner have in common.
struct StepRule {
  /// Where sequences may be further than the pool knows, the position that each may come to. The rows of such a step
  /// are in the batch's order.
  std::span<const int> reach = {};
  int least_rows =
      1;  ///< of a recorded step, padding among them; above 1 attention of a row is cut as if it were alone
};
/// The plan of a batch whose pages are reserved. Recorded steps are filled up with padding rows to padded_rows().
StepPlan plan_step(const Batch& batch, const SequencePool& pool, const DeviceKvMemory& memory, const ModelPlan& model,
                   const StepRule& rule = {});
/// Rows of the largest step that is recorded.
inline constexpr int kMostRecordedRows = 256;
/// Graphs are kept for numbers of rows in steps, so that there are few of them; 0 when there are too many rows.
int padded_rows(int n, int least = 1);

}  // namespace ridge
