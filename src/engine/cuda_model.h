// A model's weights and working memory on a CUDA device, and the forward pass over them.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/enum_array.h"
#include "engine/backend.h"
#include "engine/cpu_experts.h"
#include "engine/cuda_step.h"
#include "engine/device_kernels.h"
#include "engine/expert_stream.h"
#include "engine/expert_use.h"
#include "gpu/graph.h"
#include "gpu/launch_log.h"
#include "gpu/memory_use.h"
#include "model/slice.h"
#include "op/collective/collective_cuda.h"
#include "op/device_matmul.h"
#include "op/experts/experts_cuda.h"
#include "op/experts/int_experts_cuda.h"
#include "op/gemv/rows_cuda.h"
#include "op/sample/sample_cuda.h"

namespace ridge {

/// Parts of a DeviceExpertMatmul: for each role, the experts' matrices and biases.
struct ExpertParts {
  std::vector<std::vector<const Linear*>> matrices;
  std::vector<std::vector<const std::vector<float>*>> biases;
  bool glu = false;
};
ExpertParts expert_gate_up_of(const LayerPlan& plan, const LayerWeights& l);
ExpertParts expert_down_of(const LayerPlan& plan, const LayerWeights& l);

/// The matmuls of a layer's experts.
struct ExpertMatmuls {
  DeviceExpertMatmul gate_up, down;

  bool can_group() const { return gate_up.can_group() && down.can_group(); }
  int64_t bytes() const { return gate_up.bytes() + down.bytes(); }
  int64_t source_bytes() const { return gate_up.source_bytes() + down.source_bytes(); }
};

struct CudaLayer {
  // Empty where the model has none.
  gpu::Buffer attn_norm, q_norm, k_norm, attn_sub_norm, attn_post_norm, ffn_norm, ffn_sub_norm, ffn_post_norm,
      sink_logits, layer_scale, input_post_norm;
  DeviceMatmul qkv, o, gate_up, down;   // gate_up and down: of the shared expert, where there are experts
                                        // q with a gate: the queries of all heads, then their gates
  DeviceMatmul input_gate, input_proj;  // of what the layer gets of a token
  DeviceMatmul delta_in;                // qkv, z, a and b of the gated delta rule; of other states their projection
  gpu::Buffer delta_conv, delta_decay, delta_dt_bias, delta_norm;
  gpu::Buffer conv, conv_bias, mamba_norm, mamba_decay, mamba_d, mamba_dt_bias;
  // Latent attention: qkv is q_a (or q) and kv_a. k_b and v_b hold one matrix a head, stored as experts are; all of
  // them take part.
  gpu::Buffer q_a_norm, kv_a_norm;
  DeviceMatmul q_b;
  DeviceExpertMatmul k_b, v_b;
  gpu::Buffer router, router_bias,
      choice_bias;  // router: float32 [n_experts, d_model], behind it the shared expert's gate
  gpu::Buffer router_scale, expert_scale, expert_norm, dense_post_norm, expert_post_norm;
  ExpertMatmuls experts;
  ExpertMatmuls cached;       // of experts in host memory: places for those that are chosen most often
  gpu::Buffer expert_places;  // int32 [n_experts]: where they are in `cached`, below 0: in host memory alone
  int slot = -1;              // of CudaModel::slots, where experts are in host memory and prompts bring them
  bool joins_shared = false;  // the shared expert is the last one of both, beside gate_up and down: for few tokens
};

/// Whether the experts of n tokens are packs, the shared expert among them. Else they are groups, in a GEMM for many,
/// or packs where there is no such GEMM, and the shared expert is on its own.
inline bool takes_few_experts(const ExpertMatmuls& experts, const ExpertsPlan& plan, int64_t n) {
  if (n <= kMostIntTokens || !experts.can_group()) return n <= kFewRoutedTokens;
  const double slots = std::min(experts.gate_up.most_packed_slots(), experts.down.most_packed_slots());
  return double(n * plan.rule.n_used) <= slots * plan.n_experts;
}

/// Whether n tokens bring a layer's experts from host memory: from some tokens an expert on, copies take less time than
/// the CPU's matmuls.
inline bool streams_experts(const CudaLayer& layer, const ExpertsPlan& plan, int64_t n) {
  constexpr int64_t kTokensOfExpert = 8;
  return layer.slot >= 0 && n > kFewRoutedTokens && n * plan.rule.n_used >= kTokensOfExpert * plan.n_experts;
}

/// Whether the device takes its part of n tokens whose experts the host computes: of as many as a recorded step may
/// have. The host reads an expert once for all tokens of a longer one.
inline bool keeps_experts(const ExpertsPlan& plan, int64_t n) { return plan.n_cached > 0 && n <= kMostRecordedRows; }

/// Whether one token's GEMVs with experts can choose them from the scores (op/experts/int_experts_cuda.h).
bool has_late_choice(const CudaLayer& layer, const ExpertsPlan& plan);

struct CudaRope {
  bool halves = false;
  float magnitude = 1;
  int n_pairs = 0;
  gpu::Buffer frequency;  // double [n_pairs]
};

/// Borders of a rank that holds the whole model.
inline const std::vector<int64_t> kNoBorders;

/// Whether the matmul of gate and up ends in the activation, or leaves both to a launch of its own.
constexpr bool is_fused(const DensePlan& plan) {
  return plan.gated && !plan.biases && (plan.activation == Activation::silu || plan.activation == Activation::relu2);
}

/// Whether a block's last matmul adds to the residual stream itself.
constexpr bool adds_at_once(const LayerPlan& layer) {
  return (layer.norms == NormPlace::before || layer.norms == NormPlace::parallel) && layer.residual_scale == 1;
}

/// gate = activation(gate) * up over n values.
void activate(gpu::StreamHandle stream, Activation activation, int64_t n, float* gate, const float* up);
/// For the launch log: an op on rows that stay in the device's cache.
gpu::LoggedOp small_op(std::string_view op, int64_t n_floats, int layer = -1);

/// The weights of a plan's layers.
struct CudaModel {
  CudaModel() = default;
  CudaModel(const gpu::Stream& stream, const ModelPlan& plan, const Weights& weights, const ForcedKernels& forced);
  /// A model as the constructor makes it, without device memory. Of matrices formats and shapes count.
  static CudaModel planned(const ModelPlan& plan, const Weights& weights, const ForcedKernels& forced,
                           gpu::Allocations& all);
  /// Bytes of device memory for the weights, including the space for packing the largest matrix.
  static int64_t upload_bytes(const ModelPlan& plan, const Weights& weights, const ForcedKernels& forced);
  /// Bytes of the matrices that a step of one token reads.
  int64_t step_bytes(const ModelPlan& plan) const;

  std::vector<CudaRope> ropes;
  DeviceRows embedding;  // [vocab_size, d_model], in its format; its scale has the plan's
  // Inputs of the layers for each token: rows of an embedding [vocab_size, n_layers * d_input], and a matmul of the
  // token's embedding.
  DeviceRows layer_embedding;
  DeviceMatmul layer_inputs;
  gpu::Buffer layer_inputs_norm;  // over the square root of 2, as the sum of both is
  std::vector<CudaLayer> layers;
  /// Memory that layers of one shape, whose experts are in host memory, use in turn: a prompt brings the experts of a
  /// layer (engine/expert_stream.h).
  std::vector<ExpertMatmuls> slots;
  gpu::Buffer slot_source;  // what an expert of a slot, or of those that layers keep, is made of
  // MTP head: the halves of the join that take embeddings and hidden states, and the norms in front of them. Empty in
  // other models.
  DeviceMatmul join_embedding, join_hidden;
  gpu::Buffer join_embedding_norm, join_hidden_norm;
  gpu::Buffer output_norm;  // over the plan's divisor of logits
  DeviceMatmul output;
  gpu::Buffer ones;  // [head_dim]: weights of norms that have none
};

/// Where activations of a latent layer lie in StepBuffer::latent, in floats, for n tokens.
struct LatentOffsets {
  LatentOffsets(const LayerPlan& layer, int64_t n);
  int64_t low = 0;       ///< [n, q_rank]
  int64_t q = 0;         ///< [n, n_heads, query_dim]
  int64_t nope = 0;      ///< [n, n_heads, nope_dim]
  int64_t absorbed = 0;  ///< [n, n_heads, rank]
  int64_t kv = 0;        ///< [n, head_dim]
  int64_t values = 0;    ///< [n, n_heads, value_dim]
  int64_t end = 0;
};

class CudaOutputs final : public Outputs {
 public:
  /// With `host`, what goes wrong there is thrown by those who ask for what came of it.
  CudaOutputs(const gpu::Stream& stream, int device, int vocab_size, HostExperts* host = nullptr)
      : stream_(stream), device_(device), vocab_size_(vocab_size), host_experts_(host) {}

  int64_t n_rows() const override { return n_rows_; }
  View2<const float> logits() override;
  View2<const float> hidden() override;
  void score(Outputs* base, std::span<const int32_t> targets) override;
  std::vector<RowScore> take_scores() override;

  /// Buffers for `padded` rows on the device, n of which are asked for.
  float* reserve(int64_t n, int64_t padded) {
    n_rows_ = n;
    const gpu::MemoryLabel label(gpu::MemoryOf::logits);
    return rows_.ensure(padded * vocab_size_);
  }
  float* on_device() const { return rows_.as<float>(); }
  /// Copies x [n, d_model], which the next step overwrites.
  void keep_hidden(const gpu::Buffer& x, int64_t n, int d_model) {
    n_hidden_ = n;
    d_model_ = d_model;
    const gpu::MemoryLabel label(gpu::MemoryOf::logits);
    gpu::copy(stream_, hidden_.ensure(n * d_model), x.as<void>(), 4 * n * d_model);
  }

 private:
  void finish() const {
    stream_.synchronize();
    if (host_experts_) host_experts_->rethrow();
  }

  const gpu::Stream& stream_;
  const int device_, vocab_size_;
  HostExperts* const host_experts_;
  gpu::Buffer rows_;  // [.., vocab_size]
  int64_t n_rows_ = 0;
  gpu::Buffer hidden_;  // [n_hidden_, d_model_]
  int64_t n_hidden_ = 0, d_model_ = 0;
  gpu::PinnedBuffer host_, host_hidden_;
  gpu::Buffer scores_, targets_;
  int64_t n_scores_ = 0;
};

/// Device memory of a forward pass of n tokens; reserve_step_buffers() has the sizes.
enum class StepBuffer : uint8_t {
  tokens,          ///< int32 [n]
  rows,            ///< StepRow [n]
  spans,           ///< StepSpan [spans]
  blocks,          ///< AttnBlock [blocks]
  n_spans,         ///< int32 [sub-batches]
  logit_rows,      ///< int32 [n_logits]
  cosines,         ///< of each rope [n, pairs]
  sines,           ///< likewise
  x,               ///< residual stream [n, d_model]
  qkv,             ///< q, k and v one behind the other: [n, q_rows], [n, kv_dim], [n, kv_dim]
  q,               ///< [n, q_dim]
  q_weights,       ///< of angles, where the centre of K turns [n, q_dim]
  attn,            ///< what attention returns [n, q_dim]
  ff,              ///< gate, then up, where they are not one matmul: [n, d_ff] each
  logit_x,         ///< rows of x that logits are asked of [n_logits, d_model]
  join,            ///< of an MTP head: embeddings [n, d_model]
  hidden,          ///< of an MTP head: hidden states that they are joined with [n, d_model]
  block,           ///< what a block gives, before it is normed or scaled [n, d_model]
  h,               ///< normed input of experts, or of blocks where the norm is one of its own [n, d_model]
  scores,          ///< of experts [n, n_scores]
  expert_weights,  ///< of a token's experts [n_slots]
  expert_numbers,  ///< int32, likewise
  expert_places,   ///< int32, likewise: of experts of the host's that the device keeps
  packs,           ///< ExpertPack [n_packs]
  expert_gate,     ///< [n_slots, d_ff]
  expert_up,       ///< likewise
  expert_out,      ///< [n_slots, d_model], behind them sums by the host [n, d_model]
  shared,          ///< of the shared expert [n, d_model]
  expert_counts,   ///< int32 [n_scores]
  areas,           ///< ExpertGroups: int32 [1]
  area_experts,    ///< ExpertGroups: int32 [n_areas]
  area_columns,    ///< ExpertGroups: int32 [n_areas, group_columns]
  slot_columns,    ///< ExpertGroups: int32 [n_slots]
  attn_scratch,    ///< bytes
  turned_tiles,    ///< PrefillList's
  k_ring,          ///< tiles of rings of prompts
  v_ring,          ///< likewise
  latent,          ///< LatentOffsets
  head_packs,      ///< of latent attention: ExpertPack of all heads
  own_logits,      ///< of several ranks: [n_logits, rows of the output matrix here]
  whole,           ///< where ranks exchange columns: what a matmul reads
  columns,         ///< likewise: what it makes here
  squares,         ///< where ranks norm heads together: sums of the rows of q, then of k
  layer_inputs,    ///< what layers get of a token [n, n_layers, d_input]
  layer_embedded,  ///< its part from the embedding, likewise
  layer_gate,      ///< gates of a layer, then the layer's inputs: [n, d_input] each
  sequences,       ///< of mixers with states: DeltaSpan [sequences]
  delta,           ///< their matrices, one behind another
  count,
};
/// All of them. Grown on demand.
template <class Buffer>
using StepWorkspace = EnumArray<StepBuffer, Buffer>;
/// Grows the buffers to be large enough for a step of `plan` over a cache: DeviceKvMemory, or PlannedSides.
template <class Buffer, class Memory>
void reserve_step_buffers(StepWorkspace<Buffer>& workspace, const StepPlan& step, const ModelPlan& plan,
                          const CudaModel& model, const Memory& memory);

/// Workspace for sampling in a recorded step: the tokens that it starts from, and its samplers.
struct SamplingWorkspace {
  static constexpr int kSlots = 16;  ///< steps whose tokens may wait

  /// `padded` is what padded_rows() makes of n.
  SamplingWorkspace(int n, int padded, int vocab_size, int n_ids)
      : n_seqs(n), sampler(n, vocab_size, n_ids), ring(n, kSlots), tokens(4 * int64_t(std::max(n, padded))) {}

  const int n_seqs;
  bool taken = false;
  DeviceSampler sampler;
  gpu::TokenRing ring;
  gpu::Buffer tokens;
};

/// Where a step reads what changes from step to step.
struct StepInputs {
  int32_t* tokens = nullptr;      ///< [n_tokens]
  StepRow* rows = nullptr;        ///< [n_rows]
  int n_rows = 0;                 ///< with padding
  int32_t* logit_rows = nullptr;  ///< [sequences]; null where all rows have logits, or none has
  float* hidden = nullptr;        ///< [n_tokens, d_model] of an MTP head
};
/// Inputs of a recorded step that kernels write, since only the device knows the positions of its rows.
struct FedInputs {
  std::span<const int> reach;  ///< position that each sequence may come to
  std::function<void(const StepInputs&)> write;
};

/// Slice of one of several devices that hold a model together, and its links to the others.
struct CudaRank {
  DeviceLink* all = nullptr;     ///< to all ranks
  DeviceLink* stage = nullptr;   ///< to those of the same stage, if there are others
  DeviceLink* before = nullptr;  ///< to the rank in this one's place in the stage before, if there is one
  DeviceLink* after = nullptr;   ///< and in the stage behind
  ModelSlice slice;
  /// Returns when all ranks have come. Between here and the end of a step no rank allocates: kernels that wait for
  /// another device would wait for an allocation that waits for them.
  std::function<void()> meet;

  /// In its stage.
  bool is_first() const { return slice.rank == 0; }
};

/// As make_cuda_backend() of backend.h; with `rank`, plan and weights are this device's slice of a model.
std::unique_ptr<Backend> make_cuda_backend(int device, const ModelPlan& plan, const Weights& weights,
                                           std::span<const std::string> kernels, std::optional<CudaRank> rank,
                                           CpuContext* host = nullptr);

/// Scratch of the matmuls of a step of n tokens with n_logits rows of logits.
void plan_matmuls(const ModelPlan& plan, const CudaModel& model, int64_t n, int64_t n_logits, PlannedScratch& scratch);

/// Matrices of a step's rows, one behind the other in a buffer, each aligned to 16 bytes.
struct StepMatrices {
  float* next = nullptr;
  int64_t n_rows = 0;

  float* operator()(int64_t width) { return std::exchange(next, next + (n_rows * width + 3) / 4 * 4); }
};

/// Runs steps on one device: queues the launches of a step, or replays them as a graph.
class CudaRunner {
 public:
  /// With `rank`, plan and weights are this device's slice of a model.
  CudaRunner(int device, const ModelPlan& plan, const Weights& weights, const DeviceOptions& options,
             std::optional<CudaRank> rank = {});

  /// Tokens come from the batch, or are those sampled last where `workspace` is given; it samples the next ones from
  /// the logits. The pool's lengths stay.
  void run(const Batch& batch, const SequencePool& pool, DeviceKvMemory& memory, CudaOutputs& outputs,
           SamplingWorkspace* workspace) {
    run(batch, pool, memory, outputs, workspace, nullptr);
  }
  /// `batch` says how many tokens each sequence has; rows are in its order. Pages must be reserved for all that
  /// sequences may come to.
  void run_fed(const Batch& batch, SequencePool& pool, CudaOutputs& outputs, const FedInputs& inputs) {
    run(batch, pool, static_cast<DeviceKvMemory&>(pool.memory()), outputs, nullptr, &inputs);
  }
  /// Samples from logits that are there.
  void sample(const CudaOutputs& outputs, SamplingWorkspace& workspace);
  void watch(OnBlock on_block) { on_block_ = std::move(on_block); }
  bool is_watched() const { return on_block_ != nullptr; }
  /// Hidden states of the newest step, on the device until the next one: the last layer's output [n_tokens, d_model],
  /// and its rows that got logits.
  const float* hidden() const { return buffers_[StepBuffer::x].as<float>(); }
  const float* logit_hidden() const { return logit_hidden_; }

  const gpu::Stream& stream() const { return stream_; }
  const ModelPlan& plan() const { return plan_; }
  const CudaModel& model() const { return model_; }
  const DeviceOptions& options() const { return options_; }
  int device() const { return device_; }
  /// Null where no experts are on the host.
  HostExperts* experts_of_host() { return host_experts_ ? &*host_experts_ : nullptr; }
  /// As Backend has it. Waits for queued work.
  ExpertHits expert_hits() const;

 private:
  std::vector<const void*> places() const;
  /// A step as it was recorded; queued launch by launch the first time, when buffers still grow.
  struct Recorded {
    bool ran = false;
    std::vector<const void*> places;
    gpu::Graph graph;
    gpu::LaunchLog log;  // of the run that was recorded; a replay adds it to the thread's launch log
  };

  void run(const Batch& batch, const SequencePool& pool, DeviceKvMemory& memory, CudaOutputs& outputs,
           SamplingWorkspace* workspace, const FedInputs* fed);
  void upload(const StepPlan& step, std::span<const int32_t> tokens, View2<const float> joined);
  void take(const StepPlan& step, const FedInputs& fed);
  void upload_lists(const StepPlan& step);
  /// The forward pass: everything that a step launches.
  void queue(const StepPlan& step, DeviceKvMemory& memory, const int32_t* tokens, float* logits,
             SamplingWorkspace* workspace);
  void begin(const StepPlan& step, DeviceKvMemory& memory);
  void embed(const int32_t* tokens, int64_t n);
  void embed_for_layers(const int32_t* tokens, int64_t n);
  void take_input(int layer, const StepPlan& step);
  void mix(int layer, const StepPlan& step, DeviceKvMemory& memory);
  void output(const StepPlan& step, float* logits);
  void attend(int layer, const StepPlan& step, DeviceKvMemory& memory);
  void norm_whole(int layer, int64_t n, float* q, float* k);
  void attend_latent(int layer, const StepPlan& step, DeviceKvMemory& memory);
  LatentAppend latent_append(int layer, int64_t n, const StepRows& rows, const KvTiles& tiles, int64_t angles) const;
  void upload_head_packs(int64_t n);
  void attend_sub_batch(int layer, const StepPlan& step, const SubBatch& sub, DeviceKvMemory& memory);
  void mix_delta(int layer, const StepPlan& step, DeviceKvMemory& memory);
  /// The output projection of what a mixer with a state gives, and the end of the block.
  void project_mixed(int layer, const StepPlan& step, const float* mixed);
  void mix_conv(int layer, const StepPlan& step, DeviceKvMemory& memory);
  void mix_mamba(int layer, const StepPlan& step, DeviceKvMemory& memory);
  void feed_forward(int layer, const StepPlan& step);
  void dense(int layer, const MatmulCall& in, const MatmulCall& out);
  void experts(int layer, const StepPlan& step);
  void add_dense_beside(int layer, const StepPlan& step, float* experts);
  void few_experts(int layer, const ExpertMatmuls& matmuls, const ExpertChoice& choice, const MatmulCall& in,
                   const MatmulCall& out);
  void host_experts(int layer, const ExpertChoice& choice, const MatmulCall& in, const MatmulCall& out);
  void bring_experts(int layer, const ExpertChoice& choice);
  /// Choice of the host's experts that the device keeps as well, by their places.
  ExpertChoice kept_of(int layer, const ExpertChoice& choice) const;
  void exchange_experts(const StepPlan& step);
  void upload_places(int layer);
  /// `summed`: the host has added up the experts of each token, but for those that the device keeps.
  void sum_experts(int layer, const ExpertChoice& choice, const MatmulCall& in, const MatmulCall& out, bool summed);
  /// Call of a block's first matmul with its input from the residual stream, and call of its last matmul with its
  /// output.
  MatmulCall block_in(int layer, const StepPlan& step, const gpu::Buffer& norm) const;
  MatmulCall block_out(int layer, const StepPlan& step) const;
  /// Adds to the residual stream what block_out() has not.
  void end_block(int layer, const StepPlan& step, const gpu::Buffer& post_norm);
  void show_block(int layer, Block block, int64_t n);
  // Pipeline stages.
  bool has_layer(int layer) const { return !rank_ || rank_->slice.has_layer(layer); }
  /// The residual stream passes the border in front of a layer that begins a stage: the ranks of the stage before hand
  /// it on to those in their places.
  void pass_border(int layer, int64_t n);
  /// All ranks get the residual stream of the stage that has the layer.
  void hand_to_all(int layer, int64_t n);
  /// Gathers from all ranks the columns that a block's last matmul reads, where its matrix is cut between rows; else
  /// returns x.
  const float* gather_input(const float* x, int64_t n, const std::vector<int64_t>& borders);
  /// Joins the ranks' parts of a block's result, so that each rank has the whole.
  void join_block(int layer, const StepPlan& step);
  void reserve_rank_buffers(int64_t n, int64_t n_logits);
  void reserve_host_rows(int64_t n);
  bool gathers() const { return rank_ && rank_->slice.gathers; }
  void replay(Recorded& step, const float* logits, const std::function<void()>& queue);
  StepRows rows_of(const SubBatch& sub, const DeviceKvMemory& memory, PageClass pages) const;

  /// Pinned buffers for experts in host memory: their inputs, and the sums that come back, as in HostExperts::Call.
  struct HostRows {
    gpu::PinnedBuffer x, experts, weights, sum;
  };
  struct HostCall {
    CudaRunner* runner = nullptr;
    int layer = 0;
    int64_t n_tokens = 0;
    ExpertUse* use = nullptr;  // where the device keeps some of the layer
    bool keeps = false;        // and takes its part of the step
  };

  const int device_;
  const ModelPlan plan_;
  const DeviceOptions options_;
  const std::optional<CudaRank> rank_;
  std::optional<HostExperts> host_experts_;    // where some experts are on the host
  std::optional<ExpertStream> expert_stream_;  // likewise
  std::map<int, ExpertUse> expert_use_;        // by layer, where the device keeps some of its experts
  int64_t since_exchange_ = 0;                 // steps, and tokens of prompts
  HostRows host_rows_;
  std::map<std::pair<int, int64_t>, HostCall> host_calls_;  // by layer and tokens: recorded steps name them
  gpu::Stream stream_;
  CudaModel model_;
  StepWorkspace<gpu::Buffer> buffers_;
  MatmulScratch matmul_scratch_;
  const float* logit_hidden_ = nullptr;
  int n_ctx_ = 0;                                  // of the pool of the step that runs
  std::vector<StepRow> rows_there_;                // contents of the rows once all queued work has run
  std::vector<DeltaSpan> sequences_there_;         // and of the sequences
  int64_t packs_there_ = 0;                        // tokens that the packs of heads are for
  std::set<std::pair<int64_t, int64_t>> planned_;  // tokens and rows of logits of steps whose scratch is there
  std::map<std::vector<int64_t>, Recorded> recorded_;
  OnBlock on_block_;
};

}  // namespace ridge
