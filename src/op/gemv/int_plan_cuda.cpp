// How integer products are spread over a device: arithmetic on shapes, no device needed.
#include <algorithm>
#include <cmath>

#include "op/gemv/int_shared.h"

namespace ridge {
namespace {

// Prices are in the time a processor takes to read an int4 tile when all of them read, 60 clocks.
constexpr double kBytesPerTile = 1056, kClocksPerTile = 60;
constexpr double kAlone = 0.75;       // of that time, when others read less
constexpr double kInFlight = 80;      // tiles on their way that keep a processor's memory busy
constexpr double kUnitPrice = 1;      // a barrier and what a warp waits for after it
constexpr double kSplitPrice = 4;     // a partial sum's way to L2, at every unit
constexpr double kJoinPrice = 20;     // and the last one's way back
constexpr double kCrowdPrice = 4;     // shared memory that leaves no room for a block of the next grid
constexpr double kTripPrice = 10;     // a load from L2 that everything waits for
constexpr double kIdlePrice = 0.2;    // of the reading, for processors that have nothing to do
constexpr double kKernelPrice = 20;   // one more kernel
constexpr double kCachedSpeed = 1.5;  // of reading x, which comes from L2

constexpr int64_t kSystemShared = 1 << 10;  // a block's, of its processor's

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

IntPlan plan_int_gemv(IntKind kind, int64_t n_row_tiles, int64_t n_in, int n_tokens, int planes, bool norm,
                      const IntDevice& device) {
  const int n_processors = device.n_processors;
  // Two blocks of a processor, or a block and one of the next grid, should fit side by side.
  const int64_t half_shared = device.shared_bytes / 2 - kSystemShared;
  const int columns = n_tokens * planes;
  const int tiles_of_8 = columns <= 8 ? 1 : columns <= 16 ? 2 : columns <= 32 ? 4 : 8;
  const bool whole_row = norm || kind == IntKind::ternary;  // what quantising inside must read
  const double tile = int_tile_bytes(kind) / kBytesPerTile;
  IntPlan best;
  double best_price = 1e300;

  const auto consider = [&](IntPlan plan) {
    const int64_t n_units = ceil_div(n_row_tiles, plan.row_warps) * plan.splits;
    const int64_t groups = int_groups_of_part(plan, n_in);
    const int k_warps = plan.warps / plan.row_warps;
    for (const int depth : kIntDepths) {
      plan.depth = depth;
      const int64_t shared = int_gemv_shared_bytes(kind, plan, n_in, n_tokens, planes);
      if (shared > device.shared_bytes) break;
      const int per_processor = shared <= half_shared && tiles_of_8 <= 2 ? 2 : 1;
      plan.blocks = int(std::min(n_units, int64_t(n_processors) * per_processor / plan.splits * plan.splits));
      if (plan.blocks == 0) break;
      const double resident = std::min<double>(per_processor, double(ceil_div(plan.blocks, n_processors)));

      const double unit_tiles = plan.row_warps * double(groups) * tile;
      const double turns = double(ceil_div(n_units, n_processors));
      const double in_flight = resident * plan.warps * depth;
      const double warp_clocks = 300 + 110 * tiles_of_8;  // from a tile's arrival to its sums
      const double slowness = std::max(std::sqrt(std::max(1.0, std::min(kInFlight, turns * unit_tiles) / in_flight)),
                                       warp_clocks / kClocksPerTile / tile / (resident * plan.warps));
      const int64_t slots = ceil_div(groups, int_slot_groups(kind));
      const double uneven = double(ceil_div(slots, k_warps) * k_warps) / double(slots);
      const double sums = plan.warps * 4.0 * tiles_of_8 + n_tokens * 0.5 * plan.warps;  // words of shared memory / 32
      const double reading = std::max(double(n_units) * unit_tiles / n_processors, kAlone * turns * unit_tiles) *
                             slowness * (0.7 + 0.3 * uneven);
      const double unit = (kUnitPrice + sums / kClocksPerTile + (plan.splits > 1 ? kSplitPrice : 0)) / resident;
      // Quantising: warps load four groups at a time (ternary: of one token, at least twice).
      const double x_bytes = plan.quantize_inside ? 4.0 * n_tokens * double(whole_row ? n_in : groups * kIntGroup)
                                                  : double(columns * groups * kIntGroup);
      const int64_t x_groups = whole_row ? n_in / kIntGroup : groups;
      const int64_t trips = !plan.quantize_inside      ? 1 + ceil_div(n_in / kIntGroup, 64)
                            : kind == IntKind::ternary ? 2 * n_tokens * ceil_div(x_groups, 4 * plan.warps)
                                                       : ceil_div(n_tokens * x_groups, 4 * plan.warps);
      const double quantizing = double(trips) * kTripPrice + (plan.quantize_inside ? 0 : kKernelPrice) +
                                resident * x_bytes / kBytesPerTile / kCachedSpeed;

      const double idle = std::max(0.0, 1 - double(plan.blocks) / n_processors);
      const double price = reading * (1 + kIdlePrice * idle) + turns * unit + (plan.splits > 1 ? kJoinPrice : 0) +
                           (shared > half_shared ? kCrowdPrice : 0) + quantizing;
      if (price < best_price) best = plan, best_price = price;
    }
  };

  const int64_t n_groups = n_in / kIntGroup;
  for (int splits = 1; splits <= std::min<int64_t>(n_groups, kIntMostSplits); ++splits) {
    if (ceil_div(n_groups, ceil_div(n_groups, splits)) != splits) continue;  // the last part would be empty
    for (const int row_warps : {1, 2, 4, 8})
      for (int warps = row_warps; warps <= kIntMostWarps; warps += row_warps)
        for (const bool inside : {true, false})
          consider({.tiles_of_8 = tiles_of_8,
                    .warps = warps,
                    .row_warps = row_warps,
                    .splits = splits,
                    .quantize_inside = inside});
  }
  return best;
}

int64_t int_gemv_shared_bytes(IntKind kind, const IntPlan& plan, int64_t n_in, int n_tokens, int planes) {
  return int_shared(kind, plan, n_in, n_tokens, planes).bytes;
}

}  // namespace ridge
