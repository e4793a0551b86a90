#include "model/delta_part.h"

namespace ridge {
namespace {

/// Extents of things that are `width` values each, the first of which begins at `first`.
std::vector<Extent> scaled(const std::vector<Extent>& things, int64_t width, int64_t first = 0) {
  std::vector<Extent> values;
  for (const Extent& extent : things) values.push_back({first + extent.first * width, extent.count * width});
  return values;
}

void append(std::vector<Extent>& to, const std::vector<Extent>& more) { to.insert(to.end(), more.begin(), more.end()); }

}  // namespace

DeltaPart delta_part(const DeltaShape& whole, int rank, int size) {
  DeltaPart part{.shape = whole, .heads = {}, .values = {}, .channels = {}, .state = {}};
  part.shape.n_key_heads = whole.n_key_heads / size;
  part.shape.n_value_heads = whole.n_value_heads / size;
  const Extent keys{int64_t(rank) * part.shape.n_key_heads, part.shape.n_key_heads};
  const int64_t of_key = whole.n_value_heads / whole.n_key_heads;  // value heads that read one key head
  if (whole.keys_cycle)
    for (int64_t cycle = 0; cycle < of_key; ++cycle)
      part.heads.push_back({cycle * whole.n_key_heads + keys.first, keys.count});
  else part.heads.push_back({keys.first * of_key, keys.count * of_key});
  part.values = scaled(part.heads, whole.value_dim);

  part.channels = scaled({keys}, whole.key_dim);
  append(part.channels, scaled({keys}, whole.key_dim, whole.keys()));
  append(part.channels, scaled(part.heads, whole.value_dim, 2 * whole.keys()));

  part.state = scaled(part.heads, int64_t(whole.key_dim) * whole.value_dim);
  for (int64_t row = 0; row < whole.kernel - 1; ++row)
    append(part.state, scaled(part.channels, 1, whole.values() * whole.key_dim + row * whole.channels()));
  return part;
}

}  // namespace ridge
