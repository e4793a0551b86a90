// Memory that steps of the CPU backend work in: the shape of every buffer, which the backend and the byte plan share,
// and how large buffers and kernel scratch become.
#pragma once

#include "base/enum_array.h"
#include "engine/backend.h"
#include "model/slice.h"
#include "op/cache/layout.h"

namespace ridge {

/// Matrices of float32 for a step of n tokens; cpu_workspace_floats() has the sizes. Layers share them.
enum class CpuBuffer : uint8_t {
  x,              ///< residual stream [n, d_model]
  h,              ///< what a block reads and returns [n, d_model]
  q,              ///< [n, q_dim]
  attn,           ///< what attention returns [n, q_dim]
  k,              ///< [n, kv_dim]
  v,              ///< [n, kv_dim]
  gate,           ///< [n, d_ff]
  up,             ///< [n, d_ff]
  joined,         ///< of an MTP head: embeddings beside hidden states [n, 2 d_model]
  normed,         ///< of an MTP head: normed hidden states; where blocks are parallel: what both read; what
                  ///< experts beside a dense feed-forward read [n, d_model]
  q_gate,         ///< queries beside their gates [n, 2 q_dim]
  latent_q,       ///< queries before they enter the latent space [n, n_heads, query_dim]
  latent_v,       ///< of latent attention: q of low rank [n, q_rank], later values [n, n_heads, value_dim]
  index_q,        ///< of a choice of keys: queries of the index [n, index_heads, index_dim]; its key is in v
  index_weights,  ///< and weights of its heads [n, index_heads]
  chosen,         ///< and rows of K that one query chose (chosen_rows_floats())
  delta_qkv,      ///< of the gated delta rule: [n, channels]; of other states: their input projection [n, columns]
  delta_z,        ///< [n, values]; of Mamba2 [n, inner]
  delta_a,        ///< [n, n_value_heads]
  delta_b,        ///< [n, n_value_heads]
  delta_out,      ///< [n, values]; of Mamba2 [n, inner], of a short convolution [n, d_model]
  scores,         ///< of experts [n, n_experts]
  expert_work,    ///< of the experts: expert_floats() (engine/cpu_experts.h)
  expert_sum,     ///< of all experts [n, d_model]
  layer_inputs,   ///< what layers get of a token [n, n_layers, d_input]
  layer_gate,     ///< and its gate [n, d_input]
  passed,         ///< where layers share K and V: the residual stream of all passes of a step [n, d_model]
  whole,          ///< of several ranks: columns of all ranks that a matmul or a norm reads [n, all columns]
  columns,        ///< of several ranks: this rank's columns of a matmul [n, n_out], of logits [n_logits, n_out]
  count,
};
template <class Buffer>
using CpuWorkspace = EnumArray<CpuBuffer, Buffer>;

/// Model data that the buffer sizes of steps follow from. Only formats and shapes of matrices count. With several ranks
/// they are those of `slice`, which is null without ranks.
struct CpuStepModel {
  const ModelPlan& plan;
  const Weights& weights;
  const ModelSlice* slice = nullptr;
};

/// Floats of each buffer in a step of n tokens with n_logits rows of logits.
CpuWorkspace<int64_t> cpu_workspace_floats(const CpuStepModel& model, int64_t n, int64_t n_logits);

/// A step: so many sequences, each with so many new tokens behind n_past.
struct StepShape {
  int n_seqs = 1, n_tokens = 1, n_past = 0;
  int n_logits = 1;  ///< rows of logits
};
struct PlannedBuffers : StepBuffers {
  int64_t logits = 0;  ///< Outputs::bytes()
};

/// After these steps, in this order, from empty buffers, with the kernels that `isa` selects. Exact but for the tokens
/// that each expert gets, which are taken to be twice an even share.
PlannedBuffers plan_step_buffers(const CpuStepModel& model, std::span<const KvLayerConfig> layers, Isa isa,
                                 int n_threads, std::span<const StepShape> steps);

}  // namespace ridge
