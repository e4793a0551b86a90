// Parts of a memory plan, common to the plan and its check: their names, and how their bytes are counted.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "lab/decide/plan.h"

namespace ridge::lab {

inline constexpr const char* kMatrices = "weights";
inline constexpr const char* kEmbedding = "embedding";
inline constexpr const char* kVectors = "norms and biases";
inline constexpr const char* kPageLists = "page lists";
inline constexpr const char* kMetrics = "rounding metrics";
inline constexpr const char* kActivations = "activations";
inline constexpr const char* kScratch = "kernel scratch";
inline constexpr const char* kLogits = "logits";
inline constexpr const char* kSampling = "sampling";
inline constexpr const char* kPacking = "packing while loading";
inline constexpr const char* kRounding = "allocator rounding";
inline constexpr const char* kGraphs = "graphs, driver";
inline constexpr const char* kContext = "driver context";
inline constexpr const char* kDraftWeights = "draft weights";
inline constexpr const char* kDraftCache = "draft KV";
inline constexpr const char* kDraftBuffers = "draft buffers";

/// The model's bytes, wherever they are: those that are held, not those of the file.
struct WeightBytes {
  int64_t matrices = 0;   ///< panels, and rows where kernels read rows
  int64_t embedding = 0;  ///< its rows
  int64_t vectors = 0;
};

/// Caches of one side, in all layers.
struct SideBytes {
  int64_t coded = 0, ring = 0, sinks = 0, centres = 0, states = 0;

  /// Adds the slots of a layer.
  void add_slots(const KvLayout& layout, SlotNumbers slots);
  int64_t total() const { return coded + ring + sinks + centres + states; }
  /// Adds the parts of a side, in the order of a plan; the states stand with K.
  void put(std::vector<PlanPart>& parts, KvSide side) const;
};

int64_t sum_of(std::span<const PlanPart> parts);
int64_t vector_bytes(const Weights& w);
/// Whether the rows of a matrix are in memory of the model's own, not in the mapping of a file.
bool in_buffers(const Weights& w, const Linear& m);
/// Embeddings that are read row by row: of tokens, and of layers where they have one.
int64_t embedding_bytes(const Weights& w);
/// Lists of a pool's pages. Pages that were given back keep their places in lists.
int64_t page_list_bytes(std::span<const KvLayerConfig> layers, PageNumbers n_pages);
/// New tokens of a sequence in a decode step: the one that was sampled, and the draft tokens behind it.
int step_tokens(const PlannedDraft* draft, std::span<const KvLayerConfig> layers, int n_ctx);
/// Slots of n_sessions sequences: steps with draft tokens go back, which states do by a history.
SlotNumbers planned_slots(const PlannedDraft* draft, std::span<const KvLayerConfig> layers, int n_sessions);
/// Whether the proposer reads the model's hidden states.
bool keeps_hidden(const PlannedDraft* draft);
/// Caches of a draft model, or of an MTP head.
std::vector<KvLayerConfig> draft_layers(const PlannedDraft& draft, int n_ctx);

/// check_plan() on a device.
PlanCheck check_device_plan(const std::string& path, const MemoryPlan& plan, const LoadOptions& place);

}  // namespace ridge::lab
