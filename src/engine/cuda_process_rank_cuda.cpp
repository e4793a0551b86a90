#include "engine/cuda_process_rank.h"

#include <cstring>

#include "engine/cuda_model.h"
#include "engine/cuda_step_buffers.h"
#include "engine/ranked_backend.h"
#include "op/collective/process_rank_cuda.h"

namespace ridge {
namespace {

/// The first rank's. What fails there fails on all ranks.
gpu::NcclId id_for_all(Ranks& ranks) {
  std::string own;
  if (ranks.is_first()) {
    const gpu::NcclId id = gpu::make_nccl_id();
    own.assign(reinterpret_cast<const char*>(id.data()), id.size());
  }
  const std::string first = ranks.gather(own, file_seconds(ranks)).front();
  gpu::NcclId id;
  RIDGE_CHECK(first.size() == id.size(), "an id of {} bytes", first.size());
  std::memcpy(id.data(), first.data(), id.size());
  return id;
}

/// All that this rank's caches hold.
std::vector<SidePart> own_sides(const ModelSlice& slice) {
  std::vector<SidePart> sides = side_parts(slice, slice.rank);
  for (SidePart& side : sides) {
    side.heads.first = 0;
    int64_t n = 0;
    for (const Extent& run : side.state) n += run.count;
    side.state = n > 0 ? std::vector<Extent>{{0, n}} : std::vector<Extent>();
  }
  return sides;
}

/// Ranks whose GPUs do not come to a step have nothing more to say to each other.
void or_fail(Ranks& ranks, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    ranks.fail(error.what());
    throw;
  }
}

}  // namespace

std::unique_ptr<Backend> make_cuda_process_rank(int device, const ModelPlan& plan, const Weights& weights,
                                                std::span<const std::string> kernels, Ranks& ranks,
                                                const ModelSlice& slice) {
  gpu::use_device(device);
  const gpu::NcclId id = id_for_all(ranks);
  const auto link = std::make_shared<ProcessRank>(
      id, ProcessRankOptions{.rank = slice.rank,
                             .n_ranks = slice.size,
                             .device = device,
                             .forced = parse_device_kernels(kernels).kernels,
                             .timeout_s = ranks.timeout_s(),
                             .start_s = file_seconds(ranks),
                             .most_floats = int64_t(kMostStepTokens) * plan.d_model,
                             .ends_together = !ranks.led(),  // who is led ends when it hears so
                             .name = [&ranks](int rank) { return ranks.name(rank); },
                             .ended = [&ranks] { return ranks.ended(); }});
  RankedParts parts{.threads = std::make_shared<RankThreads>(1), .on_device = true, .keeps_alive = link};
  parts.step = [link, &ranks](const std::function<void()>& queue) { or_fail(ranks, [&] { link->step(queue); }); };
  parts.check = [link, &ranks] { or_fail(ranks, [&] { link->check(); }); };
  parts.end = [link] { link->end(); };
  parts.sides.push_back(own_sides(slice));
  parts.ranks.push_back(make_cuda_backend(
      device, plan, weights, kernels, CudaRank{.all = link.get(), .stage = link.get(), .slice = slice, .meet = [] {}}));
  parts.name = parts.ranks[0]->name();
  return make_ranked_backend(std::move(parts));
}

}  // namespace ridge
