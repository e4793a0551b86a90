// Ranks that are led: the first one has the command (its clients, its clock, its terminal), the pool of sequences and a
// backend that stands for all ranks. The others follow: they hear what to do with their slice of the model and with the
// cache of their own heads, do it, and wait for more. A call that only changes memory goes with the next one that needs
// all ranks, so a step is one message: what pages and slots became since the last one, its tokens, and where their
// sequences are (decision 0013).
#pragma once

#include "engine/backend.h"
#include "engine/ranked_backend.h"
#include "rank/ranks.h"

namespace ridge {

/// Tells the others to load the model that the first rank is about to load. They give up the one before.
void lead_load(Ranks& ranks, const std::string& path, const LoadOptions& options);
/// Makes the backend of a rank's own slice; plan and weights live as long as it does.
using MakeRank = std::function<std::unique_ptr<Backend>(const ModelPlan& plan, Weights& weights)>;
/// The backend of all ranks, on the first one, whose slice is cut from the whole model here. All that is referred to
/// must outlive it.
std::unique_ptr<Backend> make_leading_backend(const Config& config, const Weights& weights, const ModelSlice& slice,
                                              Ranks& ranks, bool on_device, const MakeRank& make_own);
/// Ends follow() on the others.
void lead_end(Ranks& ranks);

/// Gives the path on this rank of a model that the first rank names by its own path.
using PathHere = std::function<std::string(const std::string& path)>;
/// Runs a following rank until the first one ends it. Without `path_here` models have the same path everywhere. Throws
/// Error where something fails here, or the first rank is gone.
void follow(Ranks& ranks, const PathHere& path_here = nullptr);

/// Allocated bytes of a cache's sides, K and V of each layer.
std::vector<int64_t> side_bytes(const KvMemory& memory);
/// The side_bytes() of a rank's own heads, or why its cache could not be opened: said to all, by rank. Returns the sums
/// of all ranks. What failed anywhere is thrown on the first rank, with the name of the rank, and nothing elsewhere.
std::vector<int64_t> agree_on_memory(Ranks& ranks, const Result<std::vector<int64_t>>& own);

/// Free memory of each rank, by rank. All ranks call it together.
std::vector<FreeMemory> exchange_free_memory(Ranks& ranks, const Backend& own);

}  // namespace ridge
