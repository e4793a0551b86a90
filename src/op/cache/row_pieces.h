// Rows of a cache that are held as rows, a piece of a row at a time: the threads of a block share the decoding of a
// tile. Device code.
#pragma once

#include <type_traits>

#include "gpu/tensor.h"
#include "op/cache/exact_rows.h"

namespace ridge {

/// Values [first, first + n) of a row; n is a piece of the format or what is left of the row.
template <class F>
__device__ __forceinline__ void decode_piece(const std::byte* row, [[maybe_unused]] int dim, int first, int n,
                                             const KvCoding& coding, float* out) {
  if constexpr (std::is_same_v<F, KvI8r>) decode_int8(row + first, n, row + dim, out);
  else if constexpr (std::is_same_v<F, KvP8>) decode_int8(row + first, n, row + dim + first / F::kGroup * 2, out);
  else if constexpr (requires { typename F::Codes; })
    F::Codes::decode(row + F::Codes::bytes(first), n, F::row_scale(row, dim, coding), out);
  else F::decode(row + first / F::kGroup * F::row_bytes(F::kGroup), n, coding, out);
}

/// A row of a cache where it is held.
struct CachedRow {
  const std::byte* bytes;
  int format;
  KvCoding coding;
};

template <class F>
constexpr bool kIsFloats = std::is_same_v<F, KvF32> || std::is_same_v<F, KvF16> || std::is_same_v<F, KvBf16>;

/// Eight values of a row of floats, 16 bytes at a time.
template <class F>
__device__ __forceinline__ void load_eight(const std::byte* at, float (&values)[8]) {
  const auto* const from = reinterpret_cast<const uint4*>(at);
#pragma unroll
  for (int i = 0; i < (std::is_same_v<F, KvF32> ? 2 : 1); ++i) {
    const uint4 four = from[i];
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (std::is_same_v<F, KvF32>) {
        values[4 * i + j] = __uint_as_float(words[j]);
      } else if constexpr (std::is_same_v<F, KvF16>) {
        values[2 * j] = gpu::f16_to_float(uint16_t(words[j]));
        values[2 * j + 1] = gpu::f16_to_float(uint16_t(words[j] >> 16));
      } else {
        values[2 * j] = __uint_as_float(words[j] << 16);
        values[2 * j + 1] = __uint_as_float(words[j] & 0xFFFF0000u);
      }
    }
  }
}

/// Values of a piece: a block of the format, or eight.
template <class F>
constexpr int kPieceOf = F::kGroup > 8 ? F::kGroup : 8;

/// Values from `first` on, as many as a piece and the row have.
template <class F>
__device__ __forceinline__ void fetch_piece(const CachedRow& row, int dim, int first, float (&values)[kPieceOf<F>]) {
  const int n = min(kPieceOf<F>, dim - first);
  if constexpr (kIsFloats<F>)
    if (F::row_bytes(dim) % 16 == 0 && n == 8)  // every row begins at a multiple of 16 bytes
      return load_eight<F>(row.bytes + F::row_bytes(first), values);
  if (n == kPieceOf<F>) decode_piece<F>(row.bytes, dim, first, kPieceOf<F>, row.coding, values);
  else decode_piece<F>(row.bytes, dim, first, n, row.coding, values);
}

/// Where rows of a tile come from: the sinks, coded rows, or the ring of the newest positions.
enum class RowSource : uint8_t { sinks, coded, ring };
constexpr int kRowSources = 3;

/// Whether a query that sees rows coded up to coded_end reads a position from a source.
__device__ __forceinline__ bool reads_from(RowSource source, const KvTiles& t, int position, int coded_end) {
  if (position < t.n_sinks) return source == RowSource::sinks;
  return source == (position < coded_end ? RowSource::coded : RowSource::ring);
}

/// A tile of a kv head, read by queries of several lengths: the shortest sees n_first positions, the longest n_last.
struct ReadTile {
  StepRow of;
  const int32_t* pages;
  int head, tile, n_first, n_last;
};

/// Rows [begin, end) of a tile, those that some query reads from one source: one format, one behind the other.
struct RowRange {
  const std::byte* rows = nullptr;  ///< row 0 of the tile
  int64_t row_bytes = 0;
  int format = 0, head_dim = 0, begin = 0, end = 0;
  KvCoding coding;

  __device__ RowRange(const KvTiles& t, const ReadTile& from, RowSource source) : head_dim(t.head_dim) {
    const int first = from.tile * kTilePositions, last = min(kTilePositions, from.n_last - first);
    const int sinks_end = max(0, t.n_sinks - first);
    if (source == RowSource::sinks) {
      end = min(last, sinks_end);
      if (!empty()) set(t.sink_row(from.of.slot, from.head, first), 2 * t.head_dim, kNumberOfF16);
    } else if (source == RowSource::coded) {
      begin = sinks_end;
      end = min(last, t.retention.coded_end(from.n_last) - first);
      if (empty()) return;
      set(t.coded_row(from.pages, from.head, first), t.row_bytes, t.format);
      coding = t.coding(from.of.slot, from.head);
    } else if (t.ring_tiles > 0) {
      begin = max(sinks_end, t.retention.coded_end(from.n_first) - first);
      end = last;
      if (!empty()) set(t.ring_row(from.of.ring, from.head, first), t.recent_row_bytes, t.recent);
    }
  }
  __device__ bool empty() const { return begin >= end; }
  __device__ bool has(int p) const { return p >= begin && p < end; }
  __device__ CachedRow row(int p) const { return {rows + p * row_bytes, format, coding}; }

 private:
  __device__ void set(const std::byte* at, int64_t bytes, int number) { rows = at, row_bytes = bytes, format = number; }
};

/// How n_threads threads, at least as many as a row has pieces, share rows: a thread has one piece of every step-th
/// row.
struct PieceOfRows {
  int first;      ///< value of a row
  int row, step;  ///< its first row; kTilePositions of threads that are too many

  __device__ PieceOfRows(int head_dim, int piece, int n_threads) {
    const int pieces = (head_dim + piece - 1) / piece;
    step = n_threads / pieces;
    row = int(threadIdx.x) / pieces;
    first = (int(threadIdx.x) - row * pieces) * piece;
    if (row >= step) row = kTilePositions;
  }
};

/// visit(F) of the range's format F.
template <class... F, class Visit>
__device__ __forceinline__ void with_format(KvTypes<F...>, const RowRange& rows, const Visit& visit) {
  int i = 0;
  ((i++ == rows.format ? visit.template operator()<F>() : void()), ...);
}

}  // namespace ridge
