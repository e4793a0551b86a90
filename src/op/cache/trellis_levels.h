// Levels and ways of the trellis code (format/trellis.h) as the vector kernels of its search load them.
#pragma once

#include <cstdint>

#include "format/trellis.h"

namespace ridge {

struct TrellisLevels {
  alignas(64) float of_way[kTrellisWays][kTrellisStates];  ///< on way w into state s
  alignas(64) int32_t from[kTrellisWays][kTrellisStates];  ///< the state that it comes from
  float of_window[128];
};
constexpr TrellisLevels make_trellis_levels() {
  TrellisLevels levels{};
  for (int way = 0; way < kTrellisWays; ++way)
    for (int s = 0; s < kTrellisStates; ++s) {
      levels.of_way[way][s] = float(trellis_way_level(s, way));
      levels.from[way][s] = trellis_from(s, way);
    }
  for (int window = 0; window < 128; ++window) levels.of_window[window] = float(trellis_level_at(window));
  return levels;
}
inline constexpr TrellisLevels kTrellisLevels = make_trellis_levels();

}  // namespace ridge
