// The search for a cache whose layers and sides have formats of their own: what each side of each layer costs in KL
// divergence when it alone is coded, then the exact choice of formats within a budget, then its divergence on a text
// that it was not searched on.
//
// The divergence of a cache is taken to be the sum of what its sides add to a floor. That is so for small independent
// errors: the divergence is quadratic in them, and products of independent ones vanish in the mean. The floor is what
// any change at all costs where activations are rounded to integers: a side alone in f32 shows it, and several changes
// do not add it twice. Whether the sum holds is measured.
#pragma once

#include <cstdint>

#include "lab/decide/gates.h"
#include "op/cache/tile_order.h"

namespace ridge::lab {

/// One side of one layer with attention.
struct SearchItem {
  int layer = 0;
  KvSide side = KvSide::k;
  std::vector<double> bytes;  ///< at n_ctx positions, in each of the sides' formats, then in f16
};

/// Question of a search. The cells to measure follow from it. Formats are sides as kv_side_text() writes them.
struct SearchQuestion {
  std::string path, corpus;        ///< the text, and its xxh64
  int n_ctx = 0, chunks = 0;       ///< windows of the text
  std::vector<std::string> sides;  ///< formats that a side may have, f16 left out
  std::vector<SearchItem> items;   ///< K and V of every layer with attention
  double values = 0;         ///< of all items at n_ctx positions of the decision; sliding layers hold their window
  double kld_budget = 0;     ///< of the allocation with the fewest bits; 0: none
  std::vector<double> bits;  ///< limits of allocations with the least divergence, rising
};

/// The side that shows the floor: it changes next to nothing.
inline constexpr const char* kFloorSide = "f32";
/// Formats in which a side must be measured alone: those of the question, and the floor.
std::vector<std::string> sides_alone(const SearchQuestion& s);
/// Divergence of a side alone, which is as `text` says: prefill path, the other sides and layers in f16.
std::string side_alone(int layer, KvSide side, const std::string& text);
Row sensitivity_cell(const DecisionQuestion& q, const SearchQuestion& s, const std::string& kv);

/// Where two texts share a run of tokens this long they are one text.
inline constexpr int kSharedRun = 64;
/// The first position in `held_out` from which on a run of n tokens also is in `searched`; nothing when none does.
std::optional<int64_t> shared_run(std::span<const int32_t> searched, std::span<const int32_t> held_out, int n);

/// The allocations of the question, from sensitivities, and what rows of the decision's text say of them and of the
/// uniform pairs that they are compared with (quality_cell()). Pure.
SearchRecord search(std::span<const Row> rows, const DecisionQuestion& q, const SearchQuestion& s);
/// All caches of a search whose quality must be known, each once.
std::vector<std::string> searched_caches(const SearchRecord& record);
/// The allocation of the divergence budget; empty without one.
std::string budget_cache(const SearchRecord& record);

/// Puts a search into a record, with a sentence for a person.
void add_search(DecisionRecord& record, SearchRecord search);

/// One row a point, and one a uniform pair, for tables.
std::vector<Row> search_rows(const DecisionQuestion& q, const SearchRecord& record);

}  // namespace ridge::lab
