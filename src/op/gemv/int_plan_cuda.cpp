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
/// Two eights of columns of bricks (more than four tokens) leave room for so many warps, or half as many tokens run at
/// a time.
constexpr int kTokensOfAnEight = 4, kFewestWarpsOfTwoEights = 8;
/// Bytes of shared memory that the system keeps of each block's, and that a processor has beyond the most of one block.
constexpr int64_t kSystemBytes = 1024;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
  if (is_brick_kind(kind)) {
    const int wanted = plan.warps;
    while (plan.warps > 0 && !fits(plan)) plan.warps -= 1;
    if (n_tokens > kTokensOfAnEight && plan.warps < std::min(wanted, kFewestWarpsOfTwoEights)) plan.warps = 0;
    return plan;
  }
  if (plan.tiles_of_8 <= 2 && fits(plan)) return plan;

  // Chunks: all of a block's tiles of rows at once if there are warps, and as many warps for each as have room.
  // Fewer tiles at once where a block has too little memory.
  plan.quantize_inside = false;
  for (int64_t passes = ceil_div(rows, kIntMostWarps);; passes = ceil_div(rows, plan.row_warps - 1)) {
    plan.row_warps = int(ceil_div(rows, passes));
    plan.rows = int(passes * plan.row_warps);
    plan.blocks = int(ceil_div(n_row_tiles, plan.rows));
    const int64_t most = std::min<int64_t>(kIntMostWarps / plan.row_warps, row_slots);
    plan.warps = int(most) * plan.row_warps;
    while (!fits(plan) && plan.warps > plan.row_warps) plan.warps -= plan.row_warps;
    if (fits(plan)) return plan;
    if (plan.row_warps > 1) continue;
    plan.warps = 0;
    return plan;
  }
}

int64_t int_gemv_shared_bytes(IntKind kind, const IntPlan& plan, int64_t n_in, int n_tokens, int planes) {
  return int_shared(kind, plan, n_in, n_tokens, planes).bytes;
}

}  // namespace ridge
