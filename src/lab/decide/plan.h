// What a model, its caches and its steps take of memory, and what a decode step must read: counted from the
// configuration and the headers of tensors, before anything is loaded.
//
// The plan is that of one pool: S sequences of CTX positions, steps of n_ubatch tokens while a prompt runs, then steps
// of a token a sequence, or of so many as a smaller model or an MTP head proposes and one more. Not in it: prefixes
// that a server keeps, lists of a few bytes a token, the program itself.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/kv_choice.h"
#include "lab/rows/results.h"
#include "model/mtp.h"

namespace ridge::lab {

/// A model as a plan sees it. Matrices of a file stay in their mapping and are not read, but for those that loading
/// converts (BitNet's, and packed ones of Hugging Face directories); of a shape there are none.
struct PlannedModel {
  LoadedModel loaded;
  ModelPlan plan;
  LoadOptions place;  ///< device, threads (counted) and kernels
  Isa isa = Isa::scalar;
  bool is_shape = false;
  std::optional<ModelSlice> slice;  ///< of the rank with the largest part, where several hold the model

  bool on_device() const { return place.device != "cpu"; }
  const Config& config() const { return loaded.config; }
};
/// Of one of n_ranks ranks in n_stages stages: the last one of the stage whose layers take most. Throws Error as
/// Model::load() does.
PlannedModel plan_model(const std::string& path, const LoadOptions& place, int n_ranks = 1, int n_stages = 1);

/// Who proposes draft tokens beside the model, as --spec-type has it: "lookup", "draft" (a smaller model) or "mtp" (a
/// head of the model's). Every session has a cache of its own there.
struct PlannedDraft {
  std::string type, path;
  int depth = 0;  ///< most draft tokens a step
  KvChoice kv;
  std::optional<PlannedModel> model;  ///< of draft
  MtpHead head;                       ///< of mtp, as loaded; of a shape its matrices have no rows
  ModelPlan head_plan;
};
/// Reads the smaller model as plan_model() does, and loads the head. Throws Error.
std::shared_ptr<const PlannedDraft> plan_draft(const PlannedModel& target, const std::string& type,
                                               const std::string& path, const KvChoice& kv, int depth);

/// One component.
struct PlanPart {
  std::string name;
  int64_t bytes = 0;
};

struct MemoryPlan {
  KvChoice kv;
  std::shared_ptr<const PlannedDraft> draft;  ///< null: nobody proposes
  int n_ctx = 0, n_sessions = 0, n_ubatch = 0;
  std::vector<PlanPart> parts;    ///< the same names in every plan of a device
  int64_t session_bytes = 0;      ///< one more sequence of n_ctx positions
  int64_t step_weight_bytes = 0;  ///< that a decode step reads, on a device there
  int64_t host_bytes = 0;         ///< of a device: experts that stay in host memory, not among the parts
  int64_t step_host_bytes = 0;    ///< and what a decode step of one token reads of them, where the device has none
  int n_host_experts = 0;         ///< of a layer there
  int n_cached_experts = 0;       ///< of these on the device as well, among its weights
  int64_t step_kv_bytes = 0;      ///< of all sequences, when they hold n_ctx positions

  int64_t total() const;
  int64_t of(std::string_view name) const;
  int64_t step_bytes() const { return step_weight_bytes + step_kv_bytes; }
  /// Tokens a second of all sequences together, when they hold n_ctx positions and reading is all that takes time. Not
  /// of a plan with experts in host memory, which has a bandwidth of its own.
  double tokens_per_second(double read_gb_s) const { return 1e9 * n_sessions * read_gb_s / double(step_bytes()); }
};

/// Throws usage for a cache that the model cannot have; n_ubatch 0: 512, on a GPU 2048.
MemoryPlan plan_memory(const PlannedModel& model, const KvChoice& kv, int n_ctx, int n_sessions, int n_ubatch,
                       std::shared_ptr<const PlannedDraft> draft = nullptr);

/// The largest context of n_sessions sequences, and the largest number of sequences of n_ctx positions, that fit; 0
/// where not even one does. Contexts end at 2^26.
int largest_context(const PlannedModel& model, const KvChoice& kv, int n_sessions, int n_ubatch, int64_t memory,
                    const std::shared_ptr<const PlannedDraft>& draft = nullptr);
int64_t most_sessions(const PlannedModel& model, const KvChoice& kv, int n_ctx, int n_ubatch, int64_t memory,
                      const std::shared_ptr<const PlannedDraft>& draft = nullptr);

/// Bytes that a model may use: what is available on the machine now, of a GPU all that it has.
int64_t usable_memory(const LoadOptions& place);

/// Formats that a plan shows when none are named: f16 and those of the shelf's that the model can have.
std::vector<KvChoice> planned_formats(const PlannedModel& model);

/// What was allocated for a plan, component by component, and the process's resident memory.
struct PlanCheck {
  std::vector<PlanPart> found;  ///< by the names of the plan's parts
  int64_t driver_bytes = 0;     ///< of a device: used there by its driver's number, context and all
  int64_t resident_bytes = 0;   ///< the process after the steps less the process before loading

  int64_t total() const;
  /// |found - planned| / found, of the totals.
  double difference(const MemoryPlan& plan) const;
};
inline constexpr double kPlanTolerance = 0.01;
/// Loads the model and its proposer, opens pools, fills their sequences, runs prompts and decode steps, and counts what
/// the buffers hold; of a device beside the driver's number of what is used there, which other processes count in. With
/// `ranks` all of them call it, and each counts its own.
PlanCheck check_plan(const std::string& path, const MemoryPlan& plan, const LoadOptions& place, Ranks* ranks = nullptr);

/// The read bandwidth of this machine, from the newest row of `ridge bench bandwidth` among these; nothing without one.
std::optional<double> stored_bandwidth_gb_s(std::span<const Row> rows, const LoadOptions& place);

Row to_row(const PlannedModel& model, const MemoryPlan& plan);

}  // namespace ridge::lab
