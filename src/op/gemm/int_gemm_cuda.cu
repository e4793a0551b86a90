#include "op/gemm/int_gemm_cuda.h"

#include <string>

#include "op/gemm/wide_areas_cuda.h"
#include "op/gemv/brick_matmul_cuda.h"
#include "op/gemv/int_tokens.h"
#include "ridge/error.h"

namespace ridge {
namespace {

// --- x ---

/// How tokens are made: threads of a block, units that a thread keeps, blocks of a multiprocessor. Few tokens are few
/// blocks, whose time is all latency; many are bound by how many blocks run at once, and of short rows more can.
template <int kThreadsOf, int kKeptOf, int kBlocksOf>
struct Tokens {
  static constexpr int kThreads = kThreadsOf, kKept = kKeptOf, kBlocks = kBlocksOf;
};
using FewTokens = Tokens<512, 4, 1>;
using ManyTokens = Tokens<256, 2, 3>;
using ShortTokens = Tokens<128, 2, 6>;  // of 2048 columns at most

struct XPlan {
  int64_t n_in;
  const float* x;
  const float* norm;
  float eps;
  uint4* words;    ///< [column tile of 8][block][lane], or where area_columns is not 0, the image of wide_areas_cuda.h
  float* factors;  ///< [n_tokens]: multiplies a token's sums
  int blocks;
  int area_columns;
};

/// Largest of a block's values as bits of floats without their signs, of which NaN has the largest.
template <int kThreads>
__device__ uint32_t block_top(uint32_t top) {
  __shared__ uint32_t parts[kThreads / 32];
  top = __reduce_max_sync(gpu::kAllLanes, top);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = top;
  __syncthreads();
  for (const uint32_t part : parts) top = max(top, part);
  return top;
}

/// A block a token. int4_g128: a unit is the four columns from 4c on of each 16 of a block of 32, as pairs of f16
/// 0, 2 and 1, 3, which is how nibbles of a word meet (int_weights_cuda.h). ternary: of each 16 of a block of 64, as
/// bytes. Roundings of ternary are those of quantize_ternary() in int_tokens.h. A thread keeps its first units and
/// reads others up to three times.
template <IntKind kKind, class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) tokens_kernel(const XPlan p) {
  constexpr bool kTernary = kKind == IntKind::ternary;
  constexpr int kQuads = kTernary ? 4 : 2;  // of a unit
  constexpr int kKept = kTernary ? 1 : T::kKept, kThreads = T::kThreads;
  struct Unit {
    float4 v[kQuads];
  };
  const int64_t token = blockIdx.x;
  const auto* x = reinterpret_cast<const float4*>(p.x + token * p.n_in);
  const auto* norm = reinterpret_cast<const float4*>(p.norm);
  const int n_units = 4 * p.blocks;
  const auto load = [&](const float4* row, int unit) {  // zeros where there is none
    Unit u = {};
    if (unit < n_units)
#pragma unroll
      for (int i = 0; i < kQuads; ++i) u.v[i] = row[4 * kQuads * (unit / 4) + 4 * i + unit % 4];
    return u;
  };

  gpu::let_next_grid_start();
  Unit kept[kKept], weights[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) weights[k] = p.norm ? load(norm, k * kThreads + int(threadIdx.x)) : Unit{};
  gpu::wait_for_previous_grid();
#pragma unroll
  for (int k = 0; k < kKept; ++k) kept[k] = load(x, k * kThreads + int(threadIdx.x));
  const int first_read = kKept * kThreads;

  double by = 1;
  const auto normalise = [&by](Unit& u, const Unit& w) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      u.v[i] = make_float4(float(u.v[i].x * by * w.v[i].x), float(u.v[i].y * by * w.v[i].y),
                           float(u.v[i].z * by * w.v[i].z), float(u.v[i].w * by * w.v[i].w));
  };
  if (p.norm) {
    double squares = 0;
    const auto add = [&squares](const Unit& u) {
#pragma unroll
      for (const float4& v : u.v)
        squares += double(v.x) * v.x + double(v.y) * v.y + double(v.z) * v.z + double(v.w) * v.w;
    };
#pragma unroll
    for (int k = 0; k < kKept; ++k) add(kept[k]);
    for (int first = first_read; first < n_units; first += kThreads) add(load(x, first + int(threadIdx.x)));
    by = 1.0 / sqrt(gpu::block_sum<kThreads>(squares) / double(p.n_in) + p.eps);
#pragma unroll
    for (int k = 0; k < kKept; ++k) normalise(kept[k], weights[k]);
  }
  const auto read = [&](int unit) {
    Unit u = load(x, unit);
    if (p.norm) normalise(u, load(norm, unit));
    return u;
  };

  uint32_t bits = 0;
  const auto take_top = [&bits](const Unit& u) {
    const auto size = [](float f) { return __float_as_uint(f) & 0x7FFFFFFFu; };
#pragma unroll
    for (const float4& v : u.v) bits = max(bits, max(max(size(v.x), size(v.y)), max(size(v.z), size(v.w))));
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) take_top(kept[k]);
  for (int first = first_read; first < n_units; first += kThreads) take_top(read(first + int(threadIdx.x)));
  const float largest = __uint_as_float(block_top<kThreads>(bits));
  const bool finite = largest <= 3.402823466e+38f;
  const float top = largest > 1e-5f ? largest : 1e-5f;  // token_top
  const float by_levels = !finite ? 0.0f : kTernary ? __fdiv_rn(127.0f, top) : bricks::plane_scale(largest);
  if (threadIdx.x == 0)
    p.factors[token] = !finite ? __int_as_float(0x7FC00000) : kTernary ? __fdiv_rn(top, 127.0f) : 1.0f / by_levels;

  uint4* to = p.words + (token / 8 * p.blocks) * 32 + token % 8 * 4;
  const auto write = [&](int unit, const Unit& u) {  // whole warps: lanes exchange words
    const bool exists = unit < n_units;
    const int block = unit / 4, c = unit % 4;
    uint32_t words[4];
    if constexpr (kTernary) {
      const auto level = [&](float f) { return __float2int_rn(__fmul_rn(f, by_levels)); };  // ties to even, 0 for NaN
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] = pack_int8(level(u.v[i].x), level(u.v[i].y), level(u.v[i].z), level(u.v[i].w));
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        words[2 * i] = gpu::pack_f16(u.v[i].x * by_levels, u.v[i].z * by_levels);
        words[2 * i + 1] = gpu::pack_f16(u.v[i].y * by_levels, u.v[i].w * by_levels);
      }
    }
    if (p.area_columns == 0) {
      if (exists) to[block * 32 + c] = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      areas::store_units(p.words, token, 4 * block, n_units, p.area_columns, words, exists);
    }
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (k * kThreads < n_units) write(k * kThreads + int(threadIdx.x), kept[k]);
  for (int first = first_read; first < n_units; first += kThreads)
    write(first + int(threadIdx.x), read(first + int(threadIdx.x)));
}

// --- The GEMM ---

struct Int4Steps {
  using Value = float;
  static constexpr int kBytes = int_tile_bytes(IntKind::int4_g128), kBlocks = 4;
  static constexpr int kSums = 0;

  template <int kTiles, int kColumnTiles, class Words, class Sums>
  __device__ static void multiply(float (&sum)[kTiles][kColumnTiles][4], const uint8_t* tiles, int lane,
                                  const Words& words, const Sums&) {
    uint32_t scale[kTiles][2];  // of rows r and r + 8, twice each
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const uint32_t both = *reinterpret_cast<const uint32_t*>(tiles + m * kBytes + 1024 + lane / 4 * 4);
      scale[m][0] = gpu::select_bytes(both, both, 0x1010);
      scale[m][1] = gpu::select_bytes(both, both, 0x3232);
    }
#pragma unroll 1
    for (int pair = 0; pair < 2; ++pair) {
      uint4 codes[kTiles];
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        codes[m] = *reinterpret_cast<const uint4*>(tiles + m * kBytes + 512 * pair + 16 * lane);
#pragma unroll
      for (int low = 0; low < 2; ++low) {
        uint32_t a[2][kTiles][4];  // of 16 columns each
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const uint32_t of[4] = {codes[m].x, codes[m].y, codes[m].z, codes[m].w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint32_t word = of[i] ^ 0x88888888u;  // codes + 8
            a[i / 2][m][i % 2] = values(word, low, scale[m][i % 2]);
            a[i / 2][m][i % 2 + 2] = values(word >> 8, low, scale[m][i % 2]);
          }
        }
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          const uint4 b = words(2 * pair + low, n);
#pragma unroll
          for (int m = 0; m < kTiles; ++m) gpu::mma_f16(sum[m][n], a[0][m], b.x, b.y);
#pragma unroll
          for (int m = 0; m < kTiles; ++m) gpu::mma_f16(sum[m][n], a[1][m], b.z, b.w);
        }
      }
    }
  }

  // For wide areas (wide_areas_cuda.h).
  static constexpr int kColumns = kIntGroup;
  struct Codes {
    uint4 words;
    uint32_t scales;
  };
  __device__ static Codes load(const uint8_t* tile, int chunk, int lane) {
    return {*reinterpret_cast<const uint4*>(tile + 512 * chunk + 16 * lane),
            *reinterpret_cast<const uint32_t*>(tile + 1024 + lane / 4 * 4)};
  }
  __device__ static void fragments(const Codes& codes, int part, uint32_t (&a)[2][4]) {
    const uint32_t of[4] = {codes.words.x, codes.words.y, codes.words.z, codes.words.w};
    const uint32_t scale[2] = {gpu::select_bytes(codes.scales, codes.scales, 0x1010),
                               gpu::select_bytes(codes.scales, codes.scales, 0x3232)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = of[i] ^ 0x88888888u;
      a[i / 2][i % 2] = values(word, part == 1, scale[i % 2]);
      a[i / 2][i % 2 + 2] = values(word >> 8, part == 1, scale[i % 2]);
    }
  }

  /// The high or low nibbles of bytes 0 and 2, which are code + 8, as f16 code * scale.
  __device__ static uint32_t values(uint32_t word, bool low, uint32_t scale) {
    // Under the exponent of 1024 a low nibble counts ones and a high nibble sixteens.
    const uint32_t codes =
        low ? gpu::sub_f16x2(gpu::and_or(word, 0x000F000Fu, 0x64006400u), 0x64086408u)
            : gpu::fma_f16x2(gpu::and_or(word, 0x00F000F0u, 0x64006400u), 0x2C002C00u, 0xD480D480u);  // / 16 - 72
    return gpu::fma_f16x2(codes, scale, 0x80008000u);
  }
};

struct TernarySteps {
  using Value = int;  // 64 times the sums
  static constexpr int kBytes = int_tile_bytes(IntKind::ternary), kBlocks = 2;
  static constexpr int kSums = 0;

  template <int kTiles, int kColumnTiles, class Words, class Sums>
  __device__ static void multiply(int (&sum)[kTiles][kColumnTiles][4], const uint8_t* tiles, int lane,
                                  const Words& words, const Sums&) {
    uint4 codes[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) codes[m] = *reinterpret_cast<const uint4*>(tiles + m * kBytes + 16 * lane);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      uint32_t a[2][kTiles][4];  // of 32 columns each
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const uint32_t of[4] = {codes[m].x, codes[m].y, codes[m].z, codes[m].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[0][m][i] = of[i] << (4 * block) & 0xC0C0C0C0u;
          a[1][m][i] = of[i] << (4 * block + 2) & 0xC0C0C0C0u;
        }
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const uint4 b = words(block, n);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) gpu::mma_s8(sum[m][n], a[0][m], b.x, b.y);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) gpu::mma_s8(sum[m][n], a[1][m], b.z, b.w);
      }
    }
  }
};

template <IntKind kKind>
using StepsOf = std::conditional_t<kKind == IntKind::ternary, TernarySteps, Int4Steps>;
using Small = areas::Shape<8, 1, 8>;   // 128 rows, 64 columns
using Middle = areas::Shape<4, 2, 8>;  // 128 rows, 128 columns
using Large = areas::Shape<4, 4, 8>;   // 256 rows, 128 columns
using areas::kIsWide;                  // 256 rows by warpgroups
using Wide32 = areas::WideShape<32>;
using Wide64 = areas::WideShape<64>;
using Wide128 = areas::WideShape<128>;

/// How long a block takes, in clocks of one processor, about. Large areas read least for a GEMM; small ones leave
/// less to add up where there are fewer areas than blocks.
struct ShapeCost {
  int step_f16, step_int8;  ///< 128 columns of k; of the two smaller shapes bound by what a step reads
  int part;                 ///< a part of a shared area, which one block adds
  int store;                ///< of an area
};
template <class S>
constexpr ShapeCost kCost = std::is_same_v<S, Large>    ? ShapeCost{4400, 2400, 2600, 8000}
                            : std::is_same_v<S, Middle> ? ShapeCost{2600, 1500, 1300, 4500}
                                                        : ShapeCost{1600, 1000, 650, 2500};
/// The same of f16 with few tokens, whose steps and parts wait for memory.
constexpr ShapeCost kFewTokensCost = {2200, 1000, 1300, 2500};

template <class S>
int64_t block_clocks(const IntWeights& w, int64_t n_tokens, int64_t blocks) {
  const bool few = std::is_same_v<S, Small> && w.kind == IntKind::int4_g128 && n_tokens <= areas::kFewColumns;
  const ShapeCost cost = few ? kFewTokensCost : kCost<S>;
  const int64_t areas =
      gpu::ceil_div(w.n_row_tiles(), S::kAreaTiles) * gpu::ceil_div(n_tokens, int64_t(S::kAreaColumns));
  const int64_t steps = gpu::ceil_div(areas * w.n_groups(), blocks);
  return steps * (w.kind == IntKind::ternary ? cost.step_int8 : cost.step_f16) +
         (1 + w.n_groups() / steps) * cost.part + gpu::ceil_div(areas, blocks) * cost.store;
}

struct GemmPlan {
  areas::Plan areas;
  areas::Outputs out;
};

template <IntKind kKind, class S, int kMost>
__global__ void __launch_bounds__(areas::kBlockThreads<S>, 1) gemm_kernel(const GemmPlan p) {
  const auto product = [](auto sum, int, float factor, float row_scale) {
    if constexpr (kKind == IntKind::ternary) return __fmul_rn(__fmul_rn(__int2float_rn(sum >> 6), factor), row_scale);
    else return sum * factor;
  };
  if constexpr (kIsWide<S>) areas::run_wide<StepsOf<kKind>, S>(p.areas, p.out, product);
  else areas::run<StepsOf<kKind>, S, kMost>(p.areas, p.out, product);
}

// --- Launches ---

void require(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::failure, std::string("device_int_gemm: ") + what);
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

void check_operands(const IntWeights& w, const IntGemmCall& call) {
  const bool gated = call.output == IntOutput::silu_glu || call.output == IntOutput::relu2_glu;
  require(gated == w.gated, "the output does not suit the packing of the weights");
  require(!gated || !call.bias, "a bias of gated weights");
  require(call.n_parts >= 1 && call.n_parts <= (gated ? 1 : kMostIntParts), "parts");
  int64_t n_out = 0;
  for (int i = 0; i < call.n_parts; ++i) n_out += call.n_out[i];
  require(n_out == w.n_out, "parts that are not the weights' rows");
  require(aligned16(call.x) && aligned16(call.norm_weight), "x or the norm's weight is not aligned to 16 bytes");
  require(call.area < IntArea::wide32 || (w.kind == IntKind::int4_g128 && gpu::device_has_warpgroups()),
          "GEMMs by warpgroups are for int4_g128 on sm_90");
  require(w.n_in <= int64_t(1) << 17, "rows so long that integer sums could overflow");
}

template <IntKind kKind, class S, int kMost>
void launch_matmul(gpu::StreamHandle stream, const IntWeights& w, const IntGemmCall& call, IntScratch& scratch) {
  using Steps = StepsOf<kKind>;
  GemmPlan p = {};
  const int64_t n_areas = gpu::ceil_div(w.n_row_tiles(), S::kAreaTiles) * gpu::ceil_div(call.n_tokens, S::kAreaColumns);
  require(n_areas * w.n_groups() < INT32_MAX / 2, "too many rows");
  p.areas = areas::plan_areas<Steps, S>(w.tiles.as<void>(), w.n_row_tiles(), w.n_groups(), call.n_tokens);
  const int most_blocks = call.n_blocks > 0 ? call.n_blocks : gpu::multiprocessors();
  int n_blocks = int(std::min<int64_t>(most_blocks, n_areas * w.n_groups()));
  if constexpr (kIsWide<S>) n_blocks = areas::choose_wide_blocks<Steps, S>(p.areas, most_blocks, call.cluster);

  const int64_t slot_bytes = areas::slot_bytes<S>(n_blocks), word_bytes = areas::x_bytes<Steps, S>(p.areas);
  auto* const data = scratch.data.ensure<uint8_t>(slot_bytes + word_bytes + 4 * call.n_tokens);
  p.areas.counters = scratch.counters.ensure<uint32_t>(n_areas);
  p.areas.slots = data;
  auto* const words = reinterpret_cast<uint4*>(data + slot_bytes);
  auto* const factors = reinterpret_cast<float*>(data + slot_bytes + word_bytes);
  p.areas.words = words;
  areas::Outputs& out = p.out;
  out.n_parts = call.n_parts;
  int64_t row = 0;
  for (int i = 0; i < call.n_parts; ++i) {
    out.first_row[i] = row;
    out.n_out[i] = call.n_out[i];
    out.bias[i] = call.bias ? call.bias + row : nullptr;
    out.y[i] = call.y[i];
    row += call.n_out[i];
  }
  out.n_tokens = call.n_tokens;
  out.planes = 1;
  out.factors = factors;
  out.row_scale = w.row_scale.as<float>();
  out.paired = w.gated;
  out.residual = call.output == IntOutput::add;
  out.relu2 = call.output == IntOutput::relu2_glu;
  const XPlan x = {w.n_in, call.x,  call.norm_weight, call.norm_eps,
                   words,  factors, p.areas.x_blocks, kIsWide<S> ? S::kAreaColumns : 0};
  const auto make_tokens = [&]<class T>() {
    gpu::launch(kKind == IntKind::ternary ? "tokens to int8" : "tokens to f16", tokens_kernel<kKind, T>,
                {unsigned(call.n_tokens), T::kThreads, 0, stream, call.overlap}, x);
  };
  if (call.n_tokens <= gpu::multiprocessors()) make_tokens.template operator()<FewTokens>();
  else if (w.n_in <= 2048) make_tokens.template operator()<ShortTokens>();
  else make_tokens.template operator()<ManyTokens>();
  constexpr size_t kBytes = areas::block_bytes<Steps, S, kMost>();
  static_assert(kBytes <= kMost - 1024);
  const auto kernel = gemm_kernel<kKind, S, kMost>;
  gpu::allow_shared_bytes("shared memory of int_gemm", kernel, kBytes);
  gpu::launch(kKind == IntKind::ternary ? "int_gemm int8" : "int_gemm f16", kernel,
              areas::areas_grid<S>(p.areas, n_blocks, kBytes, stream), p);
}

IntArea choose_area(const IntWeights& w, int64_t n_tokens, int64_t blocks) {
  if (gpu::most_shared_bytes() < gpu::kHopperSharedBytes) return IntArea::small;  // the others' rings have two steps
  const int64_t small = block_clocks<Small>(w, n_tokens, blocks), middle = block_clocks<Middle>(w, n_tokens, blocks),
                large = block_clocks<Large>(w, n_tokens, blocks);
  if (w.kind == IntKind::int4_g128 && gpu::device_has_warpgroups()) {
    const auto clocks = [&](auto shape) {
      using S = decltype(shape);
      const areas::Plan p = areas::plan_areas<Int4Steps, S>(nullptr, w.n_row_tiles(), w.n_groups(), n_tokens);
      return areas::wide_cost<Int4Steps, S>(p, blocks).least();
    };
    const int64_t wide32 = clocks(Wide32()), wide64 = clocks(Wide64()), wide128 = clocks(Wide128());
    const int64_t wide = std::min({wide32, wide64, wide128});
    if (wide < std::min({small, middle, large}))
      return wide == wide128 ? IntArea::wide128 : wide == wide64 ? IntArea::wide64 : IntArea::wide32;
  }
  if (small <= std::min(middle, large)) return IntArea::small;
  return middle <= large ? IntArea::middle : IntArea::large;
}

template <IntKind kKind, class S>
IntScratchBytes scratch_of(const IntWeights& w, int64_t n_tokens) {
  const areas::Plan p = areas::plan_areas<StepsOf<kKind>, S>(nullptr, w.n_row_tiles(), w.n_groups(), n_tokens);
  const int n_blocks = int(std::min<int64_t>(gpu::multiprocessors(), p.n_areas * w.n_groups()));
  return {areas::slot_bytes<S>(n_blocks) + areas::x_bytes<StepsOf<kKind>, S>(p) + 4 * n_tokens, 4 * int64_t(p.n_areas)};
}
/// Calls f(shape, most bytes of a block) for an area.
template <IntKind kKind, class Function>
auto with_shape(IntArea area, const Function& f) {
  return areas::with_most_bytes([&](auto most) {
    if constexpr (most() == gpu::kHopperSharedBytes) {
      if constexpr (kKind == IntKind::int4_g128) {
        if (area == IntArea::wide32) return f(Wide32(), most);
        if (area == IntArea::wide64) return f(Wide64(), most);
        if (area == IntArea::wide128) return f(Wide128(), most);
      }
      if (area == IntArea::middle) return f(Middle(), most);
      if (area == IntArea::large) return f(Large(), most);
    }
    require(area == IntArea::small, "areas that need a Hopper's shared memory");
    return f(Small(), most);
  });
}

template <IntKind kKind>
IntScratchBytes scratch_of(const IntWeights& w, int64_t n_tokens) {
  return with_shape<kKind>(choose_area(w, n_tokens, gpu::multiprocessors()),
                           [&](auto shape, auto) { return scratch_of<kKind, decltype(shape)>(w, n_tokens); });
}

template <IntKind kKind>
void launch_matmul(gpu::StreamHandle stream, const IntWeights& w, const IntGemmCall& call, IntScratch& scratch) {
  const int blocks = call.n_blocks > 0 ? call.n_blocks : gpu::multiprocessors();
  with_shape<kKind>(
      call.area == IntArea::any ? choose_area(w, call.n_tokens, blocks) : call.area,
      [&](auto shape, auto most) { launch_matmul<kKind, decltype(shape), most()>(stream, w, call, scratch); });
}

}  // namespace

IntScratchBytes int_gemm_scratch_bytes(const IntWeights& w, int64_t n_tokens) {
  if (w.n_out == 0 || n_tokens == 0) return {};
  return w.kind == IntKind::ternary ? scratch_of<IntKind::ternary>(w, n_tokens)
                                    : scratch_of<IntKind::int4_g128>(w, n_tokens);
}

void device_int_gemm(gpu::StreamHandle stream, const IntWeights& w, const IntGemmCall& call, IntScratch& scratch) {
  check_operands(w, call);
  if (w.n_out == 0 || call.n_tokens == 0) return;
  if (w.kind == IntKind::ternary) launch_matmul<IntKind::ternary>(stream, w, call, scratch);
  else launch_matmul<IntKind::int4_g128>(stream, w, call, scratch);
}

}  // namespace ridge
