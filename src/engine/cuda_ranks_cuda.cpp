// Several CUDA devices as the ranks of one model: slices of the weights, a device, a stream and a thread each, and the
// links between the devices.
#include <array>
#include <numeric>

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

/// The groups that ranks in stages work in: those of a stage add up, those in the same place of two stages hand on the
/// residual stream, and all share logits.
std::vector<CudaRank> link_ranks(DeviceGroup& all, int n_stages, int64_t most_floats) {
  const int n_ranks = all.size(), size = n_ranks / n_stages;
  std::vector<CudaRank> ranks(static_cast<size_t>(n_ranks));
  for (int r = 0; r < n_ranks; ++r) ranks[size_t(r)].all = &all.rank(r);
  for (int first = 0; first < n_ranks && size > 1; first += size) {
    std::vector<int> of_stage(static_cast<size_t>(size));
    std::iota(of_stage.begin(), of_stage.end(), first);
    DeviceGroup& stage = n_stages == 1 ? all : all.part(of_stage, most_floats);
    for (int r = 0; r < size; ++r) ranks[size_t(first + r)].stage = &stage.rank(r);
  }
  for (int before = 0; before + size < n_ranks; ++before) {
    const int after = before + size;
    // Two ranks in two stages are all there are.
    DeviceGroup& pair = n_ranks == 2 ? all : all.part(std::array{before, after}, 0);
    ranks[size_t(before)].after = &pair.rank(0);
    ranks[size_t(after)].before = &pair.rank(1);
  }
  return ranks;
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(std::span<const int> devices, int n_stages, const Config& config,
                                           const Weights& weights, std::span<const std::string> kernels,
                                           double timeout_s) {
  const int n_ranks = int(devices.size());
  const int64_t most_floats = int64_t(kMostStepTokens) * config.d_model;
  const auto threads = std::make_shared<RankThreads>(n_ranks);
  const auto group =
      std::make_shared<DeviceGroup>(devices, DeviceGroupOptions{.forced = parse_device_kernels(kernels).kernels,
                                                                .timeout_s = timeout_s,
                                                                .most_floats = n_stages == 1 ? most_floats : 0});
  std::vector<CudaRank> links = link_ranks(*group, n_stages, most_floats);
  RankedParts parts{.threads = threads, .on_device = true, .keeps_alive = group};
  parts.check = [group] { group->rank(0).check(); };
  parts.end = [group] { group->end(); };
  parts.ranks.resize(size_t(n_ranks));
  parts.sides.resize(size_t(n_ranks));
  threads->for_all([&](int rank) {
    CudaRank& own = links[size_t(rank)];
    own.slice = plan_slice(config, weights, rank, n_ranks, n_stages, ModelEnds::in_stages).or_throw();
    own.meet = [t = threads.get()] { t->meet(); };
    Config own_config = config;
    Weights own_weights = view_of(weights);
    apply_slice(own.slice, own_config, own_weights);
    const ModelPlan plan = make_plan(own_config, weights.rope_factors, weights.long_rope_factors);
    parts.sides[size_t(rank)] = side_parts(own.slice, rank);
    parts.ranks[size_t(rank)] = make_cuda_backend(devices[size_t(rank)], plan, own_weights, kernels, std::move(own));
  });
  parts.name = name_of(parts.ranks);
  return make_ranked_backend(std::move(parts));
}

}  // namespace ridge
