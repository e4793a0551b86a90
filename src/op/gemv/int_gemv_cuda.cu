#include <algorithm>
#include <numeric>
#include <string>

#include "op/gemv/int_kernels_cuda.h"
#include "ridge/error.h"

namespace ridge {
namespace {

constexpr int kQuantizeWarps = 16;

/// A block makes so many groups of one token, one a warp; ternary, all of them.
constexpr int kQuantizeGroups = kQuantizeWarps;

template <IntKind kKind>
__global__ void __launch_bounds__(32 * kQuantizeWarps) quantize_kernel(IntTokens tokens, IntImage image) {
  __shared__ float tops[kQuantizeWarps];
  gpu::let_next_grid_start();
  const int token = int(blockIdx.x), n_groups = tokens.n_groups;
  const int begin = kKind == IntKind::ternary ? 0 : int(blockIdx.y) * kQuantizeGroups;
  const int n = kKind == IntKind::ternary ? n_groups : min(kQuantizeGroups, n_groups - begin);
  image.values += int64_t(begin) * tokens.column_pitch * kIntGroup;
  image.scales += begin * tokens.scale_pitch;
  quantize_tokens<kKind>(tokens, token, token + 1, begin, n, image, gpu::dynamic_shared<double>(), tops);
}

template <IntKind kKind>
void launch_quantize(const IntJob& job, gpu::StreamHandle stream, bool overlap) {
  const unsigned parts =
      kKind == IntKind::ternary ? 1 : unsigned((job.tokens.n_groups + kQuantizeGroups - 1) / kQuantizeGroups);
  const size_t squares = kKind == IntKind::ternary ? 8 * kQuantizeWarps : 4 * 32 * kQuantizeWarps;
  gpu::launch("quantize", quantize_kernel<kKind>,
              {dim3(unsigned(job.tokens.n_tokens), parts), 32 * kQuantizeWarps, squares, stream, overlap}, job.tokens,
              job.image);
}

void require(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::failure, std::string("device_int_gemv: ") + what);
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

void check_operands(const IntWeights& w, const IntCall& call, const IntPlan& plan) {
  const bool gated = call.output == IntOutput::silu_glu || call.output == IntOutput::relu2_glu;
  require(gated == w.gated, "the output does not suit the packing of the weights");
  require(!gated || !call.bias, "a bias of gated weights");
  require(call.n_parts >= 1 && call.n_parts <= (gated ? 1 : kMostIntParts), "parts");
  require(std::accumulate(call.n_out, call.n_out + call.n_parts, int64_t(0)) == w.n_out && w.n_out < INT32_MAX,
          "parts that are not the weights' rows");
  require(call.planes == 1 || (call.planes == 2 && w.kind == IntKind::int4_g128), "planes");
  require(aligned16(call.x) && aligned16(call.norm_weight), "x or the norm's weight is not aligned to 16 bytes");
  require(w.n_in <= int64_t(1) << 17, "rows so long that integer sums could overflow");
  require(plan.warps >= 1 && plan.warps <= kIntMostWarps && plan.blocks >= 1 && plan.blocks <= w.n_row_tiles() &&
              plan.rows * int64_t(plan.blocks) >= w.n_row_tiles(),
          "the plan");
  require(plan.row_warps == 0 || (plan.warps % plan.row_warps == 0 && !plan.quantize_inside), "the plan with chunks");
}

/// Of activations that a kernel before quantises: values, and scales.
std::array<int64_t, 2> image_bytes(const IntWeights& weights, const IntPlan& plan, int columns) {
  const auto rounded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  return {rounded(int_column_pitch(plan, columns) * weights.n_in), rounded(weights.n_groups() * 32 * plan.tiles_of_8)};
}

/// At most kIntColumns columns.
void run_part(gpu::StreamHandle stream, const IntWeights& weights, const IntCall& call, const IntPlan& plan,
              IntScratch& scratch) {
  const int n_tokens = int(call.n_tokens), columns = n_tokens * call.planes;
  require(columns <= 8 * plan.tiles_of_8, "the plan has too few columns");
  const int64_t n_groups = weights.n_groups();

  IntJob job = {.tiles = weights.tiles.as<uint8_t>(),
                .tokens = {call.x, call.norm_weight, call.norm_eps, n_tokens, call.planes, int(n_groups),
                           int_column_pitch(plan, columns), 8 * plan.tiles_of_8},
                .at = int_shared(weights.kind, plan, weights.n_in, n_tokens, call.planes),
                .target = {.row_scale = weights.row_scale.as<float>(),
                           .bias = call.bias,
                           .n_parts = 0,
                           .n_out = weights.n_out,
                           .n_row_tiles = int(weights.n_row_tiles()),
                           .n_tokens = n_tokens,
                           .output = call.output}};
  IntTarget& target = job.target;
  for (int i = 0; i < call.n_parts; ++i) {
    const bool joins = i > 0 && n_tokens == 1 && call.y[i] == call.y[i - 1] + call.n_out[i - 1];
    if (!joins) target.y[target.n_parts++] = call.y[i];
    int& end = target.first_row[target.n_parts];
    end = (joins ? end : target.first_row[target.n_parts - 1]) + int(call.n_out[i]);
  }
  const bool ternary = weights.kind == IntKind::ternary;
  if (!plan.quantize_inside) {
    const auto [value_bytes, scale_bytes] = image_bytes(weights, plan, columns);
    auto* const data = scratch.data.ensure<uint8_t>(value_bytes + scale_bytes + 4 * n_tokens);
    job.image = {data, reinterpret_cast<float*>(data + value_bytes),
                 reinterpret_cast<float*>(data + value_bytes + scale_bytes)};
    if (ternary) launch_quantize<IntKind::ternary>(job, stream, call.overlap);
    else launch_quantize<IntKind::int4_g128>(job, stream, call.overlap);
  }
  if (plan.row_warps > 0) launch_int_chunks(weights.kind, job, plan, stream);
  else launch_int_stream(weights.kind, job, plan, stream, call.overlap || !plan.quantize_inside);
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
    for (int i = 0; i < call.n_parts; ++i) part.y[i] += first * call.n_out[i];
    run(part);
  }
}

}  // namespace

int64_t int_gemv_scratch_bytes(const IntWeights& w, int64_t n_tokens, int planes) {
  const IntPlan plan = plan_int_gemv(w.kind, w.n_row_tiles(), w.n_in, int(n_tokens), planes, this_device());
  if (w.n_out == 0 || plan.quantize_inside) return 0;
  const auto [values, scales] = image_bytes(w, plan, int(n_tokens) * planes);
  return values + scales + 4 * n_tokens;
}

void device_int_gemv(gpu::StreamHandle stream, const IntWeights& w, const IntCall& call, IntScratch& scratch) {
  if (w.n_out == 0) return;
  check_operands(w, call, {.rows = int(w.n_row_tiles()), .blocks = 1});
  in_parts(w, call, [&](const IntCall& part) {
    IntPlan& plan = scratch.plans[{int64_t(w.kind), w.n_row_tiles(), w.n_in, part.n_tokens, part.planes}];
    if (plan.blocks == 0)  // asks for the device
      plan = plan_int_gemv(w.kind, w.n_row_tiles(), w.n_in, int(part.n_tokens), part.planes, this_device());
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
