// The part of a model that one of several ranks has: heads, columns of the feed-forward, experts, rows of the output
// matrix. q, k, v, gate and up are cut between their rows; o and down between their columns, where blocks of the weight
// format begin, so that a rank's matmul is a summand of the whole one; the embedding and norms are on every rank. Of
// the gated delta rule a rank has key heads and the value heads that read them (delta_part.h).
//
// Where o and down read a whole row, because a norm stands in front or activations are rounded to int8 by row (BitNet),
// they are cut between their rows: ranks exchange what they read, and the columns that each of them makes.
//
// Ranks may form stages, each of which has some layers: layer i of n is in the stage s for which
// s n / S <= i < (s + 1) n / S, rounded down. Within a stage its layers are cut as above. ModelEnds says who has the
// output matrix.
#pragma once

#include "base/extent.h"
#include "model/weights.h"
#include "op/cache/host_memory.h"
#include "op/cache/image_parts.h"

namespace ridge {

/// Who has the embedding and the output matrix of a model in stages.
enum class ModelEnds : uint8_t {
  everywhere,  ///< every rank the embedding, and a part of the output
  in_stages    ///< the first stage the embedding, ranks of the last one parts of the output: as many as without stages
};

/// Rank r of `size` in a stage has [borders[r], borders[r + 1]) of each of these.
struct ModelSlice {
  int rank = 0, size = 1;       ///< in the stage
  int stage = 0, n_stages = 1;  ///< rank r of stage s is rank s * size + r of all
  ModelEnds ends = ModelEnds::everywhere;
  Config whole;                     ///< of the model before it was cut
  std::vector<int64_t> layers;      ///< stage s has [layers[s], layers[s + 1]): [n_stages + 1]
  int kv_copies = 1;                ///< consecutive ranks that have the same kv heads, in the layer where most do
  bool gathers = false;             ///< o and down are cut between rows
  std::vector<int64_t> q, kv;       ///< columns of queries and attention, and of k: [size + 1]
  std::vector<int64_t> ff, shared;  ///< columns of the dense feed-forward, of the shared expert; or empty
  /// Columns of every expert, so that ranks have the same work whichever experts a token takes; where the blocks of the
  /// weight format are too few for that, numbers of whole experts. The other one is empty, and both without experts.
  std::vector<int64_t> expert_ff, experts;
  std::vector<int64_t> model;  ///< columns of the residual stream
  std::vector<int64_t> vocab;  ///< rows of the output, of all ranks: [n_ranks() + 1]

  int n_ranks() const { return size * n_stages; }
  /// Number of the rank of a stage that has this one's place there.
  int rank_in(int of_stage) const { return of_stage * size + rank; }
  /// Consecutive ranks that have the same kv heads of a layer.
  int kv_copies_of(int layer) const;
  int stage_of(int layer) const;
  bool has_layer(int layer) const { return stage_of(layer) == stage; }
  Extent own_vocab() const { return part_of(vocab, rank_in(stage)); }
  /// First expert of a layer on this rank.
  int64_t first_expert() const { return experts.empty() ? 0 : first(experts); }
  /// Experts of a token that the matrices of this rank amount to, at most, out of the n_used that it takes.
  int experts_used(int n_used) const { return experts.empty() ? n_used : (n_used + size - 1) / size; }
  int64_t first(const std::vector<int64_t>& borders) const { return part_of(borders, rank).first; }
  int64_t count(const std::vector<int64_t>& borders) const { return part_of(borders, rank).count; }
  static Extent part_of(const std::vector<int64_t>& borders, int i) {
    return {borders[size_t(i)], borders[size_t(i) + 1] - borders[size_t(i)]};
  }
};

/// Borders of n things in `size` nearly equal parts that begin at multiples of `unit`; a part may be empty.
std::vector<int64_t> slice_borders(int64_t n, int64_t unit, int size);

/// Rows [first, first + count) of a matrix, where they are.
Linear row_slice(const Linear& m, int64_t first, int64_t count);
/// Rows of a matrix, one extent after the other: where they are, or copied into a buffer when there are several
/// extents.
Linear row_slice(const Linear& m, std::span<const Extent> rows, std::vector<AlignedBuffer>& buffers);
/// Columns of a matrix, one extent after the other, each of whole groups of the format, copied into a buffer.
Linear column_slice(const Linear& m, std::span<const Extent> columns, std::vector<AlignedBuffer>& buffers);
Linear column_slice(const Linear& m, int64_t first, int64_t count, std::vector<AlignedBuffer>& buffers);

/// How a model that was just loaded lies on `n_ranks` ranks in `n_stages` stages, as rank `rank` of all sees it. Fails
/// with usage, naming what cannot be cut: kinds of layers, numbers of heads, blocks that do not end where a part does,
/// fewer layers than stages.
Result<ModelSlice> plan_slice(const Config& config, const Weights& weights, int rank, int n_ranks, int n_stages = 1,
                              ModelEnds ends = ModelEnds::everywhere);
/// Copies the descriptions of matrices and vectors, to make a slice of. Their bytes stay with `whole`.
Weights view_of(const Weights& whole);
/// Makes configuration and weights those of the slice. Matrices of several layers with the same rows stay one in
/// memory. n_params, stored_bytes, vocab_size and n_experts stay the whole model's. What all ranks together add once
/// (biases of o and of experts' outputs) is zero on all ranks but one. `shapes_only`: what would be copied gets no
/// rows.
void apply_slice(const ModelSlice& slice, Config& config, Weights& weights, bool shapes_only = false);

/// Parts of all sides of the model's caches on a rank, [2 n_layers]: kv heads, and values of states. `rank` counts the
/// ranks of all stages.
std::vector<SidePart> side_parts(const ModelSlice& slice, int rank);
/// The caches of a rank, and what weighted rounding needs of them, of those of the whole model: `part` are the rank's
/// sides, K and V of each of these layers. No metrics: none.
std::vector<KvLayerConfig> layers_of_part(std::span<const KvLayerConfig> whole, std::span<const SidePart> part);
std::vector<KvMetricView> metrics_of_part(std::span<const KvLayerConfig> whole, std::span<const KvMetricView> metrics,
                                          std::span<const SidePart> part);

}  // namespace ridge
