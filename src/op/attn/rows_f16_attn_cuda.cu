// Attention on tensor cores over tiles of rows: for head sizes that have no order for tensor cores, and for prompts
// over latent rows. A block takes some queries of a span and a part of their tiles. The 32 rows of a tile are decoded
// to f16 into shared memory by all threads, K first, then V in the same place. Running softmax (maximum m, sum l,
// weighted values); a second kernel puts the parts together in their order.
#include <algorithm>

#include "gpu/tensor.h"
#include "op/attn/attn_cuda.h"
#include "op/attn/row_limits.h"
#include "op/cache/rotate_warp.h"
#include "op/cache/row_pieces.h"

namespace ridge {
namespace {

constexpr int kKeys = kTilePositions;
constexpr float kLog2E = 1.44269504f;
constexpr int kMostParts = 128;  // of a short row's positions
constexpr int kJoinWarps = 8;

/// A block of kQueries queries over heads of up to kDim values: kM x kN warps, each with 16 queries, a kN-th of the
/// keys for scores and a kN-th of the channels for outputs.
template <int kDim_, int kQueries_>
struct Cut {
  static constexpr int kDim = kDim_, kQueries = kQueries_;
  static constexpr int kM = kQueries / 16, kWarps = kM == 1 ? 4 : 8, kN = kWarps / kM, kThreads = 32 * kWarps;
  static constexpr int kOwnKeys = kKeys / kN, kOwnChannels = kDim / kN;
  /// Rows of K and of queries, f16; V as words of two keys. Eight neighbours begin at different banks.
  static constexpr int kPitch = kDim + 8;
  static constexpr int kScorePitch = kKeys + 4;   // floats
  static constexpr int kWeightPitch = kKeys + 8;  // f16
  static constexpr size_t kShared =
      size_t(kQueries + kKeys) * kPitch * 2 + size_t(kQueries) * (kScorePitch * 4 + kWeightPitch * 2 + 4) + kDim * 4;
};

/// Where the word of keys 2 pair, 2 pair + 1 in a channel is. Channels are turned within groups of eight, so that 32
/// threads that write eight channels each hit different banks.
__device__ __forceinline__ int value_word(int pitch, int pair, int channel) {
  return pair * pitch + (channel & ~7) + ((channel + (channel >> 5)) & 7);
}

/// A piece of a row as f16, two channels a word, plus a centre where there is one.
template <class F>
__device__ __forceinline__ void fetch_words(const CachedRow& row, int dim, int first, const float* centre,
                                            uint32_t (&words)[kPieceOf<F> / 2]) {
  if constexpr (std::is_same_v<F, KvF16>)
    if (!centre && dim % 8 == 0) {  // every row begins at a multiple of 16 bytes
      const uint4 four = *reinterpret_cast<const uint4*>(row.bytes + 2 * first);
      words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
      return;
    }
  float values[kPieceOf<F>] = {};
  fetch_piece<F>(row, dim, first, values);
#pragma unroll
  for (int i = 0; i < kPieceOf<F> / 2; ++i) {
    const bool there = centre && first + 2 * i < dim;
    words[i] = gpu::pack_f16(values[2 * i] + (there ? centre[first + 2 * i] : 0.0f),
                             values[2 * i + 1] + (there ? centre[first + 2 * i + 1] : 0.0f));
  }
}

/// Pieces that a thread asks for before it uses the first: memory answers late.
template <class F>
constexpr int kAhead = kPieceOf<F> > 8 ? 1 : 4;

/// Rows of K from a source: keys [kKeys, pitch] of f16. Others stay what they are.
template <class F>
__device__ __forceinline__ void decode_keys(const RowRange& rows, int n_threads, int pitch, const float* centre,
                                            uint32_t* keys) {
  constexpr int kPiece = kPieceOf<F>;
  const PieceOfRows own(rows.head_dim, kPiece, n_threads);
  for (int p = rows.begin + own.row; p < rows.end; p += kAhead<F> * own.step) {
    uint32_t words[kAhead<F>][kPiece / 2];
#pragma unroll
    for (int j = 0; j < kAhead<F>; ++j)
      if (p + j * own.step < rows.end)
        fetch_words<F>(rows.row(p + j * own.step), rows.head_dim, own.first, centre, words[j]);
#pragma unroll
    for (int j = 0; j < kAhead<F>; ++j) {
      if (p + j * own.step >= rows.end) break;
      uint32_t* const to = keys + ((p + j * own.step) * pitch + own.first) / 2;
#pragma unroll
      for (int i = 0; i < kPiece / 2; i += 4)
        if (own.first + 2 * i < rows.head_dim)
          *reinterpret_cast<uint4*>(to + i) =
              make_uint4(words[j][i], words[j][i + 1], words[j][i + 2], words[j][i + 3]);
    }
  }
}

/// Rows of V from a source: values [kKeys / 2, pitch] of words. Others become zeros: their weights are 0.
template <class F>
__device__ __forceinline__ void decode_values(const RowRange& rows, int n_threads, int pitch, const float* centre,
                                              uint32_t* values) {
  constexpr int kPiece = kPieceOf<F>, kPairs = (kAhead<F> + 1) / 2;
  const PieceOfRows own(rows.head_dim, kPiece, n_threads);
  for (int pair = own.row; pair < kKeys / 2; pair += kPairs * own.step) {
    uint32_t words[kPairs][2][kPiece / 2] = {};
#pragma unroll
    for (int j = 0; j < kPairs; ++j)
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int p = 2 * (pair + j * own.step) + u;
        if (rows.has(p)) fetch_words<F>(rows.row(p), rows.head_dim, own.first, centre, words[j][u]);
      }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if (pair + j * own.step >= kKeys / 2) break;
#pragma unroll
      for (int d = 0; d < kPiece; d += 2) {
        if (own.first + d >= rows.head_dim) break;
        const uint32_t low = words[j][0][d / 2], high = words[j][1][d / 2];
        const int at = pair + j * own.step;
        values[value_word(pitch, at, own.first + d)] = (low & 0xFFFFu) | high << 16;
        values[value_word(pitch, at, own.first + d + 1)] = low >> 16 | (high & 0xFFFF0000u);
      }
    }
  }
}

/// Tiles that the queries of a block see, and how many parts of them there are: at most a part a tile, whatever the
/// list says.
struct TilesOfBlock {
  int first, n, n_parts;

  __device__ TilesOfBlock(const KvTiles& k, const AttnBlock& block, int n_first, int n_last)
      : first(k.first_seen(n_first) / kKeys), n((n_last - 1) / kKeys + 1 - first), n_parts(min(block.n_parts, n)) {}
  __device__ int begin(int part) const { return first + int(int64_t(n) * part / n_parts); }
};

/// Positions that a query sees: [first, n); where its coded rows end on each side.
struct Sight {
  int first, n, k_coded, v_coded;
};

struct Parts {
  float* out = nullptr;     // [rows, kv heads, head_dim], not yet divided by the total
  float2* state = nullptr;  // [rows, kv heads] top (of powers of two) and total
};
Parts parts_of(const DeviceAttention& a, const PrefillList& list) {
  auto* const out = reinterpret_cast<float*>(list.scratch);
  return {out, reinterpret_cast<float2*>(out + int64_t(list.part_rows) * a.k.n_kv_heads * a.k.head_dim)};
}

/// Blocks: (block of the list, kv head).
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    rows_f16_kernel(const DeviceAttention a, const AttnBlock* blocks, const Parts parts) {
  constexpr int kPitch = C::kPitch, kScorePitch = C::kScorePitch, kWeightPitch = C::kWeightPitch;
  auto* const queries = gpu::dynamic_shared<uint32_t>();                     // [kQueries, kPitch] f16
  uint32_t* const rows = queries + C::kQueries * kPitch / 2;                 // K or V of a tile
  auto* const scores = reinterpret_cast<float*>(rows + kKeys * kPitch / 2);  // [kQueries, kScorePitch]
  auto* const weights =
      reinterpret_cast<uint32_t*>(scores + C::kQueries * kScorePitch);  // [kQueries, kWeightPitch] f16
  auto* const shrinks = reinterpret_cast<float*>(weights + C::kQueries * kWeightPitch / 2);  // [kQueries]
  float* const centre = shrinks + C::kQueries;                                               // [head_dim], of K's tile
  const AttnBlock block = blocks[blockIdx.x];
  const StepRow* const span = a.rows.rows + block.first;
  const StepRow of = span[0];
  if (of.slot < 0) return;
  const int kv_head = int(blockIdx.y), group = a.group(), dim = a.k.head_dim;
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32, r = lane / 4, c = lane % 4;
  const int m = warp / C::kN, n = warp % C::kN;  // of the warps
  const int32_t* const pages = a.rows.pages + int64_t(of.slot) * a.rows.page_pitch;
  const int n_queries = min(C::kQueries, block.n * group - block.first_query);
  const auto query = [&](int i) { return block.first_query + min(i, n_queries - 1); };
  const int n_first = of.position + query(0) / group + 1, n_last = of.position + query(C::kQueries - 1) / group + 1;

  const TilesOfBlock tiles(a.k, block, n_first, n_last);
  if (block.part >= tiles.n_parts) return;

  for (int i = warp; i < C::kQueries; i += C::kWarps) {
    const int q = query(i);
    const float* const from = a.q + (int64_t(span[q / group].row) * a.n_heads + kv_head * group + q % group) * dim;
#pragma unroll 4
    for (int d = 2 * lane; d < dim; d += 64) {
      const float2 x = i < n_queries ? *reinterpret_cast<const float2*>(from + d) : make_float2(0, 0);
      queries[(i * kPitch + d) / 2] = gpu::pack_f16(x.x * (a.scale * kLog2E), x.y * (a.scale * kLog2E));
    }
  }
  Sight sights[2];  // of queries 16 m + r and + 8
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int seen = of.position + query(16 * m + r + 8 * h) / group + 1;
    sights[h] = {a.k.first_seen(seen), seen, a.k.retention.coded_end(seen), a.v.retention.coded_end(seen)};
  }
  // Softmax: some keys of one query a thread.
  constexpr int kSoft = kKeys * C::kQueries / C::kThreads, kPeers = kKeys / kSoft;
  const int own = thread / kPeers, own_key = thread % kPeers * kSoft;
  float top = -INFINITY, total = 0;
  float out[C::kOwnChannels / 8][4] = {};

  const int begin = tiles.begin(block.part), end = tiles.begin(block.part + 1);
  for (int tile = begin; tile < end; ++tile) {
    const ReadTile read{of, pages, kv_head, tile, n_first, n_last};
    bool is_first = true;
    for (int i = 0; i < kRowSources; ++i) {
      const auto source = RowSource(i);
      const RowRange keys(a.k, read, source);
      if (keys.empty()) continue;
      __syncthreads();  // the rows before have been used
      if (is_first && a.k.turn.n_pairs > 0) {
        if (warp == 0) put_centre({a.k, of.slot, kv_head, tile}, lane, centre);
        __syncthreads();
      }
      with_format(KvFormatTypes(), keys, [&]<class F>() {
        if constexpr (kFitsF16<F>)
          decode_keys<F>(keys, C::kThreads, kPitch, a.k.turn.n_pairs > 0 ? centre : nullptr, rows);
      });
      __syncthreads();
      float dots[C::kOwnKeys / 8][4] = {};
      for (int d = 0; d < dim; d += 16) {
        const uint32_t* const q = queries + ((16 * m + r) * kPitch + d) / 2 + c;
        const uint32_t x[4] = {q[0], q[4 * kPitch], q[4], q[4 * kPitch + 4]};
#pragma unroll
        for (int j = 0; j < C::kOwnKeys / 8; ++j) {
          const uint32_t* const k = rows + ((C::kOwnKeys * n + 8 * j + r) * kPitch + d) / 2 + c;
          gpu::mma_f16(dots[j], x, k[0], k[4]);
        }
      }
#pragma unroll
      for (int j = 0; j < C::kOwnKeys / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = C::kOwnKeys * n + 8 * j + 2 * c + i % 2, position = tile * kKeys + key;
          const Sight& sight = sights[i / 2];
          const bool seen =
              position >= sight.first && position < sight.n && reads_from(source, a.k, position, sight.k_coded);
          float& score = scores[(16 * m + r + 8 * (i / 2)) * kScorePitch + key];
          if (seen) score = dots[j][i];
          else if (is_first) score = -INFINITY;
        }
      is_first = false;
    }
    __syncthreads();
    {
      float x[kSoft], most = top;
#pragma unroll
      for (int i = 0; i < kSoft; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(scores + own * kScorePitch + own_key + i);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
      }
#pragma unroll
      for (int i = 0; i < kSoft; ++i) most = fmaxf(most, x[i]);
#pragma unroll
      for (int step = kPeers / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(gpu::kAllLanes, most, step));
      const float base = most == -INFINITY ? 0.0f : most, shrink = top == -INFINITY ? 0.0f : gpu::fast_exp2(top - base);
      total *= shrink;
      top = most;
#pragma unroll
      for (int i = 0; i < kSoft; i += 2) {
        const float low = gpu::fast_exp2(x[i] - base), high = gpu::fast_exp2(x[i + 1] - base);
        total += low + high;
        weights[(own * kWeightPitch + own_key + i) / 2] = gpu::pack_f16(low, high);
      }
      if (own_key == 0) shrinks[own] = shrink;
    }
    bool is_shrunk = false;
    int n_sources = 0;
    for (int i = 0; i < kRowSources; ++i) n_sources += !RowRange(a.v, read, RowSource(i)).empty();
    for (int i = 0; i < kRowSources; ++i) {
      const auto source = RowSource(i);
      const RowRange values(a.v, read, source);
      if (values.empty()) continue;
      if (is_shrunk) __syncthreads();
      with_format(KvFormatTypes(), values, [&]<class F>() {
        if constexpr (kFitsF16<F>)
          decode_values<F>(values, C::kThreads, kPitch, a.v.turn.n_pairs > 0 ? centre : nullptr, rows);
      });
      __syncthreads();
      if (!is_shrunk) {
        const float shrink[2] = {shrinks[16 * m + r], shrinks[16 * m + r + 8]};
#pragma unroll
        for (int e = 0; e < C::kOwnChannels / 8; ++e)
#pragma unroll
          for (int i = 0; i < 4; ++i) out[e][i] *= shrink[i / 2];
        is_shrunk = true;
      }
#pragma unroll
      for (int j = 0; j < kKeys / 16; ++j) {
        const uint32_t* const w = weights + ((16 * m + r) * kWeightPitch + 16 * j) / 2 + c;
        uint32_t x[4] = {w[0], w[4 * kWeightPitch], w[4], w[4 * kWeightPitch + 4]};
        if (n_sources > 1)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int position = tile * kKeys + 16 * j + 8 * (i / 2) + 2 * c;
            const int coded_end = sights[i % 2].v_coded;
            if (!reads_from(source, a.v, position, coded_end)) x[i] &= 0xFFFF0000u;
            if (!reads_from(source, a.v, position + 1, coded_end)) x[i] &= 0xFFFFu;
          }
#pragma unroll
        for (int e = 0; e < C::kOwnChannels / 8; ++e) {
          const int channel = C::kOwnChannels * n + 8 * e + r;
          gpu::mma_f16(out[e], x, rows[value_word(kPitch, 8 * j + c, channel)],
                       rows[value_word(kPitch, 8 * j + 4 + c, channel)]);
        }
      }
    }
  }

#pragma unroll
  for (int step = kPeers / 2; step > 0; step /= 2) total += __shfl_xor_sync(gpu::kAllLanes, total, step);
  if (own_key == 0 && own < n_queries)
    parts.state[int64_t(block.place + own) * a.k.n_kv_heads + kv_head] = make_float2(top, total);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = 16 * m + r + 8 * h;
    if (i >= n_queries) continue;
    float* const to = parts.out + (int64_t(block.place + i) * a.k.n_kv_heads + kv_head) * dim;
#pragma unroll
    for (int e = 0; e < C::kOwnChannels / 8; ++e) {
      const int channel = C::kOwnChannels * n + 8 * e + 2 * c;
      if (channel < dim) *reinterpret_cast<float2*>(to + channel) = make_float2(out[e][2 * h], out[e][2 * h + 1]);
    }
  }
}

/// The parts of queries together, out of cache space. Blocks as rows_f16_kernel's; part i of n takes the i-th n-th of
/// their queries, kTeam warps a query. Team member w adds up each kTeam-th part: an order that does not depend on
/// timing.
template <int kDim, int kTeam>
__global__ void __launch_bounds__(32 * kJoinWarps)
    rows_join_kernel(const DeviceAttention a, const AttnBlock* blocks, int most_queries, const Parts parts, int n_out) {
  static_assert(kTeam == 1 || kTeam == kJoinWarps);
  constexpr int kPer = kDim / 32;
  __shared__ float rows[kJoinWarps][kDim];
  const AttnBlock block = blocks[blockIdx.x];
  const StepRow* const span = a.rows.rows + block.first;
  if (span[0].slot < 0) return;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, kv_head = int(blockIdx.y);
  const int group = a.group(), n = min(most_queries, block.n * group - block.first_query), dim = a.k.head_dim;
  const int64_t stride = int64_t(n) * a.k.n_kv_heads;  // rows of a part
  const int n_first = span[0].position + block.first_query / group + 1,
            n_last = span[0].position + (block.first_query + n - 1) / group + 1,
            n_parts = TilesOfBlock(a.k, block, n_first, n_last).n_parts;
  const bool still = a.v.centre && a.v.turn.n_pairs == 0;  // one that turns is in the values already
  for (int i = n * block.part / block.n_parts + warp / kTeam; i < n * (block.part + 1) / block.n_parts;
       i += kJoinWarps / kTeam) {
    const int64_t first = int64_t(block.place - block.part * n + i) * a.k.n_kv_heads + kv_head;
    const int query = block.first_query + i, head = kv_head * group + query % group;
    const float sink = a.sink_logits ? a.sink_logits[head] * kLog2E : -INFINITY;
    float top = sink, total = 0;
    for (int part = lane; part < n_parts; part += 32) top = fmaxf(top, parts.state[first + part * stride].x);
    top = gpu::warp_max(top);
    for (int part = lane; part < n_parts; part += 32) {
      const float2 state = parts.state[first + part * stride];
      total = fmaf(gpu::fast_exp2(state.x - top), state.y, total);
    }
    total = gpu::warp_sum(total) + (a.sink_logits ? gpu::fast_exp2(sink - top) : 0.0f);
    float x[kPer] = {};
#pragma unroll 4
    for (int part = warp % kTeam; part < n_parts; part += kTeam) {  // zeros of a part without positions
      const float weight = gpu::fast_exp2(parts.state[first + part * stride].x - top);
      const float* const out = parts.out + (first + part * stride) * dim;
#pragma unroll
      for (int j = 0; j < kPer; ++j)
        if (lane + 32 * j < dim) x[j] = fmaf(weight, out[lane + 32 * j], x[j]);
    }
#pragma unroll
    for (int j = 0; j < kPer; ++j)
      if (lane + 32 * j < dim) rows[warp][lane + 32 * j] = x[j] / total;
    if constexpr (kTeam > 1) {
      __syncthreads();
      for (int d = int(threadIdx.x); d < dim; d += 32 * kJoinWarps) {
        float sum = rows[0][d];
#pragma unroll
        for (int w = 1; w < kTeam; ++w) sum += rows[w][d];
        rows[0][d] = sum;
      }
      __syncthreads();
    }
    if (warp % kTeam == 0) {
      float* const row = rows[kTeam > 1 ? 0 : warp];
      rotate_shared_row(a.v.rotation, false, lane, row);
      __syncwarp();
      float* const to = a.out + (int64_t(span[query / group].row) * a.n_heads + head) * n_out;
      for (int d = lane; d < n_out; d += 32) to[d] = row[d] + (still ? a.v.centre_of(span[0].slot, kv_head)[d] : 0.0f);
    }
    if constexpr (kTeam > 1) __syncthreads();
    else __syncwarp();
  }
}

// Rows of every size have a kernel on any device: AMD's cards have the least shared memory.
static_assert(Cut<kMostRowsF16Dim, 16>::kShared <= 64 << 10);

/// Calls visit(Cut) of the kernel for these rows and queries of a block: 16 or 64, of wide rows 32 too.
template <int kDim, class Visit>
auto with_queries(int queries, const Visit& visit) {
  if constexpr (kDim > 256)
    if (queries == 32) return visit(Cut<kDim, 32>());
  return queries == 16 ? visit(Cut<kDim, 16>()) : visit(Cut<kDim, 64>());
}
template <class Visit>
auto with_cut(int head_dim, int queries, const Visit& visit) {
  if (head_dim <= 128) return with_queries<128>(queries, visit);
  if (head_dim <= 256) return with_queries<256>(queries, visit);
  if (head_dim <= 512) return with_queries<512>(queries, visit);
  return with_queries<kMostRowsF16Dim>(queries, visit);
}
bool fits(int head_dim, int queries) {
  return with_cut(head_dim, queries, [](auto cut) { return cut.kShared <= size_t(gpu::most_shared_bytes()); });
}

}  // namespace

PrefillPlan rows_f16_attn_plan(int head_dim, int n_queries) {
  int queries = n_queries <= 16 ? 16 : n_queries <= 32 && head_dim > 256 ? 32 : 64;
  while (queries > 16 && !fits(head_dim, queries)) queries = queries == 64 && head_dim > 256 ? 32 : 16;
  return {.queries = queries, .blocks = 2 * gpu::multiprocessors(), .keeps_parts = true};
}

int rows_f16_attn_parts(const PrefillPlan& plan, int n_rows, int group, int n_kv_heads) {
  const int64_t blocks = n_rows * n_kv_heads * gpu::ceil_div(group, plan.queries);
  return int(std::clamp<int64_t>(plan.blocks / std::max<int64_t>(1, blocks), 1, kMostParts));
}

void rows_f16_attn(gpu::StreamHandle stream, const DeviceAttention& a, const PrefillList& list, int n_out) {
  if (list.n == 0) return;
  with_cut(a.k.head_dim, list.queries, [&]<class C>(C) {
    const auto kernel = rows_f16_kernel<C>;
    gpu::allow_shared_bytes("attention over rows in f16", kernel, C::kShared);
    gpu::launch("attention over rows in f16", kernel,
                {dim3(unsigned(list.n), unsigned(a.k.n_kv_heads)), C::kThreads, C::kShared, stream}, a, list.blocks,
                parts_of(a, list));
    gpu::launch("attention over rows in f16, parts",
                list.of_rows ? rows_join_kernel<C::kDim, kJoinWarps> : rows_join_kernel<C::kDim, 1>,
                {dim3(unsigned(list.n), unsigned(a.k.n_kv_heads)), 32 * kJoinWarps, 0, stream}, a, list.blocks,
                list.queries, parts_of(a, list), n_out);
  });
}

}  // namespace ridge
