// Speculation on a device without the host in between: an MTP head proposes, the model verifies, both go on behind the
// tokens that hold. Lengths are device data; the host reserves pages for the most that may hold, queues steps ahead,
// and hears from the token ring what happened.
//
// A step: the head reads the tokens that the step before gave, with the model's hidden states; it proposes, from its
// own hidden states after the first; the model runs the last token and the proposals, and all rows are sampled.
#pragma once

#include <deque>

#include "engine/cuda_model.h"

namespace ridge {

/// What such steps work in, beside the two models' own buffers. Kept between texts: recorded steps name it.
struct SpeculationWorkspace {
  static constexpr int kSlots = 4;  ///< steps whose hidden states are kept: those queued, and the one read last

  SpeculationWorkspace(int vocab_size, int n_ids);

  bool taken = false;
  DeviceSampler sampler, head_sampler;
  gpu::TokenRing ring;
  gpu::Buffer text;     // DeviceText
  gpu::Buffer sampled;  // of the rows of a step
  gpu::Buffer hidden;   // [kSlots, kMostVerifiedRows, d_model]
  gpu::Event model_done{false}, head_done{false};
};

class CudaSpeculation final : public DeviceSpeculation {
 public:
  CudaSpeculation(CudaRunner& model, CudaRunner& head, SpeculationWorkspace& workspace, const SpeculatedText& text,
                  const DeviceDraft& draft);
  ~CudaSpeculation() override { workspace_.taken = false; }

  void launch(int64_t step) override;
  bool read(int64_t step, std::span<int32_t> tokens) override;
  bool idle() override { return model_.stream().idle() && head_.stream().idle(); }
  void finish() override;
  std::vector<float> leave(int n_kept) override;

 private:
  /// A step that is queued or was read last.
  struct Step {
    int n_proposed = 0;
    int n_held = 0;  // tokens that it gave
  };

  DeviceText* device_text() const { return workspace_.text.as<DeviceText>(); }
  float* hidden_of(int64_t step) const;
  /// Position that the text may have come to behind the queued steps.
  int reach() const;
  /// The head reads what the step before this one gave.
  void read_sampled(int64_t step, bool proposes);
  void propose(int n);
  void run_head(int n, int reach, LogitRows logits, const std::function<void(const StepInputs&)>& write);
  /// Hidden states [n, d_model] that `of` left, on their way into the head.
  void copy_hidden(int n, const CudaRunner& of, const float* from, float* to);
  void verify(int64_t step, int n_proposed);

  CudaRunner &model_, &head_;
  SpeculationWorkspace& workspace_;
  SpeculatedText text_;
  DeviceDraft draft_;
  CudaOutputs &outputs_, &head_outputs_;
  ForcedProposals forced_;
  std::deque<Step> queued_;
  Step last_;  // read last
  int64_t n_read_ = 0;
  int n_before_;               // length of the text's cache before the step that was read last
  std::vector<int32_t> some_;  // as many tokens as a step has: their values are on the device
};

}  // namespace ridge
