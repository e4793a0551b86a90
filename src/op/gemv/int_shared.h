// The shared memory of a block of an integer product, and sizes that host and device agree on.
#pragma once

#include "op/gemv/int_gemv_cuda.h"

namespace ridge {

/// Groups that a warp fetches and uses at a time: about 1 KB.
constexpr int int_slot_groups(IntKind kind) { return kind == IntKind::ternary ? 2 : 1; }

/// Floats from one token's 16 sums to the next: the lanes of a warp then write to different banks.
inline constexpr int kIntSumPitch = 20;
/// Sums are kept twice where there is room, so that a block need not wait before it writes the next ones.
constexpr int int_sum_buffers(int tiles_of_8) { return tiles_of_8 <= 2 ? 2 : 1; }

/// Columns of a group in an image: those in use, or whole eights where a warp reads several.
constexpr int int_column_pitch(const IntPlan& plan, int n_columns) {
  return plan.tiles_of_8 == 1 ? n_columns : (n_columns + 7) / 8 * 8;
}

/// Offsets in bytes.
struct IntShared {
  int values;   ///< [groups of the part][column pitch][128] int8, in the order of int_tokens.h
  int scales;   ///< [groups of the part][8 tiles_of_8] float
  int sums;     ///< [buffers][warps][tokens][kIntSumPitch] float or int32
  int squares;  ///< ternary: [tokens][warps] double; int4_g128: [tokens][groups of a row] float
  int tops;     ///< [tokens][warps] float
  int factors;  ///< [tokens] float
  int bytes;
};

constexpr int64_t int_groups_of_part(const IntPlan& plan, int64_t n_in) {
  const int64_t n_groups = n_in / kIntGroup;
  return (n_groups + plan.splits - 1) / plan.splits;
}

constexpr IntShared int_shared(IntKind kind, const IntPlan& plan, int64_t n_in, int n_tokens, int planes) {
  const int64_t groups = int_groups_of_part(plan, n_in);
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t here = at;
    at += (bytes + 15) / 16 * 16;
    return int(here);
  };
  IntShared s = {};
  take(int64_t(plan.warps) * plan.depth * int_slot_groups(kind) * int_tile_bytes(kind));  // the rings
  s.values = take(groups * int_column_pitch(plan, n_tokens * planes) * kIntGroup);
  s.scales = take(groups * 8 * plan.tiles_of_8 * 4);
  s.sums = take(int64_t(int_sum_buffers(plan.tiles_of_8)) * plan.warps * n_tokens * kIntSumPitch * 4);
  const int64_t n_inside = plan.quantize_inside ? n_tokens : 0;
  s.squares = take(n_inside * (kind == IntKind::ternary ? plan.warps * 8 : n_in / kIntGroup * 4));
  s.tops = take(n_inside * (kind == IntKind::ternary ? plan.warps * 4 : 0));
  s.factors = take(int64_t(n_tokens) * 4);
  s.bytes = int(at < (int64_t(1) << 30) ? at : int64_t(1) << 30);
  return s;
}

}  // namespace ridge
