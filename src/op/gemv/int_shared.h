// The shared memory of a block of an integer GEMV, and sizes that host and device agree on.
#pragma once

#include "op/gemv/int_gemv_cuda.h"

namespace ridge {

/// Groups that a warp fetches and uses at a time: about 1 KB, or a brick.
constexpr int int_slot_groups(IntKind kind) { return kind == IntKind::ternary ? 2 : 1; }

/// Groups of a ternary row that a warp keeps in registers, where every block quantises the row.
inline constexpr int kTernaryHeld = 4;

/// Floats from one token's 16 sums to the next: the lanes of a warp then write to different banks.
inline constexpr int kIntSumPitch = 20;
/// Tokens of a row that half a warp ends at a time, where there are many.
inline constexpr int kIntEnds = 4;

/// Columns of a group in an image: those in use, or whole eights where a warp reads several (of bricks the last again).
constexpr int int_column_pitch(IntKind kind, const IntPlan& plan, int n_columns) {
  return plan.tiles_of_8 == 1 || is_brick_kind(kind) ? n_columns : (n_columns + 7) / 8 * 8;
}
/// Floats of a group in an image beside the values; of bricks a multiple of 16 bytes.
constexpr int int_scale_pitch(IntKind kind, const IntPlan& plan, int n_tokens) {
  return is_brick_kind(kind) ? n_tokens * int_sub_blocks(kind) + (n_tokens + 3) / 4 * 4 : 8 * plan.tiles_of_8;
}

/// Slots of a row of so many groups, and groups of the longest part of it.
constexpr int64_t int_row_slots(IntKind kind, int64_t n_groups) {
  return (n_groups + int_slot_groups(kind) - 1) / int_slot_groups(kind);
}
constexpr int64_t int_part_groups(IntKind kind, const IntPlan& plan, int64_t n_groups) {
  const int64_t slots = (int_row_slots(kind, n_groups) + plan.split - 1) / plan.split;
  return slots * int_slot_groups(kind) < n_groups ? slots * int_slot_groups(kind) : n_groups;
}

/// Slots of a warp's ring. Of bricks one is in use while the others come.
constexpr int int_ring_slots(IntKind kind, int depth) { return is_super_block_kind(kind) ? depth / 2 : depth; }

/// Offsets in bytes.
struct IntShared {
  int values;   ///< [groups][column pitch][group] int8, in the order of int_tokens.h; of a part of a row
  int scales;   ///< [groups][scale pitch] float
  int sums;     ///< float or int32, [warps + rows][tokens][kIntSumPitch]
  int squares;  ///< ternary: [tokens][warps] double; int4_g128: [tokens][warps][32] float
  int tops;     ///< ternary: [tokens][warps] bits of a float
  int factors;  ///< [tokens] float
  int spans;    ///< [2][tiles of rows of the block] int
  int bytes;
};

constexpr IntShared int_shared(IntKind kind, const IntPlan& plan, int64_t n_in, int n_tokens, int planes) {
  const bool ternary = kind == IntKind::ternary;
  const int64_t depth = int_ring_slots(kind, plan.depth), groups = int_part_groups(kind, plan, n_in / int_group(kind));
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t here = at;
    at += (bytes + 15) / 16 * 16;
    return int(here);
  };
  IntShared s = {};
  take(plan.warps * depth * int_slot_groups(kind) * int_tile_bytes(kind));  // the rings
  s.values = take(groups * int_column_pitch(kind, plan, n_tokens * planes) * int_group(kind));
  s.scales = take(groups * int_scale_pitch(kind, plan, n_tokens) * 4);
  s.sums = take(int64_t(plan.warps + plan.rows) * n_tokens * kIntSumPitch * 4);
  const int64_t n_inside = plan.quantize_inside ? n_tokens : 0;
  s.squares = take(n_inside * plan.warps * (ternary ? 8 : 32 * 4));
  s.tops = take(n_inside * (ternary ? plan.warps * 4 : 0));
  s.factors = take(int64_t(n_tokens) * 4);
  s.spans = take(int64_t(plan.rows) * 8);
  s.bytes = int(at < (int64_t(1) << 30) ? at : int64_t(1) << 30);
  return s;
}

}  // namespace ridge
