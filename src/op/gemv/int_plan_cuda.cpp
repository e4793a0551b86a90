// How integer GEMVs are spread over a device: arithmetic on shapes, no device needed.
#include <algorithm>

#include "op/gemv/int_shared.h"

namespace ridge {
namespace {

/// A block has at least so many slots to sum, so that small GEMVs leave processors to their neighbours in time.
constexpr int least_slots(IntKind kind) {
  return kind == IntKind::ternary ? 24 : is_super_block_kind(kind) || kind == IntKind::q8_0 ? 6 : 12;
}
/// Most groups of activations that every block quantises for itself, of one token and of several: what more would cost,
/// a kernel before costs. A super-block counts as two.
constexpr int64_t kMostInside = 224, kMostInsideOfSeveral = 24;
/// Rows of at most so many groups of 128 go to two blocks a processor, whose beginnings and ends overlap, unless a
/// processor has more than kMostOfTwo groups.
constexpr int64_t kShortRow = 32, kMostOfTwo = 512;
/// From so many slots on a row takes all warps of a block, which then have fewer groups of activations to quantise.
constexpr int64_t long_row(IntKind kind) { return 8192 / int_group(kind); }
/// Of several tokens, where one block a processor with all columns does not fit: most parts of the columns, and most
/// blocks that a processor runs one after another.
constexpr int kMostSplit = 16, kMostTurns = 8;
/// Bytes of shared memory that the system keeps of each block's, and that a processor has beyond the most of one block.
constexpr int64_t kSystemBytes = 1024;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// About how many clocks a block of such a plan takes: its weights and mmas, slower with few warps; its activations; a
/// beginning and an end; outputs, also those of all parts where it joins them. Fitted to 150 plans on an H200, which it
/// meets within 5 % on average.
double clocks_of(IntKind kind, const IntPlan& p, int64_t part_slots, int n_tokens, int planes) {
  constexpr double kWeightBytesAClock = 40, kMmaBytesAClock = 82, kWarpsOfFullRate = 14, kImageBytesAClock = 39;
  constexpr double kEnds = 3000, kJoin = 2900, kOutputs = 23, kJoinedOutputs = 1.9;  // outputs: 16 rows of a token
  const double slot_columns = int_slot_groups(kind) * int_group(kind) * double(n_tokens * planes);
  const double slot_clocks =
      int_slot_groups(kind) * int_tile_bytes(kind) / kWeightBytesAClock + slot_columns / kMmaBytesAClock;
  const double outputs = double(p.rows) * n_tokens;
  return double(p.rows * part_slots) * slot_clocks * std::max(1.0, kWarpsOfFullRate / p.warps) +
         double(part_slots) * slot_columns / kImageBytesAClock + kEnds + kOutputs * outputs +
         (p.split > 1 ? kJoin + kJoinedOutputs * p.split * outputs : 0);
}

}  // namespace

IntPlan plan_int_gemv(IntKind kind, int64_t n_row_tiles, int64_t n_in, int n_tokens, int planes,
                      const IntDevice& device) {
  const int columns = n_tokens * planes;
  const int64_t n_groups = n_in / int_group(kind), row_slots = ceil_div(n_groups, int_slot_groups(kind));
  const auto shared_bytes = [&](const IntPlan& p) { return int_gemv_shared_bytes(kind, p, n_in, n_tokens, planes); };
  const auto fits = [&](const IntPlan& p) { return shared_bytes(p) <= device.shared_bytes; };
  const auto fits_twice = [&](const IntPlan& p) {
    return 2 * (shared_bytes(p) + kSystemBytes) <= device.shared_bytes + kSystemBytes;
  };
  IntPlan plan;
  plan.tiles_of_8 = columns <= 8 ? 1 : columns <= 16 ? 2 : columns <= 32 ? 4 : 8;
  const int64_t most_inside = n_tokens == 1 ? kMostInside : kMostInsideOfSeveral;
  plan.quantize_inside = n_tokens * n_in / kIntGroup <= most_inside && (kind != IntKind::ternary || n_tokens == 1);

  // All processors if there is enough to do, and as few warps as do not take longer.
  const auto spread = [&](int64_t n_blocks) {
    const int64_t rows = ceil_div(n_row_tiles, n_blocks);
    plan.rows = int(std::min(std::max(rows, ceil_div(least_slots(kind), row_slots)), n_row_tiles));
    plan.blocks = int(ceil_div(n_row_tiles, plan.rows));
    const int64_t steps = ceil_div(plan.rows * row_slots, kIntMostWarps);
    plan.warps = row_slots >= long_row(kind) ? kIntMostWarps : int(ceil_div(plan.rows * row_slots, steps));
    plan.depth = steps > 4 || is_super_block_kind(kind) ? 6 : 4;
    if (is_brick_kind(kind) && !(n_tokens == 1 && plan.quantize_inside)) plan.depth = 4;
    if (kind == IntKind::ternary && n_groups > kTernaryHeld * plan.warps) plan.quantize_inside = false;
  };
  const int64_t rows = ceil_div(n_row_tiles, device.n_processors), row_groups = n_in / kIntGroup;
  // Bricks leave enough registers for two blocks with one token only.
  const bool fits_registers = kind == IntKind::int4_g128 ? plan.tiles_of_8 == 1 : n_tokens == 1;
  if (fits_registers && row_groups <= kShortRow && rows * row_groups <= kMostOfTwo) {
    spread(2 * int64_t(device.n_processors));
    while (!fits_twice(plan) && plan.depth > 4) plan.depth -= 2;
    if (fits_twice(plan)) return plan;
  }
  spread(device.n_processors);
  while (!fits(plan) && plan.depth > 4) plan.depth -= 2;
  const auto take_fitting_warps = [&](IntPlan p) {
    while (p.warps > 0 && !fits(p)) p.warps -= 1;
    return p;
  };
  if (fits(plan)) return plan;
  if (n_tokens == 1 && plan.quantize_inside) {
    const IntPlan fewer = take_fitting_warps(plan);
    if (fewer.warps > 0) return fewer;
  }

  // Parts of the columns for blocks of their own, or shorter blocks in turns: whichever is likely to take least time.
  plan.quantize_inside = false;
  plan.depth = 4;
  if (kind == IntKind::ternary) plan.tiles_of_8 = std::max(plan.tiles_of_8, 2);
  IntPlan best = plan;
  best.warps = 0;
  double least = 0;
  const auto search = [&](int most_split, int most_turns) {
    for (int split = 1; split <= std::min<int64_t>(most_split, row_slots); ++split)
      for (int turns = 1; turns <= most_turns; ++turns) {
        IntPlan p = plan;
        p.split = split;
        p.rows = int(ceil_div(n_row_tiles, std::max<int64_t>(device.n_processors * int64_t(turns) / split, 1)));
        p.blocks = int(ceil_div(n_row_tiles, p.rows));
        const int64_t part_slots = ceil_div(row_slots, split);
        p.warps = int(std::min<int64_t>(kIntMostWarps, p.rows * part_slots));
        p = take_fitting_warps(p);
        if (p.warps == 0) continue;
        const double clocks = clocks_of(kind, p, part_slots, n_tokens, planes) *
                              double(ceil_div(int64_t(p.blocks) * split, device.n_processors));
        if (best.warps == 0 || clocks < least) best = p, least = clocks;
      }
  };
  search(kMostSplit, kMostTurns);
  // Of 64 KB many tokens of the longest rows need shorter parts.
  if (best.warps == 0) search(8 * kMostSplit, 16 * kMostTurns);
  return best;
}

int64_t int_gemv_shared_bytes(IntKind kind, const IntPlan& plan, int64_t n_in, int n_tokens, int planes) {
  return int_shared(kind, plan, n_in, n_tokens, planes).bytes;
}

}  // namespace ridge
