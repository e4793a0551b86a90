#include "engine/cuda_speculation.h"

#include <algorithm>

#include "engine/decode/text.h"
#include "op/attn/device_attention.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {

static_assert(kMostVerifiedRows == kMostDeviceProposals + 1 && kMostVerifiedRows <= kShortTokens);

SpeculationWorkspace::SpeculationWorkspace(int vocab_size, int n_ids)
    : sampler(kMostVerifiedRows + 1, vocab_size, n_ids),
      head_sampler(1, vocab_size, n_ids),
      ring(kMostVerifiedRows + 1, SamplingWorkspace::kSlots),
      text(sizeof(DeviceText)),
      sampled(4 * kMostVerifiedRows) {}

CudaSpeculation::CudaSpeculation(CudaRunner& model, CudaRunner& head, SpeculationWorkspace& workspace,
                                 const SpeculatedText& text, const DeviceDraft& draft)
    : model_(model),
      head_(head),
      workspace_(workspace),
      text_(text),
      draft_(draft),
      outputs_(static_cast<CudaOutputs&>(text.outputs)),
      head_outputs_(static_cast<CudaOutputs&>(draft.outputs)),
      forced_{text.forced_share, text.forced_seed},
      n_before_(text.pool.length(text.seq)),
      some_(kMostVerifiedRows) {
  gpu::use_device(model.device());
  const gpu::Stream& stream = model_.stream();
  stream.synchronize();
  head_.stream().synchronize();
  workspace_.taken = true;
  workspace_.hidden.ensure(int64_t(SpeculationWorkspace::kSlots) * kMostVerifiedRows * model_.plan().d_model);
  for (int i = 0; i <= kMostVerifiedRows; ++i) workspace_.sampler.set(stream, i, text.sampler, text.recent);
  workspace_.ring.reset(stream);
  DeviceText begin{.n_past = n_before_, .n_before = n_before_, .n_forced = text.n_forced};
  begin.next[0] = text.last;
  gpu::upload(stream, device_text(), &begin, sizeof begin);
  stream.synchronize();
  workspace_.model_done.record(stream);
}

float* CudaSpeculation::hidden_of(int64_t step) const {
  return workspace_.hidden.as<float>() +
         step % SpeculationWorkspace::kSlots * kMostVerifiedRows * model_.plan().d_model;
}

int CudaSpeculation::reach() const {
  int n = text_.pool.length(text_.seq);
  for (const Step& step : queued_) n += 1 + step.n_proposed;
  return n;
}

void CudaSpeculation::launch(int64_t step) {
  gpu::use_device(model_.device());
  const int n = text_.depth();
  RIDGE_CHECK(n >= 0 && n <= kMostDeviceProposals && ssize(queued_) + 2 <= SpeculationWorkspace::kSlots,
              "{} proposals behind {} steps", n, queued_.size());
  workspace_.model_done.hold(head_.stream());
  if (step > 0) read_sampled(step, n > 0);
  if (n > 0) propose(n);
  workspace_.head_done.record(head_.stream());
  workspace_.head_done.hold(model_.stream());
  verify(step, n);
  workspace_.model_done.record(model_.stream());
}

void CudaSpeculation::run_head(int n, int reach, LogitRows logits,
                               const std::function<void(const StepInputs&)>& write) {
  SequencePool& pool = draft_.pool;
  pool.reserve(draft_.seq, std::max(n, reach - pool.length(draft_.seq))).or_throw();
  const SeqTokens tokens{draft_.seq, n};
  head_.run_fed({.tokens = std::span(some_).first(size_t(n)), .seqs = {&tokens, 1}, .logits = logits}, pool,
                head_outputs_, {reach, write});
}

void CudaSpeculation::copy_hidden(int n, const CudaRunner& of, const float* from, float* to) {
  const int64_t d_model = model_.plan().d_model;
  if (!draft_.after_norm) return gpu::copy(head_.stream(), to, from, 4 * n * d_model);
  device_rms_norm(head_.stream(), n, d_model, from, of.model().output_norm.as<float>(), of.plan().norm_eps, to);
}

void CudaSpeculation::read_sampled(int64_t step, bool proposes) {
  const int n = 1 + (queued_.empty() ? last_ : queued_.back()).n_proposed;
  run_head(n, reach() - draft_.first, proposes ? LogitRows::last : LogitRows::none, [&](const StepInputs& to) {
    copy_hidden(n, model_, hidden_of(step - 1), to.hidden);
    const DeviceText* text = device_text();
    device_text_rows(head_.stream(), {.base = &text->n_before,
                                      .offset = -draft_.first,
                                      .n_valid = &text->n_sampled,
                                      .n = n,
                                      .n_padded = to.n_rows,
                                      .slot = draft_.pool.slot(draft_.seq),
                                      .from = text->sampled,
                                      .rows = to.rows,
                                      .tokens = to.tokens,
                                      .last_row = to.logit_rows});
  });
}

void CudaSpeculation::propose(int n) {
  DeviceText* const text = device_text();
  for (int i = 1; i <= n; ++i) {
    if (i > 1)
      run_head(1, reach() - draft_.first + i - 1, LogitRows::last, [&](const StepInputs& to) {
        copy_hidden(1, head_, head_.logit_hidden(), to.hidden);
        device_text_rows(head_.stream(), {.base = &text->n_past,
                                          .offset = i - 2 - draft_.first,
                                          .n = 1,
                                          .n_padded = to.n_rows,
                                          .slot = draft_.pool.slot(draft_.seq),
                                          .from = text->next + i - 1,
                                          .rows = to.rows,
                                          .tokens = to.tokens});
      });
    workspace_.head_sampler.sample(head_.stream(), 1, head_outputs_.on_device(), text->next + i);
  }
}

void CudaSpeculation::verify(int64_t step, int n_proposed) {
  const gpu::Stream& stream = model_.stream();
  DeviceText* const text = device_text();
  const int n = 1 + n_proposed, before = reach();
  text_.pool.reserve(text_.seq, before + n - text_.pool.length(text_.seq)).or_throw();
  const SeqTokens tokens{text_.seq, n};
  model_.run_fed({.tokens = std::span(some_).first(size_t(n)), .seqs = {&tokens, 1}, .logits = LogitRows::all},
                 text_.pool, outputs_, {before + n, [&](const StepInputs& to) {
                                          device_text_rows(stream, {.base = &text->n_past,
                                                                    .n = n,
                                                                    .n_padded = to.n_rows,
                                                                    .slot = text_.pool.slot(text_.seq),
                                                                    .from = text->next,
                                                                    .rows = to.rows,
                                                                    .tokens = to.tokens});
                                        }});
  gpu::copy(stream, hidden_of(step), model_.hidden(), 4 * int64_t(n) * model_.plan().d_model);
  auto* const sampled = workspace_.sampled.as<int32_t>();
  workspace_.sampler.spread(stream, n, text);
  workspace_.sampler.sample(stream, n, outputs_.on_device(), sampled);
  workspace_.sampler.verify(stream, n, sampled, forced_, text, workspace_.ring.view());
  queued_.push_back({.n_proposed = n_proposed});
}

bool CudaSpeculation::read(int64_t step, std::span<int32_t> tokens) {
  if (!workspace_.ring.read(step, tokens)) return false;
  if (step < n_read_) return true;
  SequencePool& head_pool = draft_.pool;
  // The head has read what the step before gave, and its own proposals, which it forgets.
  const int n_heard = last_.n_held, n_own = std::max(0, queued_.front().n_proposed - 1);
  head_pool.advance(draft_.seq, n_heard + n_own, n_heard);
  last_ = queued_.front();
  queued_.pop_front();
  ++n_read_;
  last_.n_held = tokens[0];
  RIDGE_CHECK(last_.n_held >= 1 && last_.n_held <= 1 + last_.n_proposed, "{} tokens of {} proposals", last_.n_held,
              last_.n_proposed);
  n_before_ = text_.pool.length(text_.seq);
  text_.pool.advance(text_.seq, 1 + last_.n_proposed, last_.n_held);
  return true;
}

void CudaSpeculation::finish() {
  model_.stream().synchronize();
  head_.stream().synchronize();
}

std::vector<float> CudaSpeculation::leave(int n_kept) {
  gpu::use_device(model_.device());
  RIDGE_CHECK(n_read_ > 0 && n_kept >= 1 && n_kept <= last_.n_held, "{} of {} tokens stay", n_kept, last_.n_held);
  SequencePool &pool = text_.pool, &head_pool = draft_.pool;
  const int head_length = head_pool.length(draft_.seq);
  if (!queued_.empty()) {
    const int far = reach(), n_unread = queued_.back().n_proposed > 0 ? 2 : 1;  // of the last step, by the head
    pool.advance(text_.seq, far - pool.length(text_.seq), 0);
    head_pool.advance(draft_.seq, far - n_unread - draft_.first - head_length, 0);
    queued_.clear();
  }
  pool.trim(text_.seq, n_before_ + n_kept, TrimMode::exact).or_throw();
  head_pool.trim(draft_.seq, head_length, TrimMode::exact).or_throw();
  std::vector<float> hidden(size_t(n_kept) * size_t(model_.plan().d_model));
  gpu::download(model_.stream(), hidden.data(), hidden_of(n_read_ - 1), ssize(hidden) * 4);
  model_.stream().synchronize();
  return hidden;
}

}  // namespace ridge
