// The weights of a model, on one page, and what owns their bytes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "io/gguf.h"
#include "io/safetensors.h"
#include "io/tokenizer.h"
#include "model/config.h"
#include "op/linear.h"

namespace ridge {

/// Matrices as LayerWeights has them, of one expert.
struct ExpertWeights {
  Linear gate, up, down;
  std::vector<float> gate_bias, up_bias, down_bias;  // [n_out] each, or empty
};

/// Weights of the gated delta rule (op/delta/delta.h); its output projection is LayerWeights::o.
struct DeltaWeights {
  Linear qkv, z;               // [channels, d_model], [values, d_model]
  Linear a, b;                 // [n_value_heads, d_model]
  std::vector<float> conv;     // [kernel, channels]
  std::vector<float> decay;    // [n_value_heads]
  std::vector<float> dt_bias;  // [n_value_heads]
  std::vector<float> norm;     // [value_dim]
};

/// One transformer layer. Vectors are f32; absent ones are empty. Matrices are [n_out, n_in].
struct LayerWeights {
  std::vector<float> attn_norm;  // [d_model]
  DeltaWeights delta;            // of a layer without q, k and v
  // Input projection of a short convolution, [3 d_model, d_model]: rows of b, of c and of x; of Mamba2, [columns(),
  // d_model].
  Linear conv_in;
  std::vector<float> conv;                                 // [conv_kernel, d_model], or [kernel, channels()]
  std::vector<float> conv_bias, mamba_norm;                // [channels()], [inner()]
  std::vector<float> mamba_decay, mamba_d, mamba_dt_bias;  // [n_heads]
  Linear q;                                                // [Config::q_rows(layer), d_model]
  Linear k, v;                                             // [n_kv_heads * head_dim, d_model]
  std::vector<float> q_bias, k_bias, v_bias;
  std::vector<float> q_norm, k_norm;  // [head_dim], or [n_heads * head_dim] and [n_kv_heads * head_dim]
  // Latent attention, where k and v have no rows; without q_a, q is [n_heads * query_dim, d_model].
  Linear q_a, q_b;               // [q_rank, d_model], [n_heads * query_dim, q_rank]
  std::vector<float> q_a_norm;   // [q_rank]
  Linear kv_a;                   // [kv_rank + rope_dim, d_model]
  std::vector<float> kv_a_norm;  // [kv_rank]
  std::vector<Linear> k_b, v_b;  // of each head: [kv_rank, nope_dim], [value_dim, kv_rank]
  Linear index_q, index_k;       // of a choice of keys: [index_heads * index_dim, q_rank], [index_dim, d_model]
  Linear index_weights;          // [index_heads, d_model]
  std::vector<float> index_norm, index_norm_bias;  // [index_dim]
  std::vector<float> attn_sub_norm;                // [n_heads * head_dim]
  Linear o;                           // [d_model, n_heads * head_dim]; latent: [d_model, n_heads * value_dim]
  std::vector<float> attn_post_norm;  // [d_model]
  std::vector<float> o_bias;          // [d_model]
  std::vector<float> sink_logits;     // [n_heads]
  std::vector<float> ffn_norm;        // [d_model]
  Linear gate, up;  // [d_ff, d_model]; with experts: of the shared one, and without rows if there is none
  std::vector<float> gate_bias, up_bias;  // [d_ff]
  std::vector<float> ffn_sub_norm;        // [d_ff]
  Linear down;                            // [d_model, d_ff]
  std::vector<float> down_bias;           // [d_model]
  std::vector<float> ffn_post_norm;       // [d_model]
  std::vector<float> layer_scale;         // [1]
  Linear input_gate, input_proj;          // [d_layer_input, d_model], [d_model, d_layer_input]
  std::vector<float> input_post_norm;     // [d_model]
  // Norms and scales of experts with a dense feed-forward beside them.
  std::vector<float> expert_norm, dense_post_norm, expert_post_norm;  // [d_model]
  std::vector<float> router_scale, expert_scale;                      // [d_model], [n_experts]
  Linear router;                                                      // [n_experts, d_model]
  std::vector<float> router_bias;                                     // [n_experts]
  std::vector<float> choice_bias;                                     // [n_experts]
  std::vector<ExpertWeights> experts;
  std::vector<float> shared_gate;  // [d_model]
};

struct Weights {
  Weights() = default;
  Weights(Weights&&) = default;  // Linears point into buffers and source, which keep their addresses when moved
  Weights& operator=(Weights&&) = default;

  Linear embedding;        // [vocab_size, d_model], read row by row
  Linear layer_embedding;  // of what layers get of a token: [vocab_size, n_layers * d_layer_input], read row by row
  Linear layer_inputs;     // and of what they get of its embedding: [n_layers * d_layer_input, d_model]
  std::vector<float> layer_inputs_norm;  // [d_layer_input]
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;        // [d_model]
  Linear output;                         // [vocab_size, d_model]; the embedding when tied
  std::vector<float> rope_factors;       // [rope_dim / 2] or empty; of LongRoPE: for a short context
  std::vector<float> long_rope_factors;  // of LongRoPE: for a long context; else empty
  // MTP head (model/mtp.h): its layer reads embeddings joined with hidden states. Without rows in other models.
  Linear join;                                               // [d_model, 2 d_model]
  std::vector<float> join_embedding_norm, join_hidden_norm;  // [d_model]

  // Owners of what the Linears point into.
  std::variant<std::monostate, io::GgufFile, io::HfDirectory> source;
  std::vector<AlignedBuffer> buffers;
  std::shared_ptr<const Weights> head;           // of a synth: model with an MTP head: its join, its layer and its norm
  const WeightFormat* ternary_source = nullptr;  // on-disk format of matrices repacked to i2_s; null: none were
  int64_t stored_bytes = 0;                      // all weight tensors as stored
  int64_t n_params = 0;
};

/// A model as loaded: configuration, weights, tokenizer (absent where a model has token ids only).
struct LoadedModel {
  Config config;
  Weights weights;
  std::optional<io::Tokenizer> tokenizer;
  std::vector<std::string> unread_fields;  // of config.json, that no row of model/arch/keys.h knows
  std::string packing;                     // what unpacking a checkpoint's matrices did (io/packed.h), or ""
};

/// Calls fn(linear, name) for every matrix that decode steps read. Of a layer's experts a step reads some:
/// decode_matrix_bytes() counts those.
void for_each_matrix(Weights& weights, const std::function<void(Linear&, std::string_view name)>& fn);
void for_each_matrix(const Weights& weights, const std::function<void(const Linear&, std::string_view name)>& fn);

/// Calls fn() for every vector: norms, biases, factors of RoPE and what else layers have.
void for_each_vector(const Weights& weights, const std::function<void(const std::vector<float>&)>& fn);

/// Bytes of the matrices that a decode step of one token reads; n_used of a layer's experts.
int64_t decode_matrix_bytes(const Weights& weights, int n_used);

/// The tensor of the file whose bytes the matrix is in; of one that loading converted, what it is and of which layer.
std::string matrix_name(const Weights& weights, const Linear& m, std::string_view kind);

/// Bytes of the matrices that steps read where a file is mapped: neither packed nor converted.
int64_t mapped_matrix_bytes(const Weights& weights);

/// Loads from a GGUF file or a Hugging Face directory. Matrices stay in the mapping, except that BitNet's become i2_s
/// and those that io/packed.h unpacks; norms and biases are copied.
Result<LoadedModel> load_model(const std::string& path);

/// Plan for SHAPE[@layers=N][@weights=FORMAT][@head=FORMAT][@mtp=1][@shared=1][@skew=S] (without the "synth:" prefix),
/// before any of it is made.
struct SynthPlan {
  Config config;
  const WeightFormat* format = nullptr;
  const WeightFormat* better = nullptr;  ///< of a mix: as QuantizeType of model/convert.h; else as `format`
  const WeightFormat* head = nullptr;    ///< of an output matrix of its own; null: as the shape has it
  double skew = 0;                       ///< row e of each router times (e + 1)^-skew: choices are uneven
  bool mtp = false;                      ///< with a random MTP head
  bool shared = false;                   ///< layers of a kind are one layer in memory: for devices, which copy each

  const WeightFormat& head_format() const;
  /// The format of a matrix of rows of n_in: where the plan's does not fit, f16. `projection`: one of a layer's.
  /// `preferred`: one that gets the better format of a mix.
  const WeightFormat& format_of(int64_t n_in, bool projection, bool preferred = false) const;
  /// Bytes of the matrices that a decode step reads, without norms and biases.
  int64_t decode_matrix_bytes() const;
};
Result<SynthPlan> plan_synth_model(std::string_view spec);

/// Forms in which the matrices of a synth: model are made.
enum class SynthMatrices : uint8_t {
  packed,  ///< panels where kernels want them, else rows
  rows,    ///< rows, to be cut before they are packed
  shapes,  ///< formats and shapes alone
};
/// Random weights at a true shape: SHAPE[@layers=N][@weights=FORMAT][@head=FORMAT][@mtp=1][@shared=1][@skew=S]. `spec`
/// is without the "synth:" prefix.
Result<LoadedModel> make_synth_model(CpuContext& context, std::string_view spec,
                                     SynthMatrices matrices = SynthMatrices::packed);
std::vector<std::string> synth_shape_names();
/// Hyper-parameters of SHAPE alone, without weights; usage error listing the shapes there are.
Result<Config> synth_config(std::string_view shape);

/// A matrix and what for_each_matrix() calls it.
using NamedMatrix = std::pair<Linear*, std::string_view>;
/// Packs into panels every matrix whose format has a panel kernel for this ISA, or those of `matrices` alone.
void pack_weights(CpuContext& context, Weights& weights);
void pack_weights(CpuContext& context, Weights& weights, std::span<const NamedMatrix> matrices);
/// Forgets rows whose panels serve every matmul, moves rows that are a part of a buffer into one of their own, and
/// frees the buffers that nothing points into: a rank holds no more than its slice.
void drop_unread_rows(Weights& weights);
/// Frees the buffers that nothing points into: what loading converted of layers that other ranks have.
void drop_unread_buffers(Weights& weights);
/// Bytes of a matrix's panels; 0 where it gets none.
int64_t packed_bytes(const Linear& m, Isa isa);

}  // namespace ridge
