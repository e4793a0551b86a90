#include "engine/backend.h"

namespace ridge {

void Backend::run(const Batch& batch, SequencePool& pool, Outputs& outputs) {
  step(batch, pool, pool.memory(), outputs);
  for (const SeqTokens& tokens : batch.seqs) pool.advance(tokens.seq, tokens.n_tokens);
}

DeviceSampling::DeviceSampling(std::span<const SeqId> seqs, SequencePool& pool) : pool_(pool) {
  for (const SeqId seq : seqs) seqs_.push_back({seq, 1});
}

void DeviceSampling::launch(int64_t step) {
  if (step == 0) return queue(step);
  for (const SeqTokens& tokens : seqs_) pool_.reserve(tokens.seq, 1).or_throw();
  queue(step);
  for (const SeqTokens& tokens : seqs_) pool_.advance(tokens.seq, 1);
}

}  // namespace ridge
