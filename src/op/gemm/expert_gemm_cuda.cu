#include "op/gemm/expert_gemm_cuda.h"

#include <algorithm>

#include "op/gemm/brick_areas_cuda.h"

namespace ridge {
namespace {

using namespace bricks;

using Columns = areas::Shape<8, 1, kGroupColumns / 8>;
using FewRows = areas::Shape<4, 1, kGroupColumns / 16>;  // and as few columns
using WideColumns = areas::WideShape<kWideGroupColumns>;

struct GroupPlan {
  areas::Plan areas;
  const float* factors;    ///< of columns
  const float* biases[2];  ///< [n_experts, n_out], of the part or of gate and up; or null
  float* y;                ///< [slots, n_out]
  int64_t n_out;
  bool paired;
  BrickGlu glu;
};

/// Stores a warp's sums of an area. `units`: what its rows are multiplied by, those of the upper half of a tile and of
/// the lower one.
template <class Area>
__device__ void store_groups(const GroupPlan& p, int column_area, int first_of_tiles, int first_column,
                             const float (&sum)[Area::kTiles][Area::kColumnTiles][4], float2 units) {
  constexpr int kAtOnce = 4;  // column tiles whose slots are asked for together
  static_assert(Area::kColumnTiles % kAtOnce == 0 || Area::kColumnTiles < kAtOnce);
  const int lane = int(threadIdx.x) % 32, r = lane / 4, c = lane % 4;
  const int64_t biases_at = p.areas.groups.experts[column_area] * p.n_out;
  const auto row_of = [&](int m, int half) {
    const int64_t tile = first_of_tiles + m;
    return p.paired ? tile * 8 + r : tile * 16 + r + 8 * half;
  };
  float biases[Area::kTiles][2] = {};
#pragma unroll
  for (int m = 0; m < Area::kTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (const float* const of = p.biases[p.paired ? half : 0]; of && row_of(m, half) < p.n_out)
        biases[m][half] = of[biases_at + row_of(m, half)];
#pragma unroll
  for (int first = 0; first < Area::kColumnTiles; first += kAtOnce) {
    constexpr int kHere = std::min(kAtOnce, Area::kColumnTiles);
    int slots[kHere][2];
    float factors[kHere][2];
#pragma unroll
    for (int n = 0; n < kHere; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = first_column + 8 * (first + n) + 2 * c + i;
        slots[n][i] = p.areas.groups.columns[column];
        factors[n][i] = p.factors[column];
      }
#pragma unroll
    for (int n = 0; n < kHere; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (slots[n][i] < 0) continue;
        float* const y = p.y + slots[n][i] * p.n_out;
#pragma unroll
        for (int m = 0; m < Area::kTiles; ++m) {
          const float upper = sum[m][first + n][i] * units.x * factors[n][i] + biases[m][0];
          const float lower = sum[m][first + n][2 + i] * units.y * factors[n][i] + biases[m][1];
          if (p.paired) {
            if (row_of(m, 0) < p.n_out) y[row_of(m, 0)] = gated(p.glu, upper, lower);
          } else {
            if (row_of(m, 0) < p.n_out) y[row_of(m, 0)] = upper;
            if (row_of(m, 1) < p.n_out) y[row_of(m, 1)] = lower;
          }
        }
      }
  }
}

template <class F, class Area, int kMost>
__global__ void __launch_bounds__(areas::kBlockThreads<Area>, 1) expert_gemm_kernel(const GroupPlan p) {
  const auto store = [&](const areas::Step<true>& step, int first_of_tiles, int first_column, auto& sum) {
    const float2 units = areas::kIsWide<Area> ? float2{1, 1} : float2{1 / F::kUnit, 1 / F::kUnit / F::kLower};
    store_groups<Area>(p, step.column_area(), first_of_tiles, first_column, sum, units);
  };
  if constexpr (areas::kIsWide<Area>) areas::run_wide_areas<WideBricks<F>, Area, true>(p.areas, store);
  else areas::run_areas<Bricks<F>, Area, kMost, true>(p.areas, store);
}

struct ImagePlan {
  int n_rows, n_in, n_units;  ///< of eight columns of k, those behind n_in among them
  int share;
  const int32_t* column_of;  ///< [n_rows, share]
  const float* x;
  bool pairs;  ///< x can be read two values at a time
  uint4* image;
  float* factors;  ///< of columns
};
constexpr int kImageThreads = 256;

/// x as the image of wide_areas_cuda.h, a row of it in the column of each of its slots. kRowThreads have a row.
template <int kRowThreads>
__global__ void __launch_bounds__(kImageThreads) image_kernel(const ImagePlan p) {
  constexpr int kUnits = 2, kRowWarps = kRowThreads / 32;  // units of a thread under way together
  __shared__ float largest_of[kImageThreads / 32];
  gpu::let_next_grid_start();
  gpu::wait_for_previous_grid();
  const int thread = int(threadIdx.x), at = thread % kRowThreads;
  const int64_t row = int64_t(blockIdx.x) * (kImageThreads / kRowThreads) + thread / kRowThreads;
  const bool exists = row < p.n_rows;
  const float* const x = p.x + row * p.n_in;
  float values[kUnits][8], largest = 0;
  const auto load = [&](int from) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) load_unit(x, from + i * kRowThreads + at, exists ? p.n_in : 0, p.pairs, values[i]);
  };
  for (int from = 0; from < p.n_units; from += kUnits * kRowThreads) {
    load(from);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
#pragma unroll
      for (int e = 0; e < 8; ++e) largest = fmaxf(largest, fabsf(values[i][e]));
  }
  largest = gpu::warp_max(largest);
  if (kRowWarps > 1) {
    if (thread % 32 == 0) largest_of[thread / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kRowWarps; ++warp)
      largest = fmaxf(largest, largest_of[thread / kRowThreads * kRowWarps + warp]);
  }
  const float scale = plane_scale(largest);
  const int32_t* const column_of = p.column_of + row * p.share;
  for (int i = at; exists && i < p.share; i += kRowThreads) p.factors[column_of[i]] = 1 / scale;
  for (int from = 0; from < p.n_units; from += kUnits * kRowThreads) {
    if (p.n_units > kUnits * kRowThreads) load(from);  // or they are there still
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int unit = from + i * kRowThreads + at;
      uint32_t words[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) words[e] = gpu::pack_f16(values[i][2 * e] * scale, values[i][2 * e + 1] * scale);
      const uint4 of_unit = areas::exchange_units(words);
      if (!exists || unit >= p.n_units) continue;
      for (int slot = 0; slot < p.share; ++slot)
        p.image[areas::unit_at(column_of[slot], unit, p.n_units, kWideGroupColumns)] = of_unit;
    }
  }
}

[[maybe_unused]] void launch_image(gpu::StreamHandle stream, const ImagePlan& p) {  // unused where no area is wide
  const auto launch = [&](auto threads) {
    constexpr int kRowThreads = decltype(threads)::value;
    gpu::launch("image of experts", image_kernel<kRowThreads>,
                {unsigned(gpu::ceil_div(p.n_rows, kImageThreads / kRowThreads)), kImageThreads, 0, stream}, p);
  };
  if (p.n_units <= 32) launch(std::integral_constant<int, 32>());
  else if (p.n_units <= 128) launch(std::integral_constant<int, 64>());
  else launch(std::integral_constant<int, kImageThreads>());
}

struct Launch {
  GroupPlan product;
  int64_t n_columns;
  int n_blocks;
  int64_t slots_at, words_at, sums_at, scales_at, scratch_bytes;
};

template <class F, class Area>
Launch plan_launch(const BrickMatrix& w, const ExpertGroups& groups) {
  expect(w.n_parts == 1, "experts of many tokens: one part, or gate and up in one");
  Launch launch{};
  const int64_t n_columns = groups.most_areas * Area::kAreaColumns;
  areas::Plan& p = launch.product.areas;
  p = areas::plan_areas<Bricks<F>, Area>(w.data.as<void>(), w.n_tiles(), w.bricks_per_tile(), n_columns);
  expect(p.n_areas <= kCounters && p.n_areas * w.bricks_per_tile() < INT32_MAX / 2,
         "experts of many tokens: too many rows");
  p.groups.expert_bytes = w.bytes();
  launch.n_columns = n_columns;
  launch.n_blocks = int(std::min<int64_t>(gpu::multiprocessors(), p.n_areas * w.bricks_per_tile()));
  launch.slots_at = 4 * kCounters;
  launch.words_at = launch.slots_at + areas::slot_bytes<Area>(launch.n_blocks);
  launch.sums_at = launch.words_at + areas::x_bytes<BricksOf<F, Area>, Area>(p);
  launch.scales_at = launch.sums_at + n_columns * p.x_blocks * F::kSums * 4;
  launch.scratch_bytes = launch.scales_at + 4 * n_columns;
  return launch;
}

template <class F, class Area, int kMost>
void launch_matmul(gpu::StreamHandle stream, const BrickMatrix& w, const ExpertGroupCall& call,
                   const gpu::Buffer& scratch) {
  Launch launch = plan_launch<F, Area>(w, call.groups);
  check_scratch(scratch, launch.scratch_bytes);
  auto* const base = scratch.as<uint8_t>();
  GroupPlan& p = launch.product;
  auto* const words = reinterpret_cast<uint4*>(base + launch.words_at);
  auto* const sums = reinterpret_cast<float*>(base + launch.sums_at);
  auto* const factors = reinterpret_cast<float*>(base + launch.scales_at);
  if constexpr (areas::kIsWide<Area>)
    launch_image(stream, {.n_rows = int(call.groups.n_slots / call.share),
                          .n_in = int(w.n_in),
                          .n_units = 4 * p.areas.x_blocks,
                          .share = call.share,
                          .column_of = call.groups.column_of,
                          .x = call.x,
                          .pairs = readable_in_pairs(w, {.x = call.x}),
                          .image = words,
                          .factors = factors});
  else
    gpu::launch("planes of experts", planes_kernel<F>, {unsigned(launch.n_columns), kPlanesThreads, 0, stream},
                XPlan{.n_tokens = int(launch.n_columns),
                      .n_in = int(w.n_in),
                      .columns = call.groups.columns,
                      .share = call.share,
                      .n_areas = call.groups.n_areas,
                      .area_columns = call.groups.width,
                      .x = call.x,
                      .one_by_n_in = 1.0 / double(w.n_in),
                      .pairs = readable_in_pairs(w, {.x = call.x}),
                      .to = {words, sums, factors, p.areas.x_blocks, 1}});
  p.areas.counters = scratch.as<uint32_t>();
  p.areas.slots = base + launch.slots_at;
  p.areas.words = words;
  p.areas.sums = sums;
  p.areas.groups.n_column_areas = call.groups.n_areas;
  p.areas.groups.experts = call.groups.experts;
  p.areas.groups.columns = call.groups.columns;
  p.factors = factors;
  std::copy_n(call.biases, 2, p.biases);
  p.y = call.y;
  p.n_out = w.n_out[0];
  p.paired = w.paired;
  p.glu = call.glu;
  constexpr size_t kBytes = areas::block_bytes<BricksOf<F, Area>, Area, kMost>();
  static_assert(kBytes <= kMost - 1024);
  const auto kernel = expert_gemm_kernel<F, Area, kMost>;
  gpu::allow_shared_bytes("shared memory of experts' GEMMs", kernel, kBytes);
  gpu::launch("tensor_gemm of experts", kernel, areas::areas_grid<Area>(p.areas, launch.n_blocks, kBytes, stream), p);
}

/// Calls f(format, shape of areas, most bytes of a block).
template <class Function>
auto with_kernel(const BrickMatrix& w, const Function& f) {
  return with_format(w.format, [&](auto format) {
    using F = std::remove_cvref_t<decltype(format)>;  // nvcc sees a reference in the inner function
    return areas::with_most_bytes([&](auto most) {
      if constexpr (most() == gpu::kHopperSharedBytes && !F::kBfloat)
        if (group_columns() == kWideGroupColumns) return f(format, WideColumns(), most);
      using Few = areas::FirstThatFits<Bricks<F>, most(), Columns, FewRows>;
      return f(format, typename Few::Shape(), most);
    });
  });
}

}  // namespace

int group_columns() { return gpu::device_has_warpgroups() ? kWideGroupColumns : kGroupColumns; }

bool has_expert_gemm(BrickFormat format) { return format != BrickFormat::bf16; }  // one plane of it has 8 bits of x

int64_t expert_gemm_scratch_bytes(const BrickMatrix& w, const ExpertGroups& groups) {
  return with_kernel(
      w, [&](auto f, auto s, auto) { return plan_launch<decltype(f), decltype(s)>(w, groups).scratch_bytes; });
}

void device_expert_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const ExpertGroupCall& call,
                        const gpu::Buffer& scratch) {
  expect(call.x && call.y && w.data.bytes() > 0 && call.groups.most_areas > 0 && call.groups.n_slots > 0,
         "experts of many tokens: no x, weights or groups");
  expect(has_expert_gemm(w.format), "experts of many tokens: a format without f16");
  with_kernel(w, [&](auto f, auto s, auto most) {
    using F = decltype(f);
    if constexpr (!F::kBfloat) launch_matmul<F, decltype(s), most()>(stream, w, call, scratch);
  });
}

}  // namespace ridge
