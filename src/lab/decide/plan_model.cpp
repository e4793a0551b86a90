// Reads the parts of a model and of a proposer that a plan needs, before anything is loaded.
#include <algorithm>

#include "base/limits.h"
#include "engine/device_name.h"
#include "lab/decide/plan.h"
#include "model/expert_place.h"

namespace ridge::lab {
namespace {

/// The part of the model that the last rank of a stage has: parts are nearly equal, and the last one has what is left
/// over.
ModelSlice last_slice(const LoadedModel& model, int n_ranks, int n_stages, int stage, ModelEnds ends) {
  const int last = (stage + 1) * n_ranks / n_stages - 1;
  return plan_slice(model.config, model.weights, last, n_ranks, n_stages, ends).or_throw();
}

/// The stage whose matrices take most.
ModelSlice largest_slice(const LoadedModel& model, int n_ranks, int n_stages, ModelEnds ends) {
  int64_t most = -1;
  ModelSlice largest;
  for (int stage = 0; stage < n_stages; ++stage) {
    ModelSlice slice = last_slice(model, n_ranks, n_stages, stage, ends);
    Config config = model.config;
    Weights weights = view_of(model.weights);
    apply_slice(slice, config, weights, true);
    int64_t bytes = decode_matrix_bytes(weights, config.n_experts);
    if (ends == ModelEnds::in_stages) bytes += weights.embedding.bytes();
    if (bytes < most) continue;
    most = bytes;
    largest = std::move(slice);
  }
  return largest;
}

}  // namespace

PlannedModel plan_model(const std::string& path, const LoadOptions& place, int n_ranks, int n_stages) {
  constexpr std::string_view kSynth = "synth:";
  PlannedModel model{.place = place, .is_shape = path.starts_with(kSynth)};
  if (parse_device(place.device)) {
    if (!place.isa.empty())
      throw Error(ErrorKind::usage, "isa chooses kernels of the CPU: leave it out with device cuda");
  } else {
    model.isa = std::min(detect_isa(), find_isa(place.isa).or_throw());
    if (place.n_threads == 0) model.place.n_threads = available_processors();
  }
  CpuContext context(1, model.isa);
  model.loaded = model.is_shape
                     ? make_synth_model(context, path.substr(kSynth.size()), SynthMatrices::shapes).or_throw()
                     : load_model(path).or_throw();
  if (n_ranks > 1) {
    const ModelEnds ends = model.on_device() ? ModelEnds::in_stages : ModelEnds::everywhere;
    model.slice = largest_slice(model.loaded, n_ranks, n_stages, ends);
    apply_slice(*model.slice, model.loaded.config, model.loaded.weights, true);
  }
  model.plan = make_plan(model.config(), model.loaded.weights.rope_factors, model.loaded.weights.long_rope_factors);
  if (const ExpertPlace experts{place.n_cpu_moe, place.moe_device_gib, place.moe_cache_gib}; experts.any()) {
    if (!model.on_device() || n_ranks > 1)
      throw Error(ErrorKind::usage,
                  "experts stay in host memory where one GPU runs the rest: name one with --device, and "
                  "leave out --tp and --pp");
    place_experts(experts, model.loaded.weights, model.plan);
  }
  return model;
}

std::shared_ptr<const PlannedDraft> plan_draft(const PlannedModel& target, const std::string& type,
                                               const std::string& path, const KvChoice& kv, int depth) {
  const auto draft = std::make_shared<PlannedDraft>();
  draft->type = type;
  draft->path = path;
  draft->depth = depth;
  draft->kv = kv;
  if (type == "draft") {
    LoadOptions place = target.place;
    place.n_cpu_moe = 0, place.moe_device_gib = -1, place.moe_cache_gib = 0;  // as the command line has it
    draft->model = plan_model(path, place);
    if (draft->model->config().vocab_size > target.config().vocab_size)
      throw_error(ErrorKind::usage, "the draft model {} has a vocabulary of {}, the model one of {}", path,
                  draft->model->config().vocab_size, target.config().vocab_size);
  }
  if (type == "mtp") {
    CpuContext context(1, target.isa);
    draft->head = load_mtp_head(context, target.config(), target.loaded.weights, path).or_throw();
    draft->head_plan = head_plan(target.config(), target.loaded.weights);
  }
  return draft;
}

}  // namespace ridge::lab
