// The forward pass on the CPU, as a class of two files: cpu_backend.cpp walks the plan, cpu_mixers.cpp has attention
// and the mixers that keep a state.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/limits.h"
#include "engine/cpu_workspace.h"
#include "op/attn/chosen_keys.h"
#include "op/cache/rounding.h"
#include "op/experts/route.h"
#include "rank/ranks.h"

namespace ridge {

class CpuBackend final : public Backend {
 public:
  CpuBackend(CpuContext& context, const ModelPlan& plan, const Weights& weights, Ranks* ranks, const ModelSlice* slice)
      : context_(context), plan_(plan), weights_(weights), ranks_(ranks), slice_(slice) {
    if (ranks_ && ranks_->n_stages() > 1) own_stage_ = ranks_->of_stage();
    stage_ = own_stage_ ? own_stage_.get() : ranks_;
  }

  std::unique_ptr<KvMemory> open_memory(std::span<const KvLayerConfig> layers, std::span<const KvMetricView> metrics,
                                        PageNumbers n_pages, SlotNumbers slots) override {
    const int64_t needed = cache_bytes(layers, false, n_pages, slots), free = free_bytes();
    if (needed > free)
      throw_error(ErrorKind::no_memory,
                  "the KV cache needs {:.2f} GiB, {:.2f} GiB of memory are free (a smaller n_ctx, fewer sequences or a "
                  "cache format of fewer bits)",
                  double(needed) / (1 << 30), double(free) / (1 << 30));
    const RoundRow round = metrics.empty() ? nullptr : select_round_row(context_, common_head_dim(layers));
    return std::make_unique<HostKvMemory>(layers, metrics, round, n_pages, slots);
  }
  std::unique_ptr<Outputs> make_outputs() override;
  void step(const Batch& batch, const SequencePool& pool, KvMemory& memory, Outputs& outputs) override;
  int max_tokens() const override { return 1 << 16; }
  void watch(OnAttention on_attention, OnBlock on_block) override {
    on_attention_ = std::move(on_attention);
    on_block_ = std::move(on_block);
  }
  bool on_device() const override { return false; }
  std::vector<int32_t> sample(Outputs& outputs, std::span<const SamplerOptions> samplers,
                              std::span<const std::vector<int32_t>> recent) override;
  std::string name() const override { return "cpu"; }
  int64_t step_weight_bytes() const override;
  int64_t free_bytes() const override { return free_memory(mapped_matrix_bytes(weights_)); }
  StepBuffers step_buffers() const override;
  std::vector<std::string> kernels(const KvLayerConfig& layer) const override;

 private:
  /// Matrices of one step.
  struct Rows {
    View2<float> x, h;  // [n, d_model]: residual stream; what a block reads and returns
    View2<float> q, attn, k, v, gate, up;
  };
  Rows rows_of(int64_t n, const LayerPlan& layer);
  View2<float> matrix(CpuBuffer of, int64_t rows, int64_t cols) {
    RIDGE_CHECK(4 * rows * cols <= buffers_[of].bytes(), "[{}, {}] in buffer {} of {} bytes", rows, cols, int(of),
                buffers_[of].bytes());
    return {buffers_[of].as<float>(), rows, cols};
  }
  void embed(std::span<const int32_t> tokens, View2<float> x);
  void embed_for_layers(std::span<const int32_t> tokens, View2<const float> x);
  void take_input(int layer, View2<float> x, View2<float> h);
  void join(View2<const float> hidden, View2<float> x);
  size_t n_parts() const;
  int run_layers(std::span<const int32_t> tokens, View2<const float> joined, HostKvMemory& memory);
  int run_in_passes(std::span<const int32_t> tokens, HostKvMemory& memory);
  void attend(int layer, const Rows& rows, HostKvMemory& memory);
  void attend_rows(int layer, const Rows& rows, HostKvMemory& memory, View2<float> v, const KeyIndex* index = nullptr);
  KeyIndex index_of(int layer, const Rows& rows, View2<const float> low, View2<float> keys, const KvTiles& tiles);
  void attend_latent(int layer, const Rows& rows, HostKvMemory& memory);
  void mix_delta(int layer, const Rows& rows, HostKvMemory& memory);
  void mix_conv(int layer, const Rows& rows, HostKvMemory& memory);
  void mix_mamba(int layer, const Rows& rows, HostKvMemory& memory);
  void feed_forward(int layer, const Rows& rows);
  void experts(int layer, const Rows& rows);
  void norm_heads(View2<float> x, const std::vector<float>& weight);
  void norm_rows(const std::vector<float>& weight, View2<float> x, View2<float> y);
  void scale_by_position(const AttentionPlan& a, View2<float> q);
  /// h = w norm(x) + bias, without the norm where `norm` is null, without the bias where it is empty. Of several ranks,
  /// x is this one's part of the columns, and h a summand; or the matmul's whole result where w is cut between rows.
  void project(const Linear& w, const std::vector<float>& bias, const std::vector<float>* norm, View2<float> x,
               const std::vector<int64_t>* borders, View2<float> h);
  void sum_ranks(View2<float> h);
  View2<float> gather_columns(Ranks& ranks, View2<const float> own, const std::vector<int64_t>& borders,
                              View2<float> whole);
  int stage_of(int layer) const { return slice_ ? slice_->stage_of(layer) : 0; }
  void hand_on(int from, int to, View2<float> x);
  void hand_to_all(int from, View2<float> x);
  void norm_whole(View2<float> x, const std::vector<float>& weight, std::vector<int64_t> ModelSlice::*columns);

  CpuContext& context_;
  const ModelPlan& plan_;
  const Weights& weights_;
  Ranks* const ranks_;                   // null: this process has the whole model
  const ModelSlice* const slice_;        // of ranks_
  std::unique_ptr<Ranks> own_stage_;     // where there are several stages
  Ranks* stage_ = nullptr;               // those of ranks_ that have the same layers
  CpuWorkspace<AlignedBuffer> buffers_;  // grows with the largest step
  std::vector<Route> routes_;
  // State of the running step: angles of each rope, and the new tokens in parts that append and attention take.
  std::vector<int32_t> positions_;  // of the tokens
  std::vector<RopeAngles> angles_;
  int n_ctx_ = 0;                                         // of the sequences
  std::vector<std::vector<KvSpan>> parts_[kPageClasses];  // with the pages of each class
  std::vector<KvSpan> spans_;                             // not cut
  OnAttention on_attention_;
  OnBlock on_block_;
};

}  // namespace ridge
