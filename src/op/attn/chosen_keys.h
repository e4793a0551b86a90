// Attention over the keys that each query chooses (DeepSeek-V3.2, GLM-5): a token has one small row in an index; a
// query scores the rows of all positions that it sees, and attends to the best top_k.
#pragma once

#include <span>
#include <vector>

#include "op/attn/attn.h"

namespace ridge {

struct KeyIndex {
  int n_heads = 0;
  int top_k = 0;               ///< a query that sees no more attends to all
  KvTiles keys;                ///< one head: rows of the index, which no rotation turns and no centre moves
  View2<const float> q;        ///< [rows, n_heads * keys.head_dim]
  View2<const float> weights;  ///< [rows, n_heads]
};

/// Positions below n with the top_k largest sums over heads of weight * max(0, q . key), in rising order, as row `row`
/// of q scores them; of equal sums the earlier positions. A sum that is not a number is the smallest. Models also
/// divide the sums by square roots of sizes, which changes no choice.
std::vector<int32_t> choose_keys(CpuContext& context, const KeyIndex& index, const KvSpan& span, int row, int n);

/// Floats that attention_over_chosen() works in.
int64_t chosen_rows_floats(int top_k, int head_dim);
/// The cache of f32 rows that attention reads once they are gathered.
KvLayerConfig chosen_rows_config(int head_dim);

/// attention() of queries that see no more than top_k positions; of the others over the chosen rows, which are
/// gathered into `rows` [chosen_rows_floats()] first, query by query. K has one head and is V.
void attention_over_chosen(CpuContext& context, const Attention& a, const KeyIndex& index, std::span<float> rows);

}  // namespace ridge
