#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "gpu/launch_log.h"
#include "model/device_product.h"
#include "op/gemm/gemm_cuda.h"
#include "op/gemm/int_gemm_cuda.h"
#include "op/gemm/tensor_gemm_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {
namespace {

bool is_ternary(const Linear& m) { return m.int8_activations; }
bool is_int4(const Linear& m) { return m.format->name == "int4_g128"; }
bool has_bricks(const Linear& m) {
  return !is_ternary(m) && !is_int4(m) && m.scale == 1 && find_brick_format(m.format->name).has_value();
}

/// Whether two matrices can be one launch.
bool go_together(const Linear& a, const Linear& b) {
  return a.format == b.format && is_ternary(a) == is_ternary(b) && (is_ternary(a) || is_int4(a) || has_bricks(a)) &&
         has_bricks(a) == has_bricks(b);
}

/// All rows of a matrix as in the file.
gpu::Buffer upload_rows(const gpu::Stream& stream, const Linear& m) {
  RIDGE_CHECK(m.rows != nullptr, "a matrix of {} x {} has no rows to upload", m.n_out, m.n_in);
  gpu::Buffer buffer(m.bytes());
  gpu::upload(stream, buffer.as<void>(), m.rows, m.bytes());
  stream.synchronize();
  return buffer;
}

}  // namespace

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

int64_t device_product_bytes(const Linear& m) {
  return is_ternary(m) || is_int4(m) || has_bricks(m) ? m.bytes() : 4 * m.n_out * m.n_in;
}

DeviceProduct::DeviceProduct(const gpu::Stream& stream, std::span<const Linear* const> matrices,
                             std::span<const std::vector<float>* const> biases, bool glu, int planes)
    : n_in_(matrices[0]->n_in), glu_(glu), planes_(planes), biases_(matrices.size(), nullptr) {
  RIDGE_CHECK(matrices.size() <= 3 && (!glu || matrices.size() == 2) && biases.size() == matrices.size(),
              "{} matrices, {} biases", matrices.size(), biases.size());
  const bool any_bias = std::any_of(biases.begin(), biases.end(), [](const auto* b) { return b && !b->empty(); });
  RIDGE_CHECK(!any_bias || !glu, "gated matrices with a bias");
  std::vector<float> joint;
  for (size_t i = 0; i < matrices.size(); ++i) {
    n_out_.push_back(matrices[i]->n_out);
    if (biases[i] && !biases[i]->empty()) joint.insert(joint.end(), biases[i]->begin(), biases[i]->end());
    else joint.resize(joint.size() + size_t(matrices[i]->n_out));
  }
  text_ = fmt::format("{}x{} {}", std::accumulate(n_out_.begin(), n_out_.end(), int64_t(0)), n_in_,
                      matrices[0]->format->name);
  if (any_bias) {
    bias_ = gpu::to_device(stream, std::span<const float>(joint));
    int64_t at = 0;
    for (size_t i = 0; i < matrices.size(); at += n_out_[i++]) biases_[i] = bias_.as<float>() + at;
  }

  for (size_t first = 0; first < matrices.size();) {
    size_t end = first + 1;
    while (end < matrices.size() && go_together(*matrices[first], *matrices[end])) ++end;
    // A GLU is one launch or its parts as floats.
    if (glu && end != 2) end = 2;
    const auto members = matrices.subspan(first, end - first);
    const Linear& m = *members[0];
    Group group{.first = int(first), .count = int(end - first)};
    const bool together = members.size() == 1 || go_together(m, *members.back());
    if (together && has_bricks(m)) {
      group.kind = Group::in_bricks;
      const std::span<const int64_t> n_out(&n_out_[first], glu ? 1 : members.size());
      group.bricks = make_brick_matrix(*find_brick_format(m.format->name), m.n_in, n_out, glu);
      for (size_t i = 0; i < n_out.size(); ++i) {
        const gpu::Buffer rows = upload_rows(stream, *members[i]);
        const gpu::Buffer up = glu ? upload_rows(stream, *members[1]) : gpu::Buffer();
        device_fill_bricks(stream, group.bricks, int(i), 0, n_out[i], rows.as<void>(), glu ? up.as<void>() : nullptr);
        stream.synchronize();
      }
    } else if (together && (is_int4(m) || is_ternary(m)) && m.n_in % kIntGroup == 0) {
      group.kind = Group::in_ints;
      std::vector<gpu::Buffer> buffers;
      std::vector<IntRows> rows;
      for (const Linear* part : members) {
        buffers.push_back(upload_rows(stream, *part));
        rows.push_back({.rows = buffers.back().as<void>(), .n_out = part->n_out, .scale = part->scale});
      }
      group.ints = pack_int_weights(stream, is_ternary(m) ? IntKind::ternary : IntKind::int4_g128, m.n_in, rows, glu);
      stream.synchronize();
    } else {
      RIDGE_CHECK(!is_ternary(m), "ternary rows of {} values", m.n_in);
      for (const Linear* part : members) group.floats.push_back(upload_as_floats(stream, *part));
    }
    groups_.push_back(std::move(group));
    first = end;
  }
}

int64_t DeviceProduct::bytes() const {
  int64_t sum = bias_.bytes();
  for (const Group& g : groups_) {
    if (g.kind == Group::in_bricks) sum += g.bricks.bytes();
    if (g.kind == Group::in_ints) sum += g.ints.bytes();
    for (const gpu::Buffer& matrix : g.floats) sum += matrix.bytes();
  }
  return sum;
}

std::vector<std::string_view> DeviceProduct::kernels() const {
  std::vector<std::string_view> names;
  for (const Group& g : groups_)
    names.push_back(g.kind == Group::in_bricks        ? "bricks"
                    : g.kind == Group::in_floats      ? "f32"
                    : g.ints.kind == IntKind::ternary ? "ternary"
                    : planes_ == 1                    ? "int-1plane"
                                                      : "int-2planes");
  return names;
}

std::vector<std::string_view> DeviceProduct::kernels_of_many() const {
  std::vector<std::string_view> names;
  for (const Group& g : groups_)
    names.push_back(g.kind == Group::in_floats ? "f32"
                    : g.kind == Group::in_ints ? g.ints.kind == IntKind::ternary ? "ternary-int8" : "int4-f16"
                    : g.bricks.format == BrickFormat::bf16 ? "bricks-2planes"
                                                           : "bricks-f16");
  return names;
}

void DeviceProduct::run(gpu::StreamHandle stream, const ProductCall& call, ProductScratch& scratch) const {
  const gpu::OpRange range([&] {
    const int64_t all_out = std::accumulate(n_out_.begin(), n_out_.end(), int64_t(0)),
                  stored = glu_ ? all_out / 2 : all_out;
    return gpu::LoggedOp{.op = call.n_tokens == 1 ? "gemv" : "gemm",
                         .what = text_,
                         .layer = call.layer,
                         .read_bytes = bytes() + 4 * call.n_tokens * n_in_,
                         .write_bytes = 4 * call.n_tokens * stored,
                         .flops = 2 * call.n_tokens * n_in_ * all_out};
  });
  for (const Group& group : groups_) run(stream, group, call, scratch);
}

void DeviceProduct::run(gpu::StreamHandle stream, const Group& g, const ProductCall& call,
                        ProductScratch& scratch) const {
  const int64_t n = call.n_tokens;
  if (g.kind == Group::in_bricks) {
    BrickCall c{.n_tokens = n, .x = call.x, .norm_weight = call.norm_weight, .norm_eps = call.norm_eps};
    c.residual = call.output == ProductOutput::add;
    c.glu = call.output == ProductOutput::relu2_glu ? BrickGlu::relu2 : BrickGlu::silu;
    c.overlap = call.overlap;
    for (int i = 0; i < (glu_ ? 1 : g.count); ++i) {
      c.y[i] = call.y[g.first + i];
      c.bias[i] = biases_[size_t(g.first + i)];
    }
    if (n > kFewTokens && g.bricks.format != BrickFormat::bf16) {
      scratch.bricks.ensure<std::byte>(tensor_gemm_scratch_bytes(g.bricks, c, 1));
      device_tensor_gemm(stream, g.bricks, c, 1, scratch.bricks);
    } else {
      scratch.bricks.ensure<std::byte>(brick_scratch_bytes(g.bricks, c));
      device_half_gemv(stream, g.bricks, c, scratch.bricks);
    }
    return;
  }
  if (g.kind == Group::in_ints) {
    const IntOutput output = call.output == ProductOutput::store      ? IntOutput::store
                             : call.output == ProductOutput::add      ? IntOutput::add
                             : call.output == ProductOutput::silu_glu ? IntOutput::silu_glu
                                                                      : IntOutput::relu2_glu;
    const float* const bias = biases_[size_t(g.first)];  // of the group's matrices, one after another, as its rows are
    if (n > kFewTokens) {
      IntGemmCall c{.n_tokens = n, .x = call.x, .norm_weight = call.norm_weight, .norm_eps = call.norm_eps};
      c.bias = bias;
      c.output = output;
      c.n_parts = glu_ ? 1 : g.count;
      for (int i = 0; i < c.n_parts; ++i) {
        c.n_out[i] = n_out_[size_t(g.first + i)];
        c.y[i] = call.y[g.first + i];
      }
      c.overlap = call.overlap;
      device_int_gemm(stream, g.ints, c, scratch.ints);
      return;
    }
    IntCall c{.n_tokens = n, .x = call.x, .norm_weight = call.norm_weight, .norm_eps = call.norm_eps};
    c.planes = g.ints.kind == IntKind::ternary ? 1 : planes_;
    c.output = output;
    c.bias = bias;
    c.overlap = call.overlap;
    bool joint = true;  // outputs lie behind one another as the rows do
    for (int i = g.first; !glu_ && i + 1 < g.first + g.count; ++i)
      joint = joint && n == 1 && call.y[i + 1] == call.y[i] + n_out_[size_t(i)];
    RIDGE_CHECK(joint || call.output == ProductOutput::store, "a joint product of {} tokens is stored", n);
    c.y = joint ? call.y[g.first] : scratch.joint.ensure(n * g.ints.n_out);
    device_int_gemv(stream, g.ints, c, scratch.ints);
    if (joint) return;
    int64_t at = 0;
    for (int i = g.first; i < g.first + g.count; at += n_out_[size_t(i++)])
      device_copy_columns(stream, n, n_out_[size_t(i)], c.y + at, g.ints.n_out, call.y[i]);
    return;
  }

  const float* x = call.x;
  if (call.norm_weight) {
    float* normed = scratch.normed.ensure(n * n_in_);
    device_rms_norm(stream, n, n_in_, x, call.norm_weight, call.norm_eps, normed);
    x = normed;
  }
  for (int i = 0; i < g.count; ++i) {
    const int64_t n_out = n_out_[size_t(g.first + i)];
    const bool aside = call.output == ProductOutput::add || (glu_ && i == 1);
    float* y = aside ? scratch.up.ensure(n * n_out) : call.y[g.first + i];
    device_gemm(stream, n, n_out, n_in_, x, g.floats[size_t(i)].as<float>(), y);
    if (const float* bias = biases_[size_t(g.first + i)]) device_add_bias(stream, n, n_out, y, bias);
    if (call.output == ProductOutput::add) device_add(stream, n * n_out, call.y[g.first + i], y);
    if (glu_ && i == 1) {
      if (call.output == ProductOutput::relu2_glu) device_relu2_glu(stream, n * n_out, call.y[g.first], y);
      else device_swiglu(stream, n * n_out, call.y[g.first], y);
    }
  }
}

}  // namespace ridge
