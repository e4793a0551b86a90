// Rows of a sequence in host memory that change their place or their form: going back past the ring, and making room.
#pragma once

#include <functional>

#include "op/cache/host_memory.h"

namespace ridge {

/// Prepares a sequence for going back to n positions when exact rows that it wants there are gone: coded rows are
/// decoded into the ring and are from then on the exact ones. `ring_first` [2 n_layers] is updated. Returns how many
/// positions read as coded, of the side with most.
int read_window_as_coded(HostKvMemory& memory, const SequencePlace& place, int n, std::vector<int>& ring_first);

/// Drops positions [first, first + n_removed) and moves the later ones down. `turn` takes a K row [head_dim] of the
/// model (not rotated, not centred) to its new position. Coded K rows that move are decoded, turned and coded again.
void move_rows_down(HostKvMemory& memory, const SequencePlace& place, int first, int n_removed,
                    const std::function<void(int layer, float* row)>& turn);

}  // namespace ridge
