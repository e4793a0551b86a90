#include "op/cache/tile_formats.h"

#include <cstring>

#include "op/cache/tile_rows.h"

namespace ridge {
namespace {

struct Entry {
  std::optional<TileKind> kind;
  void (*read)(const std::byte* tile, KvSide side, int position, int head_dim, std::byte* row) = nullptr;
  void (*write)(const std::byte* row, KvSide side, int position, int head_dim, std::byte* tile) = nullptr;
  int64_t (*row_bytes)(int head_dim) = nullptr;
};
template <class F>
constexpr Entry entry() {
  if constexpr (TileRows<F>::kHeld) return {TileRows<F>::kKind, tile_to_row<F>, row_to_tile<F>, F::row_bytes};
  else return {};
}
template <class... F>
const Entry& entry_of(int format, KvTypes<F...>) {
  static const Entry entries[] = {entry<F>()...};
  return entries[format];
}

}  // namespace

std::optional<TileKind> tile_kind_of(int format) { return entry_of(format, KvFormatTypes()).kind; }

void read_tile_row(int format, const std::byte* tile, KvSide side, int position, int head_dim, std::byte* row) {
  const Entry& entry = entry_of(format, KvFormatTypes());
  std::memset(row, 0, size_t(entry.row_bytes(head_dim)));  // codes are put into zeros
  entry.read(tile, side, position, head_dim, row);
}

void write_tile_row(int format, const std::byte* row, KvSide side, int position, int head_dim, std::byte* tile) {
  entry_of(format, KvFormatTypes()).write(row, side, position, head_dim, tile);
}

}  // namespace ridge
