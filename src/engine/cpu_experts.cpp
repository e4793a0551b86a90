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

namespace {

/// Rows that experts are multiplied together for, as many as eight tokens of eight experts have: matmuls of one row or
/// a few are too small for all threads. An expert of more rows is on its own.
constexpr int64_t kTogether = 64;

/// An expert of a group: its rows, and the choices that they are for.
struct OfExpert {
  const ExpertWeights* expert;
  int64_t first;
  std::span<const int64_t> routes;
};

/// Work matrices of a group of experts.
struct Matrices {
  View2<float> in, out;   // [rows, d_model]
  View2<float> gate, up;  // [rows, d_ff]
};

/// out = the experts of their rows of x, or of the one row that all read.
void apply(CpuContext& context, const ExpertsPlan& plan, View2<const float> x, std::span<const OfExpert> experts,
           const Matrices& work) {
  std::vector<LinearOutput> products;
  const auto rows = [](const View2<float>& of, const OfExpert& one) { return of.slice(one.first, ssize(one.routes)); };
  const auto add_biases = [&](std::vector<float> ExpertWeights::*bias, const View2<float>& to) {
    for (const OfExpert& one : experts)
      if (plan.biases) add_bias(context, rows(to, one), (one.expert->*bias).data());
  };
  for (const OfExpert& one : experts) {
    const int64_t first = x.rows == 1 ? 0 : one.first;
    if (plan.gated) products.push_back({&one.expert->gate, rows(work.gate, one), first});
    products.push_back({&one.expert->up, rows(plan.gated ? work.up : work.gate, one), first});
  }
  linear(context, x, products);
  if (plan.gated) add_biases(&ExpertWeights::gate_bias, work.gate);
  add_biases(&ExpertWeights::up_bias, plan.gated ? work.up : work.gate);
  if (plan.gated) activate(context, plan.activation, work.gate, work.up);
  else relu2(context, work.gate);
  products.clear();
  for (const OfExpert& one : experts) products.push_back({&one.expert->down, rows(work.out, one), one.first});
  linear(context, work.gate, products);
  add_biases(&ExpertWeights::down_bias, work.out);
}

}  // namespace

int64_t expert_rows(const ExpertsPlan& plan, int64_t n) {
  const int64_t choices = n * plan.rule.n_used;
  return choices <= kTogether ? choices : std::max(n, kTogether);
}

void run_experts(CpuContext& context, const ExpertsCall& call, float* work) {
  const ExpertsPlan& plan = call.plan;
  const int64_t n_used = plan.rule.n_used, n = call.sum.rows, d = call.sum.cols, most = expert_rows(plan, n);
  std::fill_n(call.sum.data, n * d, 0.0f);
  std::vector<std::vector<int64_t>> of_expert(call.experts.size());  // routes, token by token
  for (int64_t i = 0; i < ssize(call.routes); ++i)
    if (const int expert = call.routes[size_t(i)].expert - call.first; expert >= 0 && expert < ssize(call.experts))
      of_expert[size_t(expert)].push_back(i);
  std::vector<OfExpert> group;
  int64_t n_rows = 0;
  const auto finish = [&] {
    if (group.empty()) return;
    const Matrices of_group{.in = {work, n_rows, d},
                            .out = {work + most * d, n_rows, d},
                            .gate = {work + 2 * most * d, n_rows, plan.d_ff},
                            .up = {work + most * (2 * d + plan.d_ff), n_rows, plan.d_ff}};
    for (const OfExpert& one : group)
      for (int64_t i = 0; n > 1 && i < ssize(one.routes); ++i)
        std::ranges::copy(call.x.row(one.routes[size_t(i)] / n_used), of_group.in.row(one.first + i).begin());
    apply(context, plan, n > 1 ? View2<const float>(of_group.in) : call.x, group, of_group);
    for (const OfExpert& one : group)
      for (int64_t i = 0; i < ssize(one.routes); ++i) {
        const int64_t route = one.routes[size_t(i)];
        const float weight = call.routes[size_t(route)].weight;
        const std::span<float> to = call.sum.row(route / n_used);
        for (size_t c = 0; c < to.size(); ++c) to[c] += weight * of_group.out(one.first + i, int64_t(c));
      }
    group.clear();
    n_rows = 0;
  };
  for (size_t expert = 0; expert < call.experts.size(); ++expert) {
    const std::vector<int64_t>& routes = of_expert[expert];
    if (routes.empty()) continue;
    if (n_rows + ssize(routes) > std::min(most, kTogether)) finish();
    group.push_back({&call.experts[expert], n_rows, routes});
    n_rows += ssize(routes);
  }
  finish();
}

void HostExperts::run(int layer, const Call& call) noexcept {
  const ExpertsPlan& plan = plan_.layers[size_t(layer)].experts;
  const int64_t n = call.n_tokens, d = plan_.d_model;
  const View2<float> sum(call.sum, n, d);
  try {
    routes_.resize(size_t(n * plan.rule.n_used));
    for (size_t i = 0; i < routes_.size(); ++i) routes_[i] = {call.experts[i], call.weights[i]};
    run_experts(context_,
                {.plan = plan,
                 .experts = weights_.layers[size_t(layer)].experts,
                 .x = {call.x, n, d},
                 .routes = routes_,
                 .sum = sum},
                buffer_.ensure<float>(expert_floats(plan, d, n)));
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
