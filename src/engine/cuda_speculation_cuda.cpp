#include "engine/cuda_speculation.h"

#include <algorithm>

#include "op/attn/device_attention.h"
#include "op/cache/append_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {
namespace {

static_assert(kMostVerifiedRows == kMostDeviceProposals + 1 && kMostVerifiedRows <= kShortTokens);
static_assert(kMostVerifiedTexts == kMostDeviceTexts && kMostTextsAhead == kMostDeviceTexts);
constexpr int kNumbers = kMostVerifiedRows + 1;  // of a text and a step, in the ring
constexpr int kTextWords = sizeof(DeviceText) / 4;

TextStep step_of(std::span<const TextRows> parts, const StepInputs& to) {
  TextStep step{.n_texts = int(parts.size()),
                .n_padded = to.n_rows,
                .rows = to.rows,
                .tokens = to.tokens,
                .last_rows = to.logit_rows};
  std::ranges::copy(parts, step.texts);
  return step;
}

}  // namespace

SpeculationWorkspace::SpeculationWorkspace(int most_texts, const ModelPlan& model, const ModelPlan& head)
    : n_texts(most_texts),
      n_rows(std::min(most_texts * kMostVerifiedRows, kMostDeviceRows)),
      head_vocab(head.vocab_size),
      sampler(n_rows, model.vocab_size, model.n_ids, n_texts),
      head_sampler(n_texts, head.vocab_size, head.n_ids),
      ring(n_texts * kNumbers, SamplingWorkspace::kSlots),
      texts(n_texts * int64_t(sizeof(DeviceText))),
      sampled(4 * int64_t(n_rows)) {}

CudaSpeculation::CudaSpeculation(CudaRunner& model, CudaRunner& head, SpeculationWorkspace& workspace,
                                 const SpeculatedTexts& texts, const DeviceDraft& draft)
    : model_(model),
      head_(head),
      workspace_(workspace),
      pool_(texts.pool),
      depths_(texts.depths),
      draft_(draft),
      outputs_(static_cast<CudaOutputs&>(texts.outputs)),
      head_outputs_(static_cast<CudaOutputs&>(draft.outputs)),
      read_(texts.texts.size()),
      some_(size_t(workspace.n_rows)) {
  RIDGE_CHECK(n_heads() > 0 && n_heads() <= texts.texts.size() && ssize(texts.texts) <= workspace.n_texts,
              "{} heads of {} texts, room for {}", n_heads(), texts.texts.size(), workspace.n_texts);
  gpu::use_device(model.device());
  const gpu::Stream& stream = model_.stream();
  stream.synchronize();
  head_.stream().synchronize();
  workspace_.taken = true;
  workspace_.hidden.ensure(int64_t(SpeculationWorkspace::kSlots) * workspace_.n_rows * model_.plan().d_model);
  workspace_.ring.reset(stream, int(texts.texts.size()) * kNumbers);
  std::vector<DeviceText> begin;
  for (const SpeculatedText& text : texts.texts) {
    workspace_.sampler.set(stream, workspace_.n_rows + int(begin.size()), text.sampler, text.recent);
    const int n_past = pool_.length(text.seq);
    begin.push_back({.n_past = n_past,
                     .n_before = n_past,
                     .forced = {.share = text.forced_share, .seed = text.forced_seed, .n = text.n_forced}});
    begin.back().next[0] = text.last;
    texts_.push_back({.seq = text.seq, .n_before = n_past});
  }
  gpu::upload(stream, device_text(0), begin.data(), ssize(begin) * int64_t(sizeof(DeviceText)));
  stream.synchronize();
  workspace_.model_done.record(stream);
}

float* CudaSpeculation::hidden_of(int64_t step) const {
  return workspace_.hidden.as<float>() +
         step % SpeculationWorkspace::kSlots * workspace_.n_rows * model_.plan().d_model;
}

int CudaSpeculation::reach(size_t text) const {
  int n = pool_.length(texts_[text].seq);
  for (const Step& step : queued_) n += 1 + step[text];
  return n;
}

void CudaSpeculation::launch(int64_t step) {
  gpu::use_device(model_.device());
  const Step n_proposed = depths_();
  RIDGE_CHECK(n_proposed.size() == texts_.size() && ssize(queued_) + 2 <= SpeculationWorkspace::kSlots,
              "proposals of {} texts behind {} steps", n_proposed.size(), queued_.size());
  const bool proposes = std::ranges::any_of(n_proposed, [](int n) { return n > 0; });
  workspace_.model_done.hold(head_.stream());
  if (step > 0) read_sampled(step, proposes);
  if (proposes) propose(n_proposed);
  workspace_.head_done.record(head_.stream());
  if (proposes) workspace_.head_done.hold(model_.stream());
  verify(step, n_proposed);
  workspace_.model_done.record(model_.stream());
}

void CudaSpeculation::run_head(std::span<const TextRows> parts, std::span<const int> reach, LogitRows logits,
                               const std::function<void(const StepInputs&)>& bring_hidden) {
  SequencePool& pool = draft_.pool;
  std::vector<SeqTokens> seqs;
  int n = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const SeqId seq = draft_.texts[i].seq;
    if (parts[i].slot >= 0) pool.reserve(seq, std::max(parts[i].n, reach[i] - pool.length(seq))).or_throw();
    seqs.push_back({seq, parts[i].n});
    n += parts[i].n;
  }
  head_.run_fed({.tokens = std::span(some_).first(size_t(n)), .seqs = seqs, .logits = logits}, pool, head_outputs_,
                {reach, [&](const StepInputs& to) {
                   bring_hidden(to);
                   device_text_rows(head_.stream(), step_of(parts, to));
                 }});
}

void CudaSpeculation::copy_hidden(int n, const CudaRunner& of, const float* from, float* to) {
  const int64_t d_model = model_.plan().d_model;
  if (!draft_.after_norm) return gpu::copy(head_.stream(), to, from, 4 * n * d_model);
  device_rms_norm(head_.stream(), n, d_model, from, of.model().output_norm.as<float>(), of.plan().norm_eps, to);
}

void CudaSpeculation::read_sampled(int64_t step, bool proposes) {
  std::vector<TextRows> parts;
  std::vector<int> reaches;
  int n = 0;
  for (size_t i = 0; i < n_heads(); ++i) {
    const DeviceText* const text = device_text(i);
    const auto [seq, first] = draft_.texts[i];
    parts.push_back({.base = &text->n_before,
                     .offset = -first,
                     .n_valid = &text->n_sampled,
                     .n = 1 + last_queued()[i],
                     .slot = draft_.pool.slot(seq),
                     .from = text->sampled});
    reaches.push_back(reach(i) - first);
    n += parts.back().n;
  }
  run_head(parts, reaches, proposes ? LogitRows::last : LogitRows::none,
           [&](const StepInputs& to) { copy_hidden(n, model_, hidden_of(step - 1), to.hidden); });
}

/// Passes behind the first have a row of every text: padding where a text has enough.
void CudaSpeculation::propose(const Step& n_proposed) {
  const int n_passes = *std::ranges::max_element(n_proposed), n = int(n_heads());
  for (int pass = 1; pass <= n_passes; ++pass) {
    if (pass > 1) {
      std::vector<TextRows> parts;
      std::vector<int> reaches;
      for (size_t i = 0; i < n_heads(); ++i) {
        const DeviceText* const text = device_text(i);
        const auto [seq, first] = draft_.texts[i];
        parts.push_back({.base = &text->n_past,
                         .offset = pass - 2 - first,
                         .n = 1,
                         .slot = n_proposed[i] < pass ? -1 : draft_.pool.slot(seq),
                         .from = text->next + pass - 1});
        reaches.push_back(reach(i) - first + std::min(pass, n_proposed[i]) - 1);
      }
      run_head(parts, reaches, LogitRows::last,
               [&](const StepInputs& to) { copy_hidden(n, head_, head_.logit_hidden(), to.hidden); });
    }
    workspace_.head_sampler.sample(head_.stream(), n, head_outputs_.on_device(),
                                   {device_text(0)->next + pass, kTextWords});
  }
}

void CudaSpeculation::verify(int64_t step, const Step& n_proposed) {
  const gpu::Stream& stream = model_.stream();
  std::vector<TextRows> parts;
  std::vector<SeqTokens> seqs;
  std::vector<int> reaches;
  VerifiedRows rows;
  for (size_t i = 0; i < texts_.size(); ++i) {
    const SeqId seq = texts_[i].seq;
    const DeviceText* const text = device_text(i);
    const int n = 1 + n_proposed[i];
    parts.push_back({.base = &text->n_past, .n = n, .slot = pool_.slot(seq), .from = text->next});
    seqs.push_back({seq, n});
    reaches.push_back(reach(i) + n);
    pool_.reserve(seq, reaches.back() - pool_.length(seq)).or_throw();
    rows.first[i + 1] = rows.first[i] + n;
  }
  rows.n_texts = int(texts_.size());
  const int n = rows.n_rows();
  RIDGE_CHECK(n <= workspace_.n_rows, "{} rows of {} texts", n, rows.n_texts);
  model_.run_fed({.tokens = std::span(some_).first(size_t(n)), .seqs = seqs, .logits = LogitRows::all}, pool_, outputs_,
                 {reaches, [&](const StepInputs& to) { device_text_rows(stream, step_of(parts, to)); }});
  gpu::copy(stream, hidden_of(step), model_.hidden(), 4 * int64_t(n) * model_.plan().d_model);
  auto* const sampled = workspace_.sampled.as<int32_t>();
  workspace_.sampler.spread(stream, rows, device_text(0));
  workspace_.sampler.sample(stream, n, outputs_.on_device(), sampled);
  // A head that only reads does so beside the model's pass: what it reads of the texts is overwritten from here on.
  workspace_.head_done.hold(stream);
  workspace_.sampler.verify(stream, rows, sampled, device_text(0), workspace_.ring.view());
  queued_.push_back(n_proposed);
}

bool CudaSpeculation::read(int64_t step, std::span<int32_t> numbers) {
  if (!workspace_.ring.read(step, numbers)) return false;
  if (step < n_read_) return true;
  read_ = queued_.front();
  queued_.pop_front();
  ++n_read_;
  for (size_t i = 0; i < texts_.size(); ++i) {
    Text& text = texts_[i];
    if (i < n_heads()) {
      // The head has read what the step before gave, and its own proposals, which it forgets.
      const int n_own = std::max(0, read_[i] - 1);
      draft_.pool.advance(draft_.texts[i].seq, text.n_held + n_own, text.n_held);
    }
    text.n_held = numbers[i * kNumbers];
    RIDGE_CHECK(text.n_held >= 1 && text.n_held <= 1 + read_[i], "{} tokens of {} proposals", text.n_held, read_[i]);
    text.n_before = pool_.length(text.seq);
    pool_.advance(text.seq, 1 + read_[i], text.n_held);
  }
  return true;
}

void CudaSpeculation::finish() {
  model_.stream().synchronize();
  head_.stream().synchronize();
}

std::vector<std::vector<float>> CudaSpeculation::leave(std::span<const int> n_kept) {
  gpu::use_device(model_.device());
  RIDGE_CHECK(n_read_ > 0 && n_kept.size() == texts_.size(), "{} texts leave, {} steps were read", n_kept.size(),
              n_read_);
  const int64_t d_model = model_.plan().d_model;
  std::vector<std::vector<float>> hidden(n_heads());
  int64_t row = 0;
  for (size_t i = 0; i < texts_.size(); ++i) {
    const Text& text = texts_[i];
    RIDGE_CHECK(n_kept[i] >= 1 && n_kept[i] <= text.n_held, "{} of {} tokens stay", n_kept[i], text.n_held);
    const int far = reach(i);
    if (!queued_.empty()) pool_.advance(text.seq, far - pool_.length(text.seq), 0);
    pool_.trim(text.seq, text.n_before + n_kept[i], TrimMode::exact).or_throw();
    if (i >= n_heads()) continue;
    SequencePool& pool = draft_.pool;
    const auto [seq, first] = draft_.texts[i];
    const int length = pool.length(seq);
    if (!queued_.empty()) {
      const int n_unread = queued_.back()[i] > 0 ? 2 : 1;  // of the last step, by the head
      pool.advance(seq, far - n_unread - first - length, 0);
    }
    pool.trim(seq, length, TrimMode::exact).or_throw();
    hidden[i].resize(size_t(n_kept[i] * d_model));
    gpu::download(model_.stream(), hidden[i].data(), hidden_of(n_read_ - 1) + row * d_model, ssize(hidden[i]) * 4);
    row += 1 + read_[i];
  }
  queued_.clear();
  model_.stream().synchronize();
  return hidden;
}

}  // namespace ridge
