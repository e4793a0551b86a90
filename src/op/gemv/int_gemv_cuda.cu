#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "op/gemv/int_kernels_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kQuantizeWarps = 16;

/// A block computes the factor of a token's sums: 1/rms. Its code is short, because a launch finds none of it in
/// caches.
template <IntKind kKind>
__device__ void make_factor(const IntTokens& in, int token, float* squares, float* factors) {
  using Values = IntValues<kKind>;
  constexpr int kBatch = is_super_block_kind(kKind) ? 2 : 4;
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32), n_groups = in.n_groups;
  const float* const row = in.x + int64_t(token) * n_groups * int_group(kKind);
  float square = 0;
  for (int first = warp; first < n_groups; first += kBatch * kQuantizeWarps) {
    Values x[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (const int group = first + i * kQuantizeWarps; group < n_groups) x[i] = load_group<kKind>(row, group);
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + i * kQuantizeWarps < n_groups) square = add_squares(x[i], square);
  }
  squares[warp * 32 + lane] = square;
  __syncthreads();
  if (warp > 0) return;
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < kQuantizeWarps; ++i) sum += squares[i * 32 + lane];
  const float mean = gpu::warp_sum(sum) * gpu::fast_reciprocal(float(n_groups * int_group(kKind))) + in.eps;
  if (lane == 0) factors[token] = guarded_factor(mean, rsqrtf(mean));
}

/// Blocks: (tokens, parts), of which one has a group a warp; ternary: one part, which is all of a token. With a norm
/// the last part makes the token's factor beside the others.
template <IntKind kKind>
__global__ void __launch_bounds__(32 * kQuantizeWarps) quantize_kernel(IntTokens tokens, IntImage image) {
  __shared__ unsigned tops[kQuantizeWarps];
  gpu::let_next_grid_start();
  const int token = int(blockIdx.x), n_groups = tokens.n_groups;
  if constexpr (kKind == IntKind::ternary) {
    quantize_ternary<false>(tokens, token, image, gpu::dynamic_shared<double>(), tops);
  } else {
    const int group = int(blockIdx.y) * kQuantizeWarps + int(threadIdx.x / 32);
    const bool of_factor = tokens.norm && blockIdx.y + 1 == gridDim.y, has_group = !of_factor && group < n_groups;
    IntValues<kKind> weight;
    if (tokens.norm && has_group) weight = load_group<kKind>(tokens.norm, group);
    gpu::wait_for_previous_grid();
    if (of_factor) return make_factor<kKind>(tokens, token, gpu::dynamic_shared<float>(), image.factors);
    if (!tokens.norm && blockIdx.y == 0 && threadIdx.x == 0) image.factors[token] = 1;
    if (!has_group) return;
    IntValues<kKind> v = load_group<kKind>(tokens.x + int64_t(token) * n_groups * int_group(kKind), group);
    if (tokens.norm) v = times(v, weight);
    quantize_group<kKind>(v, token, is_brick_kind(kKind) ? tokens.n_tokens : tokens.planes,
                          image.values + int64_t(group) * tokens.column_pitch * int_group(kKind),
                          image.scales + group * tokens.scale_pitch);
  }
}

template <IntKind kKind>
void launch_quantize(const IntJob& job, gpu::StreamHandle stream, bool overlap) {
  const int parts = (job.tokens.n_groups + kQuantizeWarps - 1) / kQuantizeWarps + (job.tokens.norm != nullptr);
  const size_t squares = kKind == IntKind::ternary ? 8 * kQuantizeWarps : 4 * 32 * kQuantizeWarps;
  gpu::launch("quantize", quantize_kernel<kKind>,
              {dim3(unsigned(job.tokens.n_tokens), kKind == IntKind::ternary ? 1 : unsigned(parts)),
               32 * kQuantizeWarps, squares, stream, overlap},
              job.tokens, job.image);
}
void launch_quantize(IntKind kind, const IntJob& job, gpu::StreamHandle stream, bool overlap) {
  switch (kind) {
    case IntKind::ternary: return launch_quantize<IntKind::ternary>(job, stream, overlap);
    case IntKind::int4_g128: return launch_quantize<IntKind::int4_g128>(job, stream, overlap);
    case IntKind::q4_k:  // the minima's factor of x, and no other difference
    case IntKind::q5_k: return launch_quantize<IntKind::q4_k>(job, stream, overlap);
    case IntKind::q6_k: return launch_quantize<IntKind::q6_k>(job, stream, overlap);
    case IntKind::q4_1:
    case IntKind::q5_1: return launch_quantize<IntKind::q4_1>(job, stream, overlap);
    case IntKind::q8_0:
    case IntKind::q4_0:
    case IntKind::q5_0:
    case IntKind::iq4_nl: return launch_quantize<IntKind::q4_0>(job, stream, overlap);
  }
}

void require(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::failure, std::string("device_int_gemv: ") + what);
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

/// Weights as a launch reads them, in tiles of their own or in bricks.
struct IntMatrix {
  IntKind kind;
  bool gated;
  int64_t n_out, n_in, n_row_tiles;
  const uint8_t* tiles;
  const float* row_scale;
  const BrickMatrix* bricks;  // or null

  explicit IntMatrix(const IntWeights& w)
      : kind(w.kind),
        gated(w.gated),
        n_out(w.n_out),
        n_in(w.n_in),
        n_row_tiles(w.n_row_tiles()),
        tiles(w.tiles.as<uint8_t>()),
        row_scale(w.row_scale.as<float>()),
        bricks(nullptr) {}
  explicit IntMatrix(const BrickMatrix& w)
      : kind(find_int_kind(w.format).value_or(IntKind::q6_k)),
        gated(w.paired),
        n_out(std::accumulate(w.n_out, w.n_out + w.n_parts, int64_t(0))),
        n_in(w.n_in),
        n_row_tiles(w.n_tiles()),
        tiles(w.data.as<uint8_t>()),
        row_scale(nullptr),
        bricks(&w) {}

  int64_t n_groups() const { return n_in / int_group(kind); }
  int most_tokens(int planes) const { return bricks ? kIntBrickTokens : kIntColumns / planes; }
};

void check_operands(const IntMatrix& w, const IntCall& call, const IntPlan& plan) {
  const bool gated = call.output == IntOutput::silu_glu || call.output == IntOutput::relu2_glu;
  require(gated == w.gated, "the output does not suit the packing of the weights");
  require(!gated || !call.bias, "a bias of gated weights");
  require(call.n_parts >= 1 && call.n_parts <= (gated ? 1 : kMostIntParts), "parts");
  require(std::accumulate(call.n_out, call.n_out + call.n_parts, int64_t(0)) == w.n_out && w.n_out < INT32_MAX,
          "parts that are not the weights' rows");
  require(w.bricks ? call.planes == 2 : call.planes == 1 || (call.planes == 2 && w.kind == IntKind::int4_g128),
          "planes");
  if (w.bricks) {
    require(has_int_gemv(w.bricks->format, w.n_in), "bricks of another format, too long or with part of a brick");
    require(call.n_parts == w.bricks->n_parts && std::equal(call.n_out, call.n_out + call.n_parts, w.bricks->n_out),
            "parts that are not the bricks'");
  }
  require(aligned16(call.x) && aligned16(call.norm_weight), "x or the norm's weight is not aligned to 16 bytes");
  require(w.n_in <= int64_t(1) << 17, "rows so long that integer sums could overflow");
  require(plan.warps >= 1 && plan.warps <= kIntMostWarps && plan.blocks >= 1 && plan.blocks <= w.n_row_tiles &&
              plan.rows * int64_t(plan.blocks) >= w.n_row_tiles,
          "the plan");
  require(plan.split == 1 || (plan.split > 1 && plan.split <= int_row_slots(w.kind, w.n_groups()) &&
                              !plan.quantize_inside && (w.kind != IntKind::ternary || plan.tiles_of_8 > 1)),
          "the plan's parts of the columns");
}

/// Where what a launch keeps in IntScratch::data begins: activations that a kernel before quantises (values from 0 on,
/// scales, factors), and sums of parts of rows.
struct ScratchPlaces {
  int64_t scales = 0, factors = 0, sums = 0, end = 0;

  ScratchPlaces(const IntMatrix& w, const IntPlan& plan, int n_tokens, int planes) {
    const auto rounded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    if (plan.quantize_inside) return;
    scales = rounded(int_column_pitch(w.kind, plan, n_tokens * planes) * w.n_in);
    factors = scales + rounded(4 * w.n_groups() * int_scale_pitch(w.kind, plan, n_tokens));
    sums = factors + rounded(4 * n_tokens);
    end = sums + (plan.split > 1 ? 4 * w.n_row_tiles * plan.split * n_tokens * kIntTileRows : 0);
  }
};

/// At most kIntColumns columns.
void run_part(gpu::StreamHandle stream, const IntMatrix& weights, const IntCall& call, const IntPlan& plan,
              IntScratch& scratch) {
  const int n_tokens = int(call.n_tokens), columns = n_tokens * call.planes;
  require(columns <= 8 * plan.tiles_of_8, "the plan has too few columns");
  const int64_t n_groups = weights.n_groups();
  require(weights.kind != IntKind::ternary || !plan.quantize_inside ||
              (n_tokens == 1 && plan.tiles_of_8 == 1 && n_groups <= kTernaryHeld * plan.warps),
          "more ternary activations than every block can quantise");

  const BrickMatrix* const bricks = weights.bricks;
  require(call.turn == IntTurn::alone || (bricks && n_tokens == 1 && plan.quantize_inside),
          "two calls side by side, but not of one token of bricks that every block quantises");
  const int64_t rows_per_tile = weights.gated ? kIntTileRows / 2 : kIntTileRows;
  const bool padded =
      bricks && bricks->n_parts > 1 &&
      std::any_of(call.n_out, call.n_out + call.n_parts - 1, [&](int64_t rows) { return rows % rows_per_tile != 0; });
  IntJob job = {.tiles = weights.tiles,
                .tokens = {call.x, call.norm_weight, call.norm_eps, n_tokens, call.planes, int(n_groups),
                           int_column_pitch(weights.kind, plan, columns), int_scale_pitch(weights.kind, plan, n_tokens),
                           call.turn},
                .at = int_shared(weights.kind, plan, weights.n_in, n_tokens, call.planes),
                .target = {.row_scale = weights.row_scale,
                           .bias = call.bias,
                           .n_parts = 0,
                           .padded = padded,
                           .n_out = weights.n_out,
                           .n_row_tiles = int(weights.n_row_tiles),
                           .n_tokens = n_tokens,
                           .output = call.output}};
  IntTarget& target = job.target;
  for (int i = 0; i < call.n_parts; ++i) {
    const bool joins = i > 0 && n_tokens == 1 && !padded && call.y[i] == call.y[i - 1] + call.n_out[i - 1];
    if (!joins) target.y[target.n_parts++] = call.y[i];
    if (padded) target.first_tile_row[i] = int(bricks->first_tile(i) * rows_per_tile);
    int& end = target.first_row[target.n_parts];
    end = (joins ? end : target.first_row[target.n_parts - 1]) + int(call.n_out[i]);
  }
  if (!plan.quantize_inside) {
    const ScratchPlaces at(weights, plan, n_tokens, call.planes);
    auto* const data = scratch.data.ensure<uint8_t>(at.end);
    job.image = {data, reinterpret_cast<float*>(data + at.scales), reinterpret_cast<float*>(data + at.factors)};
    if (plan.split > 1) {
      job.part_sums = data + at.sums;
      job.arrivals = scratch.counters.ensure<unsigned>(plan.blocks);
    }
    launch_quantize(weights.kind, job, stream, call.overlap);
  }
  launch_int_stream(weights.kind, job, plan, stream, call.overlap || !plan.quantize_inside);
}

IntDevice this_device() {
  int device = 0, n_processors = 0, shared_bytes = 0;
  gpu::check(cudaGetDevice(&device), "device");
  gpu::check(cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, device), "processors");
  gpu::check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory");
  return {n_processors, shared_bytes};
}

/// Calls run(part of the call) for up to `most` tokens each.
template <class Run>
void in_parts(const IntMatrix& w, int64_t most, const IntCall& call, const Run& run) {
  for (int64_t first = 0; first < call.n_tokens; first += most) {
    IntCall part = call;
    part.n_tokens = std::min(most, call.n_tokens - first);
    part.x += first * w.n_in;
    for (int i = 0; i < call.n_parts; ++i) part.y[i] += first * call.n_out[i];
    run(part);
  }
}

IntPlan plan_of(const IntMatrix& w, int n_tokens, int planes) {
  return plan_int_gemv(w.kind, w.n_row_tiles, w.n_in, n_tokens, planes, this_device());
}

void run_with(gpu::StreamHandle stream, const IntMatrix& w, const IntCall& call, const IntPlan& plan,
              IntScratch& scratch) {
  if (w.n_out == 0) return;
  check_operands(w, call, plan);
  in_parts(w, w.most_tokens(call.planes), call, [&](const IntCall& part) { run_part(stream, w, part, plan, scratch); });
}

void run_planned(gpu::StreamHandle stream, const IntMatrix& w, const IntCall& call, IntScratch& scratch) {
  if (w.n_out == 0) return;
  check_operands(w, call, {.rows = int(w.n_row_tiles), .blocks = 1});
  const auto planned = [&](int64_t n_tokens) -> const IntPlan& {
    IntPlan& plan = scratch.plans[{int64_t(w.kind), w.n_row_tiles, w.n_in, n_tokens, call.planes}];
    if (plan.blocks == 0) plan = plan_of(w, int(n_tokens), call.planes);  // asks for the device
    return plan;
  };
  const auto run = [&](const IntCall& part, const auto& again) -> void {
    const IntPlan& plan = planned(part.n_tokens);
    if (plan.warps > 0) return run_part(stream, w, part, plan, scratch);
    require(part.n_tokens > 1, "this device has too little shared memory per block for a row of activations");
    in_parts(w, (part.n_tokens + 1) / 2, part, [&](const IntCall& half) { again(half, again); });
  };
  in_parts(w, w.most_tokens(call.planes), call, [&](const IntCall& part) { run(part, run); });
}

IntScratchBytes scratch_bytes(const IntMatrix& w, int n_tokens, int planes) {
  IntScratchBytes most;
  if (w.n_out == 0) return most;
  const IntDevice device = this_device();
  for (int n = 1; n <= std::min(n_tokens, w.most_tokens(planes)); ++n) {
    const IntPlan plan = plan_int_gemv(w.kind, w.n_row_tiles, w.n_in, n, planes, device);
    if (plan.warps == 0) continue;  // halves are
    most.data = std::max(most.data, ScratchPlaces(w, plan, n, planes).end);
    if (plan.split > 1) most.counters = std::max(most.counters, int64_t(sizeof(unsigned)) * plan.blocks);
  }
  return most;
}

}  // namespace

bool runs_beside(const BrickMatrix& w) {
  return has_int_gemv(w.format, w.n_in) && plan_of(IntMatrix(w), 1, 2).quantize_inside;
}

std::optional<IntKind> find_int_kind(BrickFormat format) {
  switch (format) {
    case BrickFormat::q8_0: return IntKind::q8_0;
    case BrickFormat::q4_0: return IntKind::q4_0;
    case BrickFormat::q4_1: return IntKind::q4_1;
    case BrickFormat::q5_0: return IntKind::q5_0;
    case BrickFormat::q5_1: return IntKind::q5_1;
    case BrickFormat::q4_k: return IntKind::q4_k;
    case BrickFormat::q5_k: return IntKind::q5_k;
    case BrickFormat::q6_k: return IntKind::q6_k;
    case BrickFormat::iq4_nl: return IntKind::iq4_nl;
    case BrickFormat::int4_g128: return IntKind::int4_g128;
    default: return std::nullopt;
  }
}

bool has_int_gemv(BrickFormat format, int64_t n_in) {
  const std::optional<IntKind> kind = find_int_kind(format);
  return kind && is_brick_kind(*kind) && n_in % int_group(*kind) == 0 && n_in <= kIntBrickColumns;
}

IntScratchBytes int_gemv_scratch_bytes(const IntWeights& w, int64_t n_tokens, int planes) {
  return scratch_bytes(IntMatrix(w), int(n_tokens), planes);
}
IntScratchBytes int_gemv_scratch_bytes(const BrickMatrix& w, int64_t n_tokens) {
  return scratch_bytes(IntMatrix(w), int(n_tokens), 2);
}

void device_int_gemv(gpu::StreamHandle stream, const IntWeights& w, const IntCall& call, IntScratch& scratch) {
  run_planned(stream, IntMatrix(w), call, scratch);
}
void device_int_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const IntCall& call, IntScratch& scratch) {
  run_planned(stream, IntMatrix(w), call, scratch);
}
void device_int_gemv(gpu::StreamHandle stream, const IntWeights& w, const IntCall& call, const IntPlan& plan,
                     IntScratch& scratch) {
  run_with(stream, IntMatrix(w), call, plan, scratch);
}
void device_int_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const IntCall& call, const IntPlan& plan,
                     IntScratch& scratch) {
  run_with(stream, IntMatrix(w), call, plan, scratch);
}

}  // namespace ridge
