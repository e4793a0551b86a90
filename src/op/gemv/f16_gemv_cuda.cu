#include "op/gemv/f16_gemv_cuda.h"

#include <algorithm>
#include <type_traits>

#include "op/gemv/brick_matmul_cuda.h"
#include "op/norm_rope/norm_guard_cuda.h"

namespace ridge {
namespace {

using namespace bricks;

// Columns of B are up to 4 tokens times 2 planes. A block sums whole tiles; of a tile's bricks each of its warps takes
// every k_warps-th, the same ones of every tile. So a warp needs its own share of x only, stages it alone, with a scale
// of its own, and goes through its bricks without waiting for anybody: they pass through a ring of its own in shared
// memory, which never stops at a tile's end. After a batch of tiles the warps add up. Where a tile has few bricks,
// groups of k_warps warps take different tiles. No block needs another one.
//
// Shares of x that are too large for shared memory are staged in phases, over and over for each batch.

constexpr int kMostWarps = 16;
constexpr int kFewWarps = 8;  ///< of blocks that share a processor, or whose share of x is too large for more
constexpr int64_t kLargeBytes = 32 << 20;  ///< of a GEMV whose blocks must not share a processor

/// Weights that a row of blocks multiplies: the matrix, that of a pack's expert, or the experts of a token as one long
/// row.
enum class GemvOf { matrix, packs, chain };

struct GemvPlan {
  const uint8_t* bricks;
  int n_tiles, bricks_per_tile, n_tokens, n_in;
  int k_warps, row_shift;         ///< a block has k_warps << row_shift warps
  int warp_bricks, longer_warps;  ///< of a tile; the first longer_warps warps take one more
  int n_rounds, batch;            ///< tiles of a group of warps; those between two barriers
  int phase_bricks;               ///< of a tile, for which a warp has room for x
  int planes_at, sums_at;         ///< in shared memory, behind the rings
  const float* x;
  const float* norm_weight;
  float norm_eps;
  double one_by_n_in;
  bool pairs;  ///< x can be read two values at a time
  Outputs out;
  int64_t expert_bytes;
  const ExpertPack* packs;  ///< one for each row of blocks
  int share;                ///< slots of a row of x
  // Fields of a chain: operands of ExpertSumCall, and the bricks of an expert's tile. n_in is that of an expert.
  const int32_t* experts;
  const float* weights;
  int n_slots, expert_bricks;
};

template <class F>
constexpr int kBrickBlocks = F::kColumns / 32;  // of k
/// A sum of x as products want it: a minimum's, or what a product starts with.
template <class F>
using XSum = std::conditional_t<F::kHasStart, float4, float>;
/// Bytes of x for a brick: planes, sums.
template <class F, int kTokens>
constexpr int kBrickX = kBrickBlocks<F>* kTokens*(2 * 64 + F::kSums * int(sizeof(XSum<F>)));

/// A warp's x for its bricks first .. first + n - 1 of a tile: planes [32 columns][2 kTokens][4], behind them sums
/// [32 columns][kSums][kTokens]. Token t is row row_of(t) of x; of a chain row_of(0) is the token's first slot. Returns
/// 1 / scale of token lane % 4. Adds up squares of x, if there is a norm and they are wanted.
template <class F, int kTokens, bool kPairs, GemvOf kOf, class RowOf>
__device__ float stage_x(const GemvPlan& p, const RowOf& row_of, int k_warp, int first, int n, uint4* planes,
                         bool want_squares, double (&squares)[kTokens]) {
  constexpr int kBrickUnits = 4 * kBrickBlocks<F>;  // of eight values of a token, a lane's words
  constexpr int kUnits = std::max(1, (F::kSums > 0 ? 2 : F::kXUnits) / kTokens);  // of a lane under way together
  const int lane = int(threadIdx.x) % 32, n_units = n * kBrickUnits;
  float values[kUnits][kTokens][8];
  const auto load_pair = [&](const float* from, bool second) {
    if constexpr (kPairs) return *reinterpret_cast<const float2*>(from);
    else return float2{from[0], second ? from[1] : 0.0f};
  };
  /// Values of units from, from + 32 ..; the weight of the norm is part of them, its factor waits for the end.
  const auto load = [&](int from, bool count) {
    float2 weights[kUnits][4];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (from + 32 * i >= n_units) break;
      const int unit = from + 32 * i + lane, of_tile = (first + unit / kBrickUnits) * p.k_warps + k_warp;
      const int slot = kOf == GemvOf::chain ? of_tile / p.expert_bricks : 0, brick = of_tile - slot * p.expert_bricks;
      const int k = brick * F::kColumns + unit % kBrickUnits / 4 * 32 + 2 * (unit % 4);
      float weight = 1;
      if (kOf == GemvOf::chain && unit < n_units) weight = p.weights[row_of(0) + slot];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = k + 8 * e;
        const bool exists = unit < n_units && at < p.n_in, second = at + 1 < p.n_in;
        weights[i][e] = exists && p.norm_weight ? load_pair(p.norm_weight + at, second) : float2{1, 1};
        if constexpr (kOf == GemvOf::chain) weights[i][e] = {weight, weight};
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float2 pair = exists ? load_pair(p.x + (row_of(t) + slot) * p.n_in + at, second) : float2{0, 0};
          values[i][t][2 * e] = pair.x, values[i][t][2 * e + 1] = pair.y;
        }
      }
    }
    if (kOf != GemvOf::chain && !p.norm_weight) return;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (from + 32 * i >= n_units) break;
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          float& value = values[i][t][e];
          if (kOf != GemvOf::chain && count) squares[t] += double(value) * value;
          value *= e % 2 == 0 ? weights[i][e / 2].x : weights[i][e / 2].y;
        }
    }
  };

  float scale[kTokens] = {};  // the largest value first
  for (int from = 0; from < n_units; from += 32 * kUnits) {
    load(from, want_squares);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (from + 32 * i >= n_units) break;
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
#pragma unroll
        for (int e = 0; e < 8; ++e) scale[t] = fmaxf(scale[t], fabsf(values[i][t][e]));
    }
  }
  float inverse = 0;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    scale[t] = plane_scale(gpu::warp_max(scale[t]));
    if (lane % 4 == t) inverse = 1.0f / scale[t];
  }

  auto* const sums = reinterpret_cast<XSum<F>*>(planes + p.phase_bricks * kBrickBlocks<F> * kTokens * 8);
  __syncwarp();  // the phase before has been used
  for (int from = 0; from < n_units; from += 32 * kUnits) {
    if (n_units > 32 * kUnits) load(from, false);  // or they are there still
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (from + 32 * i >= n_units) break;
      const int unit = from + 32 * i + lane, block = unit / 4, c = unit % 4;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        uint4 high, low;
        const float2 halves = split_values<F::kBfloat>(values[i][t], scale[t], high, low);
        float of_x[2] = {F::kSums == 2 ? halves.x : halves.x + halves.y, halves.y};
#pragma unroll
        for (int j = 0; j < F::kSums; ++j) {
          of_x[j] += __shfl_xor_sync(gpu::kAllLanes, of_x[j], 1);
          of_x[j] += __shfl_xor_sync(gpu::kAllLanes, of_x[j], 2);
        }
        if (unit >= n_units) continue;
        planes[(block * 2 * kTokens + 2 * t) * 4 + c] = high;
        planes[(block * 2 * kTokens + 2 * t + 1) * 4 + c] = low;
#pragma unroll
        for (int j = 0; j < F::kSums; ++j) {
          if (c != j) continue;
          const float value = of_x[j] * F::kSumFactor;
          XSum<F>& to = sums[(block * F::kSums + j) * kTokens + t];
          if constexpr (F::kHasStart) to = {value, 0, value * F::kLower, 0};
          else to = value;
        }
      }
    }
  }
  __syncwarp();
  return inverse;
}

/// Where a lane's output goes and what is asked for before its sum is there.
struct Output {
  float* y = nullptr;  ///< nowhere when null
  float bias = 0, old = 0;

  /// `token`: of the outputs; bias_of(biases, n_out, row) where there are biases. The lower half of a pair's rows are
  /// the up's, which have a bias and no place.
  template <class BiasOf>
  __device__ Output(const Outputs& out, int tile, int token, int row, const BiasOf& bias_of, bool exists) {
    if (!exists) return;
    int part = 0;
    while (part + 1 < out.n_parts && tile >= out.first_tile[part + 1]) ++part;
    const bool is_up = out.paired && row >= out.rows_per_tile;
    const int64_t at = int64_t(tile - out.first_tile[part]) * out.rows_per_tile + row - (is_up ? out.rows_per_tile : 0),
                  n_out = out.n_out[part];
    if (at >= n_out) return;
    if (const float* const biases = out.bias[is_up ? 1 : part]) bias = bias_of(biases, n_out, at);
    if (is_up) return;
    y = out.y[part] + token * n_out + at;
    if (out.residual) old = *y;
  }
};

template <class F, int kTokens, GemvOf kOf>
__global__ void __launch_bounds__(kMostWarps * 32, 1) gemv_kernel(const GemvPlan p) {
  constexpr int kStages = F::kGemvStages, kBlocks = kBrickBlocks<F>, kTileSums = 16 * kTokens;
  __shared__ double squares_of[kTokens][kMostWarps];
  auto* const shared = gpu::dynamic_shared<uint8_t>();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, n_warps = int(blockDim.x) / 32;
  const int group = warp >= p.k_warps ? warp / p.k_warps : 0, k_warp = warp - group * p.k_warps;
  const int n_mine = p.warp_bricks + (k_warp < p.longer_warps);  // bricks of a tile
  constexpr bool kPacks = kOf == GemvOf::packs, kChain = kOf == GemvOf::chain;
  if constexpr (kOf != GemvOf::matrix) {  // the grid before chose the experts
    gpu::let_next_grid_start();
    gpu::wait_for_previous_grid();
  }
  const ExpertPack* const pack = kPacks ? p.packs + blockIdx.y : nullptr;
  const int n_tokens = kPacks ? pack->n : p.n_tokens, expert = kPacks ? pack->expert : 0;
  if (kPacks && n_tokens == 0) return;
  const int64_t first_slot = kChain ? int64_t(blockIdx.y) * p.n_slots : 0;
  const auto row_of = [&](int t) {
    if constexpr (kPacks) return int64_t(pack->slots[min(t, n_tokens - 1)] / p.share);
    else if constexpr (kChain) return first_slot;
    else return min(t, n_tokens - 1);
  };
  const auto bias_of = [&](const float* biases, int64_t n_out, int64_t at) {
    if constexpr (!kChain) return biases[expert * n_out + at];
    float sum = 0;
    for (int slot = 0; slot < p.n_slots; ++slot)
      sum = fmaf(p.weights[first_slot + slot], biases[p.experts[first_slot + slot] * n_out + at], sum);
    return sum;
  };
  const auto tile_of = [&](int round, int of_group) {
    return ((round << p.row_shift) + of_group) * int(gridDim.x) + int(blockIdx.x);
  };
  const int my_rounds = p.n_rounds - (tile_of(p.n_rounds - 1, group) >= p.n_tiles);

  // The ring, and the brick that comes into it next. Bricks are in the order of batches, phases, tiles.
  uint8_t* const ring = shared + warp * kStages * F::kBytes;
  const auto address = [&](int round, int brick) {
    if constexpr (kChain) {
      const int of_tile = brick * p.k_warps + k_warp, slot = min(of_tile / p.expert_bricks, p.n_slots - 1);
      return p.bricks + p.experts[first_slot + slot] * p.expert_bytes +
             (int64_t(tile_of(round, group)) * p.expert_bricks + of_tile - slot * p.expert_bricks) * F::kBytes +
             lane * 16;
    }
    return p.bricks + expert * p.expert_bytes +
           (int64_t(tile_of(round, group)) * p.bricks_per_tile + brick * p.k_warps + k_warp) * F::kBytes + lane * 16;
  };
  int fed_batch = 0, fed_last = min(p.batch, my_rounds), fed_round = 0;
  int fed_phase = 0, fed_end = min(p.phase_bricks, n_mine), fed_brick = 0;
  const uint8_t* from = address(0, 0);
  const auto feed = [&](int stage) {
    if (fed_round < my_rounds) {
      uint8_t* to = ring + stage * F::kBytes + lane * 16;
#pragma unroll
      for (int i = 0; i < F::kBytes / 16; i += 32)
        if (i + 32 <= F::kBytes / 16 || i + lane < F::kBytes / 16) gpu::copy_async16(to + i * 16, from + i * 16);
      if constexpr (!kChain) from += p.k_warps * F::kBytes;
      if (++fed_brick == fed_end) {
        if (++fed_round == fed_last) {
          fed_phase = fed_end;
          if (fed_end == n_mine) {
            fed_phase = 0, fed_batch = fed_last;
            fed_last = min(fed_last + p.batch, my_rounds);
          }
          fed_end = min(fed_phase + p.phase_bricks, n_mine);
          fed_round = fed_batch;
        }
        fed_brick = fed_phase;
        if constexpr (!kChain) from = address(fed_round, fed_brick);
      }
      if constexpr (kChain) from = address(fed_round, fed_brick);
    }
    gpu::copy_commit();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) feed(stage);
  if constexpr (kOf == GemvOf::matrix) {
    gpu::let_next_grid_start();
    if (p.norm_weight)  // nobody waits for it yet
      for (int i = lane; i < n_mine * kBlocks; i += 32)
        if (const int k = (i / kBlocks * p.k_warps + k_warp) * F::kColumns + i % kBlocks * 32; k < p.n_in)
          gpu::prefetch(p.norm_weight + k);
    gpu::wait_for_previous_grid();
  }

  // Lanes of columns that no token has read another one's: what they multiply ends in columns that nobody looks at.
  const int r = lane / 4, c = lane % 4, column = min(r, 2 * kTokens - 1);
  auto* const planes = reinterpret_cast<uint4*>(shared + p.planes_at + warp * p.phase_bricks * kBrickX<F, kTokens>);
  const auto* const x_sums =
      reinterpret_cast<const XSum<F>*>(planes + p.phase_bricks * kBlocks * kTokens * 8) + min(c, kTokens - 1);
  auto* const tile_sums = reinterpret_cast<float*>(shared + p.sums_at);  // [2][batch][group][k_warps][kTileSums]
  const int round_sums = kTileSums * n_warps;
  double squares[kTokens] = {};
  float inverse = 0, factors = 1;  // of token c: 1 / scale, 1 / rms
  int stage = 0, buffer = 0;
  for (int first = 0; first < p.n_rounds; first += p.batch, buffer ^= 1) {
    const int last = min(first + p.batch, my_rounds),
              n_outputs = min(p.batch, p.n_rounds - first) * kTileSums << p.row_shift;
    float* const batch_sums = tile_sums + buffer * p.batch * round_sums;
    // Lane `lane` finishes output 32 item + lane of [round][group][token][row].
    const auto output_of = [&](int item) {
      const int at = 32 * item + lane, slot = at / kTileSums, token = at / 16 % kTokens;
      const int tile = tile_of(first + (slot >> p.row_shift), slot & ((1 << p.row_shift) - 1));
      const bool exists = at < n_outputs && tile < p.n_tiles && token < n_tokens;
      const int row = kPacks && exists ? pack->slots[token] : kChain ? int(blockIdx.y) : token;
      return Output(p.out, tile, row, at % 16, bias_of, exists);
    };
    Output output = output_of(warp);

    for (int phase = 0; phase < n_mine; phase += p.phase_bricks) {
      const int n = min(p.phase_bricks, n_mine - phase);
      if (first == 0 || n < n_mine)
        inverse = p.pairs ? stage_x<F, kTokens, true, kOf>(p, row_of, k_warp, phase, n, planes, first == 0, squares)
                          : stage_x<F, kTokens, false, kOf>(p, row_of, k_warp, phase, n, planes, first == 0, squares);
      for (int round = first; round < last; ++round) {
        float sum[1][1][4] = {};
        const uint4* words = planes + column * 4 + c;
        const XSum<F>* sums = x_sums;
        for (int i = 0; i < n; ++i) {
          gpu::copy_wait<kStages - 2>();
          __syncwarp();  // the whole brick has come, and the one before it has been used
          feed(stage == 0 ? kStages - 1 : stage - 1);
          multiply<F>(
              sum, ring + stage * F::kBytes, lane, [&](int k32, int) { return words[k32 * kTokens * 8]; },
              [&](int k32, int, int j) { return sums[(k32 * F::kSums + j) * kTokens]; });
          stage = stage + 1 == kStages ? 0 : stage + 1;
          words += kBlocks * kTokens * 8;
          sums += kBlocks * F::kSums * kTokens;
        }
        if (c >= kTokens) continue;
        float* const mine = batch_sums + (round - first) * round_sums + warp * kTileSums + c * 16 + r;
        const float upper = (sum[0][0][0] + sum[0][0][1]) * (1 / F::kUnit) * inverse;
        const float lower = (sum[0][0][2] + sum[0][0][3]) * (1 / F::kUnit / F::kLower) * inverse;
        mine[0] = phase == 0 ? upper : mine[0] + upper;
        mine[8] = phase == 0 ? lower : mine[8] + lower;
      }
    }
    if (p.norm_weight && first == 0 && group == 0)
      for (int t = 0; t < kTokens; ++t) {
        const double all = gpu::warp_sum(squares[t]);
        if (lane == 0) squares_of[t][k_warp] = all;
      }
    // Those that go on write to these sums again two batches on, behind a barrier that the others come to later.
    __syncthreads();
    if (p.norm_weight && first == 0) {
      double all = 0;
      for (int w = 0; w < p.k_warps; ++w) all += squares_of[min(c, kTokens - 1)][w];
      const auto mean = float(all * p.one_by_n_in + p.norm_eps);
      factors = guarded_factor(mean, 1.0f / sqrtf(mean));
    }
    for (int item = warp; 32 * item < n_outputs; item += n_warps) {
      if (item != warp) output = output_of(item);
      const int at = 32 * item + lane;
      const float factor = __shfl_sync(gpu::kAllLanes, factors, at / 16 % kTokens);
      const float* part = batch_sums + at / kTileSums * p.k_warps * kTileSums + at % kTileSums;
      float value = 0;
      if (at < n_outputs)
        for (int w = 0; w < p.k_warps; ++w) value += part[w * kTileSums];
      value *= factor;
      if (p.out.paired) {
        value += output.bias;
        const float up = __shfl_down_sync(gpu::kAllLanes, value, 8);
        if (output.y) *output.y = gated(p.out.glu, value, up);
      } else if (output.y) {
        value += output.bias;
        *output.y = p.out.residual ? output.old + value : value;
      }
    }
  }
  gpu::copy_wait<0>();
}

struct Launch {
  GemvPlan plan;
  int n_blocks, n_threads, shared_bytes;
};

/// A row of the weights has `n_chained` times what the matrix has. There may be no room for x beside the rings of so
/// many warps: phases are of 0 bricks then.
template <class F, int kTokens>
Launch cut(const BrickMatrix& w, const BrickCall& call, int n_chained, int most_warps) {
  Launch launch{};
  GemvPlan& p = launch.plan;
  const int64_t n_tiles = w.n_tiles(), per_tile = n_chained * w.bricks_per_tile();
  expect(n_tiles * per_tile < INT32_MAX / 2 && call.n_tokens * w.n_in < INT32_MAX / 2, "gemv: too many rows");
  p = {.bricks = w.data.as<uint8_t>(),
       .n_tiles = int(n_tiles),
       .bricks_per_tile = int(per_tile),
       .n_tokens = int(call.n_tokens),
       .n_in = int(w.n_in),
       .x = call.x,
       .norm_weight = call.norm_weight,
       .norm_eps = call.norm_eps,
       .one_by_n_in = 1.0 / double(w.n_in),
       .pairs = readable_in_pairs(w, call),
       .out = make_outputs(w, call)};
  const int blocks = call.n_blocks > 0 ? call.n_blocks : gpu::multiprocessors();
  int most = int(gpu::ceil_div(per_tile, most_warps));  // bricks of a warp
  p.k_warps = int(gpu::ceil_div(per_tile, most));
  p.warp_bricks = p.bricks_per_tile / p.k_warps;
  p.longer_warps = p.bricks_per_tile % p.k_warps;
  while (p.k_warps << (p.row_shift + 1) <= most_warps && int64_t(blocks) << (p.row_shift + 1) <= n_tiles) ++p.row_shift;
  const int n_warps = p.k_warps << p.row_shift;
  launch.n_threads = 32 * n_warps;
  launch.n_blocks = int(std::min<int64_t>(blocks, n_tiles));
  p.n_rounds = int(gpu::ceil_div(n_tiles, int64_t(launch.n_blocks) << p.row_shift));

  // 1 KiB is left for the variables that are not dynamic.
  const int room = gpu::most_shared_bytes() - 1024 - n_warps * F::kGemvStages * F::kBytes;
  const int sums_of_round = 2 * n_warps * 16 * kTokens * 4, x_of_brick = n_warps * kBrickX<F, kTokens>;
  p.batch = std::clamp(8 / most, 1, std::min(4, p.n_rounds));
  p.phase_bricks = most;
  if (room < p.batch * sums_of_round + most * x_of_brick) {
    p.batch = std::clamp(room / 4 / sums_of_round, 1, std::min(8, p.n_rounds));
    const int fit = std::max(0, room - p.batch * sums_of_round) / x_of_brick;
    p.phase_bricks = fit > 0 ? int(gpu::ceil_div(most, gpu::ceil_div(most, fit))) : 0;
  }
  p.planes_at = n_warps * F::kGemvStages * F::kBytes;
  p.sums_at = p.planes_at + p.phase_bricks * x_of_brick;
  launch.shared_bytes = p.sums_at + p.batch * sums_of_round;
  return launch;
}

/// Many warps where all of x fits beside their rings; not for experts, two of whose blocks share a processor.
template <class F, int kTokens>
Launch plan_launch(const BrickMatrix& w, const BrickCall& call, int n_chained = 1) {
  if (call.n_blocks == 0) {
    const Launch launch = cut<F, kTokens>(w, call, n_chained, kMostWarps);
    if (launch.plan.phase_bricks >= launch.plan.warp_bricks + (launch.plan.longer_warps > 0)) return launch;
  }
  for (int warps = kFewWarps; warps > 0; warps /= 2) {
    const Launch launch = cut<F, kTokens>(w, call, n_chained, warps);
    if (launch.plan.phase_bricks > 0) return launch;
  }
  throw Error(ErrorKind::failure, "gemv: this device has too little shared memory per block");
}

template <class F, int kTokens>
void launch_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call) {
  Launch launch = plan_launch<F, kTokens>(w, call);
  // Large GEMVs: more than half of what a Hopper multiprocessor has, as areas_cuda.h explains.
  if (w.bytes() > kLargeBytes && gpu::most_shared_bytes() > 2 * launch.shared_bytes)
    launch.shared_bytes = std::max(launch.shared_bytes, gpu::most_shared_bytes() / 2 + 1024);
  const auto kernel = gemv_kernel<F, kTokens, GemvOf::matrix>;
  gpu::allow_shared_bytes("shared memory of gemv", kernel, size_t(launch.shared_bytes));
  gpu::launch("gemv", kernel,
              {unsigned(launch.n_blocks), unsigned(launch.n_threads), size_t(launch.shared_bytes), stream, call.overlap,
               w.all_data()},
              launch.plan);
}

template <class F, int kTokens>
void launch_experts(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call, const ExpertCall& experts) {
  constexpr int64_t kMostPacks = 32768;  // of gridDim.y
  Launch launch = plan_launch<F, kTokens>(w, call);
  launch.plan.share = experts.share;
  launch.plan.expert_bytes = w.bytes();
  const auto kernel = gemv_kernel<F, kTokens, GemvOf::packs>;
  gpu::allow_shared_bytes("shared memory of gemv", kernel, size_t(launch.shared_bytes));
  for (int64_t first = 0; first < experts.n_packs; first += kMostPacks) {
    launch.plan.packs = experts.packs + first;
    const dim3 blocks(unsigned(launch.n_blocks), unsigned(std::min(kMostPacks, experts.n_packs - first)));
    gpu::launch(
        "gemv of experts", kernel,
        {blocks, unsigned(launch.n_threads), size_t(launch.shared_bytes), stream, experts.overlap, w.all_data()},
        launch.plan);
  }
}

template <class F>
void launch_chain(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call, const ExpertSumCall& sum) {
  Launch launch = plan_launch<F, 1>(w, call, sum.n_slots);
  launch.plan.expert_bytes = w.bytes();
  launch.plan.experts = sum.experts;
  launch.plan.weights = sum.weights;
  launch.plan.n_slots = sum.n_slots;
  launch.plan.expert_bricks = int(w.bricks_per_tile());
  const auto kernel = gemv_kernel<F, 1, GemvOf::chain>;
  gpu::allow_shared_bytes("shared memory of gemv", kernel, size_t(launch.shared_bytes));
  const dim3 blocks(unsigned(launch.n_blocks), unsigned(sum.n_tokens));
  gpu::launch("gemv of experts' sum", kernel,
              {blocks, unsigned(launch.n_threads), size_t(launch.shared_bytes), stream, sum.overlap, w.all_data()},
              launch.plan);
}

}  // namespace

namespace bricks {

void check_scratch(const gpu::Buffer& scratch, int64_t needed) {
  expect(scratch.bytes() >= needed, "product with bricks: the scratch is too small");
}

void check_call(const BrickMatrix& w, const BrickCall& call) {
  expect(call.n_tokens > 0 && call.x != nullptr && w.data.bytes() > 0, "product with bricks: no x or no weights");
  for (int i = 0; i < w.n_parts; ++i) {
    expect(call.y[i] != nullptr, "product with bricks: a part without y");
    expect(!w.paired || (call.bias[i] == nullptr && !call.residual),
           "product with bricks: a GLU with bias or residual");
  }
}

}  // namespace bricks

void device_few_f16_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call) {
  check_call(w, call);
  expect(call.n_tokens <= kMostFewTokens, "product with bricks: too many tokens for this kernel");
  with_format(w.format, [&](auto f) {
    using F = decltype(f);
    if (call.n_tokens == 1) launch_gemv<F, 1>(stream, w, call);
    else if (call.n_tokens == 2) launch_gemv<F, 2>(stream, w, call);
    else launch_gemv<F, 4>(stream, w, call);
  });
}

void device_expert_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const ExpertCall& experts,
                        const float* const* biases, float* const* y) {
  BrickCall call{.n_tokens = experts.most, .x = experts.x, .glu = experts.glu};
  for (int i = 0; i < w.n_parts; ++i) call.y[i] = y[i];
  // Two blocks fit on a multiprocessor; what experts need in all is shared out evenly.
  call.n_blocks = int(std::max<int64_t>(1, 2 * gpu::multiprocessors() / experts.n_packs));
  check_call(w, call);
  for (int i = 0; i < w.n_parts * (w.paired ? 2 : 1); ++i) call.bias[i] = biases[i];
  with_format(w.format, [&](auto f) {
    using F = decltype(f);
    if (experts.most == 1) launch_experts<F, 1>(stream, w, call, experts);
    else launch_experts<F, ExpertPack::kMost>(stream, w, call, experts);
  });
}

void device_expert_sum_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const ExpertSumCall& sum,
                            const float* bias) {
  BrickCall call{.n_tokens = 1, .x = sum.x, .residual = sum.add};
  call.y[0] = sum.y;
  call.bias[0] = bias;
  call.n_blocks = int(std::max<int64_t>(1, (sum.n_tokens > 1 ? 2 : 1) * gpu::multiprocessors() / sum.n_tokens));
  expect(w.n_parts == 1 && !w.paired && sum.n_tokens < 65536, "sum of experts: one part, and tokens of a grid");
  check_call(w, call);
  with_format(w.format, [&](auto f) { launch_chain<decltype(f)>(stream, w, call, sum); });
}

}  // namespace ridge
