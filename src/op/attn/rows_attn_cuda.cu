// Attention in floats over tiles of rows: for formats that f16 does not hold, and rows that tensor cores do not take
// (rows_f16_attn_cuda.cu). A block takes some queries of a span; its threads decode the 32 rows of a tile into shared
// memory. Running softmax (maximum m, sum l, weighted values).
#include "op/attn/attn_cuda.h"
#include "op/attn/row_limits.h"
#include "op/cache/rotate_warp.h"
#include "op/cache/row_pieces.h"

namespace ridge {
namespace {

constexpr int kKeys = kTilePositions, kWarps = 4, kThreads = 32 * kWarps;
constexpr int kWeightPitch = kKeys + 4;

/// Queries of a block: as many as its shared memory has room for. Of few, rows of V take the place of those of K.
constexpr int kManyQueries = 32, kFewQueries = 8;

/// Rows of a tile are this far apart, so that eight threads reading 16 bytes of eight rows hit different banks.
__host__ __device__ constexpr int tile_pitch(int head_dim) { return (head_dim + 3) / 4 * 4 + 4; }

size_t shared_bytes(int head_dim, int n_queries) {
  const int n_rows = n_queries + (n_queries == kFewQueries ? 1 : 2) * kKeys + 1;
  return sizeof(float) * size_t(n_rows * tile_pitch(head_dim) + n_queries * kWeightPitch);
}
bool fits(int head_dim, int n_queries) { return shared_bytes(head_dim, n_queries) <= size_t(gpu::most_shared_bytes()); }

/// Rows [32, pitch] of a tile in shared memory, plus a centre where there is one.
struct FloatTile {
  const float* centre;
  float* rows;
  int pitch;
};

template <class F>
__device__ void decode_range(const RowRange& rows, const FloatTile& to) {
  constexpr int kPiece = kPieceOf<F>;
  const PieceOfRows own(rows.head_dim, kPiece, kThreads);
  for (int p = rows.begin + own.row; p < rows.end; p += own.step) {
    float values[kPiece] = {};
    fetch_piece<F>(rows.row(p), rows.head_dim, own.first, values);
#pragma unroll
    for (int i = 0; i < kPiece; ++i)
      if (const int d = own.first + i; d < rows.head_dim)
        to.rows[p * to.pitch + d] = values[i] + (to.centre ? to.centre[d] : 0.0f);
  }
}

/// A side's rows as coded or as exact; zeros where no query sees that form.
__device__ void decode_tile(const KvTiles& t, const ReadTile& read, bool coded, const FloatTile& to) {
  const RowRange front(t, read, coded ? RowSource::coded : RowSource::sinks), back(t, read, RowSource::ring);
  const auto decode = [&](const RowRange& rows) {
    if (!rows.empty()) with_format(KvFormatTypes(), rows, [&]<class F>() { decode_range<F>(rows, to); });
  };
  decode(front);
  if (!coded) decode(back);
  for (int p = 0; p < kKeys; ++p)
    if (!front.has(p) && (coded || !back.has(p)))
      for (int d = int(threadIdx.x); d < t.head_dim; d += kThreads) to.rows[p * to.pitch + d] = 0;
}

/// Blocks: (block of the list, kv head). kDims: head_dim rounded up to 32 times this.
template <int kDims, int kQueries>
__global__ void __launch_bounds__(kThreads) rows_kernel(const DeviceAttention a, const AttnBlock* blocks, int n_out) {
  constexpr int kPerWarp = kQueries / kWarps;  // queries of a warp
  constexpr bool kShares = kQueries == kFewQueries;
  float* const shared = gpu::dynamic_shared<float>();
  const int dim = a.k.head_dim, pitch = tile_pitch(dim);
  float* const queries = shared;                                // [kQueries, pitch]
  float* const keys = queries + kQueries * pitch;               // [32, pitch]
  float* const values = kShares ? keys : keys + kKeys * pitch;  // [32, pitch]
  float* const weights = values + kKeys * pitch;                // [kQueries, kWeightPitch]
  float* const centre = weights + kQueries * kWeightPitch;      // [pitch], of K's tile
  const AttnBlock block = blocks[blockIdx.x];
  const StepRow* const span = a.rows.rows + block.first;
  const StepRow of = span[0];
  if (of.slot < 0) return;
  const int kv_head = int(blockIdx.y), group = a.group(), warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int32_t* const pages = a.rows.pages + int64_t(of.slot) * a.rows.page_pitch;
  const int n_queries = min(kQueries, block.n * group - block.first_query);
  const auto query = [&](int i) { return block.first_query + min(i, n_queries - 1); };
  const auto row_of = [&](int i) {
    return int64_t(span[query(i) / group].row) * a.n_heads + kv_head * group + query(i) % group;
  };
  for (int i = int(threadIdx.x); i < kQueries * pitch; i += kThreads)
    queries[i] = i % pitch < dim ? a.q[row_of(i / pitch) * dim + i % pitch] : 0.0f;
  for (int i = int(threadIdx.x); i < (kShares ? 1 : 2) * kKeys * pitch; i += kThreads)
    keys[i] = 0;  // channels behind the last

  // Query i of this warp sees positions below n_visible(i), from its window on; those past the last one repeat it and
  // are not stored.
  const auto n_visible = [&](int i) { return of.position + query(warp * kPerWarp + i) / group + 1; };
  const int block_first = of.position + query(0) / group + 1,
            block_last = of.position + query(kQueries - 1) / group + 1;

  float m[kPerWarp], l[kPerWarp], sum[kPerWarp][kDims];
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    m[i] = -INFINITY;
    l[i] = 0;
#pragma unroll
    for (int j = 0; j < kDims; ++j) sum[i][j] = 0;
  }

  for (int first = a.k.first_seen(block_first) / kKeys * kKeys; first < block_last; first += kKeys) {
    if (a.k.turn.n_pairs > 0 && warp == 2)  // since the last barrier nobody reads the one before
      put_centre({a.k, of.slot, kv_head, first / kTilePositions}, lane, centre);
    // A tile may be coded for some queries of the block and exact for others, on either side: each pair of sources is
    // one pass over the tile, in which a query takes the positions that it sees so.
    for (int source = 0; source < 4; ++source) {
      const bool k_coded = source & 1, v_coded = source & 2;
      const int key = first + lane;
      bool wanted = false;
      unsigned seen = 0;  // bit i: query i sees this lane's position here
#pragma unroll
      for (int i = 0; i < kPerWarp; ++i) {
        const int n = n_visible(i);
        const bool k_here = key < a.k.n_sinks ? !k_coded : (key < a.k.retention.coded_end(n)) == k_coded;
        const bool v_here = key < a.v.n_sinks ? !v_coded : (key < a.v.retention.coded_end(n)) == v_coded;
        const bool here = key >= a.k.first_seen(n) && key < n && k_here && v_here;
        seen |= unsigned(here) << i;
        wanted = wanted || here;
      }
      if (!__syncthreads_or(wanted)) continue;  // also: everyone has done with the tile before
      const ReadTile read{of, pages, kv_head, first / kTilePositions, block_first, block_last};
      decode_tile(a.k, read, k_coded, {a.k.turn.n_pairs > 0 ? centre : nullptr, keys, pitch});
      const auto decode_values = [&] {
        decode_tile(a.v, read, v_coded, {a.v.turn.n_pairs > 0 ? centre : nullptr, values, pitch});
      };
      if constexpr (!kShares) decode_values();
      __syncthreads();
      float score[kPerWarp] = {};
      for (int d = 0; d < dim; d += 4) {
        const float4 x = *reinterpret_cast<const float4*>(keys + lane * pitch + d);
#pragma unroll
        for (int i = 0; i < kPerWarp; ++i) {
          const float4 q = *reinterpret_cast<const float4*>(queries + (warp * kPerWarp + i) * pitch + d);
          score[i] = fmaf(q.x, x.x, fmaf(q.y, x.y, fmaf(q.z, x.z, fmaf(q.w, x.w, score[i]))));
        }
      }
      if constexpr (kShares) {
        __syncthreads();
        decode_values();
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kPerWarp; ++i) {
        score[i] = seen >> i & 1 ? score[i] * a.scale : -INFINITY;
        const float top = fmaxf(m[i], gpu::warp_max(score[i]));
        const float shrink = top == m[i] ? 1.0f : expf(m[i] - top),
                    p = score[i] == -INFINITY ? 0.0f : expf(score[i] - top);
        l[i] = l[i] * shrink + gpu::warp_sum(p);
        m[i] = top;
        weights[(warp * kPerWarp + i) * kWeightPitch + lane] = p;
#pragma unroll
        for (int j = 0; j < kDims; ++j) sum[i][j] *= shrink;
      }
      if constexpr (kShares) __syncthreads();
      else __syncwarp();  // a warp reads only the weights it wrote
      for (int t = 0; t < kKeys; t += 4) {
        float x[4][kDims];
#pragma unroll
        for (int u = 0; u < 4; ++u)
#pragma unroll
          for (int j = 0; j < kDims; ++j)
            x[u][j] = lane + 32 * j < dim ? values[(t + u) * pitch + lane + 32 * j] : 0.0f;
#pragma unroll
        for (int i = 0; i < kPerWarp; ++i) {
          const float4 p = *reinterpret_cast<const float4*>(weights + (warp * kPerWarp + i) * kWeightPitch + t);
#pragma unroll
          for (int j = 0; j < kDims; ++j)
            sum[i][j] = fmaf(p.w, x[3][j], fmaf(p.z, x[2][j], fmaf(p.y, x[1][j], fmaf(p.x, x[0][j], sum[i][j]))));
        }
      }
    }
  }

  // Out of cache space: a thread a row, in the place of the queries.
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    float share = 1 / l[i];  // of a weight of 1
    if (a.sink_logits) {
      const float sink = a.sink_logits[kv_head * group + query(warp * kPerWarp + i) % group], top = fmaxf(m[i], sink);
      share = expf(m[i] - top) / (l[i] * expf(m[i] - top) + expf(sink - top));
    }
#pragma unroll
    for (int j = 0; j < kDims; ++j)
      if (lane + 32 * j < dim) queries[(warp * kPerWarp + i) * pitch + lane + 32 * j] = sum[i][j] * share;
  }
  __syncthreads();
  if (int(threadIdx.x) < n_queries) {
    float* const row = queries + int(threadIdx.x) * pitch;
    a.v.rotation.backward(row);
    if (a.v.turn.n_pairs == 0) a.v.add_still_centre(of.slot, kv_head, row);  // one that turns is in the values already
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < n_queries * n_out; i += kThreads)
    a.out[row_of(i / n_out) * n_out + i % n_out] = queries[i / n_out * pitch + i % n_out];
}

template <int kDims, int kQueries>
void launch(gpu::StreamHandle stream, const DeviceAttention& a, const RowsList& list) {
  const auto kernel = rows_kernel<kDims, kQueries>;
  const size_t shared = shared_bytes(a.k.head_dim, kQueries);
  gpu::allow_shared_bytes("attention over rows", kernel, shared);
  gpu::launch("attention over rows", kernel,
              {dim3(unsigned(list.n), unsigned(a.k.n_kv_heads)), kThreads, shared, stream}, a, list.blocks, list.n_out);
}

template <int kQueries>
void launch(gpu::StreamHandle stream, const DeviceAttention& a, const RowsList& list) {
  if (a.k.head_dim <= 64) launch<2, kQueries>(stream, a, list);
  else if (a.k.head_dim <= 128) launch<4, kQueries>(stream, a, list);
  else if (a.k.head_dim <= 256) launch<8, kQueries>(stream, a, list);
  else if (a.k.head_dim <= kMostRowsHeadDim) launch<16, kQueries>(stream, a, list);
  else if constexpr (kQueries == kFewQueries) launch<kMostLatentDim / 32, kQueries>(stream, a, list);
}

}  // namespace

int rows_attn_queries(int head_dim) {
  return head_dim <= kMostRowsHeadDim && fits(head_dim, kManyQueries) ? kManyQueries : kFewQueries;
}

bool can_run_rows_attn(int head_dim) { return fits(head_dim, kFewQueries); }

void rows_attn(gpu::StreamHandle stream, const DeviceAttention& a, const RowsList& list) {
  if (list.n == 0) return;
  if (rows_attn_queries(a.k.head_dim) == kManyQueries) launch<kManyQueries>(stream, a, list);
  else launch<kFewQueries>(stream, a, list);
}

}  // namespace ridge
