#include "model/expert_place.h"

#include <algorithm>

namespace ridge {
namespace {

constexpr Linear ExpertWeights::*kMatrices[] = {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down};

/// fn(matrix) for each matrix of an expert; experts without a gate have two.
template <class Expert, class Fn>
void for_each_of(Expert& expert, const Fn& fn) {
  for (const auto matrix : kMatrices)
    if ((expert.*matrix).format) fn(expert.*matrix);
}

int64_t stored_bytes(const ExpertWeights& expert) {
  int64_t bytes = 0;
  for_each_of(expert, [&](const Linear& m) { bytes += m.bytes(); });
  return bytes;
}

void place_cache(double gib, const Weights& weights, ModelPlan& plan) {
  constexpr double kGib = double(int64_t(1) << 30);
  int64_t of_one = 0;  // an expert of each layer on the host
  for (size_t i = 0; i < plan.layers.size(); ++i)
    if (plan.layers[i].experts.on_host) of_one += stored_bytes(weights.layers[i].experts[0]);
  if (of_one == 0)
    throw_error(ErrorKind::usage,
                "--moe-cache-gib is for experts in host memory, and all are on the GPU (leave it out, or add "
                "--n-cpu-moe N or --moe-device-gib X)");
  const auto n = int64_t(gib * kGib / double(of_one));
  if (n < 1)
    throw_error(ErrorKind::usage,
                "--moe-cache-gib {}: one expert of each layer in host memory takes {:.3g} GiB "
                "(give so much, or leave it out)",
                gib, double(of_one) / kGib);
  for (LayerPlan& layer : plan.layers)
    if (layer.experts.on_host) layer.experts.n_cached = int(std::min<int64_t>(n, layer.experts.n_experts));
}

}  // namespace

void place_experts(const ExpertPlace& place, const Weights& weights, ModelPlan& plan) {
  int64_t on_device = 0;
  for (const LayerWeights& layer : weights.layers)
    for (const ExpertWeights& expert : layer.experts) on_device += stored_bytes(expert);
  if (on_device == 0)
    throw_error(ErrorKind::usage,
                "the model has no layer with experts to keep in host memory (leave out --n-cpu-moe, "
                "--moe-device-gib and --moe-cache-gib)");
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    ExpertsPlan& experts = plan.layers[i].experts;
    const bool too_much = place.device_gib >= 0 && double(on_device) > place.device_gib * double(int64_t(1) << 30);
    experts.on_host = !weights.layers[i].experts.empty() && (int(i) < place.n_cpu_moe || too_much);
    if (!experts.on_host) continue;
    for (const ExpertWeights& expert : weights.layers[i].experts) on_device -= stored_bytes(expert);
  }
  if (place.cache_gib > 0) place_cache(place.cache_gib, weights, plan);
}

HostExpertBytes host_expert_bytes(const ModelPlan& plan, const Weights& weights, Isa isa) {
  HostExpertBytes sum;
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const ExpertsPlan& experts = plan.layers[i].experts;
    if (!experts.on_host) continue;
    if (sum.n_layers++ == 0) sum.n_experts = experts.n_experts, sum.n_cached = experts.n_cached;
    sum.step += stored_bytes(weights.layers[i].experts[0]) * experts.rule.n_used;
    for (const ExpertWeights& expert : weights.layers[i].experts)
      for_each_of(expert, [&](const Linear& m) {
        const int64_t panels = packed_bytes(m, isa);
        sum.memory += panels > 0 ? panels : m.bytes();
      });
  }
  return sum;
}

void pack_host_experts(CpuContext& context, const ModelPlan& plan, Weights& weights) {
  std::vector<NamedMatrix> all;
  for (size_t i = 0; i < plan.layers.size(); ++i)
    if (plan.layers[i].experts.on_host)
      for (ExpertWeights& expert : weights.layers[i].experts)
        for_each_of(expert, [&](Linear& m) { all.emplace_back(&m, "expert"); });
  pack_weights(context, weights, all);
}

}  // namespace ridge
