// What runs a model: the CPU, or a device. A backend reads the model's plan, runs batches over pools of sequences, and
// leaves logits where it computed them.
#pragma once

#include <climits>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "model/kv_metric.h"
#include "model/plan.h"
#include "model/weights.h"
#include "op/score/row_score.h"
#include "ridge/engine.h"

namespace ridge {

class Ranks;
struct ModelSlice;

/// Logits of a step, kept until the next step that writes here.
class Outputs {
 public:
  virtual ~Outputs() = default;
  virtual int64_t n_rows() const = 0;
  /// On the host, [n_rows, vocab_size]; valid until the next step that writes here.
  virtual View2<const float> logits() = 0;
  /// What the last layer gave, in front of the output's norm, on the host, [n_tokens, d_model], where the batch asked
  /// for it; valid as logits() are.
  virtual View2<const float> hidden() = 0;
  /// Compares the rows with those of `base` (null: none), where they are; targets [n_rows]. Results queue up in order
  /// until take_scores().
  virtual void score(Outputs* base, std::span<const int32_t> targets) = 0;
  virtual std::vector<RowScore> take_scores() = 0;
  /// Of its buffers; 0: not counted.
  virtual int64_t bytes() const { return 0; }
};

/// Steps that a device runs by itself: they can be queued before the tokens of earlier ones are known. Calls throw what
/// went wrong on the device.
class DeviceSteps {
 public:
  virtual ~DeviceSteps() = default;
  /// Queues step number `step`, counted from 0.
  virtual void launch(int64_t step) = 0;
  /// The numbers of a launched step, of DeviceSampling a token a sequence, if they have come; never waits.
  virtual bool read(int64_t step, std::span<int32_t> numbers) = 0;
  /// Whether every launched step has ended.
  virtual bool idle() = 0;
  /// Waits until it has.
  virtual void finish() = 0;
};

/// Steps of a fixed set of sequences that feed themselves: step 0 samples a token a sequence from logits that are
/// there, each later step appends the tokens sampled last and samples again. The pool's lengths advance when a step is
/// queued.
class DeviceSampling : public DeviceSteps {
 public:
  DeviceSampling(std::span<const SeqId> seqs, SequencePool& pool);
  void launch(int64_t step) final;
  /// Queues step number `step`, whose pages are reserved; the pool's lengths stay.
  virtual void queue(int64_t step) = 0;
  /// Steps that may be queued whose tokens were not read.
  virtual int most_ahead() const = 0;

 protected:
  SequencePool& pool_;
  std::vector<SeqTokens> seqs_;  // one token each
};

class Backend;

/// Where an MTP head is in a text that it has read, but for the last token.
struct DraftPlace {
  SeqId seq{};
  int first = 0;  ///< position of the text where the head's cache begins
};
/// The MTP head that proposes behind texts on their own device.
struct DeviceDraft {
  Backend& backend;
  SequencePool& pool;
  Outputs& outputs;  ///< of its newest step: a row of logits behind each text's last token, in the order of `texts`
  bool after_norm = false;  ///< as MtpHead has it
  std::vector<DraftPlace> texts;
};

inline constexpr int kMostDeviceProposals = 15;
/// Most texts of steps that propose, verify and go on by themselves, and most tokens of such a step.
inline constexpr int kMostDeviceTexts = 16, kMostDeviceRows = 64;

/// A text of such steps.
struct SpeculatedText {
  SeqId seq{};
  int32_t last = 0;                 ///< token of the text, the only one that is not in the cache
  const SamplerOptions& sampler;    ///< of the next token
  std::span<const int32_t> recent;  ///< what its penalty knows
  /// As ForcedProposals of op/sample/sample_cuda.h, and proposals that chance has decided on before.
  double forced_share = -1;
  uint64_t forced_seed = 0, n_forced = 0;
};
struct SpeculatedTexts {
  SequencePool& pool;
  Outputs& outputs;
  std::span<const SpeculatedText> texts;  ///< those of the draft first; the others have no proposals
  /// Proposals of the next step for each text, 0 to kMostDeviceProposals; of all texts together with a token each,
  /// kMostDeviceRows. The context must have room for them behind those of all queued steps.
  std::function<std::vector<int>()> depths;
};

/// Steps that can be queued before the tokens of earlier ones are known: each proposes, verifies, and goes on with the
/// tokens that hold. read() gives kMostDeviceProposals + 2 numbers a text, how many tokens there are and these, and
/// moves the pools' lengths on.
class DeviceSpeculation : public DeviceSteps {
 public:
  /// Behind finish(): each text keeps the first n_kept tokens of the step that was read last. Steps that were not read
  /// are taken back, exactly where all steps that were not read before that one have kSpareRows rows of a text
  /// together. Returns, of each text of the draft, the model's hidden states of the tokens which that step put into the
  /// cache for good, [n_kept, d_model].
  virtual std::vector<std::vector<float>> leave(std::span<const int> n_kept) = 0;
};

/// Called before each layer's attention on the host's rows: q [n, n_heads * head_dim], k and v [n, n_kv_heads *
/// head_dim], after RoPE and before the cache.
using OnAttention = std::function<void(int layer, View2<const float> q, View2<const float> k, View2<const float> v)>;
/// What a residual stream is about to enter; behind the last layer (layer = n_layers) comes the output.
enum class Block : uint8_t { mixer, feed_forward, output };
/// Called with the residual stream [n, d_model] in front of each block, which it may change: checks give every block of
/// two engines the same input.
using OnBlock = std::function<void(int layer, Block block, View2<float> x)>;

/// Bytes of what steps work in, beside weights, caches and logits.
struct StepBuffers {
  int64_t activations = 0;  ///< rows of the step's tokens
  int64_t scratch = 0;      ///< what kernels use within a call
};

class Backend {
 public:
  virtual ~Backend() = default;

  /// Memory for a pool. Throws Error: no_memory, or usage for a cache that the backend cannot hold.
  virtual std::unique_ptr<KvMemory> open_memory(std::span<const KvLayerConfig> layers,
                                                std::span<const KvMetricView> metrics, PageNumbers n_pages,
                                                SlotNumbers slots) = 0;
  virtual std::unique_ptr<Outputs> make_outputs() = 0;

  /// Appends the batch's tokens; pages must be reserved. At most max_tokens() tokens. Queues work or runs it.
  void run(const Batch& batch, SequencePool& pool, Outputs& outputs);
  /// The same in `memory`: the pool says where sequences are, and its lengths stay.
  virtual void step(const Batch& batch, const SequencePool& pool, KvMemory& memory, Outputs& outputs) = 0;
  virtual int max_tokens() const = 0;
  /// Watches the steps to come; null to stop watching.
  virtual void watch(OnAttention on_attention, OnBlock on_block) = 0;

  /// Whether steps run on a device, which samples where its logits are.
  virtual bool on_device() const = 0;
  /// `outputs` has one row a sequence, of its last token. Rows of `recent` are what each sequence's penalty knows. Null
  /// where steps do not feed themselves: the caller then samples after each.
  std::unique_ptr<DeviceSampling> start_sampling(std::span<const SeqId> seqs, SequencePool& pool, Outputs& outputs,
                                                 std::span<const SamplerOptions> samplers,
                                                 std::span<const std::vector<int32_t>> recent) {
    return start_sampling(seqs, pool, pool.memory(), outputs, samplers, recent);
  }
  virtual std::unique_ptr<DeviceSampling> start_sampling(std::span<const SeqId> /*seqs*/, SequencePool& /*pool*/,
                                                         KvMemory& /*memory*/, Outputs& /*outputs*/,
                                                         std::span<const SamplerOptions> /*samplers*/,
                                                         std::span<const std::vector<int32_t>> /*recent*/) {
    return nullptr;
  }
  /// Tokens of one text that a step may verify: with more, a text with draft tokens would not have the bits of one
  /// without, where they were asked for.
  virtual int most_verified() const { return INT_MAX; }
  /// Null if unsupported; the caller then verifies draft tokens on the host.
  virtual std::unique_ptr<DeviceSpeculation> start_speculation(const SpeculatedTexts& /*texts*/,
                                                               const DeviceDraft& /*draft*/) {
    return nullptr;
  }
  /// A token of every row of `outputs`, sampled where the rows are: of row i by samplers[i], whose penalty knows
  /// recent[i]. A penalty may change the rows.
  virtual std::vector<int32_t> sample(Outputs& outputs, std::span<const SamplerOptions> samplers,
                                      std::span<const std::vector<int32_t>> recent) = 0;

  /// Makes the calling thread work on the backend's device, for calls of its memory.
  virtual void use() const {}
  virtual std::string name() const = 0;           ///< "cpu", "cuda:0 NVIDIA H200"
  virtual int64_t step_weight_bytes() const = 0;  ///< what a decode step reads of the weights, as held there
  virtual int64_t free_bytes() const = 0;         ///< memory that can still be allocated
  /// As Model::expert_hits().
  virtual ExpertHits expert_hits() { return {}; }
  /// Buffers that steps have made grow so far; zeros: not counted.
  virtual StepBuffers step_buffers() const { return {}; }
  /// "op=kernel" of a decode step and of a prompt over such a cache.
  virtual std::vector<std::string> kernels(const KvLayerConfig& layer) const = 0;
};

/// The backend of the CPU. `context`, `plan` and `weights` must outlive it. Refuses kinds of the plan that it does not
/// compute. With `ranks`, which must outlive it too, plan and weights are this rank's `slice` of a model: all ranks run
/// the same steps, and all get the same logits.
std::unique_ptr<Backend> make_cpu_backend(CpuContext& context, const ModelPlan& plan, const Weights& weights,
                                          Ranks* ranks = nullptr, const ModelSlice* slice = nullptr);
/// The backend of a CUDA device: uploads a model. `plan` and `weights` need live no longer than the call, `kernels` are
/// "op=name" choices. `host` computes experts that the plan leaves in host memory, and nothing else; then it and the
/// weights must outlive the backend. Throws Error: no_device without CUDA or without this device, no_memory before
/// anything is copied when the weights cannot fit, usage for kinds of the plan and kernels that a device lacks.
std::unique_ptr<Backend> make_cuda_backend(int device, const ModelPlan& plan, const Weights& weights,
                                           std::span<const std::string> kernels, CpuContext* host = nullptr);
/// The backend of several CUDA devices that share a model, a thread each: uploads a slice to every one. The first of
/// `n_stages` equal parts of them has the first layers, and so on. A kernel that waits for another device longer than
/// `timeout_s` gives up, and the step throws Error(failure) naming that device. Throws as the other does; usage for
/// what cannot be cut into slices.
std::unique_ptr<Backend> make_cuda_backend(std::span<const int> devices, int n_stages, const Config& config,
                                           const Weights& weights, std::span<const std::string> kernels,
                                           double timeout_s);
/// Device memory that uploading the model takes, packing included. Throws Error: no_device without CUDA, usage for
/// kinds and formats that devices lack.
int64_t cuda_weight_bytes(const ModelPlan& plan, const Weights& weights, std::span<const std::string> kernels);

}  // namespace ridge
