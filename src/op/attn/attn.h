// Attention over a KV cache in any format: new queries of any number of sequences against the rows in their pages and
// slots (op/cache/tiles.h).
//
// A query sees rows coded or exact by its own position alone, and every sum runs in an order that depends on positions
// alone: the result for a query is the same bits alone, in a prompt and beside other sequences, whatever the threads.
#pragma once

#include <optional>

#include "base/view.h"
#include "op/cache/layout.h"
#include "op/cpu.h"

namespace ridge {

/// Queries of one layer: row r of a span stands at position n_past + r and sees its own and all earlier positions,
/// which the caches hold already (kv_append).
struct Attention {
  int n_heads = 0;                     ///< query heads; a multiple of the kv heads
  float scale = 0;                     ///< on the scores, usually 1 / sqrt(head_dim)
  const float* sink_logits = nullptr;  ///< [n_heads]: the score of a key without a value, of every head; null: none
  KvTiles k, v;                        ///< v is k where the rows of K serve as V
  std::span<const KvSpan> spans;       ///< no more rows each than most_rows_at_once()
  View2<const float> q;                ///< [rows, n_heads * head_dim], not in cache space
  View2<float> out;                    ///< as q; where v is k, channels in which a centre turns lack it

  int group() const { return n_heads / k.n_kv_heads; }
  /// The first position that a query sees when the cache holds n_keys up to its own.
  int first_key(int n_keys) const { return k.first_seen(n_keys); }
};

/// Bytes and flops: of each span the cached rows once, queries and outputs once, the pairs that causality leaves.
Work attention_work(const Attention& a);

struct AttentionVariant {
  std::string_view name;
  Isa isa;
  Support (*supports)(const Attention& a);
  void (*run)(CpuContext& context, const Attention& a);
  /// Scratch of run() with the spans of `a` n_times; null: none.
  ScratchBytes (*scratch_bytes)(const Attention& a, int64_t n_times, int n_threads) = nullptr;
  bool rounds = false;  ///< multiplies integers: queries, weights and levels as int_rounding() says
};
std::span<const AttentionVariant> attention_variants();

/// How a kernel that `rounds` treats rows of a format. All errors are random in sign from value to value.
struct IntRounding {
  double query_steps = 0;   ///< of a head's largest |q|
  double weight_steps = 0;  ///< of the largest weight (probability times scale) of 64 keys; the bottom is 0
  double level_error = 0;   ///< root mean square, relative to the root mean square of the levels
};
/// Formats of 8 bits and less; none for other formats or head sizes: their rows meet floats in every kernel.
std::optional<IntRounding> int_rounding(const KvFormat& format, int head_dim);

void attention(CpuContext& context, const Attention& a);

/// A problem without rows, for asking which kernels serve it and what it moves: the newest n_queries of a sequence with
/// n_keys.
class AttentionProblem {
 public:
  AttentionProblem(const KvLayerConfig& layer, int n_heads, int n_keys, int n_queries = 1);
  const Attention& get() const { return a_; }

 private:
  KvSpan span_;
  Attention a_;
};

}  // namespace ridge
