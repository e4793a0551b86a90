// Attention over latent rows: one kv head whose rows are K and V of many query heads. A block takes a row of the step,
// 16 of its heads and a part of its positions; 16 cached rows at a time are decoded into shared memory, where they
// serve scores and sums of all these heads. Running softmax (maximum m, sum l, weighted values); a second kernel puts
// the parts together in their order.
#include <algorithm>

#include "gpu/tensor.h"
#include "op/attn/attn_cuda.h"
#include "op/attn/row_limits.h"
#include "op/cache/rotate_warp.h"
#include "op/cache/row_pieces.h"

namespace ridge {
namespace {

constexpr int kHeads = 16, kKeys = 16, kThreads = 256, kWarps = kThreads / 32;
constexpr int kSlices = 16;     // of a dot product: two a warp
constexpr int kMostParts = 64;  // of a row's positions
static_assert(kHeads * kKeys == kThreads && kTilePositions % kKeys == 0);

/// Rows are this far apart: those of four neighbours begin at different banks.
__host__ __device__ constexpr int row_pitch(int head_dim) { return (head_dim + 31) / 32 * 32 + 4; }
size_t shared_bytes(int head_dim) {
  return sizeof(float) * size_t((kHeads + kKeys + 2) * row_pitch(head_dim) + (kWarps + 1) * kHeads * kKeys + kHeads);
}

/// Where blocks leave their parts: sums [rows, parts, n_heads, head_dim], then m and l [rows, parts, n_heads, 2].
struct Parts {
  int n = 0;
  float* sums = nullptr;
  float* tops = nullptr;
};

/// Row `position` as a query that sees n positions does.
__device__ __forceinline__ CachedRow cached_row(const KvTiles& t, const StepRow& of, const int32_t* pages, int position,
                                                int n) {
  if (position < t.n_sinks || position >= t.retention.coded_end(n))
    return {exact_row(t, of, 0, position), exact_format(t, position), {}};
  return {t.coded_row(pages, 0, position), t.format, t.coding(of.slot, 0)};
}

/// The part of the block's rows [kKeys, pitch] that has format F, from first_key on; the block, without a barrier.
template <class F>
__device__ void decode_rows(int format, const KvTiles& t, const StepRow& of, const int32_t* pages, int first_key,
                            int n_keys, int n, float* keys, int pitch) {
  constexpr int kPiece = kPieceOf<F>;
  const int dim = t.head_dim, pieces = (dim + kPiece - 1) / kPiece;
  for (int i = int(threadIdx.x); i < n_keys * pieces; i += kThreads) {
    const int key = i / pieces, first = i % pieces * kPiece;
    const CachedRow row = cached_row(t, of, pages, first_key + key, n);
    if (row.format != format) continue;
    float values[kPiece] = {};
    fetch_piece<F>(row, dim, first, values);
#pragma unroll
    for (int d = 0; d < kPiece; d += 4)
      if (first + d < dim)
        *reinterpret_cast<float4*>(keys + key * pitch + first + d) =
            make_float4(values[d], values[d + 1], values[d + 2], values[d + 3]);
  }
}
template <class... F>
__device__ void decode_formats(KvTypes<F...>, unsigned wanted, const KvTiles& t, const StepRow& of,
                               const int32_t* pages, int first_key, int n_keys, int n, float* keys, int pitch) {
  int i = 0;
  ((wanted >> i & 1 ? decode_rows<F>(i, t, of, pages, first_key, n_keys, n, keys, pitch) : void(), ++i), ...);
}

/// Over the 16 lanes of half a warp.
__device__ __forceinline__ float half_max(float x) {
  for (int step = 8; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(gpu::kAllLanes, x, step));
  return x;
}
__device__ __forceinline__ float half_sum(float x) {
  for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(gpu::kAllLanes, x, step);
  return x;
}

/// x and y of four channels, multiplied.
__device__ __forceinline__ float dot4(float4 x, float4 y, float sum) {
  return fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
}
__device__ __forceinline__ void add4(float weight, float4 x, float4& sum) {
  sum.x = fmaf(weight, x.x, sum.x), sum.y = fmaf(weight, x.y, sum.y);
  sum.z = fmaf(weight, x.z, sum.z), sum.w = fmaf(weight, x.w, sum.w);
}

/// Blocks: (row of the step, part, 16 heads). kQuads: groups of four channels that a lane sums, of half a row.
template <int kQuads>
__global__ void __launch_bounds__(kThreads) latent_kernel(const DeviceAttention a, const Parts parts) {
  const KvTiles& t = a.k;
  const int dim = t.head_dim, pitch = row_pitch(dim), n_quads = (dim + 3) / 4;
  float* const queries = gpu::dynamic_shared<float>();       // [kHeads, pitch]
  float* const keys = queries + kHeads * pitch;              // [kKeys, pitch]
  float* const partial = keys + kKeys * pitch;               // [kWarps, kHeads, kKeys]
  float* const weights = partial + kWarps * kHeads * kKeys;  // [kKeys, kHeads]
  float* const shrinks = weights + kKeys * kHeads;           // [kHeads]
  float* const centres = shrinks + kHeads;                   // [2, pitch], of the tiles of the first key and the last
  const StepRow of = a.rows.rows[blockIdx.x];
  if (of.slot < 0) return;
  const int32_t* const pages = a.rows.pages + int64_t(of.slot) * a.rows.page_pitch;
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int first_head = int(blockIdx.z) * kHeads, n_heads = min(kHeads, a.n_heads - first_head);
  const int n = of.position + 1;
  // Tiles of this part.
  const int first_tile = t.first_seen(n) / kTilePositions, n_tiles = (n - 1) / kTilePositions + 1 - first_tile;
  const int part = int(blockIdx.y), from_tile = first_tile + int(int64_t(n_tiles) * part / parts.n),
            to_tile = first_tile + int(int64_t(n_tiles) * (part + 1) / parts.n);
  const int first = max(t.first_seen(n), from_tile * kTilePositions), end = min(n, to_tile * kTilePositions);
  // Channels behind the last, heads behind the last: zeros.
  for (int i = thread; i < (kHeads + kKeys) * pitch; i += kThreads) {
    const int head = i / pitch, d = i % pitch;
    const bool there = head < n_heads && d < dim;
    queries[i] = there ? a.q[(int64_t(of.row) * a.n_heads + first_head + head) * dim + d] : 0.0f;
  }
  // Scores: four heads times four keys and a slice of the channels a thread; neighbours read different banks.
  const int head4 = lane % 4, key4 = lane / 4 % 4, slice = warp % 4 + lane / 16 * 4 + warp / 4 * 8;
  // Softmax: a head and a key a thread. Sums: four heads and half the channels a warp.
  const int own_head = thread / kKeys, own_key = thread % kKeys;
  const int half_quads = (n_quads + 1) / 2, first_quad = warp / 4 * half_quads + lane,
            end_quad = min(n_quads, (warp / 4 + 1) * half_quads);
  float m = -INFINITY, l = 0;
  float4 sums[4][kQuads] = {};

  for (int key = first; key < end; key += kKeys) {
    const int n_keys = min(kKeys, end - key);
    const int last = key + n_keys - 1;
    unsigned wanted = 0;
    if (key < t.n_sinks) wanted |= 1u << kNumberOfF16;
    if (last >= t.n_sinks && key < t.retention.coded_end(n)) wanted |= 1u << t.format;
    if (last >= t.n_sinks && last >= t.retention.coded_end(n)) wanted |= 1u << exact_format(t, last);
    __syncthreads();  // the keys before have been used
    decode_formats(KvFormatTypes(), wanted, t, of, pages, key, n_keys, n, keys, pitch);
    if (t.centre && warp < 2)
      put_centre({t, of.slot, 0, (warp == 0 ? key : last) / kTilePositions}, lane, centres + warp * pitch);
    __syncthreads();
    if (t.centre) {
      for (int i = thread; i < n_keys * dim; i += kThreads) {
        const bool as_first = (key + i / dim) / kTilePositions == key / kTilePositions;
        keys[i / dim * pitch + i % dim] += centres[(as_first ? 0 : pitch) + i % dim];
      }
      __syncthreads();
    }

    float scores[4][4] = {};
    for (int quad = slice; quad < n_quads; quad += kSlices) {
      float4 q[4], k[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[i] = *reinterpret_cast<const float4*>(queries + (head4 + 4 * i) * pitch + 4 * quad);
        k[i] = *reinterpret_cast<const float4*>(keys + (key4 + 4 * i) * pitch + 4 * quad);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) scores[i][j] = dot4(q[i], k[j], scores[i][j]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float both = scores[i][j] + __shfl_xor_sync(gpu::kAllLanes, scores[i][j], 16);
        if (lane < 16) partial[(warp * kHeads + head4 + 4 * i) * kKeys + key4 + 4 * j] = both;
      }
    __syncthreads();
    float score = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) score += partial[(i * kHeads + own_head) * kKeys + own_key];
    score = own_key < n_keys ? score * a.scale : -INFINITY;
    const float top = fmaxf(m, half_max(score)), shrink = m == top ? 1.0f : expf(m - top),
                p = score == -INFINITY ? 0.0f : expf(score - top);
    l = l * shrink + half_sum(p);
    m = top;
    weights[own_key * kHeads + own_head] = p;
    if (own_key == 0) shrinks[own_head] = shrink;
    __syncthreads();

    const float4 shrink4 = *reinterpret_cast<const float4*>(shrinks + warp % 4 * 4);
    const float of_head[4] = {shrink4.x, shrink4.y, shrink4.z, shrink4.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        float4& sum = sums[i][j];
        sum.x *= of_head[i], sum.y *= of_head[i], sum.z *= of_head[i], sum.w *= of_head[i];
      }
    for (int k = 0; k < n_keys; ++k) {
      const float4 w = *reinterpret_cast<const float4*>(weights + k * kHeads + warp % 4 * 4);
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const int quad = first_quad + 32 * j;
        if (quad >= end_quad) break;
        const float4 x = *reinterpret_cast<const float4*>(keys + k * pitch + 4 * quad);
        add4(w.x, x, sums[0][j]);
        add4(w.y, x, sums[1][j]);
        add4(w.z, x, sums[2][j]);
        add4(w.w, x, sums[3][j]);
      }
    }
  }

  const int64_t row = (int64_t(blockIdx.x) * parts.n + part) * a.n_heads + first_head;
  if (own_key == 0 && own_head < n_heads) {
    parts.tops[2 * (row + own_head)] = m;
    parts.tops[2 * (row + own_head) + 1] = l;
  }
  if (first >= end) return;  // nobody reads its sums
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = warp % 4 * 4 + i;
    if (head >= n_heads) break;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int quad = first_quad + 32 * j;
      const float of_quad[4] = {sums[i][j].x, sums[i][j].y, sums[i][j].z, sums[i][j].w};
      if (quad >= end_quad) break;
#pragma unroll
      for (int d = 0; d < 4; ++d)
        if (4 * quad + d < dim) parts.sums[(row + head) * dim + 4 * quad + d] = of_quad[d];
    }
  }
}

/// Blocks: (row of the step, head). A warp: the parts together, out of cache space.
__global__ void __launch_bounds__(32) join_kernel(const DeviceAttention a, const Parts parts, int n_out) {
  const StepRow of = a.rows.rows[blockIdx.x];
  if (of.slot < 0) return;
  float* const row = gpu::dynamic_shared<float>();
  const int lane = int(threadIdx.x), head = int(blockIdx.y), dim = a.k.head_dim;
  const int64_t first = int64_t(blockIdx.x) * parts.n * a.n_heads + head;
  const auto top_of = [&](int part) { return parts.tops[2 * (first + int64_t(part) * a.n_heads)]; };
  const auto sum_of = [&](int part) { return parts.tops[2 * (first + int64_t(part) * a.n_heads) + 1]; };
  float top = -INFINITY, total = 0;
  for (int part = lane; part < parts.n; part += 32) top = fmaxf(top, top_of(part));
  top = gpu::warp_max(top);
  for (int d = lane; d < dim; d += 32) row[d] = 0;
  for (int part = 0; part < parts.n; ++part) {
    if (sum_of(part) == 0) continue;  // no positions
    const float weight = expf(top_of(part) - top);
    total += weight * sum_of(part);
    const float* const sums = parts.sums + (first + int64_t(part) * a.n_heads) * dim;
    for (int d = lane; d < dim; d += 32) row[d] = fmaf(weight, sums[d], row[d]);
  }
  for (int d = lane; d < dim; d += 32) row[d] /= total;
  rotate_shared_row(a.k.rotation, false, lane, row);
  __syncwarp();
  for (int d = lane; d < n_out; d += 32) a.out[(int64_t(of.row) * a.n_heads + head) * n_out + d] = row[d];
}

int head_groups(int n_heads) { return (n_heads + kHeads - 1) / kHeads; }

/// By the number of rows alone, so that a recorded launch serves every position.
int parts_of(int n_rows, int n_heads) {
  const int blocks = n_rows * head_groups(n_heads);
  return std::clamp(2 * gpu::multiprocessors() / std::max(1, blocks), 1, kMostParts);
}

}  // namespace

int64_t latent_attn_scratch_bytes(int n_rows, int n_heads, int head_dim) {
  return int64_t(sizeof(float)) * n_rows * parts_of(n_rows, n_heads) * n_heads * (head_dim + 2);
}

bool can_run_latent_attn(int head_dim) { return shared_bytes(head_dim) <= size_t(gpu::most_shared_bytes()); }

void latent_attn(gpu::StreamHandle stream, const DeviceAttention& a, int n_out, std::byte* scratch) {
  if (a.rows.n == 0) return;
  const int dim = a.k.head_dim;
  Parts parts{.n = parts_of(a.rows.n, a.n_heads), .sums = reinterpret_cast<float*>(scratch)};
  parts.tops = parts.sums + int64_t(a.rows.n) * parts.n * a.n_heads * dim;
  const auto kernel = dim <= 256 ? latent_kernel<1> : dim <= 512 ? latent_kernel<2> : latent_kernel<3>;
  static_assert(kMostLatentDim <= 3 * 256);
  gpu::allow_shared_bytes("latent attention", kernel, shared_bytes(dim));
  const dim3 blocks(unsigned(a.rows.n), unsigned(parts.n), unsigned(head_groups(a.n_heads)));
  gpu::launch("latent attention", kernel, {blocks, kThreads, shared_bytes(dim), stream}, a, parts);
  gpu::launch("latent attention, parts", join_kernel,
              {dim3(unsigned(a.rows.n), unsigned(a.n_heads)), 32, sizeof(float) * size_t(dim), stream}, a, parts,
              n_out);
}

}  // namespace ridge
