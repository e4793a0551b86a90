// Rows of a cache that are held as rows, a piece of a row at a time: the threads of a block share the decoding of a tile.
// Device code.
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

/// The rows of one tile of one kv head in one form: as coded, or as exact (sinks and the newest positions). Queries of
/// several lengths read them: the shortest sees n_first positions, the longest n_last.
struct FormOfRows {
  const KvTiles& t;
  StepRow of;
  const int32_t* pages;
  int head, tile, n_first, n_last;
  bool coded;

  /// Whether some query reads position p of the tile in this form.
  __device__ bool holds(int p) const {
    const int position = tile * kTilePositions + p;
    if (position >= n_last) return false;
    if (position < t.n_sinks) return !coded;
    return coded ? position < t.retention.coded_end(n_last)
                 : t.ring_tiles > 0 && position >= t.retention.coded_end(n_first);
  }
  __device__ bool any() const {
    const int begin = tile * kTilePositions, end = min(begin + kTilePositions, n_last);
    if (coded) return max(begin, t.n_sinks) < min(end, t.retention.coded_end(n_last));
    return begin < t.n_sinks || (t.ring_tiles > 0 && t.retention.coded_end(n_first) < end);
  }
  /// Of a position that holds().
  __device__ CachedRow row(int p) const {
    const int position = tile * kTilePositions + p;
    if (!coded) return {exact_row(t, of, head, position), exact_format(t, position), {}};
    return {t.coded_row(pages, head, position), t.format, t.coding(of.slot, head)};
  }
  /// Bits of the formats that its rows have: of exact ones f16 (sinks) and that of the ring.
  __device__ unsigned formats() const {
    return coded ? 1u << t.format
                 : (tile * kTilePositions < t.n_sinks ? 1u << kNumberOfF16 : 0u) |
                       (t.ring_tiles > 0 ? 1u << t.recent : 0u);
  }
};

/// Rows in format F as floats [kTilePositions, pitch], plus a centre where there is one, by n_threads threads. Rows that
/// the form does not hold become zeros with the first of its formats.
template <class F>
__device__ void decode_tile(int format, const FormOfRows& rows, int n_threads, int pitch, const float* centre,
                            float* to) {
  constexpr int kPiece = kPieceOf<F>;
  const int dim = rows.t.head_dim, pieces = (dim + kPiece - 1) / kPiece;
  const int first_format = __ffs(int(rows.formats())) - 1;
  for (int i = int(threadIdx.x); i < kTilePositions * pieces; i += n_threads) {
    const int p = i / pieces, first = i % pieces * kPiece;
    float values[kPiece] = {};
    if (rows.holds(p)) {
      const CachedRow row = rows.row(p);
      if (row.format != format) continue;
      fetch_piece<F>(row, dim, first, values);
    } else if (format != first_format) {
      continue;
    }
#pragma unroll
    for (int d = 0; d < kPiece; ++d)
      if (first + d < dim) to[p * pitch + first + d] = values[d] + (centre ? centre[first + d] : 0.0f);
  }
}
template <class... F>
__device__ void decode_tile(KvTypes<F...>, const FormOfRows& rows, int n_threads, int pitch, const float* centre,
                            float* to) {
  int i = 0;
  ((rows.formats() >> i & 1 ? decode_tile<F>(i, rows, n_threads, pitch, centre, to) : void(), ++i), ...);
}

}  // namespace ridge
