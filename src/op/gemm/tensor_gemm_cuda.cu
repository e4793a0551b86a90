#include "op/gemm/tensor_gemm_cuda.h"

#include <algorithm>

#include "op/gemm/brick_areas_cuda.h"

namespace ridge {
namespace {

using namespace bricks;

// Two launches. The first writes the planes of x in the order of B fragments, the second multiplies (areas_cuda.h).

// --- The GEMM ---

/// Areas of 128 rows, or of 256.
template <int kTiles>
struct Shapes {
  using Columns16 = areas::Shape<8, kTiles, 2>;
  using Columns32 = areas::Shape<8, kTiles, 4>;
  using Columns64 = areas::Shape<8, kTiles, 8>;
};
using Columns128 = areas::Shape<4, 2, 8>;
/// Shape for many columns: on Hopper Columns128, else the largest one of which two steps fit.
template <class F, int kMost>
using ManyColumns =
    typename areas::FirstThatFits<Bricks<F>, kMost, Columns128, areas::Shape<8, 1, 8>, areas::Shape<8, 1, 4>,
                                  areas::Shape<8, 1, 2>, areas::Shape<4, 1, 2>>::Shape;
template <class F, int kMost>
using FewColumns = typename areas::FirstThatFits<Bricks<F>, kMost, areas::Shape<8, 1, 4>, areas::Shape<8, 1, 2>,
                                                 areas::Shape<4, 1, 2>>::Shape;

struct GemmPlan {
  areas::Plan areas;
  areas::Outputs out;
};

template <class F, class S, int kMost>
__global__ void __launch_bounds__(areas::kBlockThreads<S>, 1) gemm_kernel(const GemmPlan p) {
  if constexpr (areas::kIsWide<S>)
    areas::run_wide<WideBricks<F>, S>(p.areas, p.out, [](float sum, int, float factor, float) { return sum * factor; });
  else
    areas::run<Bricks<F>, S, kMost>(p.areas, p.out, [](float sum, int half, float factor, float) {
      return sum * (half == 0 ? 1 / F::kUnit : 1 / F::kUnit / F::kLower) * factor;
    });
}

areas::Outputs make_area_outputs(const BrickMatrix& w, const BrickCall& call, int planes) {
  areas::Outputs out{.n_parts = w.n_parts};
  for (int i = 0; i < w.n_parts; ++i) {
    out.first_row[i] = w.first_tile(i) * w.rows_per_tile();
    out.n_out[i] = w.n_out[i];
    out.bias[i] = call.bias[i];
    out.y[i] = call.y[i];
  }
  out.n_tokens = call.n_tokens;
  out.planes = planes;
  out.paired = w.paired;
  out.residual = call.residual;
  out.relu2 = call.glu == BrickGlu::relu2;
  return out;
}

// --- Launches ---

int blocks_of(const BrickCall& call) { return call.n_blocks > 0 ? call.n_blocks : gpu::multiprocessors(); }

/// On Hopper: calls f(shape) for the narrowest area that holds all columns, or the widest. Every area reads all of x
/// once more, so areas are higher where x is much of what a block reads, and not where the sums of many blocks must be
/// added.
template <class Function>
auto with_hopper_shape(const BrickMatrix& w, const BrickCall& call, int planes, const Function& f) {
  const int64_t n_columns = call.n_tokens * planes;
  if (n_columns > 64) return f(Columns128());
  const auto narrowest = [&](auto shapes) {
    using S = decltype(shapes);
    if (n_columns <= 16) return f(typename S::Columns16());
    if (n_columns <= 32) return f(typename S::Columns32());
    return f(typename S::Columns64());
  };
  const int64_t x_bytes = gpu::ceil_div(w.n_tiles(), 8) * w.n_in * n_columns * 2;  // in areas of 128 rows
  return x_bytes / blocks_of(call) < 256 << 10 ? narrowest(Shapes<1>()) : narrowest(Shapes<2>());
}

/// Calls f(shape, most bytes of a block). With less memory than Hopper's, areas are as large as two steps leave room
/// for.
template <class F, class Function>
auto with_shape(const BrickMatrix& w, const BrickCall& call, int planes, const Function& f) {
  return areas::with_most_bytes([&](auto most) {
    if constexpr (most() == gpu::kHopperSharedBytes) {
      return with_hopper_shape(w, call, planes, [&](auto shape) { return f(shape, most); });
    } else {
      if (call.n_tokens * planes <= 32) return f(FewColumns<F, most()>(), most);
      return f(ManyColumns<F, most()>(), most);
    }
  });
}

struct Launch {
  XPlan x;
  GemmPlan product;
  int64_t n_x_blocks;  ///< of the launch that makes planes
  int n_blocks;
  int64_t slots_at, words_at, sums_at, scales_at, scratch_bytes;
};

template <class F, class S>
Launch plan_launch(const BrickMatrix& w, const BrickCall& call, int planes) {
  expect(planes == 1 || planes == 2, "tensor_gemm: planes are one or two");
  Launch launch{};
  GemmPlan& p = launch.product;
  const int64_t n_areas =
      gpu::ceil_div(w.n_tiles(), S::kAreaTiles) * gpu::ceil_div(call.n_tokens * planes, S::kAreaColumns);
  expect(n_areas <= kCounters && n_areas * w.bricks_per_tile() < INT32_MAX / 2, "tensor_gemm: too many rows");
  p.areas =
      areas::plan_areas<Bricks<F>, S>(w.data.as<void>(), w.n_tiles(), w.bricks_per_tile(), call.n_tokens * planes);
  p.out = make_area_outputs(w, call, planes);
  launch.x = {.n_tokens = int(call.n_tokens),
              .n_in = int(w.n_in),
              .x = call.x,
              .norm_weight = call.norm_weight,
              .norm_eps = call.norm_eps,
              .one_by_n_in = 1.0 / double(w.n_in),
              .pairs = readable_in_pairs(w, call)};
  launch.n_blocks = int(std::min<int64_t>(blocks_of(call), n_areas * w.bricks_per_tile()));
  if constexpr (areas::kIsWide<S>)
    launch.n_blocks = areas::choose_wide_blocks<WideBricks<F>, S>(p.areas, blocks_of(call));
  const int64_t n_columns = int64_t(p.areas.n_column_areas) * S::kAreaColumns;
  launch.n_x_blocks = n_columns / planes;
  launch.slots_at = 4 * kCounters;
  launch.words_at = launch.slots_at + areas::slot_bytes<S>(launch.n_blocks);
  launch.sums_at = launch.words_at + areas::x_bytes<BricksOf<F, S>, S>(p.areas);
  launch.scales_at = launch.sums_at + n_columns * p.areas.x_blocks * F::kSums * 4;
  launch.scratch_bytes = launch.scales_at + 4 * call.n_tokens;
  return launch;
}

template <class F, class S, int kMost>
void launch_matmul(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call, int planes,
                   const gpu::Buffer& scratch) {
  Launch launch = plan_launch<F, S>(w, call, planes);
  check_scratch(scratch, launch.scratch_bytes);
  auto* const base = scratch.as<uint8_t>();
  GemmPlan& p = launch.product;
  launch.x.to = {.words = reinterpret_cast<uint4*>(base + launch.words_at),
                 .sums = reinterpret_cast<float*>(base + launch.sums_at),
                 .inverse_scale = reinterpret_cast<float*>(base + launch.scales_at),
                 .blocks = p.areas.x_blocks,
                 .planes = planes,
                 .area_columns = areas::kIsWide<S> ? S::kAreaColumns : 0};
  p.areas.counters = scratch.as<uint32_t>();
  p.areas.slots = base + launch.slots_at;
  p.areas.words = launch.x.to.words;
  p.areas.sums = launch.x.to.sums;
  p.out.factors = launch.x.to.inverse_scale;
  gpu::launch("planes", planes_kernel<F>, {unsigned(launch.n_x_blocks), kPlanesThreads, 0, stream, call.overlap},
              launch.x);
  constexpr size_t kBytes = areas::block_bytes<BricksOf<F, S>, S, kMost>();
  static_assert(kBytes <= kMost - 1024);
  const auto kernel = gemm_kernel<F, S, kMost>;
  gpu::allow_shared_bytes("shared memory of tensor_gemm", kernel, kBytes);
  gpu::launch("tensor_gemm", kernel, areas::areas_grid<S>(p.areas, launch.n_blocks, kBytes, stream), p);
}

}  // namespace

bool has_wide_matmul(const BrickMatrix& w, int64_t n_tokens) {
  return w.format != BrickFormat::bf16 && n_tokens >= kFewestWideTokens && gpu::device_has_warpgroups();
}

namespace {
/// Calls f(format, shape) for a GEMM by warpgroups.
template <class Function>
auto with_wide_shape(const BrickMatrix& w, const BrickCall& call, const Function& f) {
  return with_format(w.format, [&](auto format) {
    using F = decltype(format);
    if constexpr (F::kBfloat) {
      expect(false, "wide_gemm: bfloat16 weights");
      return f(std::type_identity<BrickQ8_0>(), areas::WideShape<64>());
    } else if (call.n_tokens <= 64) {
      return f(std::type_identity<F>(), areas::WideShape<64>());
    } else {
      return f(std::type_identity<F>(), areas::WideShape<128>());
    }
  });
}
}  // namespace

int64_t wide_gemm_scratch_bytes(const BrickMatrix& w, const BrickCall& call) {
  return with_wide_shape(w, call, [&](auto f, auto s) {
    return plan_launch<typename decltype(f)::type, decltype(s)>(w, call, 1).scratch_bytes;
  });
}

void device_wide_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call,
                      const gpu::Buffer& scratch) {
  check_call(w, call);
  expect(has_wide_matmul(w, call.n_tokens), "wide_gemm: the device or the format has no such GEMM");
  with_wide_shape(w, call, [&](auto f, auto s) {
    launch_matmul<typename decltype(f)::type, decltype(s), gpu::kHopperSharedBytes>(stream, w, call, 1, scratch);
  });
}

int64_t f16_gemm_scratch_bytes(const BrickMatrix& w, const BrickCall& call) {
  return has_wide_matmul(w, call.n_tokens) ? wide_gemm_scratch_bytes(w, call) : tensor_gemm_scratch_bytes(w, call, 1);
}

void device_f16_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call,
                     const gpu::Buffer& scratch) {
  if (has_wide_matmul(w, call.n_tokens)) device_wide_gemm(stream, w, call, scratch);
  else device_tensor_gemm(stream, w, call, 1, scratch);
}

int64_t most_brick_tokens(const BrickMatrix& w) {
  return with_format(w.format, [&](auto f) {
    using F = decltype(f);
    return areas::with_most_bytes([&](auto most) {
      using S = ManyColumns<F, most()>;
      constexpr int64_t kAreaTokens = S::kAreaColumns / 2;  // of two planes
      return std::max<int64_t>(1, kCounters / gpu::ceil_div(w.n_tiles(), S::kAreaTiles)) * kAreaTokens;
    });
  });
}

int64_t tensor_gemm_scratch_bytes(const BrickMatrix& w, const BrickCall& call, int planes) {
  return with_format(w.format, [&](auto f) {
    return with_shape<decltype(f)>(w, call, planes, [&](auto s, auto) {
      return plan_launch<decltype(f), decltype(s)>(w, call, planes).scratch_bytes;
    });
  });
}

void device_tensor_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call, int planes,
                        const gpu::Buffer& scratch) {
  check_call(w, call);
  with_format(w.format, [&](auto f) {
    with_shape<decltype(f)>(w, call, planes, [&](auto s, auto most) {
      launch_matmul<decltype(f), decltype(s), most()>(stream, w, call, planes, scratch);
    });
  });
}

int64_t brick_scratch_bytes(const BrickMatrix& w, const BrickCall& call) {
  return call.n_tokens > kMostFewTokens ? tensor_gemm_scratch_bytes(w, call, 2) : 0;
}

void device_f16_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const BrickCall& call,
                     const gpu::Buffer& scratch) {
  if (call.n_tokens > kMostFewTokens) device_tensor_gemm(stream, w, call, 2, scratch);
  else device_few_f16_gemv(stream, w, call);
}

}  // namespace ridge
