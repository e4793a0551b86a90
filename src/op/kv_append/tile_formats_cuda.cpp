// The formats that tiles hold, by their number in KvFormatTypes.
#include <algorithm>

#include "op/attn/kv_tile_rows.h"
#include "op/kv_append/kv_rows_cuda.h"

namespace ridge {
namespace {

struct Entry {
  bool held = false;
  TileKind kind = TileKind::f16;
  void (*read)(const std::byte* tile, bool is_k, int position, int head_dim, std::byte* row) = nullptr;
};
template <class F>
Entry entry() {
  if constexpr (TileRows<F>::kHeld) return {true, TileRows<F>::kKind, tile_to_row<F>};
  else return {};
}
template <class... F>
Entry entry_of(int format, KvTypes<F...>) {
  const Entry entries[] = {entry<F>()...};
  return entries[format];
}

}  // namespace

bool find_tile_kind(int format, TileKind& kind) {
  const Entry found = entry_of(format, KvFormatTypes());
  kind = found.kind;
  return found.held;
}

void read_tile_row(int format, const std::byte* tile, bool is_k, int position, int head_dim, std::byte* row) {
  entry_of(format, KvFormatTypes()).read(tile, is_k, position, head_dim, row);
}

}  // namespace ridge
