#include <algorithm>
#include <string>

#include "gpu/launch.h"
#include "op/attn/decode_cuda.h"
#include "op/attn/decode_tiles.h"
#include "ridge/error.h"

namespace ridge {
namespace {

using namespace tiles;

/// Tiles of one sequence as a query that sees n_keys positions reads them: units 0 .. n_tiles - 1 are tiles of
/// positions, unit n_tiles the sinks.
struct Units {
  int n, n_tiles, n_units, k_coded, v_coded, n_sinks;

  __device__ Units(const TileAttn& a, int n_keys) {
    const auto coded = [&](const TileSide& side) {
      return (side.retention.coded_end(n_keys) + kTilePositions - 1) / kTilePositions;
    };
    n = n_keys;
    n_tiles = (n_keys + kTilePositions - 1) / kTilePositions;
    k_coded = coded(a.k);
    v_coded = coded(a.v);
    n_sinks = min(n, max(a.k.n_sinks, a.v.n_sinks));
    n_units = n_tiles + (n_sinks > 0 ? 1 : 0);
  }
};

/// A side of one (sequence, kv head).
template <int kDim>
struct SideTiles {
  const TileAttn& a;
  const TileSide& side;
  int seq, head, n_coded;

  __device__ const std::byte* coded(int t) const {
    const int bytes = TileShape(side.kind, kDim).bytes;
    if (a.pages == nullptr) return side.coded + seq * side.seq_stride + head * side.head_stride + int64_t(t) * bytes;
    const int64_t page = a.pages[int64_t(seq) * a.pages_per_seq + t / kPageTiles];
    return side.coded + page * side.seq_stride + head * side.head_stride + t % kPageTiles * bytes;
  }
  /// Where unit t is and what it is made of; the unit of the sinks is `position tile` 0 on a side that has none.
  __device__ const std::byte* at(int t, bool sinks, TileKind& kind) const {
    const int64_t seq_head = int64_t(seq) * a.n_kv_heads + head;
    if (sinks && side.n_sinks > 0) {
      kind = TileKind::f16;
      return side.sinks + seq_head * TileShape(TileKind::f16, kDim).bytes;
    }
    if (t < n_coded) {
      kind = side.kind;
      return coded(t);
    }
    kind = side.recent;
    return side.ring + (seq_head * side.ring_tiles + t % side.ring_tiles) * TileShape(kind, kDim).bytes;
  }
};

/// How shared memory is used: queries, then a ring of stages for each warp; at the end the warps' parts and the result.
struct Room {
  int warps = 0, stages = 0, stage_bytes = 0;

  static constexpr int kBytes = 200 << 10;
  /// For a device whose blocks have most_bytes for the rings; those of Hopper have room for kBytes.
  Room(TileKind k, TileKind v, int head_dim, int most_bytes)
      : stage_bytes(TileShape(k, head_dim).bytes + TileShape(v, head_dim).bytes) {
    const int bytes = std::min(kBytes, most_bytes);
    warps = stage_bytes <= 4096 ? 16 : stage_bytes <= 12800 ? 8 : stage_bytes <= 17408 ? 4 : 2;
    while (warps > 1 && 2 * warps * stage_bytes > bytes) warps /= 2;
    stages = std::clamp(bytes / (warps * stage_bytes), 2, 4);
  }
  int ring_bytes() const { return warps * stages * stage_bytes; }
  /// For parts of the block's warps, or of n_parts blocks.
  int merge_bytes(int head_dim, int n_parts) const {
    const int result = kHeads * head_dim, of_warps = warps * kHeads * (head_dim + 2);
    const int groups = std::max(1, 32 * warps / (result / 4)), of_blocks = 2 * kHeads * n_parts + groups * result;
    return 4 * (result + std::max(of_warps, of_blocks));
  }
};

/// Floats of a partial result: top [8], total [8], out [8, head_dim].
constexpr int64_t part_floats(int head_dim) { return kHeads * (int64_t(head_dim) + 2); }
/// The scratch: two parts of every block, then a counter for every list. The counters are last: launches of fewer
/// sequences must not put parts where those of more sequences expect zeros.
constexpr int64_t parts_bytes(int64_t blocks, int head_dim) { return 2 * blocks * part_floats(head_dim) * 4; }

__device__ void copy_tile(std::byte* to, const std::byte* from, int bytes, int lane) {
#pragma unroll 4
  for (int at = 16 * lane; at < bytes; at += 512) gpu::copy_async16(to + at, from + at);
}

/// Result [8, kDim] of a list whose parts are in scratch, in their order. All threads of the block; `work` has room for
/// 16 floats a part and the sums of every group of threads. What is loaded in a loop must not wait for what the loop
/// made: each such round trip to L2 is a third of a microsecond.
template <int kDim, class PartOf>
__device__ void combine_parts(int n_parts, PartOf part_of, float* work, float* result) {
  float *const weights = work, *const totals = weights + kHeads * n_parts, *const sums = totals + kHeads * n_parts;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
  for (int head = warp; head < kHeads; head += warps) {
    float top = kNever, sum = 0;
    for (int i = lane; i < n_parts; i += 32) {
      const float here = __ldcg(part_of(i) + head);
      weights[head * n_parts + i] = here;
      totals[head * n_parts + i] = __ldcg(part_of(i) + kHeads + head);
      top = fmaxf(top, here);
    }
    top = gpu::warp_max(top);
    for (int i = lane; i < n_parts; i += 32) {
      const float worth = gpu::fast_exp2(weights[head * n_parts + i] - top);
      weights[head * n_parts + i] = worth;
      sum = fmaf(worth, totals[head * n_parts + i], sum);
    }
    sum = gpu::warp_sum(sum);
    for (int i = lane; i < n_parts; i += 32) weights[head * n_parts + i] /= sum;
  }
  __syncthreads();

  // Groups of threads take parts in turn; a thread adds four channels.
  constexpr int kSlots = kHeads * kDim / 4;
  const int threads = int(blockDim.x), n_groups = threads > kSlots ? threads / kSlots : 1;
  const int group = threads > kSlots ? int(threadIdx.x) / kSlots : 0;
  if (group < n_groups) {
    for (int slot = threads > kSlots ? int(threadIdx.x) % kSlots : int(threadIdx.x); slot < kSlots; slot += threads) {
      const float* const weight = weights + 4 * slot / kDim * n_parts;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
      for (int i = group; i < n_parts; i += n_groups) {
        const float4 value = __ldcg(reinterpret_cast<const float4*>(part_of(i) + 2 * kHeads) + slot);
        const float w = weight[i];
        sum.x = fmaf(w, value.x, sum.x);
        sum.y = fmaf(w, value.y, sum.y);
        sum.z = fmaf(w, value.z, sum.z);
        sum.w = fmaf(w, value.w, sum.w);
      }
      float* const to = n_groups > 1 ? sums + group * kHeads * kDim : result;
      to[4 * slot] = sum.x;
      to[4 * slot + 1] = sum.y;
      to[4 * slot + 2] = sum.z;
      to[4 * slot + 3] = sum.w;
    }
  }
  if (n_groups == 1) return;
  __syncthreads();
  for (int at = int(threadIdx.x); at < kHeads * kDim; at += threads) {
    float sum = 0;
    for (int g = 0; g < n_groups; ++g) sum += sums[g * kHeads * kDim + at];
    result[at] = sum;
  }
}

template <int kDim, int kMaxWarps>
__global__ void __launch_bounds__(kMaxWarps * 32, 1) tile_attn_kernel(TileAttn a, int least_tiles, int stages) {
  std::byte* const shared = gpu::dynamic_shared<std::byte>();
  const Queries<kDim> queries{shared};
  std::byte* const room = shared + Queries<kDim>::kBytes;
  __shared__ int last_one;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
  const int k_bytes = TileShape(a.k.kind, kDim).bytes, v_bytes = TileShape(a.v.kind, kDim).bytes;
  const int stage_bytes = k_bytes + v_bytes;
  std::byte* const ring = room + warp * stages * stage_bytes;
  const int group = a.n_heads / a.n_kv_heads, head_groups = (group + kHeads - 1) / kHeads;
  const int n_lists = a.n_kv_heads * head_groups;  // of units, in a sequence

  gpu::wait_for_previous_grid();

  // Units [begin, end) of all are this block's: `least` of them, one more in the first `longer` blocks.
  unsigned total = 0;
  for (int seq = 0; seq < a.n_seq; ++seq) total += unsigned(Units(a, a.n_keys[seq]).n_units * n_lists);
  const unsigned n_blocks = min(gridDim.x, max(1u, total / unsigned(least_tiles))), block = blockIdx.x;
  if (block >= n_blocks) return;
  const unsigned least = total / n_blocks, longer = total - least * n_blocks;
  const auto first_of = [&](unsigned of_block) { return of_block * least + min(of_block, longer); };
  const auto block_of = [&](unsigned unit) {
    const unsigned in_longer = longer * (least + 1);
    return unit < in_longer ? unit / (least + 1) : longer + (unit - in_longer) / least;
  };
  const unsigned begin = first_of(block), end = first_of(block + 1);

  unsigned list_begin = 0;  // number of the list's first unit
  for (int seq = 0; seq < a.n_seq && list_begin < end; ++seq) {
    const Units units(a, a.n_keys[seq]);
    if (list_begin + unsigned(units.n_units * n_lists) <= begin) {
      list_begin += unsigned(units.n_units * n_lists);
      continue;
    }
    for (int list = 0; list < n_lists; ++list, list_begin += unsigned(units.n_units)) {
      const unsigned list_end = list_begin + unsigned(units.n_units);
      if (list_end <= begin || list_begin >= end) continue;
      const int first = int(max(begin, list_begin) - list_begin), last = int(min(end, list_end) - list_begin);
      const int kv_head = list / head_groups, first_head = kv_head * group + list % head_groups * kHeads;
      const int n_here = min(kHeads, (kv_head + 1) * group - first_head);
      const SideTiles<kDim> k{a, a.k, seq, kv_head, units.k_coded}, v{a, a.v, seq, kv_head, units.v_coded};

      // Units coded on both sides come through the ring, each warp's own; the rest is read where it lies.
      const int streamed = min(min(units.k_coded, units.v_coded), last);
      const auto start_copy = [&](int t, int stage) {
        if (t < streamed) {
          std::byte* to = ring + stage * stage_bytes;
          copy_tile(to, k.coded(t), k_bytes, lane);
          copy_tile(to + k_bytes, v.coded(t), v_bytes, lane);
        }
        gpu::copy_commit();
      };
      __syncthreads();  // the list before this one has done with shared memory
      for (int s = 0; s + 1 < stages; ++s) start_copy(first + warp + s * warps, s);

      for (int r = warp; r < kHeads; r += warps)
        put_query<kDim>(queries, r, r < n_here ? a.q + (int64_t(seq) * a.n_heads + first_head + r) * kDim : nullptr,
                        a.scale * 1.44269504f, a.k.rotation, lane);
      __syncthreads();

      State<kDim> state;
      int stage = 0;
      for (int t = first + warp; t < last; t += warps) {
        TileKind k_kind = a.k.kind, v_kind = a.v.kind;
        const std::byte *k_tile, *v_tile;
        const bool sinks = t == units.n_tiles;
        start_copy(t + (stages - 1) * warps, stage == 0 ? stages - 1 : stage - 1);
        if (t < streamed) {
          if (stages == 4) gpu::copy_wait<3>();
          else if (stages == 3) gpu::copy_wait<2>();
          else gpu::copy_wait<1>();
          __syncwarp();
          k_tile = ring + stage * stage_bytes;
          v_tile = k_tile + k_bytes;
        } else {
          k_tile = k.at(sinks ? 0 : t, sinks, k_kind);
          v_tile = v.at(sinks ? 0 : t, sinks, v_kind);
        }
        float scores[8];
        tile_scores<kDim>(k_kind, k_tile, queries, lane, scores);
        const int from = t == 0 ? units.n_sinks : 0, to = sinks ? units.n_sinks : units.n - t * kTilePositions;
        if (from > 0 || to < kTilePositions) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const int p = 8 * (i / 2) + 2 * (lane % 4) + i % 2;
            if (p < from || p >= to) scores[i] = -INFINITY;
          }
        }
        const float worth = state.take(scores);
        tile_values<kDim>(v_kind, v_tile, scores, worth, lane, state.out);
        __syncwarp();  // all lanes have read the stage that is filled next
        stage = stage + 1 == stages ? 0 : stage + 1;
      }
      gpu::copy_wait<0>();

      // The result [8, kDim], then the warps' parts side by side: top and total [warps, 8], out [warps, 8, kDim].
      __syncthreads();
      auto* const result = reinterpret_cast<float*>(room);
      float *const tops = result + kHeads * kDim, *const totals = tops + warps * kHeads,
                   *const outs = totals + warps * kHeads;
      state.total = quad_sum(state.total);
      const int r = lane / 4, c = lane % 4;
      if (c == 0) tops[warp * kHeads + r] = state.top, totals[warp * kHeads + r] = state.total;
#pragma unroll
      for (int e = 0; e < kDim / 8; ++e)
        *reinterpret_cast<float2*>(outs + (warp * kHeads + r) * kDim + 8 * e + 2 * c) =
            make_float2(state.out[e][0], state.out[e][1]);
      __syncthreads();

      const unsigned first_block = block_of(list_begin), last_block = block_of(list_end - 1);
      const bool whole = first_block == last_block;
      auto* const parts = reinterpret_cast<float*>(a.scratch);
      // A block has at most two lists in part: its first and its last. The list's first block may have begun with
      // another list, all later ones begin with this one.
      const unsigned first_slot = 2 * first_block + (first_of(first_block) >= list_begin ? 0 : 1);
      const auto part_of = [&](unsigned of_block) {
        return parts + int64_t(of_block == first_block ? first_slot : 2 * of_block) * part_floats(kDim);
      };
      for (int at = int(threadIdx.x); at < kHeads * kDim; at += int(blockDim.x)) {
        const int head = at / kDim;
        float top = kNever, sum = 0, value = 0;
        for (int w = 0; w < warps; ++w) top = fmaxf(top, tops[w * kHeads + head]);
        for (int w = 0; w < warps; ++w) {
          const float worth = gpu::fast_exp2(tops[w * kHeads + head] - top);
          sum = fmaf(worth, totals[w * kHeads + head], sum);
          value = fmaf(worth, outs[w * kHeads * kDim + at], value);
        }
        if (whole) {
          result[at] = value / sum;
        } else {
          float* const part = part_of(block);
          part[2 * kHeads + at] = value;
          if (at % kDim == 0) part[head] = top, part[kHeads + head] = sum;
        }
      }
      if (!whole) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
          auto* const counters = reinterpret_cast<int*>(a.scratch + parts_bytes(gridDim.x, kDim));
          int* const counter = counters + int64_t(seq) * n_lists + list;
          last_one = atomicAdd(counter, 1) == int(last_block - first_block);
          if (last_one) *counter = 0;  // as the next launch needs it
        }
        __syncthreads();
        if (!last_one) continue;
        __threadfence();
        combine_parts<kDim>(
            int(last_block - first_block) + 1, [&](int i) { return part_of(first_block + unsigned(i)); }, tops, result);
      }
      // Out of cache space: a head a warp.
      __syncthreads();
      for (int head = warp; head < n_here; head += warps) {
        float x[kDim / 32];
#pragma unroll
        for (int j = 0; j < kDim / 32; ++j) {
          x[j] = result[head * kDim + lane + 32 * j];
          if (a.v.centre) x[j] += a.v.centre[(int64_t(seq) * a.n_kv_heads + kv_head) * kDim + lane + 32 * j];
        }
        rotate_row(a.v.rotation, false, lane, x);
        float* out = a.out + (int64_t(seq) * a.n_heads + first_head + head) * kDim;
#pragma unroll
        for (int j = 0; j < kDim / 32; ++j) out[lane + 32 * j] = x[j];
      }
    }
  }
}

int64_t n_lists(int n_seq, int n_heads, int n_kv_heads) {
  return int64_t(n_seq) * n_kv_heads * gpu::ceil_div(n_heads / n_kv_heads, kHeads);
}

template <int kDim>
void launch(gpu::StreamHandle stream, const TileAttn& a, const TileAttnPlan& plan) {
  // 1 KiB is left for the variables that are not dynamic.
  const Room room(a.k.kind, a.v.kind, kDim, gpu::most_shared_bytes() - 1024 - Queries<kDim>::kBytes);
  const int blocks = plan.blocks > 0 ? plan.blocks : tile_attn_blocks();
  const int bytes = Queries<kDim>::kBytes + std::max(room.ring_bytes(), room.merge_bytes(kDim, blocks));
  // 16 warps leave 128 registers a thread, 8 leave 255.
  const auto kernel = room.warps > 8 ? tile_attn_kernel<kDim, 16> : tile_attn_kernel<kDim, 8>;
  gpu::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "shared memory of attention");
  gpu::launch("attention over tiles", kernel,
              {unsigned(blocks), unsigned(32 * room.warps), size_t(bytes), stream, plan.overlap}, a, plan.least_tiles,
              room.stages);
}

}  // namespace

const char* tile_attn_unsupported(int head_dim, int k_sinks, int v_sinks) {
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) return "head_dim must be 64, 128 or 256";
  if (k_sinks != v_sinks && k_sinks != 0 && v_sinks != 0) return "K and V must keep the same number of sinks, or none";
  if (k_sinks > kTilePositions || v_sinks > kTilePositions) return "at most 32 sinks";
  return nullptr;
}

int tile_attn_blocks() {
  int device = 0, count = 0;
  gpu::check(cudaGetDevice(&device), "device");
  gpu::check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
  return count;
}

int64_t tile_attn_scratch_bytes(int n_seq, int n_heads, int n_kv_heads, int head_dim, int blocks) {
  return parts_bytes(blocks, head_dim) + n_lists(n_seq, n_heads, n_kv_heads) * 4;
}

void tile_attn(gpu::StreamHandle stream, const TileAttn& a, const TileAttnPlan& plan) {
  const char* why = tile_attn_unsupported(a.head_dim, a.k.n_sinks, a.v.n_sinks);
  if (!why && a.n_heads % a.n_kv_heads != 0) why = "heads are no multiple of kv heads";
  if (why) throw Error(ErrorKind::failure, std::string("tile_attn: ") + why);
  if (a.head_dim == 64) launch<64>(stream, a, plan);
  else if (a.head_dim == 128) launch<128>(stream, a, plan);
  else launch<256>(stream, a, plan);
}

}  // namespace ridge
