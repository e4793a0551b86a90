#include "engine/cpu_experts.h"

#include <algorithm>
#include <limits>

#include "op/norm_rope/norm_rope.h"

namespace ridge {

void activate(CpuContext& context, Activation activation, View2<float> gate, View2<const float> up) {
  switch (activation) {
    case Activation::silu: swiglu(context, gate, up); break;
    case Activation::relu2: relu2_glu(context, gate, up); break;
    case Activation::gelu_tanh: gelu_glu(context, gate, up); break;
    case Activation::clamped_swiglu: clamped_swiglu(context, gate, up); break;
  }
}

void run_experts(CpuContext& context, const ExpertsCall& call, const ExpertMatrices& work) {
  const ExpertsPlan& plan = call.plan;
  const int n_used = plan.rule.n_used;
  std::fill_n(call.sum.data, call.sum.rows * call.sum.cols, 0.0f);
  std::vector<std::vector<int64_t>> of_expert(call.experts.size());  // routes, token by token
  for (int64_t i = 0; i < ssize(call.routes); ++i)
    if (const int expert = call.routes[size_t(i)].expert - call.first; expert >= 0 && expert < ssize(call.experts))
      of_expert[size_t(expert)].push_back(i);
  for (size_t expert = 0; expert < call.experts.size(); ++expert) {
    const std::vector<int64_t>& of = of_expert[expert];
    if (of.empty()) continue;
    const auto m = ssize(of);
    const View2<float> in = work.in.slice(0, m), out = work.out.slice(0, m), gate(work.gate.data, m, plan.d_ff),
                       up(work.up.data, m, plan.d_ff);
    for (int64_t i = 0; i < m; ++i) std::ranges::copy(call.x.row(of[size_t(i)] / n_used), in.row(i).begin());
    const ExpertWeights& own = call.experts[expert];
    if (plan.gated) linear(context, in, {{&own.gate, gate}, {&own.up, up}});
    else linear(context, own.up, in, gate);
    if (plan.biases) {
      add_bias(context, gate, own.gate_bias.data());
      add_bias(context, up, own.up_bias.data());
    }
    if (plan.gated) activate(context, plan.activation, gate, up);
    else relu2(context, gate);
    linear(context, own.down, gate, out);
    if (plan.biases) add_bias(context, out, own.down_bias.data());
    for (int64_t i = 0; i < m; ++i) {
      const float weight = call.routes[size_t(of[size_t(i)])].weight;
      const std::span<float> to = call.sum.row(of[size_t(i)] / n_used);
      for (size_t d = 0; d < to.size(); ++d) to[d] += weight * out(i, int64_t(d));
    }
  }
}

void HostExperts::run(int layer, const Call& call) noexcept {
  const ExpertsPlan& plan = plan_.layers[size_t(layer)].experts;
  const int64_t n = call.n_tokens, d = plan_.d_model;
  const View2<float> sum(call.sum, n, d);
  try {
    routes_.resize(size_t(n * plan.rule.n_used));
    for (size_t i = 0; i < routes_.size(); ++i) routes_[i] = {call.experts[i], call.weights[i]};
    float* const work = buffer_.ensure<float>(2 * n * (d + plan.d_ff));
    run_experts(context_,
                {.plan = plan,
                 .experts = weights_.layers[size_t(layer)].experts,
                 .x = {call.x, n, d},
                 .routes = routes_,
                 .sum = sum},
                {.in = {work, n, d},
                 .out = {work + n * d, n, d},
                 .gate = {work + 2 * n * d, n, plan.d_ff},
                 .up = {work + n * (2 * d + plan.d_ff), n, plan.d_ff}});
  } catch (...) {
    std::fill_n(sum.data, n * d, std::numeric_limits<float>::quiet_NaN());
    const std::scoped_lock lock(mutex_);
    error_ = std::current_exception();
  }
}

void HostExperts::rethrow() {
  const std::scoped_lock lock(mutex_);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace ridge
