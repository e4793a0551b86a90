#include "gpu/token_ring.h"

#include <atomic>
#include <cstring>
#include <string>

#include "gpu/tensor.h"
#include "gpu/token_ring_device.h"
#include "ridge/error.h"

namespace ridge::gpu {
namespace {

__global__ void publish_tokens(TokenRingView ring, const int32_t* tokens) {
  wait_for_previous_grid();
  let_next_grid_start();
  for (int seq = int(threadIdx.x); seq < ring.n_seq; seq += int(blockDim.x)) put_token(ring, seq, tokens[seq]);
}

}  // namespace

TokenRing::TokenRing(int n_seq, int n_slots) : steps_(4 * int64_t(n_seq)), most_seqs_(n_seq) {
  if (n_seq < 1 || n_slots < 1)
    throw Error(ErrorKind::failure,
                "a token ring of " + std::to_string(n_slots) + " steps of " + std::to_string(n_seq) + " sequences");
  const int64_t n = int64_t(n_seq) * n_slots;
  view_ = {words_.ensure<uint64_t>(n), steps_.as<uint32_t>(), n_seq, n_slots};
  std::memset(view_.words, 0, size_t(8 * n));
}

void TokenRing::reset(StreamHandle stream, int n_seq) {
  if (n_seq < 1 || n_seq > most_seqs_)
    throw Error(ErrorKind::failure,
                "a step of " + std::to_string(n_seq) + " sequences in a token ring of " + std::to_string(most_seqs_));
  view_.n_seq = n_seq;
  std::memset(view_.words, 0, sizeof(uint64_t) * size_t(view_.n_seq) * size_t(view_.n_slots));
  clear(stream, view_.steps, 4 * int64_t(view_.n_seq));
}

void TokenRing::publish(StreamHandle stream, const int32_t* tokens) const {
  launch("publish_tokens", publish_tokens, {1, 32, 0, stream, true}, view_, tokens);
}

bool TokenRing::read(int64_t step, std::span<int32_t> tokens) const {
  if (int(tokens.size()) != view_.n_seq)
    throw Error(ErrorKind::failure,
                "tokens of " + std::to_string(tokens.size()) + " of " + std::to_string(view_.n_seq) + " sequences");
  uint64_t* words = view_.words + step % view_.n_slots * view_.n_seq;
  for (size_t seq = 0; seq < tokens.size(); ++seq) {
    const uint64_t word = std::atomic_ref(words[seq]).load(std::memory_order_acquire);
    const auto stamp = uint32_t(word >> 32), wanted = uint32_t(step + 1);
    if (stamp == wanted) tokens[seq] = int32_t(uint32_t(word));
    else if (int32_t(stamp - wanted) > 0)
      throw Error(ErrorKind::failure, "the tokens of step " + std::to_string(step) +
                                          " were overwritten by those of step " + std::to_string(stamp - 1));
    else return false;
  }
  return true;
}

}  // namespace ridge::gpu
