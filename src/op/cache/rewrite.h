// Rows of a sequence in host memory that change their place or their form: going back past the ring, and making room.
#pragma once

#include <functional>

#include "op/cache/host_memory.h"

namespace ridge {

/// Prepares a sequence for going back to n positions when exact rows that it wants there are gone: coded rows are
/// decoded into the ring and are from then on the exact ones. `ring_first` [2 n_layers] is updated. Returns how many
/// positions read as coded, of the side with most.
int read_window_as_coded(HostKvMemory& memory, const SequencePlace& place, int n, std::vector<int>& ring_first);

/// Takes a row [head_dim] that RoPE turned to its new position: of K, or of an index beside it; as the model has it,
/// not rotated and not centred.
using TurnRow = std::function<void(int layer, KvSide side, float* row)>;

/// Drops positions [first, first + n_removed) and moves the later ones down. Coded rows of K and of an index that move
/// are decoded, turned and coded again.
void move_rows_down(HostKvMemory& memory, const SequencePlace& place, int first, int n_removed, const TurnRow& turn);

}  // namespace ridge
