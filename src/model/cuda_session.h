// n_seq timelines on a CudaModel: prefill in batches, decode a token at a time as a recorded graph.
#pragma once

#include "gpu/graph.h"
#include "gpu/launch_log.h"
#include "gpu/token_ring.h"
#include "model/cuda_model.h"
#include "model/device_kv.h"
#include "op/sample/sample_cuda.h"

namespace ridge {

class CudaSession : public DeviceSession {
 public:
  CudaSession(CudaModel& model, std::span<const KvSideConfig> k, std::span<const KvSideConfig> v,
              const KvRoundingTools& tools, int n_ctx, int n_ubatch, int n_seq);

  void reset(int n_active) override;
  void forward(std::span<const int32_t> tokens, LogitRows rows) override;
  View2<float> logits() override;
  void score(DeviceSession* base, std::span<const int32_t> targets) override;
  std::vector<RowScore> take_scores() override;
  void fill_random(int n, uint64_t seed) override;
  void fill_codes(int n, uint64_t seed) override;

  void start_drawing(const SamplerOptions& options, std::span<const int32_t> recent) override;
  void advance() override;
  bool read_drawn(int64_t step, std::span<int32_t> tokens) override { return ring_.read(step, tokens); }
  bool idle() override { return model_.stream.idle(); }
  void finish() override { model_.stream.synchronize(); }
  void rewind(int n) override;
  int max_rewind() const override { return all_tiled_ ? kMaxRewind : 0; }

  int n_past() const override { return n_past_; }
  int n_ctx() const override { return n_ctx_; }
  int n_seq() const override { return n_seq_; }
  std::vector<KvStoreFacts> kv_facts(bool is_k) const override;
  int64_t kv_read_bytes(int n_keys) const override;
  std::vector<std::string> kernels() const override;

 private:
  /// Activations of a batch; grown on demand.
  struct BatchState {
    gpu::Buffer tokens, targets, cosines, sines;
    gpu::Buffer x, q, k, v, attn, ff, normed;
    DeviceKvScratch k_scratch, v_scratch;
    ProductScratch products;
    gpu::PinnedBuffer host;
  };
  /// Of one token a sequence: never grown, because graphs point into it. `products` may grow when a step runs for the
  /// first time: graphs are dropped then.
  struct StepState {
    gpu::Buffer tokens, n_past, n_keys, cosines, sines;
    gpu::Buffer x, qkv, q, attn, ff, logits, attn_scratch;
    gpu::Buffer sides;  // AppendSide of K and V of every layer
    ProductScratch products;
    int past = -1;  ///< what n_past holds for every active sequence; -1: nothing yet
  };
  /// A decode step as it was recorded; queued launch by launch the first time, when buffers still grow.
  struct Step {
    bool ran = false;
    gpu::Graph graph;
    gpu::LaunchLog log;  // of the run that was recorded; a replay adds it to the thread's launch log
  };

  /// Activations of a layer behind attention: x [n, d_model], attn [n, q_dim], ff [n, d_ff].
  struct LayerRows {
    int64_t n = 0;
    float* x = nullptr;
    const float* attn = nullptr;
    float* ff = nullptr;
    bool overlap = false;
    int layer = 0;
  };

  /// For the launch log.
  gpu::LoggedOp append_op(int layer, int n_tokens) const;
  gpu::LoggedOp attention_op(int layer, int n_tokens) const;
  /// Attention's product and the feed-forward network, added to x.
  void finish_layer(const DeviceLayer& l, const LayerRows& rows, ProductScratch& scratch);
  void batch_forward(std::span<const int32_t> tokens, int n_tokens, LogitRows rows);
  void batch_layer(int i, int n_tokens);
  /// Null when a token a sequence can take the step's kernels from position n_past_ on, else why not.
  const char* step_unsupported() const;
  void step_forward(std::span<const int32_t> tokens, bool with_logits);
  /// Takes the tokens in step_.tokens one step on.
  void run_step(bool with_logits, bool draw);
  template <class Queue>
  void queue_logged(Step& step, const Queue& queue);
  /// Queues the launches of a step. `leaving`: some tile leaves its window.
  void queue_step(bool leaving, bool with_logits);
  void allocate_step();
  void draw();

  CudaModel& model_;
  const int n_ctx_, n_ubatch_, n_seq_;
  int n_active_, n_past_ = 0;
  std::vector<DeviceKvStore> k_, v_;
  bool all_tiled_ = true;
  const char* step_unsupported_ = nullptr;  // whatever the position
  BatchState batch_;
  StepState step_;
  /// By n_active, leaving, with_logits, and what the sampler launches when the step draws.
  std::map<std::tuple<int, bool, bool, int>, Step> steps_;
  DeviceSampler sampler_;
  gpu::TokenRing ring_;
  int64_t n_drawn_ = 0;            // steps since start_drawing()
  gpu::Buffer batch_logits_;       // [n_logits_, vocab_size]
  const float* logits_ = nullptr;  // of the last forward()
  int64_t n_logits_ = 0;
  gpu::Buffer scores_;  // [n_seq * n_ctx] RowScore
  int64_t n_scores_ = 0;
};

}  // namespace ridge
