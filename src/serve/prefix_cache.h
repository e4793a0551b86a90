// Prefixes that other requests left in a pool: checkpoints of prompts, found by the tokens they hold.
//
// A checkpoint is exact at its own length only, so its key is a hash of all tokens before it. A prompt is looked up at
// every one of its lengths: one hash a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/pool.h"

namespace ridge::serve {

/// hashes[i] is of tokens [0, i); [n + 1]. Nobody who lacks the secret finds two prompts with one hash.
std::vector<uint64_t> prefix_hashes(std::span<const int32_t> tokens, uint64_t secret);
/// The hash of one token more.
uint64_t extend_hash(uint64_t hash, int32_t token);

class PrefixCache {
 public:
  explicit PrefixCache(SequencePool& pool) : pool_(pool) {}

  struct Hit {
    SeqId seq{};
    int n = 0;  ///< tokens that the sequence holds
  };
  /// A new sequence that holds as many of the prompt's tokens as a checkpoint has, but not the last one, whose logits
  /// are wanted. Fails when no slot is free and no checkpoint can be given up.
  Result<Hit> open(std::span<const uint64_t> hashes);
  /// Keeps the sequence as it is, under the hash of its tokens; gives up the checkpoint that was used longest ago when
  /// slots are short. Nothing is kept when none can be had.
  void keep(SeqId seq, uint64_t hash);

 private:
  SequencePool& pool_;
};

}  // namespace ridge::serve
