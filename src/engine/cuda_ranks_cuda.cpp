// Several CUDA devices as the ranks of one model: slices of the weights, a device, a stream and a thread each, and the
// links between the devices.
#include "engine/cuda_model.h"
#include "engine/cuda_step_buffers.h"
#include "engine/ranked_backend.h"

namespace ridge {
namespace {

/// "cuda:0,1 NVIDIA H200" of "cuda:0 NVIDIA H200" and "cuda:1 NVIDIA H200".
std::string name_of(const std::vector<std::unique_ptr<Backend>>& ranks) {
  std::string numbers, models;
  for (const auto& rank : ranks) {
    const std::string name = rank->name(), model = name.substr(name.find(' '));
    numbers += numbers.empty() ? name.substr(0, name.find(' ')) : "," + name.substr(5, name.find(' ') - 5);
    if (models.find(model) == std::string::npos) models += models.empty() ? model : " +" + model;
  }
  return numbers + models;
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(std::span<const int> devices, const Config& config, const Weights& weights,
                                           std::span<const std::string> kernels, double timeout_s) {
  const int n_ranks = int(devices.size());
  const auto threads = std::make_shared<RankThreads>(n_ranks);
  const auto group = std::make_shared<DeviceGroup>(
      devices, DeviceGroupOptions{.forced = parse_device_kernels(kernels).kernels,
                                  .timeout_s = timeout_s,
                                  .most_floats = int64_t(kMostStepTokens) * config.d_model});
  RankedParts parts{.threads = threads, .on_device = true, .keeps_alive = group};
  parts.check = [group] { group->rank(0).check(); };
  parts.end = [group] { group->end(); };
  parts.ranks.resize(size_t(n_ranks));
  parts.sides.resize(size_t(n_ranks));
  threads->for_all([&](int rank) {
    const ModelSlice slice = plan_slice(config, weights, rank, n_ranks).or_throw();
    Config own = config;
    Weights own_weights = view_of(weights);
    apply_slice(slice, own, own_weights);
    const ModelPlan plan = make_plan(own, weights.rope_factors, weights.long_rope_factors);
    parts.sides[size_t(rank)] = side_parts(slice, rank);
    parts.ranks[size_t(rank)] = make_cuda_backend(
        devices[size_t(rank)], plan, own_weights, kernels,
        CudaRank{.link = &group->rank(rank), .slice = slice, .meet = [t = threads.get()] { t->meet(); }});
  });
  parts.name = name_of(parts.ranks);
  return make_ranked_backend(std::move(parts));
}

}  // namespace ridge
