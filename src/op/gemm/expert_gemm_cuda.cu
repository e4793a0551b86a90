#include "op/gemm/expert_gemm_cuda.h"

#include <algorithm>

#include "op/gemm/brick_areas_cuda.h"

namespace ridge {
namespace {

using namespace bricks;

constexpr int kThreads = areas::kThreads;

using FewColumns = areas::Shape<8, 1, kFewGroupColumns / 8>;
using FewRows = areas::Shape<4, 1, kFewGroupColumns / 16>;  // and as few columns
using ManyColumns = areas::Shape<4, 2, kManyGroupColumns / 16>;
static_assert(ManyColumns::kAreaColumns == kManyGroupColumns);

struct GroupPlan {
  areas::Plan areas;
  const float* factors;    ///< of columns
  const float* biases[2];  ///< [n_experts, n_out], of the part or of gate and up; or null
  float* y;                ///< [slots, n_out]
  int64_t n_out;
  bool paired;
  BrickGlu glu;
};

template <class F, class Area, int kMost>
__global__ void __launch_bounds__(kThreads, 1) expert_gemm_kernel(const GroupPlan p) {
  areas::run_areas<Bricks<F>, Area, kMost, true>(
      p.areas, [&](const areas::Step<true>& step, int first_of_tiles, int first_column, auto& sum) {
        const int lane = int(threadIdx.x) % 32, r = lane / 4, c = lane % 4;
        const int64_t biases_at = p.areas.groups.experts[step.column_area()] * p.n_out;
#pragma unroll
        for (int m = 0; m < Area::kTiles; ++m) {
          const int first_tile = first_of_tiles + m;
          if (first_tile >= p.areas.n_tiles) return;
          const int64_t rows[2] = {p.paired ? int64_t(first_tile) * 8 + r : int64_t(first_tile) * 16 + r,
                                   p.paired ? int64_t(first_tile) * 8 + r : int64_t(first_tile) * 16 + r + 8};
          float biases[2] = {};
#pragma unroll
          for (int half = 0; half < 2; ++half)
            if (const float* const of = p.biases[p.paired ? half : 0]; of && rows[half] < p.n_out)
              biases[half] = of[biases_at + rows[half]];
#pragma unroll
          for (int n = 0; n < Area::kColumnTiles; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const int column = first_column + 8 * n + 2 * c + i;
              const int slot = p.areas.groups.columns[column];
              if (slot < 0) continue;
              const float factor = p.factors[column];
              const float values[2] = {sum[m][n][i] * (1 / F::kUnit) * factor + biases[0],
                                       sum[m][n][2 + i] * (1 / F::kUnit / F::kLower) * factor + biases[1]};
              float* const y = p.y + slot * p.n_out;
              if (p.paired) {
                if (rows[0] < p.n_out) y[rows[0]] = gated(p.glu, values[0], values[1]);
              } else {
#pragma unroll
                for (int half = 0; half < 2; ++half)
                  if (rows[half] < p.n_out) y[rows[half]] = values[half];
              }
            }
        }
      });
}

struct Launch {
  XPlan x;
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
  launch.sums_at = launch.words_at + areas::word_bytes<Area>(p);
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
  launch.x = {.n_tokens = int(launch.n_columns),
              .n_in = int(w.n_in),
              .columns = call.groups.columns,
              .share = call.share,
              .n_areas = call.groups.n_areas,
              .area_columns = call.groups.width,
              .x = call.x,
              .one_by_n_in = 1.0 / double(w.n_in),
              .pairs = readable_in_pairs(w, {.x = call.x}),
              .to = {words, sums, factors, p.areas.x_blocks, 1}};
  gpu::launch("planes of experts", planes_kernel<F>, {unsigned(launch.n_columns), kPlanesThreads, 0, stream}, launch.x);
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
  constexpr size_t kBytes = areas::kSharedBytes<Bricks<F>, Area, kMost>;
  static_assert(kBytes <= kMost - 1024);
  const auto kernel = expert_gemm_kernel<F, Area, kMost>;
  gpu::allow_shared_bytes("shared memory of experts' products", kernel, kBytes);
  gpu::launch("tensor_gemm of experts", kernel, {unsigned(launch.n_blocks), kThreads, kBytes, stream, true}, p);
}

/// Calls f(format, shape of areas, most bytes of a block).
template <class Function>
auto with_kernel(const BrickMatrix& w, const ExpertGroups& groups, const Function& f) {
  expect(groups.most_areas > 0 && (groups.width == kFewGroupColumns || groups.width == kManyGroupColumns),
         "experts of many tokens: areas");
  return with_format(w.format, [&](auto format) {
    using F = std::remove_cvref_t<decltype(format)>;  // nvcc sees a reference in the inner function
    return areas::with_most_bytes([&](auto most) {
      if constexpr (most() == gpu::kHopperSharedBytes) {
        return groups.width == kFewGroupColumns ? f(format, FewColumns(), most) : f(format, ManyColumns(), most);
      } else {
        expect(groups.width == kFewGroupColumns, "experts of many tokens: wide areas need a Hopper's shared memory");
        using Few = areas::FirstThatFits<Bricks<F>, most(), FewColumns, FewRows>;
        return f(format, typename Few::Shape(), most);
      }
    });
  });
}

}  // namespace

bool has_expert_gemm(BrickFormat format) { return format != BrickFormat::bf16; }  // one plane of it has 8 bits of x

int64_t expert_gemm_scratch_bytes(const BrickMatrix& w, const ExpertGroups& groups) {
  return with_kernel(
      w, groups, [&](auto f, auto s, auto) { return plan_launch<decltype(f), decltype(s)>(w, groups).scratch_bytes; });
}

void device_expert_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const ExpertGroupCall& call,
                        const gpu::Buffer& scratch) {
  expect(call.x && call.y && w.data.bytes() > 0 && call.groups.most_areas > 0,
         "experts of many tokens: no x or weights");
  expect(has_expert_gemm(w.format), "experts of many tokens: a format without f16");
  with_kernel(w, call.groups, [&](auto f, auto s, auto most) {
    using F = decltype(f);
    if constexpr (!F::kBfloat) launch_matmul<F, decltype(s), most()>(stream, w, call, scratch);
  });
}

}  // namespace ridge
