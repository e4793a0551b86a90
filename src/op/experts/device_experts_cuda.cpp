#include <algorithm>

#include "op/experts/int_experts_cuda.h"
#include "op/experts/int_packs_cuda.h"
#include "op/gemv/f16_gemv_cuda.h"
#include "op/gemv/rows_cuda.h"
#include "op/linear.h"

namespace ridge {

void DeviceExpertMatmul::plan(std::span<const std::vector<const Linear*>> matrices,
                              std::span<const std::vector<const std::vector<float>*>> biases, bool glu) {
  RIDGE_CHECK(matrices.size() == biases.size() && matrices.size() <= 2 && !matrices[0].empty(),
              "{} roles of experts, {} with biases", matrices.size(), biases.size());
  n_in_ = matrices[0][0]->n_in;
  n_experts_ = ssize(matrices[0]);
  for (size_t r = 0; r < matrices.size(); ++r) {
    const Linear& first = *matrices[r][0];
    const auto bricks = find_brick_format(first.format->name);
    const bool keeps_scale = bricks && keeps_matrix_scale(*bricks);
    for (const Linear* m : matrices[r])
      if (m->format != first.format || m->n_out != first.n_out || m->n_in != n_in_ || m->order || m->int8_activations ||
          (m->scale != 1 && !keeps_scale))
        throw_error(ErrorKind::usage,
                    "a GPU runs experts of one format, shape and scale, here are {} ({}x{}) and {} ({}x{}) (use "
                    "the CPU)",
                    first.format->name, first.n_out, n_in_, m->format->name, m->n_out, m->n_in);
    Role role{.n_out = first.n_out, .matrix_bytes = first.bytes()};
    if (biases[r][0] && !biases[r][0]->empty()) role.bias_bytes = 4 * n_experts_ * role.n_out;
    roles_.push_back(std::move(role));
    const int number = int(first.format - weight_formats().data());
    const bool joins = r > 0 && bricks && groups_.back().format == number;
    if (!joins) groups_.push_back({.first = r, .count = 0, .format = number, .in_bricks = bricks.has_value()});
    Group& group = groups_.back();
    group.count += 1;
    group.row_bytes += n_experts_ * first.bytes();
    if (!bricks) continue;
    const bool paired = glu && group.count == 2;
    std::vector<int64_t> n_out;
    for (size_t i = group.first; i <= r - paired; ++i) n_out.push_back(roles_[i].n_out);
    group.bricks = plan_brick_matrix(*bricks, n_in_, n_out, paired);
  }
}

/// Memory of all experts, zero where tiles are larger than matrices.
void DeviceExpertMatmul::reserve() {
  for (Role& role : roles_) role.bias = gpu::Buffer(role.bias_bytes);
  for (Group& g : groups_) {
    if (g.in_bricks) g.bricks.data = gpu::Buffer(g.bytes(n_experts_));
    else g.rows = gpu::Buffer(g.row_bytes);
  }
}

DeviceExpertMatmul::DeviceExpertMatmul(const gpu::Stream& stream, std::span<const std::vector<const Linear*>> matrices,
                                       std::span<const std::vector<const std::vector<float>*>> biases, bool glu) {
  plan(matrices, biases, glu);
  reserve();
  const std::vector<SourceRole> at = source_roles();
  const gpu::Buffer source(source_bytes());
  for (int64_t e = 0; e < n_experts_; ++e) {
    std::vector<float> scales;
    for (size_t r = 0; r < roles_.size(); ++r) {
      const Linear& m = *matrices[r][size_t(e)];
      scales.push_back(m.scale);
      RIDGE_CHECK(m.rows != nullptr, "an expert of {} x {} has no rows to upload", m.n_out, m.n_in);
      gpu::upload(stream, source.as<std::byte>() + at[r].blocks, m.rows, m.bytes());
      if (roles_[r].bias_bytes == 0) continue;
      const std::vector<float>& bias = *biases[r][size_t(e)];
      RIDGE_CHECK(ssize(bias) == roles_[r].n_out, "{} biases of an expert", bias.size());
      gpu::upload(stream, source.as<std::byte>() + at[r].biases, bias.data(), 4 * roles_[r].n_out);
    }
    fill(stream, e, source.as<std::byte>(), scales);
    stream.synchronize();
  }
}

std::vector<DeviceExpertMatmul::SourceRole> DeviceExpertMatmul::source_roles() const {
  constexpr int64_t kAlignment = 256;
  const auto aligned = [](int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
  std::vector<SourceRole> roles;
  int64_t end = 0;
  for (const Role& role : roles_) {
    roles.push_back({.blocks = end, .biases = end + aligned(role.matrix_bytes)});
    end = roles.back().biases + (role.bias_bytes > 0 ? aligned(4 * role.n_out) : 0);
  }
  roles.push_back({.blocks = end});
  return roles;
}
int64_t DeviceExpertMatmul::source_bytes() const { return source_roles().back().blocks; }

void DeviceExpertMatmul::fill(gpu::StreamHandle stream, int64_t e, const std::byte* source,
                              std::span<const float> scales) {
  const std::vector<SourceRole> at = source_roles();
  const auto rows = [&](size_t r) { return BrickSource(source + at[r].blocks, scales[r]); };
  for (size_t r = 0; r < roles_.size(); ++r)
    if (roles_[r].bias_bytes > 0)
      gpu::copy(stream, roles_[r].bias.as<float>() + e * roles_[r].n_out, source + at[r].biases, 4 * roles_[r].n_out);
  for (const Group& g : groups_) {
    if (!g.in_bricks) {
      const int64_t bytes = roles_[g.first].matrix_bytes;
      gpu::copy(stream, g.rows.as<std::byte>() + e * bytes, source + at[g.first].blocks, bytes);
      continue;
    }
    for (int i = 0; i < g.bricks.n_parts; ++i)
      device_fill_bricks(stream, g.bricks, {i, e}, 0, g.bricks.n_out[i], rows(g.first + size_t(i)),
                         g.bricks.paired ? rows(g.first + 1) : BrickSource());
  }
}

void DeviceExpertMatmul::add_to(gpu::Allocations& all) const {
  for (const Role& role : roles_) all.add(role.bias_bytes);
  for (const Group& g : groups_) all.add(g.bytes(n_experts_));
}

int64_t DeviceExpertMatmul::group_scratch_bytes(const ExpertGroups& groups) const {
  return expert_gemm_scratch_bytes(groups_[0].bricks, groups);
}

int64_t DeviceExpertMatmul::bytes() const {
  int64_t sum = 0;
  for (const Role& role : roles_) sum += role.bias_bytes;
  for (const Group& g : groups_) sum += g.bytes(n_experts_);
  return sum;
}

std::array<int64_t, 2> DeviceExpertMatmul::bytes_of(std::span<const std::vector<const Linear*>> matrices,
                                                    std::span<const std::vector<const std::vector<float>*>> biases,
                                                    bool glu) {
  DeviceExpertMatmul product;
  product.plan(matrices, biases, glu);
  return {product.bytes(), product.source_bytes()};
}

std::vector<std::string_view> DeviceExpertMatmul::kernels() const {
  std::vector<std::string_view> names;
  for (const Group& g : groups_) names.push_back(g.in_bricks ? "bricks" : "rows");
  if (can_group()) names.push_back("groups");
  return names;
}

bool DeviceExpertMatmul::is_biased() const {
  return std::ranges::any_of(roles_, [](const Role& role) { return role.bias_bytes > 0; });
}

double DeviceExpertMatmul::most_packed_slots() const {
  // docs/decisions/0005-device-kernels.md. Packs decode an expert for every four slots, which f16 does not need.
  constexpr double kOfIntegers = 6, kOfF16 = 2.5, kOfPlanes = 0.75;
  const BrickMatrix& bricks = groups_[0].bricks;
  if (!is_biased() && has_int_packs(bricks)) return kOfIntegers;
  return bricks.format == BrickFormat::f16 ? kOfF16 : kOfPlanes;
}

void DeviceExpertMatmul::run(gpu::StreamHandle stream, const ExpertCall& call) const {
  for (const Group& g : groups_) {
    const float* biases[2] = {};
    for (size_t i = 0; i < g.count; ++i) biases[i] = roles_[g.first + i].bias.as<float>();
    float* const* const y = call.y + g.first;
    const bool biased = biases[0] || biases[1];
    if (call.ints && !biased && g.in_bricks && has_int_packs(g.bricks)) device_int_packs(stream, g.bricks, call, y[0]);
    else if (g.in_bricks) device_expert_gemv(stream, g.bricks, call, biases, y);
    else device_expert_rows(stream, {g.format, n_in_, roles_[g.first].n_out, g.rows.as<void>(), biases[0]}, call, y[0]);
  }
}

void DeviceExpertMatmul::run_groups(gpu::StreamHandle stream, ExpertGroupCall call, gpu::Buffer& scratch) const {
  RIDGE_CHECK(can_group(), "experts of many tokens in {} groups", groups_.size());
  for (size_t i = 0; i < roles_.size(); ++i) call.biases[i] = roles_[i].bias.as<float>();
  scratch.ensure<std::byte>(expert_gemm_scratch_bytes(groups_[0].bricks, call.groups));
  device_expert_gemm(stream, groups_[0].bricks, call, scratch);
}

void DeviceExpertMatmul::run_sum(gpu::StreamHandle stream, const ExpertSumCall& call) const {
  RIDGE_CHECK(can_sum(), "a sum over experts in {} groups", groups_.size());
  device_expert_sum_gemv(stream, groups_[0].bricks, call, roles_[0].bias.as<float>());
}

bool DeviceExpertMatmul::can_choose(const ExpertChoice& choice, const ExpertRule& rule) const {
  return groups_.size() == 1 && groups_[0].in_bricks && (is_gated() || roles_.size() == 1) && !is_biased() &&
         has_int_experts(groups_[0].bricks, choice, rule);
}

void DeviceExpertMatmul::run_chosen(gpu::StreamHandle stream, const IntExpertsCall& call) const {
  RIDGE_CHECK(can_choose(call.choice, call.router.rule), "experts of {} groups that choose", groups_.size());
  device_int_experts(stream, groups_[0].bricks, call);
}

}  // namespace ridge
