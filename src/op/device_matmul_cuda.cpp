#include "op/device_matmul.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "gpu/launch_log.h"
#include "op/gemm/gemm_cuda.h"
#include "op/gemm/int_gemm_cuda.h"
#include "op/gemm/tensor_gemm_cuda.h"
#include "op/gemv/rows_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {
namespace {

/// A matrix as float32 [n_out, n_in], its scale applied.
gpu::Buffer upload_as_floats(const gpu::Stream& stream, const Linear& m) {
  RIDGE_CHECK(m.rows != nullptr, "a matrix of {} x {} has no rows to upload", m.n_out, m.n_in);
  gpu::Buffer buffer(4 * m.n_out * m.n_in);
  const int64_t rows_at_once = std::max<int64_t>(1, (int64_t(1) << 22) / m.n_in);
  std::vector<float> decoded(size_t(std::min(rows_at_once, m.n_out) * m.n_in));
  for (int64_t first = 0; first < m.n_out; first += rows_at_once) {
    const int64_t n = std::min(rows_at_once, m.n_out - first);
    m.format->decode(m.rows + first * m.format->row_bytes(m.n_in), n * m.n_in, decoded.data());
    for (int64_t i = 0; i < n * m.n_in; ++i) decoded[size_t(i)] *= m.scale;
    gpu::upload(stream, buffer.as<float>() + first * m.n_in, decoded.data(), 4 * n * m.n_in);
    stream.synchronize();
  }
  return buffer;
}

bool sorted_alike(const Linear& a, const Linear& b) {
  return a.order == b.order || (a.order && b.order && std::equal(a.order, a.order + a.n_in, b.order));
}

int64_t scratch_bytes(const BrickMatrix& w, const BrickCall& call, int planes) {
  return planes == 1 ? f16_gemm_scratch_bytes(w, call) : brick_scratch_bytes(w, call);
}

void apply_glu(gpu::StreamHandle stream, MatmulOutput output, int64_t n, float* gate, const float* up) {
  if (output == MatmulOutput::relu2_glu) device_relu2_glu(stream, n, gate, up);
  else device_swiglu(stream, n, gate, up);
}

}  // namespace

void DeviceMatmul::plan(std::span<const Linear* const> matrices, std::span<const std::vector<float>* const> biases,
                        bool glu, const ForcedKernels& forced) {
  RIDGE_CHECK(matrices.size() <= 4 && (!glu || matrices.size() == 2) && biases.size() == matrices.size(),
              "{} matrices, {} biases", matrices.size(), biases.size());
  n_in_ = matrices[0]->n_in;
  glu_ = glu;
  for (const Linear* m : matrices) n_out_.push_back(m->n_out);
  RIDGE_CHECK(!glu || n_out_[0] == n_out_[1], "a gate of {} rows, up of {}", n_out_[0], n_out_[1]);
  const bool any_bias = std::ranges::any_of(biases, [](const auto* b) { return b && !b->empty(); });
  RIDGE_CHECK(!any_bias || !glu, "gated matrices with a bias");
  if (any_bias) bias_bytes_ = 4 * rows();
  biases_.resize(matrices.size());
  text_ = fmt::format("{}x{} {}", rows(), n_in_, matrices[0]->format->name);

  for (size_t i = 0; i < matrices.size(); ++i) {
    const Linear& m = *matrices[i];
    RIDGE_CHECK(m.n_in == n_in_, "matrices of {} and {} columns", n_in_, m.n_in);
    const DeviceLinearVariant& few = choose_device_linear({m, 1}, forced);
    const DeviceLinearVariant& many = choose_device_linear({m, kFewTokens + 1}, forced);
    RIDGE_CHECK(few.packing == many.packing, "{} and {} read different bytes", few.name, many.name);
    const bool joins = i > 0 && m.format == matrices[i - 1]->format && few.packing != DevicePacking::floats &&
                       groups_.back().few == &few && groups_.back().many == &many && sorted_alike(m, *matrices[i - 1]);
    if (!joins) groups_.push_back({.first = int(i), .few = &few, .many = &many});
    groups_.back().count += 1;
  }
  for (Group& g : groups_) {
    g.gated = glu && g.count == 2;
    const Linear& m = *matrices[size_t(g.first)];
    if (m.order) g.order_bytes = 4 * n_in_;
    const std::span<const int64_t> n_out(&n_out_[size_t(g.first)], size_t(g.gated ? 1 : g.count));
    switch (g.few->packing) {
      case DevicePacking::floats: g.floats_bytes = 4 * m.n_out * n_in_; break;
      case DevicePacking::bricks:
        g.bricks = plan_brick_matrix(*find_brick_format(m.format->name), n_in_, n_out, g.gated);
        break;
      case DevicePacking::ints:
        g.ints = {.kind = m.int8_activations ? IntKind::ternary : IntKind::int4_g128, .gated = g.gated, .n_in = n_in_};
        g.ints.n_out = std::accumulate(n_out.begin(), n_out.end(), int64_t(0));
        break;
    }
  }
}

MatmulBytes matmul_bytes(std::span<const Linear* const> matrices, std::span<const std::vector<float>* const> biases,
                         bool glu, const ForcedKernels& forced) {
  DeviceMatmul product;
  product.plan(matrices, biases, glu, forced);
  MatmulBytes bytes{.kept = product.bytes()};
  for (const DeviceMatmul::Group& g : product.groups_) {
    int64_t together = 0;  // integer matrices of a group, a brick matrix with what it is gated by
    for (int i = g.first; i < g.first + g.count; ++i) {
      const int64_t rows = matrices[size_t(i)]->bytes();
      const bool alone = g.few->packing == DevicePacking::bricks && !g.gated;
      together = alone ? std::max(together, rows) : together + rows;
    }
    if (g.few->packing != DevicePacking::floats) bytes.packing = std::max(bytes.packing, together);
  }
  return bytes;
}

DeviceMatmul::DeviceMatmul(const gpu::Stream& stream, std::span<const Linear* const> matrices,
                           std::span<const std::vector<float>* const> biases, bool glu, const ForcedKernels& forced) {
  plan(matrices, biases, glu, forced);
  if (bias_bytes_ > 0) {
    std::vector<float> joint;
    for (size_t i = 0; i < matrices.size(); ++i)
      if (biases[i] && !biases[i]->empty()) joint.insert(joint.end(), biases[i]->begin(), biases[i]->end());
      else joint.resize(joint.size() + size_t(n_out_[i]));
    RIDGE_CHECK(ssize(joint) == rows(), "{} biases of {} rows", joint.size(), rows());
    bias_ = gpu::to_device(stream, std::span<const float>(joint));
    int64_t at = 0;
    for (size_t i = 0; i < matrices.size(); at += n_out_[i++]) biases_[i] = bias_.as<float>() + at;
  }

  for (Group& g : groups_) {
    const auto members = matrices.subspan(size_t(g.first), size_t(g.count));
    if (g.order_bytes > 0) g.order = gpu::to_device(stream, std::span(members[0]->order, size_t(n_in_)));
    switch (g.few->packing) {
      case DevicePacking::floats: g.floats = upload_as_floats(stream, *members[0]); break;
      case DevicePacking::bricks:
        g.bricks.data = gpu::Buffer(g.bricks.bytes());
        for (int i = 0; i < g.bricks.n_parts; ++i) {
          const DeviceRows part = upload_rows(stream, *members[size_t(i)]);
          const DeviceRows up = g.gated ? upload_rows(stream, *members[1]) : DeviceRows();
          device_fill_bricks(stream, g.bricks, i, 0, g.bricks.n_out[i], {part.blocks.as<void>(), part.scale},
                             {up.blocks.as<void>(), up.scale});
          stream.synchronize();
        }
        break;
      case DevicePacking::ints: {
        std::vector<DeviceRows> uploaded;
        std::vector<IntRows> parts;
        for (const Linear* part : members) {
          uploaded.push_back(upload_rows(stream, *part));
          parts.push_back({.rows = uploaded.back().blocks.as<void>(), .n_out = part->n_out, .scale = part->scale});
        }
        g.ints = pack_int_weights(stream, g.ints.kind, n_in_, parts, g.gated);
        stream.synchronize();
        break;
      }
    }
  }
  for (size_t i = 1; i < groups_.size(); ++i) {
    const auto can = [](const Group& g) {
      return g.turn == IntTurn::alone && runs_int_bricks(g, 1) && g.order_bytes == 0 && runs_beside(g.bricks);
    };
    if (can(groups_[i - 1]) && can(groups_[i])) groups_[i - 1].turn = IntTurn::first, groups_[i].turn = IntTurn::second;
  }
  int64_t held = bias_.bytes();
  for (const Group& g : groups_)
    held +=
        g.bricks.data.bytes() + g.ints.tiles.bytes() + g.ints.row_scale.bytes() + g.floats.bytes() + g.order.bytes();
  RIDGE_CHECK(held == bytes(), "{} bytes of weights are held, {} were planned", held, bytes());
}

void DeviceMatmul::add_to(gpu::Allocations& all) const {
  all.add(bias_bytes_);
  for (const Group& g : groups_) {
    all.add(g.bricks.bytes());
    all.add(g.ints.tile_bytes());
    all.add(g.ints.row_scale_bytes());
    all.add(g.floats_bytes);
    all.add(g.order_bytes);
  }
}

void DeviceMatmul::plan_scratch(const MatmulCall& call, PlannedScratch& scratch) const {
  const int64_t n = call.n_tokens;
  const bool apart = glu_ && groups_.size() > 1;
  if (apart) scratch.up.ensure(n * n_out_[1]);
  const auto ensure_ints = [&](const IntScratchBytes& bytes) {
    scratch.ints.ensure<std::byte>(bytes.data);
    scratch.counters.ensure<std::byte>(bytes.counters);
  };
  for (const Group& g : groups_) {
    if (g.order_bytes > 0) scratch.sorted.ensure((n + (call.norm_weight ? 1 : 0)) * n_in_);
    switch (g.few->packing) {
      case DevicePacking::floats:
        if (call.norm_weight) scratch.normed.ensure(n * n_in_);
        if (!apart && call.output == MatmulOutput::add) scratch.up.ensure(n * n_out_[size_t(g.first)]);
        break;
      case DevicePacking::bricks: {
        if (g.few->plane_bits == 8) ensure_ints(int_gemv_scratch_bytes(g.bricks, std::min(n, kFewTokens)));
        if (runs_int_bricks(g, n)) break;
        const BrickCall c{.n_tokens = std::min(n, most_brick_tokens(g.bricks)), .norm_weight = call.norm_weight};
        scratch.bricks.ensure<std::byte>(scratch_bytes(g.bricks, c, g.kernel(n).planes));
        break;
      }
      case DevicePacking::ints:
        ensure_ints(int_gemv_scratch_bytes(g.ints, std::min(n, kFewTokens), g.few->planes));
        if (n > kFewTokens) ensure_ints(int_gemm_scratch_bytes(g.ints, n));
        break;
    }
  }
}

int64_t DeviceMatmul::rows() const { return std::accumulate(n_out_.begin(), n_out_.end(), int64_t(0)); }

int64_t DeviceMatmul::bytes() const {
  int64_t sum = bias_bytes_;
  for (const Group& g : groups_) sum += g.bytes();
  return sum;
}

std::vector<std::string_view> DeviceMatmul::kernels(int64_t n_tokens) const {
  std::vector<std::string_view> names;
  for (const Group& g : groups_) names.push_back(g.kernel(n_tokens).name);
  return names;
}

void DeviceMatmul::run(gpu::StreamHandle stream, const MatmulCall& call, MatmulScratch& scratch) const {
  const gpu::OpRange range([&] {
    const Work work = linear_work(bytes(), n_in_, rows(), glu_ ? n_out_[0] : rows(), call.n_tokens);
    return gpu::LoggedOp{.op = device_linear_op(call.n_tokens),
                         .what = text_,
                         .layer = call.layer,
                         .read_bytes = work.read_bytes,
                         .write_bytes = work.write_bytes,
                         .flops = work.flops};
  });
  if (!glu_ || groups_.size() == 1) {
    for (const Group& group : groups_) run(stream, group, call, scratch);
    return;
  }
  // Gate and up of different packings or formats.
  MatmulCall parts = call;
  parts.output = MatmulOutput::store;
  parts.y[1] = scratch.up.ensure(call.n_tokens * n_out_[1]);
  for (const Group& group : groups_) run(stream, group, parts, scratch);
  apply_glu(stream, call.output, call.n_tokens * n_out_[0], parts.y[0], parts.y[1]);
}

/// The call with x and the norm in the order of the group's columns: the norm of a row does not depend on it.
MatmulCall DeviceMatmul::sort(gpu::StreamHandle stream, const Group& g, const MatmulCall& call,
                              MatmulScratch& scratch) const {
  MatmulCall sorted = call;
  const int64_t n = call.n_tokens;
  float* const x = scratch.sorted.ensure((n + (call.norm_weight ? 1 : 0)) * n_in_);
  device_sort_columns(stream, n, n_in_, g.order.as<int32_t>(), call.x, x);
  sorted.x = x;
  if (!call.norm_weight) return sorted;
  device_sort_columns(stream, 1, n_in_, g.order.as<int32_t>(), call.norm_weight, x + n * n_in_);
  sorted.norm_weight = x + n * n_in_;
  return sorted;
}

void DeviceMatmul::run(gpu::StreamHandle stream, const Group& g, const MatmulCall& as_given,
                       MatmulScratch& scratch) const {
  const MatmulCall call = g.order_bytes > 0 ? sort(stream, g, as_given, scratch) : as_given;
  switch (g.few->packing) {
    case DevicePacking::floats: return run_floats(stream, g, call, scratch);
    case DevicePacking::bricks: return run_bricks(stream, g, call, scratch);
    case DevicePacking::ints: return run_ints(stream, g, call, scratch);
  }
}

bool DeviceMatmul::runs_int_bricks(const Group& g, int64_t n_tokens) {
  return g.few->packing == DevicePacking::bricks && g.few->plane_bits == 8 && n_tokens <= kFewTokens;
}

void DeviceMatmul::run_bricks(gpu::StreamHandle stream, const Group& g, const MatmulCall& call,
                              MatmulScratch& scratch) const {
  if (runs_int_bricks(g, call.n_tokens)) {
    IntCall c{.n_tokens = call.n_tokens, .x = call.x, .norm_weight = call.norm_weight, .norm_eps = call.norm_eps};
    c.planes = g.few->planes;
    if (call.n_tokens == 1 && call.output == MatmulOutput::store) c.turn = g.turn;
    fill_call(g, call, c);
    return device_int_gemv(stream, g.bricks, c, scratch.ints);
  }
  BrickCall c{.norm_weight = call.norm_weight, .norm_eps = call.norm_eps};
  c.residual = call.output == MatmulOutput::add;
  c.glu = call.output == MatmulOutput::relu2_glu ? BrickGlu::relu2 : BrickGlu::silu;
  c.overlap = call.overlap;
  const int planes = g.kernel(call.n_tokens).planes;
  const int64_t most = most_brick_tokens(g.bricks);
  for (int64_t first = 0; first < call.n_tokens; first += most) {
    c.n_tokens = std::min(most, call.n_tokens - first);
    c.x = call.x + first * n_in_;
    for (int i = 0; i < g.bricks.n_parts; ++i) {
      c.y[i] = call.y[g.first + i] ? call.y[g.first + i] + first * n_out_[size_t(g.first + i)] : nullptr;
      c.bias[i] = biases_[size_t(g.first + i)];
    }
    scratch.bricks.ensure<std::byte>(scratch_bytes(g.bricks, c, planes));
    if (planes == 1) device_f16_gemm(stream, g.bricks, c, scratch.bricks);
    else device_f16_gemv(stream, g.bricks, c, scratch.bricks);
  }
}

template <class Call>
void DeviceMatmul::fill_call(const Group& g, const MatmulCall& call, Call& c) const {
  c.bias = biases_[size_t(g.first)];  // of the group's matrices, one after another, as its rows are
  c.output = call.output == MatmulOutput::store      ? IntOutput::store
             : call.output == MatmulOutput::add      ? IntOutput::add
             : call.output == MatmulOutput::silu_glu ? IntOutput::silu_glu
                                                     : IntOutput::relu2_glu;
  c.n_parts = g.gated ? 1 : g.count;
  for (int i = 0; i < c.n_parts; ++i) {
    c.n_out[i] = n_out_[size_t(g.first + i)];
    c.y[i] = call.y[g.first + i];
  }
  c.overlap = call.overlap;
}

void DeviceMatmul::run_ints(gpu::StreamHandle stream, const Group& g, const MatmulCall& call,
                            MatmulScratch& scratch) const {
  const int64_t n = call.n_tokens;
  if (n > kFewTokens) {
    IntGemmCall c{.n_tokens = n, .x = call.x, .norm_weight = call.norm_weight, .norm_eps = call.norm_eps};
    fill_call(g, call, c);
    return device_int_gemm(stream, g.ints, c, scratch.ints);
  }
  IntCall c{.n_tokens = n, .x = call.x, .norm_weight = call.norm_weight, .norm_eps = call.norm_eps};
  c.planes = g.kernel(n).planes;
  fill_call(g, call, c);
  device_int_gemv(stream, g.ints, c, scratch.ints);
}

void DeviceMatmul::run_floats(gpu::StreamHandle stream, const Group& g, const MatmulCall& call,
                              MatmulScratch& scratch) const {
  const int64_t n = call.n_tokens, n_out = n_out_[size_t(g.first)];
  const float* x = call.x;
  if (call.norm_weight) {
    float* normed = scratch.normed.ensure(n * n_in_);
    device_rms_norm(stream, n, n_in_, x, call.norm_weight, call.norm_eps, normed);
    x = normed;
  }
  float* const y = call.output == MatmulOutput::add ? scratch.up.ensure(n * n_out) : call.y[g.first];
  device_gemm(stream, n, n_out, n_in_, x, g.floats.as<float>(), y);
  if (const float* bias = biases_[size_t(g.first)]) device_add_bias(stream, n, n_out, y, bias);
  if (call.output == MatmulOutput::add) device_add(stream, n * n_out, call.y[g.first], y);
}

}  // namespace ridge
