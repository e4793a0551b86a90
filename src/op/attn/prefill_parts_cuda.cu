// How prompts are cut into blocks and parts, and the kernel that puts parts together.
#include <algorithm>

#include "gpu/tensor.h"
#include "op/attn/prefill_parts.h"

namespace ridge {
namespace prefill {
namespace {

constexpr int kMostParts = 16;
constexpr int kJoinWarps = 16;

/// The parts of a block's queries together, in order: a warp a query. Blocks as prefill_kernel's; part i of n takes the
/// i-th n-th of the queries.
template <int kDim>
__global__ void __launch_bounds__(32 * kJoinWarps)
    join_kernel(const DeviceAttention a, const AttnBlock* blocks, int most_queries, const PartRows parts) {
  constexpr int kPer = kDim / 32;
  const AttnBlock block = blocks[blockIdx.x];
  if (block.n_parts == 1) return;
  const StepRow* const span = a.rows.rows + block.first;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, kv_head = int(blockIdx.y);
  const int group = a.group(), n = min(most_queries, block.n * group - block.first_query);
  const Queries queries{block.first_query, block.n * group, group};
  const RotationRow<kPer> table(a.v.rotation, lane);
  const int64_t stride = int64_t(n) * a.k.n_kv_heads;  // rows of a part
  for (int i = n * block.part / block.n_parts + warp; i < n * (block.part + 1) / block.n_parts; i += kJoinWarps) {
    const int64_t row = int64_t(block.place - block.part * n + i) * a.k.n_kv_heads + kv_head;
    const float2 own = lane < block.n_parts ? __ldcg(parts.state + row + lane * stride) : make_float2(-1e30f, 0);
    const float top = gpu::warp_max(own.x), weight = gpu::fast_exp2(own.x - top);
    const float inverse = 1.0f / gpu::warp_sum(weight * own.y);
    float x[kPer] = {};
#pragma unroll 4
    for (int part = 0; part < block.n_parts; ++part) {
      const float w = __shfl_sync(gpu::kAllLanes, weight, part);
#pragma unroll
      for (int j = 0; j < kPer; ++j)
        x[j] = fmaf(w, __ldcg(parts.out + (row + part * stride) * kDim + lane + 32 * j), x[j]);
    }
#pragma unroll
    for (int j = 0; j < kPer; ++j) x[j] *= inverse;
    store_row(a, span, kv_head, queries, i, table, lane, x);
  }
}

template <int kDim>
void launch(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list, const PartRows& parts) {
  gpu::launch("join of prefill parts", join_kernel<kDim>,
              {dim3(unsigned(list.n), unsigned(a.k.n_kv_heads)), 32 * kJoinWarps, 0, stream}, a, list.blocks,
              list.queries, parts);
}

}  // namespace

void join_parts(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list, const PartRows& parts) {
  if (a.k.head_dim == 64) launch<64>(stream, a, list, parts);
  else if (a.k.head_dim == 128) launch<128>(stream, a, list, parts);
  else launch<256>(stream, a, list, parts);
}

}  // namespace prefill

/// Blocks of a span that read its turned tiles, at least; and what these tiles may take.
constexpr int kFewestTurnedBlocks = 4;
constexpr int64_t kMostTurnedBytes = 256 << 20;

int add_prefill_blocks(const PrefillPlan& plan, const PrefillSpan& span, int group, int n_kv_heads, int part_rows,
                       std::vector<AttnBlock>& blocks) {
  const int n = span.n * group;
  const auto tiles_of = [&](int query) {  // of the block with this first query
    const int last_n = span.n_past + (std::min(query + plan.queries, n) - 1) / group + 1;
    const int first_n = span.n_past + query / group + 1;
    const int seen = plan.window > 0 && first_n > plan.window ? first_n - plan.window : 0;
    return (last_n + kTilePositions - 1) / kTilePositions - seen / kTilePositions;
  };
  const auto parts_of = [&](int query, int tiles) { return (tiles_of(query) + tiles - 1) / tiles; };
  int n_tiles = 0;
  for (int query = 0; query < n; query += plan.queries) n_tiles = std::max(n_tiles, tiles_of(query));
  const auto fits = [&](int tiles) {
    int64_t n_blocks = 0;
    for (int query = 0; query < n; query += plan.queries) n_blocks += parts_of(query, tiles);
    return n_blocks * n_kv_heads <= plan.blocks;
  };
  // The shortest parts that run side by side.
  int tiles = std::min(n_tiles, std::max(plan.least_tiles, (n_tiles + prefill::kMostParts - 1) / prefill::kMostParts));
  for (int most = n_tiles; tiles < most;) {
    const int middle = (tiles + most) / 2;
    if (fits(middle)) most = middle;
    else tiles = middle + 1;
  }
  for (int query = (n - 1) / plan.queries * plan.queries; query >= 0; query -= plan.queries) {
    const int n_parts = parts_of(query, tiles);
    for (int part = 0; part < n_parts; ++part) {
      blocks.push_back({.first = span.first,
                        .n = span.n,
                        .first_query = query,
                        .part = part,
                        .n_parts = n_parts,
                        .place = part_rows,
                        .turned = span.turned,
                        .n_turned = span.n_turned});
      if (n_parts > 1 || plan.keeps_parts) part_rows += std::min(plan.queries, n - query);
    }
  }
  return part_rows;
}

int add_row_blocks(const PrefillPlan& plan, int row, int group, int n_parts, int part_rows,
                   std::vector<AttnBlock>& blocks) {
  for (int query = 0; query < group; query += plan.queries)
    for (int part = 0; part < n_parts; ++part) {
      blocks.push_back(
          {.first = row, .n = 1, .first_query = query, .part = part, .n_parts = n_parts, .place = part_rows});
      part_rows += std::min(plan.queries, group - query);
    }
  return part_rows;
}

int turned_tiles(const PrefillPlan& plan, int n_past, int n, int ring_tiles) {
  const int seen = plan.window > 0 && n_past + 1 > plan.window ? n_past + 1 - plan.window : 0;
  const int n_tiles = (n_past + n + kTilePositions - 1) / kTilePositions - seen / kTilePositions;
  return 1 + n_tiles + std::min(n_tiles, ring_tiles);
}

int64_t turned_tile_bytes(int n_turned, int n_kv_heads, int head_dim) {
  return int64_t(n_turned) * 2 * n_kv_heads * kTilePositions * 2 * head_dim;
}

bool turns_in_front(const PrefillPlan& plan, int n_blocks, int n_spans, int64_t bytes) {
  return plan.by_warpgroups && n_blocks >= kFewestTurnedBlocks * n_spans && bytes <= kMostTurnedBytes;
}

int64_t prefill_attn_scratch_bytes(int part_rows, int n_kv_heads, int head_dim) {
  return int64_t(part_rows) * n_kv_heads * (head_dim + 2) * 4;
}

}  // namespace ridge
