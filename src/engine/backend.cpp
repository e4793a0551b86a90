#include "engine/backend.h"

#include <algorithm>

namespace ridge {

void Backend::run(const Batch& batch, SequencePool& pool, Outputs& outputs) {
  step(batch, pool, pool.memory(), outputs);
  for (const SeqTokens& tokens : batch.seqs) pool.advance(tokens.seq, tokens.n_tokens);
}

Drawing::Drawing(std::span<const SeqId> seqs, SequencePool& pool) : pool_(pool) {
  for (const SeqId seq : seqs) seqs_.push_back({seq, 1});
}

void Drawing::launch(int64_t step) {
  if (step == 0) return queue(step);
  for (const SeqTokens& tokens : seqs_) pool_.reserve(tokens.seq, 1).or_throw();
  queue(step);
  for (const SeqTokens& tokens : seqs_) pool_.advance(tokens.seq, 1);
}

int draw_tokens(Backend& backend, SequencePool& pool, SeqId seq, Outputs& outputs, const SamplerOptions& sampler,
                std::span<const int32_t> recent, int n, const std::function<bool(int32_t)>& on_token) {
  const std::vector<int32_t> known(recent.begin(), recent.end());
  const std::unique_ptr<Drawing> drawing = backend.start_drawing({&seq, 1}, pool, outputs, {&sampler, 1}, {&known, 1});
  RunAhead run_ahead(*drawing, 1, std::min(kStepsAhead, drawing->most_ahead()));
  const RunAheadResult result = run_ahead.run(n, [&](std::span<const int32_t> tokens) { return on_token(tokens[0]); });
  pool.trim(seq, pool.length(seq) - int(result.n_launched - result.n_taken), TrimMode::exact).or_throw();
  return int(result.n_taken);
}

}  // namespace ridge
