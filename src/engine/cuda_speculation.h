// Speculation on a device without the host in between: an MTP head proposes, the model verifies, all texts go on behind
// the tokens that hold. Lengths are device data; the host reserves pages for the most that may hold, queues steps
// ahead, and hears from the token ring what happened.
//
// A step: the head reads the tokens that the step before gave, with the model's hidden states; it proposes, from its
// own hidden states after the first; the model runs the last token and the proposals of every text, and all rows are
// sampled. Rows of a text are neighbours, texts with a head come first: rows of the head's pass are then the first ones
// of the model's pass before.
#pragma once

#include <deque>

#include "engine/cuda_model.h"

namespace ridge {

/// What such steps work in, beside the two models' own buffers. Kept between runs of steps.
struct SpeculationWorkspace {
  static constexpr int kSlots = 4;  ///< steps whose hidden states are kept: those queued, and the one read last

  SpeculationWorkspace(int most_texts, const ModelPlan& model, const ModelPlan& head);

  const int n_texts, n_rows;  ///< at most
  const int head_vocab;
  bool taken = false;
  DeviceSampler sampler, head_sampler;
  gpu::TokenRing ring;
  gpu::Buffer texts;    // DeviceText [n_texts]
  gpu::Buffer sampled;  // of the rows of a step
  gpu::Buffer hidden;   // [kSlots, n_rows, d_model]
  gpu::Event model_done{false}, head_done{false};
};

class CudaSpeculation final : public DeviceSpeculation {
 public:
  CudaSpeculation(CudaRunner& model, CudaRunner& head, SpeculationWorkspace& workspace, const SpeculatedTexts& texts,
                  const DeviceDraft& draft);
  ~CudaSpeculation() override { workspace_.taken = false; }

  void launch(int64_t step) override;
  bool read(int64_t step, std::span<int32_t> numbers) override;
  bool idle() override { return model_.stream().idle() && head_.stream().idle(); }
  void finish() override;
  std::vector<std::vector<float>> leave(std::span<const int> n_kept) override;

 private:
  struct Text {
    SeqId seq;
    int n_before;    // length of its cache before the step that was read last
    int n_held = 0;  // tokens that this step gave
  };
  /// Of each text, how many proposals a step has.
  using Step = std::vector<int>;

  DeviceText* device_text(size_t i) const { return workspace_.texts.as<DeviceText>() + i; }
  float* hidden_of(int64_t step) const;
  size_t n_heads() const { return draft_.texts.size(); }
  /// Position that a text may have come to behind the queued steps.
  int reach(size_t text) const;
  const Step& last_queued() const { return queued_.empty() ? read_ : queued_.back(); }
  /// The head reads what the step before this one gave.
  void read_sampled(int64_t step, bool proposes);
  void propose(const Step& n_proposed);
  /// Rows as `parts` has them, of texts that may come to `reach`.
  void run_head(std::span<const TextRows> parts, std::span<const int> reach, LogitRows logits,
                const std::function<void(const StepInputs&)>& bring_hidden);
  /// Hidden states [n, d_model] that `of` left, on their way into the head.
  void copy_hidden(int n, const CudaRunner& of, const float* from, float* to);
  void verify(int64_t step, const Step& n_proposed);

  CudaRunner &model_, &head_;
  SpeculationWorkspace& workspace_;
  SequencePool& pool_;
  const std::function<std::vector<int>()> depths_;
  DeviceDraft draft_;
  CudaOutputs &outputs_, &head_outputs_;
  std::vector<Text> texts_;
  std::deque<Step> queued_;
  Step read_;  // last
  int64_t n_read_ = 0;
  std::vector<int32_t> some_;  // as many tokens as a step has: their values are on the device
};

}  // namespace ridge
