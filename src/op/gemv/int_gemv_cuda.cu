#include <algorithm>
#include <string>

#include "op/gemv/int_tokens.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kThreads = 32 * kIntMostWarps;

/// A launch.
struct Work {
  const uint8_t* tiles;
  const float* row_scale;
  int n_row_tiles, row_shift, splits, part_groups;  // a block sums 1 << row_shift tiles of rows at a time
  IntTokens tokens;
  IntImage image;  // in device memory; values are null when every block makes its own
  float* partial;  // [splits][n_row_tiles][n_tokens][16] float or int32
  unsigned* counters;
  const float* bias;
  float* y;
  int64_t n_out;
  IntOutput output;
  IntShared at;
};

// --- Sums of a tile ---

/// Sums of a lane: rows r, r and r + 8, r + 8; columns 2c, 2c + 1 of each eight.
template <IntKind kKind, int kTiles>
struct Sums;

/// What a lane reads of a tile.
template <IntKind kKind>
struct Tile;

template <>
struct Tile<IntKind::int4_g128> {
  uint4 pair[2];
  uint32_t scales;

  /// `mine` is 16 lane bytes into a tile.
  __device__ void load(const uint8_t* mine, int lane) {
    pair[0] = *reinterpret_cast<const uint4*>(mine);
    pair[1] = *reinterpret_cast<const uint4*>(mine + 512);
    scales = *reinterpret_cast<const uint32_t*>(mine - 16 * lane + 1024 + lane / 4 * 4);
  }
};
template <>
struct Tile<IntKind::ternary> {
  uint4 codes;

  __device__ void load(const uint8_t* mine, int) { codes = *reinterpret_cast<const uint4*>(mine); }
};

/// What a lane gives to the mmas of a group: words of mmas 0, 1 and 2, 3. With one eight of columns, those that are not
/// there are the last one; their sums go nowhere.
struct Columns {
  int first, second;  // offsets of the halves, in the first eight

  template <int kTiles>
  __device__ static Columns of_lane(int lane, int n_columns) {
    const int column = kTiles == 1 ? min(lane / 4, n_columns - 1) : lane / 4;
    const int at = column * kIntGroup + lane % 4 * 16;
    return {at + half_offset(column, 0), at + half_offset(column, 1)};
  }
};

template <int kTiles>
struct Sums<IntKind::int4_g128, kTiles> {
  float of[kTiles][4] = {};

  /// Adds a group: values and scales are those of the group, the latter from the lane's columns on. Of kTiles eights
  /// of columns, n_tiles are there.
  __device__ void add(const Tile<IntKind::int4_g128>& tile, const uint8_t* values, const float* scales,
                      const Columns& columns, int n_tiles) {
    uint32_t a[4][4];
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const uint32_t words[4] = {tile.pair[p].x, tile.pair[p].y, tile.pair[p].z, tile.pair[p].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) a[2 * p][i] = words[i] & 0xF0F0F0F0u, a[2 * p + 1][i] = words[i] << 4 & 0xF0F0F0F0u;
    }
    const float2 scale =
        make_float2(gpu::half_to_float(uint16_t(tile.scales)), gpu::half_to_float(uint16_t(tile.scales >> 16)));
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (kTiles > 1 && n >= n_tiles) break;
      const uint4 b0 = *reinterpret_cast<const uint4*>(values + columns.first + n * 8 * kIntGroup);
      const uint4 b1 = *reinterpret_cast<const uint4*>(values + columns.second + n * 8 * kIntGroup);
      const float2 step = *reinterpret_cast<const float2*>(scales + 8 * n);
      int sum[4] = {};
      gpu::mma_s8(sum, a[0], b0.x, b0.y);
      gpu::mma_s8(sum, a[1], b0.z, b0.w);
      gpu::mma_s8(sum, a[2], b1.x, b1.y);
      gpu::mma_s8(sum, a[3], b1.z, b1.w);
      of[n][0] = __fmaf_rn(__int2float_rn(sum[0]) * scale.x, step.x, of[n][0]);
      of[n][1] = __fmaf_rn(__int2float_rn(sum[1]) * scale.x, step.y, of[n][1]);
      of[n][2] = __fmaf_rn(__int2float_rn(sum[2]) * scale.y, step.x, of[n][2]);
      of[n][3] = __fmaf_rn(__int2float_rn(sum[3]) * scale.y, step.y, of[n][3]);
    }
  }
};

template <int kTiles>
struct Sums<IntKind::ternary, kTiles> {
  int of[kTiles][4] = {};  // 64 times the sums

  __device__ void add(const Tile<IntKind::ternary>& tile, const uint8_t* values, const float*, const Columns& columns,
                      int n_tiles) {
    const uint32_t words[4] = {tile.codes.x, tile.codes.y, tile.codes.z, tile.codes.w};
    uint32_t a[4][4];
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i] = words[i] << (2 * m) & 0xC0C0C0C0u;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (kTiles > 1 && n >= n_tiles) break;
      const uint4 b0 = *reinterpret_cast<const uint4*>(values + columns.first + n * 8 * kIntGroup);
      const uint4 b1 = *reinterpret_cast<const uint4*>(values + columns.second + n * 8 * kIntGroup);
      gpu::mma_s8(of[n], a[0], b0.x, b0.y);
      gpu::mma_s8(of[n], a[1], b0.z, b0.w);
      gpu::mma_s8(of[n], a[2], b1.x, b1.y);
      gpu::mma_s8(of[n], a[3], b1.z, b1.w);
    }
  }
};

/// A warp's sums into [tokens][kIntSumPitch]; the two planes of a token, which lie in one lane, are added.
template <class Sums, class Sum>
__device__ void store_sums(const Sums& sums, int planes, int n_tokens, int lane, Sum* to) {
  const int r = lane / 4, c = lane % 4;
#pragma unroll
  for (int n = 0; n < int(sizeof(sums.of) / sizeof(sums.of[0])); ++n)
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const Sum first = sums.of[n][2 * below], second = sums.of[n][2 * below + 1];
      Sum* row = to + r + 8 * below;
      if (planes == 2) {
        if (const int token = 4 * n + c; token < n_tokens) row[token * kIntSumPitch] = first + second;
      } else {
        const int token = 8 * n + 2 * c;
        if (token < n_tokens) row[token * kIntSumPitch] = first;
        if (token + 1 < n_tokens) row[(token + 1) * kIntSumPitch] = second;
      }
    }
}

// --- The end of a tile ---

/// What an output needs of device memory besides its sum; asked for before the sum is made.
struct Ends {
  float row_scale, bias, y;
};

/// Of one lane's output; zeros where there is none.
template <IntKind kKind>
__device__ Ends load_ends(const Work& w, int tile, int token, int row) {
  Ends ends = {};
  if (tile >= w.n_row_tiles || token >= w.tokens.n_tokens) return ends;
  if (kKind == IntKind::ternary) ends.row_scale = w.row_scale[tile * kIntTileRows + row];
  const int64_t at = int64_t(tile) * kIntTileRows + row;
  if (at >= w.n_out) return ends;
  if (w.bias) ends.bias = w.bias[at];
  if (w.output == IntOutput::add) ends.y = w.y[token * w.n_out + at];
  return ends;
}

__device__ float product(float sum, float factor, float) { return __fmul_rn(sum, factor); }
__device__ float product(int sum, float factor, float row_scale) {
  return __fmul_rn(__fmul_rn(__int2float_rn(sum >> 6), factor), row_scale);
}

/// Lanes 0-15 and 16-31 hold the products of a token's 16 rows of tile `tile`.
__device__ void write_outputs(const Work& w, int tile, int token, int row, float p, const Ends& ends) {
  const bool gated = w.output == IntOutput::silu_glu || w.output == IntOutput::relu2_glu;
  if (gated) {
    const float up = __shfl_down_sync(gpu::kAllLanes, p, 8);
    const int64_t at = int64_t(tile) * 8 + row;
    if (row >= 8 || at >= w.n_out || token >= w.tokens.n_tokens) return;
    float gate = p < 0 ? 0 : p;  // keeps NaN
    if (w.output == IntOutput::relu2_glu) gate = __fmul_rn(gate, gate);
    else gate = p / (1.0f + expf(-p));
    w.y[token * w.n_out + at] = __fmul_rn(gate, up);
    return;
  }
  const int64_t at = int64_t(tile) * kIntTileRows + row;
  if (at >= w.n_out || token >= w.tokens.n_tokens) return;
  if (w.bias) p = __fadd_rn(p, ends.bias);
  w.y[token * w.n_out + at] = w.output == IntOutput::add ? __fadd_rn(ends.y, p) : p;
}

/// Sum of all parts of a row, when this warp is the last of them to come here with it; otherwise `last` is false.
template <class Sum>
__device__ Sum add_parts(const Work& w, int split, int tile, int token, int row, unsigned* counter, Sum mine,
                         bool& last) {
  const auto at = [&](int part) {
    return reinterpret_cast<Sum*>(w.partial) +
           ((int64_t(part) * w.n_row_tiles + tile) * w.tokens.n_tokens + token) * kIntTileRows + row;
  };
  const bool real = token < w.tokens.n_tokens;
  if (real) *at(split) = mine;
  __threadfence();
  __syncwarp();
  unsigned before = 0;
  if (threadIdx.x % 32 == 0) before = atomicAdd(counter, 1u);
  last = __shfl_sync(gpu::kAllLanes, before, 0) == unsigned(w.splits - 1);
  if (!last) return 0;
  __threadfence();
  if (threadIdx.x % 32 == 0) *counter = 0;  // for the next launch
  Sum sum = 0;
  if (real)
    for (int part = 0; part < w.splits; ++part) sum += __ldcg(at(part));  // always in this order
  return sum;
}

template <IntKind kKind, int kTiles, int kDepth>
__global__ void __launch_bounds__(kThreads, kTiles <= 2 ? 2 : 1) int_gemv_kernel(Work w) {
  constexpr int kTileBytes = int_tile_bytes(kKind), kSlotGroups = int_slot_groups(kKind);
  constexpr int kSlotBytes = kSlotGroups * kTileBytes;
  constexpr int kBuffers = int_sum_buffers(kTiles);
  using Sum = std::conditional_t<kKind == IntKind::ternary, int, float>;

  gpu::let_next_grid_start();
  auto* const shared = gpu::dynamic_shared<uint8_t>();
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), n_warps = int(blockDim.x / 32);
  const int n_tokens = w.tokens.n_tokens, n_groups = w.tokens.n_groups, column_pitch = w.tokens.column_pitch;
  // Of the block's warps, k_warps take turns at the groups of each of its tiles of rows.
  const int k_warps = n_warps >> w.row_shift, k_warp = warp >> w.row_shift, row_warp = warp & ((1 << w.row_shift) - 1);
  int split = 0, part_block = int(blockIdx.x), part_blocks = int(gridDim.x);
  if (w.splits > 1) split = part_block % w.splits, part_block /= w.splits, part_blocks /= w.splits;
  const int first_tile = part_block << w.row_shift, stride = part_blocks << w.row_shift;
  const int begin = split * w.part_groups, n = min(w.part_groups, n_groups - begin);
  const int n_slots = (n + kSlotGroups - 1) / kSlotGroups;  // of a tile of rows

  // Every warp has its own ring of tiles, of which a lane copies and reads its own bytes; only scales cross lanes.
  constexpr bool kCrossLanes = kKind == IntKind::int4_g128;
  uint8_t* const ring = shared + warp * kDepth * kSlotBytes + 16 * lane;
  const uint64_t policy = gpu::evict_first_policy();
  const auto tile_address = [&](int tile) {
    return w.tiles + (int64_t(tile) * n_groups + begin + k_warp * kSlotGroups) * kTileBytes + 16 * lane;
  };
  int fed_tile = k_warp < n_slots ? first_tile + row_warp : w.n_row_tiles, fed_slot = k_warp;
  const uint8_t* from = tile_address(fed_tile);
  const auto feed = [&](uint8_t* to) {
    if (fed_tile < w.n_row_tiles) {
      gpu::copy_async16(to, from, policy);
      if constexpr (kKind == IntKind::int4_g128) {
        gpu::copy_async16(to + 512, from + 512, policy);
        if (lane < 2) gpu::copy_async16(to + 1024, from + 1024, policy);
      } else {
        if (2 * fed_slot + 1 < n) gpu::copy_async16(to + 512, from + 512, policy);  // the next group
      }
      fed_slot += k_warps;
      from += k_warps * kSlotBytes;
      if (fed_slot >= n_slots) fed_slot = k_warp, fed_tile += stride, from = tile_address(fed_tile);
    }
    gpu::copy_commit();
  };
  for (int i = 0; i < kDepth; ++i) feed(ring + i * kSlotBytes);  // weights do not depend on the grid before

  gpu::wait_for_previous_grid();
  const IntImage mine = {shared + w.at.values, reinterpret_cast<float*>(shared + w.at.scales),
                         reinterpret_cast<float*>(shared + w.at.factors)};
  if (w.image.values) {
    const auto* values = reinterpret_cast<const uint4*>(w.image.values + int64_t(begin) * column_pitch * kIntGroup);
    const auto* scales = reinterpret_cast<const float4*>(w.image.scales + int64_t(begin) * 8 * kTiles);
    for (int i = int(threadIdx.x); i < n * column_pitch * (kIntGroup / 16); i += int(blockDim.x))
      reinterpret_cast<uint4*>(mine.values)[i] = values[i];
    if constexpr (kKind == IntKind::int4_g128)
      for (int i = int(threadIdx.x); i < n * 2 * kTiles; i += int(blockDim.x))
        reinterpret_cast<float4*>(mine.scales)[i] = scales[i];
    for (int t = int(threadIdx.x); t < n_tokens; t += int(blockDim.x)) mine.factors[t] = w.image.factors[t];
    __syncthreads();
  } else {
    quantize_tokens<kKind>(w.tokens, 0, n_tokens, begin, n, mine, shared + w.at.squares,
                           reinterpret_cast<float*>(shared + w.at.tops));
  }

  auto* const all_sums = reinterpret_cast<Sum*>(shared + w.at.sums);
  const int sums_size = n_warps * n_tokens * kIntSumPitch;
  const int n_chunks = (n_tokens + 1) / 2;  // of 32 outputs
  const int n_columns = n_tokens * w.tokens.planes, n_tiles = (n_columns + 7) / 8;
  const Columns columns = Columns::of_lane<kTiles>(lane, n_columns);
  const int group_values = column_pitch * kIntGroup;
  int ring_at = 0, buffer = 0, first_item = warp;
  for (int tile = first_tile; tile < w.n_row_tiles; tile += stride) {
    // A warp adds up 32 outputs, or several times as many; with few tokens it is another one at every tile.
    const int row_mask = (1 << w.row_shift) - 1, row = lane % 16;
    const auto token_of = [&](int item) { return 2 * (item >> w.row_shift) + lane / 16; };
    const auto ends_of = [&](int item) { return load_ends<kKind>(w, tile + (item & row_mask), token_of(item), row); };
    Ends ends = ends_of(first_item);

    Sums<kKind, kTiles> sums;
    const int n_mine = tile + row_warp < w.n_row_tiles ? n_slots : 0;
    const uint8_t* values = mine.values + k_warp * kSlotGroups * group_values;
    const float* scales = mine.scales + k_warp * 8 * kTiles + lane % 4 * 2;
    for (int slot = k_warp; slot < n_mine; slot += k_warps) {
      gpu::copy_wait<kDepth - 1>();
      if constexpr (kCrossLanes) __syncwarp();
      Tile<kKind> weights[kSlotGroups];
#pragma unroll
      for (int i = 0; i < kSlotGroups; ++i) weights[i].load(ring + ring_at + i * kTileBytes, lane);
      if constexpr (kCrossLanes) __syncwarp();
      feed(ring + ring_at);
      ring_at = ring_at == (kDepth - 1) * kSlotBytes ? 0 : ring_at + kSlotBytes;
      sums.add(weights[0], values, scales, columns, n_tiles);
      if constexpr (kSlotGroups == 2)
        if (2 * slot + 1 < n) sums.add(weights[1], values + group_values, scales, columns, n_tiles);
      values += k_warps * kSlotGroups * group_values;
      scales += k_warps * 8 * kTiles;
    }
    Sum* const block_sums = all_sums + buffer * sums_size;
    store_sums(sums, w.tokens.planes, n_tokens, lane, block_sums + warp * n_tokens * kIntSumPitch);
    __syncthreads();

    for (int item = first_item; item < n_chunks << w.row_shift; item += n_warps) {
      const int of = item & row_mask, chunk = item >> w.row_shift, token = token_of(item);
      if (item != first_item) ends = ends_of(item);
      if (tile + of >= w.n_row_tiles) continue;
      Sum sum = 0;
      if (token < n_tokens)
        for (int i = of; i < n_warps; i += 1 << w.row_shift)
          sum += block_sums[(i * n_tokens + token) * kIntSumPitch + row];
      if (w.splits > 1) {
        bool last = false;
        sum = add_parts(w, split, tile + of, token, row, w.counters + (tile + of) * n_chunks + chunk, sum, last);
        if (!last) continue;
      }
      const float factor = token < n_tokens ? mine.factors[token] : 0.0f;
      write_outputs(w, tile + of, token, row, product(sum, factor, ends.row_scale), ends);
    }
    first_item = first_item == 0 ? n_warps - 1 : first_item - 1;
    if constexpr (kBuffers == 2) buffer ^= 1;  // a warp is at most one tile ahead of the slowest
    else __syncthreads();
  }
  gpu::copy_wait<0>();
}

constexpr int kQuantizeWarps = 16;

/// A block makes one token's part of the image.
template <IntKind kKind>
__global__ void __launch_bounds__(32 * kQuantizeWarps) quantize_kernel(IntTokens tokens, IntImage image) {
  __shared__ float tops[kQuantizeWarps];
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
  const int token = int(blockIdx.x);
  quantize_tokens<kKind>(tokens, token, token + 1, 0, tokens.n_groups, image, gpu::dynamic_shared<double>(), tops);
}

// --- Launches ---

template <IntKind kKind, int kTiles, int kDepth>
void launch_kernel(const Work& w, const IntPlan& plan, gpu::StreamHandle stream, bool overlap) {
  auto* const kernel = int_gemv_kernel<kKind, kTiles, kDepth>;
  gpu::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, w.at.bytes),
             "shared memory of int_gemv");
  gpu::launch("int_gemv", kernel,
              {unsigned(plan.blocks), unsigned(32 * plan.warps), size_t(w.at.bytes), stream, overlap}, w);
}

template <IntKind kKind, int kTiles>
void launch_gemv(const Work& w, const IntPlan& plan, gpu::StreamHandle stream, bool overlap) {
  static_assert(std::size(kIntDepths) == 4);
  switch (plan.depth) {
    case kIntDepths[0]: return launch_kernel<kKind, kTiles, kIntDepths[0]>(w, plan, stream, overlap);
    case kIntDepths[1]: return launch_kernel<kKind, kTiles, kIntDepths[1]>(w, plan, stream, overlap);
    case kIntDepths[2]: return launch_kernel<kKind, kTiles, kIntDepths[2]>(w, plan, stream, overlap);
    case kIntDepths[3]: return launch_kernel<kKind, kTiles, kIntDepths[3]>(w, plan, stream, overlap);
    default: throw Error(ErrorKind::failure, "device_int_gemv: no kernel of depth " + std::to_string(plan.depth));
  }
}

template <IntKind kKind>
void launch_product(Work w, const IntPlan& plan, gpu::StreamHandle stream, bool overlap) {
  if (!plan.quantize_inside) {
    const size_t squares = kKind == IntKind::ternary ? 8 * kQuantizeWarps : 4 * size_t(w.tokens.n_groups);
    gpu::launch("quantize", quantize_kernel<kKind>,
                {unsigned(w.tokens.n_tokens), 32 * kQuantizeWarps, squares, stream, overlap}, w.tokens, w.image);
    overlap = true;
  } else {
    w.image = {};
  }
  switch (plan.tiles_of_8) {
    case 1: return launch_gemv<kKind, 1>(w, plan, stream, overlap);
    case 2: return launch_gemv<kKind, 2>(w, plan, stream, overlap);
    case 4: return launch_gemv<kKind, 4>(w, plan, stream, overlap);
    default: return launch_gemv<kKind, 8>(w, plan, stream, overlap);
  }
}

void require(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::failure, std::string("device_int_gemv: ") + what);
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

void check_operands(const IntWeights& w, const IntCall& call, const IntPlan& plan) {
  const bool gated = call.output == IntOutput::silu_glu || call.output == IntOutput::relu2_glu;
  require(gated == w.gated, "the output does not suit the packing of the weights");
  require(!gated || !call.bias, "a bias of gated weights");
  require(call.planes == 1 || (call.planes == 2 && w.kind == IntKind::int4_g128), "planes");
  require(aligned16(call.x) && aligned16(call.norm_weight), "x or the norm's weight is not aligned to 16 bytes");
  require(w.n_in <= int64_t(1) << 17, "rows so long that integer sums could overflow");
  require(plan.row_warps >= 1 && plan.warps >= 1 && plan.warps <= kIntMostWarps && plan.warps % plan.row_warps == 0 &&
              (plan.row_warps & (plan.row_warps - 1)) == 0 && plan.splits >= 1 && plan.splits <= w.n_groups() &&
              plan.blocks >= plan.splits && plan.blocks % plan.splits == 0,
          "the plan");
}

/// At most kIntColumns columns.
void run_part(gpu::StreamHandle stream, const IntWeights& weights, const IntCall& call, IntPlan plan,
              IntScratch& scratch) {
  const int n_tokens = int(call.n_tokens), columns = n_tokens * call.planes;
  require(columns <= 8 * plan.tiles_of_8, "the plan has too few columns");
  const int64_t n_groups = weights.n_groups(), n_row_tiles = weights.n_row_tiles();
  const int64_t part = int_groups_of_part(plan, weights.n_in);
  require((n_groups + part - 1) / part == plan.splits, "the plan has an empty part");

  const auto rounded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const int64_t value_bytes = rounded(int_column_pitch(plan, columns) * weights.n_in),
                scale_bytes = rounded(n_groups * 32 * plan.tiles_of_8), factor_bytes = rounded(4 * n_tokens);
  const int64_t partial_bytes = plan.splits > 1 ? plan.splits * n_row_tiles * n_tokens * kIntTileRows * 4 : 0;
  auto* const data = scratch.data.ensure<uint8_t>(value_bytes + scale_bytes + factor_bytes + partial_bytes);
  auto* const counters = scratch.counters.ensure<unsigned>(n_row_tiles * ((n_tokens + 1) / 2));

  Work w = {};
  w.tiles = weights.tiles.as<uint8_t>();
  w.row_scale = weights.row_scale.as<float>();
  w.n_row_tiles = int(n_row_tiles);
  while (1 << w.row_shift < plan.row_warps) ++w.row_shift;
  w.splits = plan.splits;
  w.part_groups = int(part);
  w.tokens = {call.x,
              call.norm_weight,
              call.norm_eps,
              n_tokens,
              call.planes,
              int(n_groups),
              int_column_pitch(plan, columns),
              8 * plan.tiles_of_8};
  w.image = {data, reinterpret_cast<float*>(data + value_bytes),
             reinterpret_cast<float*>(data + value_bytes + scale_bytes)};
  w.partial = reinterpret_cast<float*>(data + value_bytes + scale_bytes + factor_bytes);
  w.counters = counters;
  w.bias = call.bias;
  w.y = call.y;
  w.n_out = weights.n_out;
  w.output = call.output;
  w.at = int_shared(weights.kind, plan, weights.n_in, n_tokens, call.planes);
  if (weights.kind == IntKind::ternary) launch_product<IntKind::ternary>(w, plan, stream, call.overlap);
  else launch_product<IntKind::int4_g128>(w, plan, stream, call.overlap);
}

IntDevice this_device() {
  int device = 0, n_processors = 0, shared_bytes = 0;
  gpu::check(cudaGetDevice(&device), "device");
  gpu::check(cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, device), "processors");
  gpu::check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory");
  return {n_processors, shared_bytes};
}

/// Calls run(part of the call) for tokens that fit in one launch each.
template <class Run>
void in_parts(const IntWeights& w, const IntCall& call, const Run& run) {
  const int64_t most = kIntColumns / call.planes;
  for (int64_t first = 0; first < call.n_tokens; first += most) {
    IntCall part = call;
    part.n_tokens = std::min(most, call.n_tokens - first);
    part.x += first * w.n_in;
    part.y += first * w.n_out;
    run(part);
  }
}

}  // namespace

void device_int_gemv(gpu::StreamHandle stream, const IntWeights& w, const IntCall& call, IntScratch& scratch) {
  if (w.n_out == 0) return;
  check_operands(w, call, {.blocks = 1});
  in_parts(w, call, [&](const IntCall& part) {
    const bool norm = part.norm_weight != nullptr;
    IntPlan& plan = scratch.plans[{int64_t(w.kind), w.n_row_tiles(), w.n_in, part.n_tokens, part.planes, norm}];
    if (plan.blocks == 0)
      plan = plan_int_gemv(w.kind, w.n_row_tiles(), w.n_in, int(part.n_tokens), part.planes, norm, this_device());
    run_part(stream, w, part, plan, scratch);
  });
}

void device_int_gemv(gpu::StreamHandle stream, const IntWeights& w, const IntCall& call, const IntPlan& plan,
                     IntScratch& scratch) {
  if (w.n_out == 0) return;
  check_operands(w, call, plan);
  in_parts(w, call, [&](const IntCall& part) { run_part(stream, w, part, plan, scratch); });
}

}  // namespace ridge
