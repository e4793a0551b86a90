// Two float kernels: tiles of 32 queries x 32 keys when there are many queries, a warp a key when there is one per
// sequence. Both keep a running softmax (maximum m, sum l, weighted values). Halves are prefill_cuda.h's.
#include "gpu/launch.h"
#include "op/attn/attn_cuda.h"
#include "op/attn/prefill_cuda.h"

namespace ridge {
namespace {

constexpr int kQueries = 32, kKeys = 32, kWarps = 4, kThreads = 32 * kWarps;
constexpr int kPerWarp = kQueries / kWarps;  // queries of a warp
constexpr int kWeightPitch = kKeys + 4;

/// Rows of a tile are this far apart, so that eight threads reading 16 bytes of eight rows hit different banks.
__host__ __device__ constexpr int tile_pitch(int head_dim) { return head_dim + 4; }

size_t tiled_shared_bytes(int head_dim) {
  return sizeof(float) *
         size_t(kQueries * tile_pitch(head_dim) + kKeys * tile_pitch(head_dim) + kQueries * kWeightPitch);
}

/// Keys [first, first + 32) of a side into shared memory: those positions in [begin, end) that `rows` has (row 0 is
/// position begin), zero elsewhere.
__device__ void load_keys(const float* rows, int begin, int end, int first, int dim, float* tile) {
  const int per_row = dim / 4;
  for (int i = int(threadIdx.x); i < kKeys * per_row; i += kThreads) {
    const int key = i / per_row, d = i % per_row * 4, position = first + key;
    float4 values = make_float4(0, 0, 0, 0);
    if (position >= begin && position < end)
      values = *reinterpret_cast<const float4*>(rows + int64_t(position - begin) * dim + d);
    *reinterpret_cast<float4*>(tile + key * tile_pitch(dim) + d) = values;
  }
}

/// The rows of one sequence and kv head of a side.
struct SideRows {
  const float* coded;
  const float* exact;
};
__device__ SideRows side_rows(const DeviceKvSide& side, int64_t seq_head, int n_keys, int dim) {
  return {side.coded + seq_head * side.n_coded * dim, side.exact + seq_head * (n_keys - side.exact_first) * dim};
}

/// kDims: head_dim rounded up to 32 times this.
template <int kDims>
__global__ void __launch_bounds__(kThreads) tiled_kernel(DeviceAttn a) {
  float* const shared = gpu::dynamic_shared<float>();
  const int dim = a.head_dim, pitch = tile_pitch(dim);
  float* queries = shared;                   // [32, pitch]
  float* tile = queries + kQueries * pitch;  // [32, pitch]
  float* weights = tile + kKeys * pitch;     // [32, kWeightPitch]
  const int first_query = int(blockIdx.x) * kQueries, head = int(blockIdx.y),
            kv_head = head / (a.n_heads / a.n_kv_heads);
  const int64_t seq = blockIdx.z, seq_head = seq * a.n_kv_heads + kv_head;
  const SideRows k = side_rows(a.k, seq_head, a.n_keys, dim), v = side_rows(a.v, seq_head, a.n_keys, dim);
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, n_past = a.n_keys - a.n_tokens;

  const int n_queries = min(kQueries, a.n_tokens - first_query);
  for (int i = int(threadIdx.x); i < kQueries * dim; i += kThreads) {
    const int query = i / dim, d = i % dim;
    const int64_t token = seq * a.n_tokens + first_query + min(query, n_queries - 1);
    queries[query * pitch + d] = a.q[(token * a.n_heads + head) * dim + d];
  }

  // Query i of this warp sees positions below n_visible(i); those past the last one repeat it and are not stored.
  const auto n_visible = [&](int i) { return n_past + first_query + min(warp * kPerWarp + i, n_queries - 1) + 1; };
  const int block_first = n_past + first_query + 1, block_last = n_past + first_query + n_queries;
  const int k_coded_min = a.k.retention.coded_end(block_first), k_coded_max = a.k.retention.coded_end(block_last);
  const int v_coded_min = a.v.retention.coded_end(block_first), v_coded_max = a.v.retention.coded_end(block_last);

  float m[kPerWarp], l[kPerWarp], sum[kPerWarp][kDims];
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    m[i] = -INFINITY;
    l[i] = 0;
#pragma unroll
    for (int j = 0; j < kDims; ++j) sum[i][j] = 0;
  }

  for (int first = 0; first < block_last; first += kKeys) {
    const int key = first + lane;
    // Scores. A tile may be coded for some queries of the block and exact for others: then both are read.
    float score[kPerWarp];
#pragma unroll
    for (int i = 0; i < kPerWarp; ++i) score[i] = -INFINITY;
    for (int coded = 0; coded < 2; ++coded) {
      if (coded ? first >= k_coded_max : first + kKeys <= k_coded_min) continue;
      __syncthreads();  // the tile before this one has been used; the queries are there
      if (coded) load_keys(k.coded, 0, a.k.n_coded, first, dim, tile);
      else load_keys(k.exact, a.k.exact_first, a.n_keys, first, dim, tile);
      __syncthreads();
      float dot[kPerWarp] = {};
      for (int d = 0; d < dim; d += 4) {
        const float4 x = *reinterpret_cast<const float4*>(tile + lane * pitch + d);
#pragma unroll
        for (int i = 0; i < kPerWarp; ++i) {
          const float4 q = *reinterpret_cast<const float4*>(queries + (warp * kPerWarp + i) * pitch + d);
          dot[i] = fmaf(q.x, x.x, fmaf(q.y, x.y, fmaf(q.z, x.z, fmaf(q.w, x.w, dot[i]))));
        }
      }
#pragma unroll
      for (int i = 0; i < kPerWarp; ++i) {
        const int visible = n_visible(i);
        if (key < visible && (key < a.k.retention.coded_end(visible)) == bool(coded)) score[i] = dot[i] * a.scale;
      }
    }

    // Position 0 is visible to every query, so m is finite from the first tile on.
#pragma unroll
    for (int i = 0; i < kPerWarp; ++i) {
      const float top = fmaxf(m[i], gpu::warp_max(score[i])), shrink = expf(m[i] - top), p = expf(score[i] - top);
      l[i] = l[i] * shrink + gpu::warp_sum(p);
      m[i] = top;
      score[i] = p;
#pragma unroll
      for (int j = 0; j < kDims; ++j) sum[i][j] *= shrink;
    }

    // Values, likewise. A warp reads only the weights it wrote.
    for (int coded = 0; coded < 2; ++coded) {
      if (coded ? first >= v_coded_max : first + kKeys <= v_coded_min) continue;
      __syncthreads();
      if (coded) load_keys(v.coded, 0, a.v.n_coded, first, dim, tile);
      else load_keys(v.exact, a.v.exact_first, a.n_keys, first, dim, tile);
#pragma unroll
      for (int i = 0; i < kPerWarp; ++i) {
        const bool read_here = (key < a.v.retention.coded_end(n_visible(i))) == bool(coded);
        weights[(warp * kPerWarp + i) * kWeightPitch + lane] = read_here ? score[i] : 0.0f;
      }
      __syncthreads();
      for (int t = 0; t < kKeys; t += 4) {
        float x[4][kDims];
#pragma unroll
        for (int u = 0; u < 4; ++u)
#pragma unroll
          for (int j = 0; j < kDims; ++j) x[u][j] = lane + 32 * j < dim ? tile[(t + u) * pitch + lane + 32 * j] : 0.0f;
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

#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    const int query = warp * kPerWarp + i;
    if (query >= n_queries) break;
    float* out = a.out + ((seq * a.n_tokens + first_query + query) * a.n_heads + head) * dim;
#pragma unroll
    for (int j = 0; j < kDims; ++j)
      if (lane + 32 * j < dim) out[lane + 32 * j] = sum[i][j] / l[i];
  }
}

/// One query a sequence: a block takes one head, its warps take keys in turn, kBatch at a time, and merge at the end.
template <int kDims>
__global__ void __launch_bounds__(kThreads) single_kernel(DeviceAttn a) {
  constexpr int kBatch = 4;
  __shared__ float part_m[kWarps], part_l[kWarps], part_sum[kWarps][32 * kDims];
  const int dim = a.head_dim, head = int(blockIdx.x), kv_head = head / (a.n_heads / a.n_kv_heads);
  const int64_t seq = blockIdx.y, seq_head = seq * a.n_kv_heads + kv_head;
  const SideRows k = side_rows(a.k, seq_head, a.n_keys, dim), v = side_rows(a.v, seq_head, a.n_keys, dim);
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int k_coded = a.k.retention.coded_end(a.n_keys), v_coded = a.v.retention.coded_end(a.n_keys);
  const float* query = a.q + (seq * a.n_heads + head) * dim;

  float q[kDims], sum[kDims], m = -INFINITY, l = 0;
#pragma unroll
  for (int j = 0; j < kDims; ++j) {
    q[j] = lane + 32 * j < dim ? query[lane + 32 * j] : 0.0f;
    sum[j] = 0;
  }
  for (int first = warp * kBatch; first < a.n_keys; first += kWarps * kBatch) {
    float score[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int key = min(first + u, a.n_keys - 1);
      const float* row = key < k_coded ? k.coded + int64_t(key) * dim : k.exact + int64_t(key - a.k.exact_first) * dim;
      float dot = 0;
#pragma unroll
      for (int j = 0; j < kDims; ++j)
        if (lane + 32 * j < dim) dot = fmaf(q[j], row[lane + 32 * j], dot);
      score[u] = dot;
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) score[u] = first + u < a.n_keys ? gpu::warp_sum(score[u]) * a.scale : -INFINITY;
    float top = m;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) top = fmaxf(top, score[u]);
    const float shrink = expf(m - top);
    m = top;
    l *= shrink;
#pragma unroll
    for (int j = 0; j < kDims; ++j) sum[j] *= shrink;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int key = min(first + u, a.n_keys - 1);
      const float* row = key < v_coded ? v.coded + int64_t(key) * dim : v.exact + int64_t(key - a.v.exact_first) * dim;
      const float p = expf(score[u] - m);
      l += p;
#pragma unroll
      for (int j = 0; j < kDims; ++j)
        if (lane + 32 * j < dim) sum[j] = fmaf(p, row[lane + 32 * j], sum[j]);
    }
  }
  if (lane == 0) part_m[warp] = m, part_l[warp] = l;
#pragma unroll
  for (int j = 0; j < kDims; ++j) part_sum[warp][lane + 32 * j] = sum[j];
  __syncthreads();

  float top = -INFINITY, total = 0;
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, part_m[w]);
  for (int w = 0; w < kWarps; ++w) total += part_l[w] * expf(part_m[w] - top);
  for (int d = int(threadIdx.x); d < dim; d += kThreads) {
    float value = 0;
    for (int w = 0; w < kWarps; ++w) value += part_sum[w][d] * expf(part_m[w] - top);  // a warp without keys: exp(-inf)
    a.out[(seq * a.n_heads + head) * dim + d] = value / total;
  }
}

template <int kDims>
void launch(gpu::StreamHandle stream, const DeviceAttn& a) {
  if (a.n_tokens == 1) {
    gpu::launch("attention", single_kernel<kDims>, {dim3(unsigned(a.n_heads), unsigned(a.n_seq)), kThreads, 0, stream},
                a);
  } else {
    const size_t bytes = tiled_shared_bytes(a.head_dim);
    gpu::check(cudaFuncSetAttribute(tiled_kernel<kDims>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)),
               "shared memory of attention");
    const dim3 grid(unsigned(gpu::ceil_div(a.n_tokens, kQueries)), unsigned(a.n_heads), unsigned(a.n_seq));
    gpu::launch("attention", tiled_kernel<kDims>, {grid, kThreads, bytes, stream}, a);
  }
}

}  // namespace

void device_attn(gpu::StreamHandle stream, const DeviceAttn& a) {
  if (a.n_tokens > 1 && a.k.rounds && a.v.rounds && !prefill_attn_unsupported(a.head_dim, 4)) prefill_attn(stream, a);
  else if (a.head_dim <= 64) launch<2>(stream, a);
  else if (a.head_dim <= 128) launch<4>(stream, a);
  else launch<8>(stream, a);
}

}  // namespace ridge
