#include "engine/cuda_step.h"

#include <algorithm>
#include <climits>
#include <iterator>

#include "engine/cpu_workspace.h"
#include "engine/cuda_step_buffers.h"
#include "op/attn/device_attention.h"
#include "op/cache/append.h"

namespace ridge {
namespace {

/// All rules of retention of a cache.
template <class Memory, class Visit>
void for_each_retention(const Memory& memory, const Visit& visit) {
  for (int layer = 0; layer < memory.n_layers(); ++layer)
    for (const KvSide side : kKvSides)
      if (const KvTiles& tiles = memory.tiles(layer, side); tiles.n_kv_heads > 0) visit(tiles);
}

/// Tiles of a ring that holds all rows which queries of the span may see exact.
template <class Memory>
int ring_tiles_for(const Memory& memory, const KvSpan& span) {
  int most = 0;
  for_each_retention(memory, [&](const KvTiles& t) {
    if (t.ring_tiles > 0)
      most = std::max(most,
                      (span.n_keys() - 1) / kTilePositions - t.retention.coded_end(span.n_past) / kTilePositions + 1);
  });
  return most;
}

template <class Memory>
int leaving_tiles_of(const Memory& memory, const KvSpan& span) {
  int most = 0;
  for_each_retention(memory, [&](const KvTiles& t) {
    if (t.ring_tiles == 0 || (t.retention.window == 0 && span.n_past >= t.retention.calibration)) return;
    const int first = t.retention.coded_end(span.n_past), end = t.retention.coded_end(span.n_keys());
    most = std::max(most, (end - first + kTilePositions - 1) / kTilePositions);
  });
  return most;
}

/// Plans a step, over a pool and its memory or over numbers alone.
template <class Pool, class Memory>
class Planner {
 public:
  Planner(const Batch& batch, const Pool& pool, const Memory& memory, const ModelPlan& model, const StepRule& rule)
      : batch_(batch), pool_(pool), memory_(memory), model_(model), rule_(rule) {}

  StepPlan plan() {
    plan_.n_tokens = ssize(batch_.tokens);
    cut();
    plan_.recorded = rounds_.size() == 1 && padded_rows(int(plan_.n_tokens), rule_.least_rows) > 0;
    for (const std::vector<KvSpan>& round : rounds_) {
      add_sub_batch(round, [](const KvSpan& s) { return s.calibrates; });
      add_sub_batch(round, [](const KvSpan& s) { return !s.calibrates && s.n_rows <= kShortTokens; });
      add_sub_batch(round, [](const KvSpan& s) { return s.n_rows > kShortTokens; });
    }
    plan_.recorded = plan_.recorded && plan_.sub_batches.size() == 1 && !plan_.sub_batches[0].is_long &&
                     !plan_.sub_batches[0].calibrates;
    if (plan_.recorded) pad();
    plan_.alone = rule_.least_rows > 1 && plan_.recorded && ssize(plan_.rows) == rule_.least_rows;
    find_rows();
    add_logit_rows();
    return std::move(plan_);
  }

 private:
  /// The sequences' spans, cut where calibration is complete: rounds_[i] has the i-th part of each.
  void cut() {
    int row = 0;
    for (const SeqTokens& tokens : batch_.seqs) {
      const KvSpan whole = pool_.span(tokens.seq, row, tokens.n_tokens);
      plan_.sequences.push_back({.first = row, .n = tokens.n_tokens, .slot = whole.slot});
      if (tokens.n_tokens >= kDeltaChunk) {
        plan_.sequences.back().chunk = plan_.n_delta_chunks;
        plan_.n_delta_chunks += (tokens.n_tokens + kDeltaChunk - 1) / kDeltaChunk;
        plan_.n_chunked += 1;
      }
      plan_.most_tokens = std::max(plan_.most_tokens, tokens.n_tokens);
      row += tokens.n_tokens;
      const std::vector<KvSpan> parts = cut_span(whole, INT_MAX, pool_.calibrates(tokens.seq));
      if (rounds_.size() < parts.size()) rounds_.resize(parts.size());
      for (size_t i = 0; i < parts.size(); ++i) rounds_[i].push_back(parts[i]);
    }
    RIDGE_CHECK(row == plan_.n_tokens, "{} tokens, sequences bring {}", plan_.n_tokens, row);
  }

  template <class Wanted>
  void add_sub_batch(const std::vector<KvSpan>& round, const Wanted& wanted) {
    SubBatch sub{.first_row = int(plan_.rows.size()), .first_span = int(plan_.spans.size())};
    std::vector<KvSpan> spans;
    std::ranges::copy_if(round, std::back_inserter(spans), wanted);
    if (spans.empty()) return;
    sub.is_long = spans[0].n_rows > kShortTokens;
    sub.calibrates = spans[0].calibrates;
    // Long prompts first: their blocks take longest.
    if (rule_.reach.empty()) std::ranges::stable_sort(spans, std::greater(), &KvSpan::n_keys);
    for (size_t at = 0; at < spans.size(); ++at) {
      const KvSpan& span = spans[at];
      const int ring = sub.is_long ? sub.n_spans : span.slot;
      for (int i = 0; i < span.n_rows; ++i)
        plan_.rows.push_back({.row = span.first_row + i, .position = span.n_past + i, .slot = span.slot, .ring = ring});
      plan_.spans.push_back({.slot = span.slot, .ring = ring, .n_past = span.n_past, .n = span.n_keys()});
      sub.n_spans += 1;
      sub.n_rows += span.n_rows;
      sub.most = std::max(sub.most, span.n_rows);
      sub.ring_tiles = std::max(sub.ring_tiles, ring_tiles_for(memory_, span));
      KvSpan far = span;
      if (!rule_.reach.empty()) far.n_rows = std::max(span.n_rows, rule_.reach[at] - span.n_past);
      const int leaving = leaving_tiles_of(memory_, far);
      sub.leaving_tiles = std::max(sub.leaving_tiles, leaving);
      plan_.n_leaving += leaving > 0;
    }
    plan_.n_spans.push_back(sub.n_spans);
    add_blocks(spans, sub);
    sub.kv_spans = std::move(spans);
    plan_.sub_batches.push_back(std::move(sub));
  }

  /// The blocks of kernels for many queries: of prompts, and of everything where tiles hold rows.
  void add_blocks(const std::vector<KvSpan>& spans, SubBatch& sub) {
    for (int layer = 0; layer < memory_.n_layers(); ++layer) {
      const AttentionPlan& attention = model_.layers[size_t(layer)].attention;
      if (attention.n_kv_heads == 0) continue;
      const int from = attention.kept_by(layer);
      const BlockKernel kernel = block_kernel(memory_.tiles(from, KvSide::k), memory_.tiles(from, KvSide::v));
      if (kernel == BlockKernel::prefill && !sub.is_long) continue;
      const BlockKey key{.kernel = kernel,
                         .n_kv_heads = attention.n_kv_heads,
                         .group = attention.n_heads / attention.n_kv_heads,
                         .head_dim = attention.head_dim,
                         .window = attention.window};
      const auto [at, is_new] = sub.blocks.try_emplace(key);
      if (is_new) at->second = blocks_of(key, spans, sub);
    }
  }

  BlockRange blocks_of(const BlockKey& key, const std::vector<KvSpan>& spans, const SubBatch& sub) {
    PrefillPlan prefill = key.kernel == BlockKernel::prefill ? prefill_attn_plan(key.head_dim)
                          : key.kernel == BlockKernel::rows_f16
                              ? rows_f16_attn_plan(key.head_dim, sub.is_long ? INT_MAX : key.group)
                              : PrefillPlan{.queries = rows_attn_queries(key.head_dim)};
    prefill.window = key.window;
    BlockRange range{
        .first = int(plan_.blocks.size()), .queries = prefill.queries, .by_warpgroups = prefill.by_warpgroups};
    const int n_parts = rows_f16_attn_parts(prefill, std::max(sub.n_rows, rule_.least_rows), key.group, key.n_kv_heads);
    std::vector<PrefillSpan> all;
    int n_rows = 0, n_turned = 0;
    for (const KvSpan& span : spans) {
      const int of_span = turned_tiles(prefill, span.n_past, span.n_rows, sub.ring_tiles);
      all.push_back(
          {.first = n_rows, .n = span.n_rows, .n_past = span.n_past, .turned = n_turned, .n_turned = of_span});
      n_rows += span.n_rows;
      n_turned += of_span;
    }
    const bool turns = turns_in_front(prefill, n_rows * key.group / std::max(1, prefill.queries), int(all.size()),
                                      turned_tile_bytes(n_turned, key.n_kv_heads, key.head_dim));
    for (PrefillSpan& span : all) {
      if (!turns) span.turned = span.n_turned = 0;
      // The device advances each row of a recorded step by itself: a block a row.
      const int n_here = sub.is_long ? span.n : 1;
      for (int row = span.first; row < span.first + span.n; row += n_here)
        if (key.kernel == BlockKernel::rows)
          for (int query = (n_here * key.group - 1) / prefill.queries * prefill.queries; query >= 0;
               query -= prefill.queries)
            plan_.blocks.push_back({.first = row, .n = n_here, .first_query = query});
        else if (sub.is_long)
          range.part_rows = add_prefill_blocks(prefill, span, key.group, key.n_kv_heads, range.part_rows, plan_.blocks);
        else range.part_rows = add_row_blocks(prefill, row, key.group, n_parts, range.part_rows, plan_.blocks);
    }
    range.n = int(plan_.blocks.size()) - range.first;
    if (!turns) return range;
    range.n_turned = n_turned;
    range.n_spans = int(all.size());
    for (const PrefillSpan& span : all)
      plan_.blocks.push_back({.first = span.first, .n = span.n, .turned = span.turned, .n_turned = span.n_turned});
    return range;
  }

  void pad() {
    SubBatch& sub = plan_.sub_batches[0];
    const int padded = padded_rows(sub.n_rows, rule_.least_rows);
    for (int row = sub.n_rows; row < padded; ++row) plan_.rows.push_back({.row = row});
    sub.n_rows = padded;
    plan_.sequences.resize(size_t(padded));
  }

  /// Where sequences begin in the list of rows.
  void find_rows() {
    std::vector<int32_t> numbers(size_t(plan_.n_tokens));
    for (size_t i = 0; i < plan_.rows.size(); ++i)
      if (plan_.rows[i].row < plan_.n_tokens) numbers[size_t(plan_.rows[i].row)] = int32_t(i);
    for (DeltaSpan& span : plan_.sequences)
      if (span.n > 0) span.row = numbers[size_t(span.first)];
  }

  void add_logit_rows() {
    if (batch_.logits == LogitRows::none) return;
    int row = 0;
    for (const SeqTokens& tokens : batch_.seqs) {
      const int n = batch_.logits == LogitRows::all ? tokens.n_tokens : 1;
      row += tokens.n_tokens;
      for (int i = row - n; i < row; ++i) plan_.logit_rows.push_back(i);
    }
    plan_.logits_in_order = ssize(plan_.logit_rows) == plan_.n_tokens;
  }

  const Batch& batch_;
  const Pool& pool_;
  const Memory& memory_;
  const ModelPlan& model_;
  const StepRule rule_;
  StepPlan plan_;
  std::vector<std::vector<KvSpan>> rounds_;
};

/// Sequences that are all at the same place.
struct PlannedPool {
  int n_past = 0;
  bool calibrating = false;

  KvSpan span(SeqId, int row, int n) const { return {.first_row = row, .n_rows = n, .n_past = n_past}; }
  bool calibrates(SeqId) const { return calibrating; }
};

}  // namespace

PlannedSides::PlannedSides(std::span<const KvLayerConfig> layers) {
  for (const KvLayerConfig& layer : layers)
    for (const KvSide side : kKvSides) {
      const KvLayout layout(layer, side, device_tiles(layer).ok);
      sides.push_back(layout.tiles);
      calibrates = calibrates || layout.calibrates();
    }
}

StepPlan plan_shape(const StepShape& shape, const PlannedSides& sides, const ModelPlan& model, int least_rows) {
  const int n_seqs = std::max(1, std::min(shape.n_seqs, kMostStepTokens / shape.n_tokens));
  const std::vector<int32_t> tokens(size_t(n_seqs) * size_t(shape.n_tokens));
  const std::vector<SeqTokens> seqs(size_t(n_seqs), SeqTokens{SeqId{}, shape.n_tokens});
  const LogitRows logits = shape.n_logits == 0                               ? LogitRows::none
                           : shape.n_logits >= shape.n_seqs * shape.n_tokens ? LogitRows::all
                                                                             : LogitRows::last;
  const PlannedPool pool{shape.n_past, sides.calibrates && shape.n_past == 0};
  const Batch batch{.tokens = tokens, .seqs = seqs, .logits = logits};
  return Planner(batch, pool, sides, model, StepRule{.least_rows = least_rows}).plan();
}

BlockKernel block_kernel(const KvTiles& k, const KvTiles& v) {
  if (k.kind != TileKind::rows) return BlockKernel::prefill;
  return reads_rows_in_f16(k, v.n_kv_heads > 0 ? v : k) ? BlockKernel::rows_f16 : BlockKernel::rows;
}

int padded_rows(int n, int least) {
  n = std::max(n, least);
  if (n <= 8) return n;
  if (n <= 64) return (n + 7) / 8 * 8;
  return n <= kMostRecordedRows ? (n + 31) / 32 * 32 : 0;
}

StepPlan plan_step(const Batch& batch, const SequencePool& pool, const DeviceKvMemory& memory, const ModelPlan& model,
                   const StepRule& rule) {
  return Planner(batch, pool, memory, model, rule).plan();
}

}  // namespace ridge
