// The formats that tiles in the order of tensor cores hold, by their number in kv_formats().
#pragma once

#include <cstddef>
#include <optional>

#include "op/cache/tile_order.h"

namespace ridge {

/// Kind of the tiles that hold a format; nothing for a format without an order of its own.
std::optional<TileKind> tile_kind_of(int format);

/// Row `position` of a tile of such a format as bytes of the format [row_bytes], and back.
void read_tile_row(int format, const std::byte* tile, KvSide side, int position, int head_dim, std::byte* row);
void write_tile_row(int format, const std::byte* row, KvSide side, int position, int head_dim, std::byte* tile);

}  // namespace ridge
