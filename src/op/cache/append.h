// New rows on their way into the cache, on the CPU: taken into cache space, rounded as exact rows, kept in the ring or
// the sinks, and coded when they leave the window.
//
// Cache space: a row of tile t is R (y - c_t). R is the layer's rotation (rotation.h), c_t the centre of the first
// tokens, turned to the tile where RoPE turns the rows (centre.h). Both are exact: Q is rotated once a step, <q, c_t>
// comes back on the scores of a tile's keys, attention weights sum to one so the centre of values comes back once on
// the output, and the output is un-rotated once.
//
// Exactness by position: the first `sinks` tokens stay in f16, and at least the newest `window` tokens in the policy's
// `recent` format. A tile of 32 positions is coded when all of it has left the window. Nothing is coded before
// kCalibration positions have set c and, for formats without a scale in the row, the scale of each kv head. All of it
// depends on positions only, never on how the tokens were batched.
#pragma once

#include <span>

#include "base/view.h"
#include "op/cache/layout.h"

namespace ridge {

/// Most rows of a span: where rows are kept exact, queries of a span that brings more could not see them any more.
int most_rows_at_once(const KvTiles& k, const KvTiles& v);

/// Cuts n_rows new tokens of a sequence that holds n_past into spans that kv_append() takes, most_rows each: the
/// position that completes calibration stands alone when `calibrates`.
std::vector<KvSpan> cut_span(const KvSpan& whole, int most_rows, bool calibrates);

/// Appends rows k and v [n_rows, n_kv_heads * head_dim] of the spans; they are left in cache space, rounded as the
/// cache reads them while they are exact. A span is one of cut_span() and sequences differ.
void kv_append(CpuContext& context, const KvTiles& k, const KvTiles& v, std::span<const KvSpan> spans,
               View2<float> k_rows, View2<float> v_rows);

/// Bytes that appending n_rows tokens reads and writes.
Work kv_append_work(const KvTiles& k, const KvTiles& v, int64_t n_rows);

/// Reads the exact row of a position as floats [head_dim]; writes one, rounding it to its format. For tiles of rows.
void read_exact_row(const KvTiles& tiles, int slot, int head, int position, float* out);
void write_exact_row(const KvTiles& tiles, int slot, int head, int position, const float* values);
/// The row of a position as a query that sees n positions reads it, in cache space.
void read_cached_row(const KvTiles& tiles, const KvSpan& span, int head, int position, int n, float* out);
/// Codes one row to its place in a page and counts norms and errors. Returns how many values were saturated.
int encode_row(const KvTiles& tiles, int slot, int head, const float* row, std::byte* to, PageCounts& counts);

}  // namespace ridge
