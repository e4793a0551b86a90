// x += the sum of a token's experts and, where there is one, the shared expert, on a device.
#include <algorithm>

#include "engine/cuda_model.h"
#include "op/experts/int_experts_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {

using B = StepBuffer;
namespace {

static_assert(kMostIntTokens <= kFewRoutedTokens);  // experts that choose are those of steps which copy none

BrickGlu glu_of(Activation activation) {
  switch (activation) {
    case Activation::silu: return BrickGlu::silu;
    case Activation::relu2: return BrickGlu::relu2;
    case Activation::gelu_tanh: return BrickGlu::gelu_tanh;
    case Activation::clamped_swiglu: break;
  }
  return BrickGlu::clamped_swiglu;
}

/// Whether the matmuls of a token's experts are added up as one long row.
bool sums_at_once(const CudaLayer& layer, const ExpertsPlan& plan, const ExpertChoice& choice) {
  return choice.n_tokens <= kMostIntTokens && layer.experts.down.can_sum() && choice.shared == plan.shared;
}

}  // namespace

bool has_late_choice(const CudaLayer& layer, const ExpertsPlan& plan) {
  const ExpertChoice choice{
      .n_tokens = 1, .n_experts = plan.n_experts, .n_used = plan.rule.n_used, .shared = layer.joins_shared};
  return layer.experts.gate_up.is_gated() && sums_at_once(layer, plan, choice) &&
         layer.experts.gate_up.can_choose(choice, plan.rule) && layer.experts.down.can_choose(choice, plan.rule);
}

/// A token goes through its experts alone: all of them together are rows of matmuls. Of few tokens the shared expert
/// is one more expert, where it is like the others. Many tokens are grouped by expert, few are packs.
void CudaRunner::experts(int i, const StepPlan& step) {
  const LayerPlan& plan = plan_.layers[size_t(i)];
  const ExpertsPlan& e = plan.experts;
  const CudaLayer& layer = model_.layers[size_t(i)];
  StepWorkspace<gpu::Buffer>& r = buffers_;
  const int64_t n = step.n_rows();
  const bool normed = plan.norms != NormPlace::after, few = takes_few_experts(layer.experts, e, n);
  const bool streamed = !step.recorded && streams_experts(layer, e, n), summed = e.on_host && !streamed;
  const ExpertMatmuls& matmuls = streamed ? model_.slots[size_t(layer.slot)] : layer.experts;
  const bool groups = !few && matmuls.can_group();
  const ExpertChoice choice{.n_tokens = n,
                            .n_experts = e.n_experts,
                            .n_used = e.rule.n_used,
                            .shared = layer.joins_shared && few,
                            .scores = r[B::scores].as<float>(),
                            .weights = r[B::expert_weights].as<float>(),
                            .experts = r[B::expert_numbers].as<int32_t>(),
                            .packs = groups || (summed && n > 1) ? nullptr : r[B::packs].as<ExpertPack>()};
  ExpertGroupCall of_groups{.groups = {.width = group_columns(),
                                       .n_slots = choice.n_slots(),
                                       .most_areas = choice.n_areas(),
                                       .n_areas = r[B::areas].as<int32_t>(),
                                       .experts = r[B::area_experts].as<int32_t>(),
                                       .columns = r[B::area_columns].as<int32_t>(),
                                       .column_of = r[B::slot_columns].as<int32_t>()},
                            .x = (normed ? r[B::h] : r[B::x]).as<float>(),
                            .share = choice.n_chosen(),
                            .glu = glu_of(e.activation),
                            .y = r[B::expert_gate].as<float>()};
  const MatmulCall in{.n_tokens = n, .x = of_groups.x, .overlap = step.overlap, .layer = i}, out = block_out(i, step);
  const bool late = n <= kMostIntTokens && options_.int_experts && has_late_choice(layer, e) && !e.beside_dense;
  const ExpertRouter router{.rule = e.rule,
                            .n_in = plan_.d_model,
                            .x = r[B::x].as<float>(),
                            .norm_weight = e.beside_dense ? layer.router_scale.as<float>()
                                           : normed       ? layer.ffn_norm.as<float>()
                                                          : nullptr,
                            .norm_eps = plan_.norm_eps,
                            .h = late ? nullptr : r[B::h].as<float>(),
                            .w = layer.router.as<float>(),
                            .bias = e.biases ? layer.router_bias.as<float>() : nullptr,
                            .choice_bias = e.choice_bias ? layer.choice_bias.as<float>() : nullptr,
                            .gates_shared = e.shared_gate,
                            .overlap = step.overlap,
                            .scores_only = late};
  {
    const gpu::OpRange range([&] { return small_op("route", n * plan_.d_model, i); });
    device_route(stream_, choice, router);
    if (e.beside_dense) {  // the experts read another norm than the router
      device_scale_experts(stream_, choice, layer.expert_scale.as<float>());
      device_rms_norm(stream_, n, plan_.d_model, router.x, layer.expert_norm.as<float>(), plan_.norm_eps,
                      r[B::h].as<float>());
    }
    if (groups) device_group_experts(stream_, choice, r[B::expert_counts].as<int32_t>(), of_groups.groups);
  }
  if (streamed) bring_experts(i, choice);
  if (summed) {
    host_experts(i, choice, in, out);
  } else {
    const gpu::OpRange range([&] {
      const int64_t bytes = matmuls.bytes(), n_experts = e.n_experts + layer.joins_shared;
      return gpu::LoggedOp{.op = "experts",
                           .layer = i,
                           .read_bytes = bytes / n_experts * std::min<int64_t>(n_experts, choice.n_slots()),
                           .flops = 6 * choice.n_slots() * e.d_ff * plan_.d_model};
    });
    if (groups) {
      matmuls.gate_up.run_groups(stream_, of_groups, matmul_scratch_.bricks);
      if (!e.gated) device_relu2(stream_, choice.n_slots() * e.d_ff, of_groups.y);
      of_groups.x = of_groups.y;
      of_groups.share = 1;
      of_groups.y = r[B::expert_out].as<float>();
      matmuls.down.run_groups(stream_, of_groups, matmul_scratch_.bricks);
    } else if (late) {
      IntExpertsCall call{.choice = choice,
                          .router = router,
                          .x = router.x,
                          .norm_weight = router.norm_weight,
                          .norm_eps = router.norm_eps,
                          .glu = of_groups.glu,
                          .y = of_groups.y,
                          .overlap = step.overlap};
      layer.experts.gate_up.run_chosen(stream_, call);
      call.x = call.y;
      call.norm_weight = nullptr;
      call.add = out.output == MatmulOutput::add;
      call.y = out.y[0];
      layer.experts.down.run_chosen(stream_, call);
    } else {
      few_experts(i, layer.experts, choice, in, out);
    }
  }
  if (!late) sum_experts(i, choice, in, out, summed);
  if (e.beside_dense) add_dense_beside(i, step, out.y[0]);
  end_block(i, step, layer.ffn_post_norm);
}

/// experts [n, d_model] = their norm + norm(dense(norm(x))): Gemma 4's feed-forward has a dense one beside experts.
void CudaRunner::add_dense_beside(int i, const StepPlan& step, float* experts) {
  const CudaLayer& layer = model_.layers[size_t(i)];
  const int64_t n = step.n_rows(), d = plan_.d_model;
  auto* const shared = buffers_[B::shared].as<float>();
  device_rms_norm(stream_, n, d, experts, layer.expert_post_norm.as<float>(), plan_.norm_eps, experts);
  MatmulCall out = block_out(i, step);
  out.output = MatmulOutput::store;
  out.y[0] = shared;
  dense(i, block_in(i, step, layer.ffn_norm), out);
  device_rms_norm(stream_, n, d, shared, layer.dense_post_norm.as<float>(), plan_.norm_eps, shared);
  device_add(stream_, n * d, experts, shared);
}

ExpertChoice CudaRunner::kept_of(int i, const ExpertChoice& choice) const {
  ExpertChoice kept = choice;
  kept.n_experts = plan_.layers[size_t(i)].experts.n_cached;
  kept.experts = buffers_[B::expert_places].as<int32_t>();
  kept.packs = buffers_[B::packs].as<ExpertPack>();
  return kept;
}

/// expert_out [n, d_model] = the sum of each token's experts, by the CPU: rows and choices go to the host, and the
/// device waits until the sums come back. The device multiplies with those that it keeps, which the host leaves out,
/// before it waits: they are in front of the sums [n_slots, d_model].
void CudaRunner::host_experts(int i, const ExpertChoice& choice, const MatmulCall& in, const MatmulCall& out) {
  const int64_t n = choice.n_tokens, row_bytes = 4 * n * plan_.d_model, choice_bytes = 4 * n * choice.n_used;
  const CudaLayer& layer = model_.layers[size_t(i)];
  const auto used = expert_use_.find(i);
  const bool keeps = keeps_experts(plan_.layers[size_t(i)].experts, n);
  auto* sum = buffers_[B::expert_out].as<float>();
  if (keeps) {
    sum += choice.n_slots() * plan_.d_model;
    const gpu::OpRange range([&] { return small_op("route", choice.n_slots(), i); });
    device_place_experts(stream_, choice, layer.expert_places.as<int32_t>(), buffers_[B::rows].as<StepRow>(),
                         kept_of(i, choice));
  }
  gpu::download(stream_, host_rows_.x.as<void>(), in.x, row_bytes);
  gpu::download(stream_, host_rows_.experts.as<void>(), choice.experts, choice_bytes);
  gpu::download(stream_, host_rows_.weights.as<void>(), choice.weights, choice_bytes);
  if (keeps) {
    const gpu::OpRange range([&] { return gpu::LoggedOp{.op = "experts", .layer = i}; });
    few_experts(i, layer.cached, kept_of(i, choice), in, out);
  }
  HostCall& call = host_calls_[{i, n}];
  call = {.runner = this,
          .layer = i,
          .n_tokens = n,
          .use = used == expert_use_.end() ? nullptr : &used->second,
          .keeps = keeps};
  const auto run = [](void* data) {
    const HostCall& of = *static_cast<HostCall*>(data);
    CudaRunner& runner = *of.runner;
    const HostRows& rows = runner.host_rows_;
    const int64_t n_used = runner.plan_.layers[size_t(of.layer)].experts.rule.n_used;
    auto* const experts = rows.experts.as<int32_t>();
    const std::span<int32_t> numbers(experts, size_t(of.n_tokens * n_used));
    if (of.keeps) of.use->take(numbers);
    else if (of.use) of.use->count(numbers);
    runner.host_experts_->run(of.layer, {.n_tokens = of.n_tokens,
                                         .x = rows.x.as<float>(),
                                         .experts = experts,
                                         .weights = rows.weights.as<float>(),
                                         .sum = rows.sum.as<float>()});
  };
  gpu::call_host(stream_, run, &call);
  gpu::upload(stream_, sum, host_rows_.sum.as<void>(), row_bytes);
}

/// Brings the experts that a prompt's tokens chose from host memory to the slot of the layer. The host waits for the
/// choice.
void CudaRunner::bring_experts(int i, const ExpertChoice& choice) {
  const std::span numbers(host_rows_.experts.as<int32_t>(), size_t(choice.n_tokens * choice.n_used));
  gpu::download(stream_, numbers.data(), choice.experts, 4 * ssize(numbers));
  stream_.synchronize();
  std::vector<bool> chosen(size_t(choice.n_experts));
  for (const int32_t number : numbers)  // a row of padding may have chosen none
    if (number >= 0 && number < choice.n_experts) chosen[size_t(number)] = true;
  std::vector<ExpertMove> moves;
  for (int32_t e = 0; e < choice.n_experts; ++e)
    if (chosen[size_t(e)]) moves.push_back({.expert = e, .place = e});
  expert_stream_->bring(stream_, i, moves, model_.slots[size_t(model_.layers[size_t(i)].slot)],
                        model_.slot_source.as<std::byte>());
  if (const auto used = expert_use_.find(i); used != expert_use_.end()) used->second.count(numbers);
}

void CudaRunner::upload_places(int i) {
  const std::span<const int32_t> places = expert_use_.at(i).places();
  gpu::upload(stream_, model_.layers[size_t(i)].expert_places.as<void>(), places.data(), int64_t(places.size_bytes()));
}

/// In front of a recorded step, every kStepsOfExchange steps or tokens of prompts: experts that are chosen often come
/// to the places of those that are not. Copies read host memory at some 10 to 50 GB/s, so that kExchangeBytes take a
/// few percent of the steps between. Empty places are filled at once: that is loading.
void CudaRunner::exchange_experts(const StepPlan& step) {
  constexpr int64_t kStepsOfExchange = 64, kExchangeBytes = int64_t(512) << 20;
  since_exchange_ += step.recorded ? 1 : step.n_tokens;
  if (!step.recorded || since_exchange_ < kStepsOfExchange) return;
  since_exchange_ = 0;
  stream_.synchronize();  // queued steps read the places, and count
  for (auto& [i, use] : expert_use_) {
    ExpertMatmuls& cached = model_.layers[size_t(i)].cached;
    const int64_t most = kExchangeBytes / (cached.source_bytes() * ssize(expert_use_));
    const std::vector<ExpertMove> moves = use.exchange(int(std::max<int64_t>(1, most)));
    if (moves.empty()) continue;
    expert_stream_->bring(stream_, i, moves, cached, model_.slot_source.as<std::byte>());
    upload_places(i);
  }
}

ExpertHits CudaRunner::expert_hits() const {
  ExpertHits sum;
  if (expert_use_.empty()) return sum;
  gpu::use_device(device_);
  stream_.synchronize();
  for (const auto& [i, use] : expert_use_) {
    sum.n_chosen += use.hits().n_chosen;
    sum.n_found += use.hits().n_found;
  }
  return sum;
}

void CudaRunner::few_experts(int i, const ExpertMatmuls& matmuls, const ExpertChoice& choice, const MatmulCall& in,
                             const MatmulCall& out) {
  const ExpertsPlan& e = plan_.layers[size_t(i)].experts;
  const CudaLayer& layer = model_.layers[size_t(i)];
  ExpertCall call{.packs = choice.packs,
                  .n_packs = choice.n_packs(),
                  .most = choice.n_tokens == 1 ? 1 : ExpertPack::kMost,
                  .x = in.x,
                  .share = choice.n_chosen(),
                  .y = {buffers_[B::expert_gate].as<float>(), buffers_[B::expert_up].as<float>()},
                  .glu = glu_of(e.activation),
                  .ints = options_.int_experts && choice.n_tokens > 1,
                  .overlap = in.overlap};
  matmuls.gate_up.run(stream_, call);
  if (!e.gated) device_relu2(stream_, choice.n_slots() * e.d_ff, call.y[0]);
  else if (!matmuls.gate_up.is_gated())
    activate(stream_, e.activation, choice.n_slots() * e.d_ff, call.y[0], call.y[1]);
  if (sums_at_once(layer, e, choice))
    return matmuls.down.run_sum(stream_, {.n_tokens = choice.n_tokens,
                                          .n_slots = choice.n_chosen(),
                                          .experts = choice.experts,
                                          .weights = choice.weights,
                                          .x = call.y[0],
                                          .add = out.output == MatmulOutput::add,
                                          .y = out.y[0],
                                          .overlap = in.overlap});
  call.x = call.y[0];
  call.share = 1;
  call.packs_are_there = true;
  call.y[0] = buffers_[B::expert_out].as<float>();
  matmuls.down.run(stream_, call);
}

void CudaRunner::sum_experts(int i, const ExpertChoice& choice, const MatmulCall& in, const MatmulCall& out,
                             bool summed) {
  const ExpertsPlan& e = plan_.layers[size_t(i)].experts;
  const CudaLayer& layer = model_.layers[size_t(i)];
  if (sums_at_once(layer, e, choice)) return;
  const bool adds_shared = e.shared && !e.beside_dense && !choice.shared;
  if (adds_shared) {
    MatmulCall of_shared = out;
    of_shared.output = MatmulOutput::store;
    of_shared.y[0] = buffers_[B::shared].as<float>();
    dense(i, in, of_shared);
  }
  const gpu::OpRange range([&] { return small_op("experts", choice.n_slots() * plan_.d_model, i); });
  const bool keeps =
      summed && keeps_experts(e, choice.n_tokens);  // the device has rows of its own in front of the sums
  const float* const y = buffers_[B::expert_out].as<float>();
  device_sum_experts(stream_,
                     {.n_tokens = choice.n_tokens,
                      .n = plan_.d_model,
                      .n_used = summed && !keeps ? 1 : choice.n_chosen(),
                      .weights = summed && !keeps ? nullptr : choice.weights,
                      .y = y,
                      .experts = keeps ? buffers_[B::expert_places].as<int32_t>() : nullptr,
                      .rest = keeps ? y + choice.n_slots() * plan_.d_model : nullptr,
                      .shared = adds_shared ? buffers_[B::shared].as<float>() : nullptr,
                      .h = in.x,
                      .gate = e.shared_gate ? layer.router.as<float>() + int64_t(e.n_experts) * plan_.d_model : nullptr,
                      .add = out.output == MatmulOutput::add,
                      .out = out.y[0],
                      .overlap = in.overlap});
}

}  // namespace ridge
