// Tokens for a model, and the logits that it makes of them.
#pragma once

#include <span>
#include <vector>

#include "base/rng.h"
#include "ridge/engine.h"

namespace ridge {

inline std::vector<int32_t> tokens_of(int n, int vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(int32_t(rng.next() % uint64_t(vocab)));
  return tokens;
}

/// Logits of every position, the first part as a prompt in batches, the rest token by token.
inline std::vector<float> all_logits(const Model& model, const std::vector<int32_t>& tokens, const char* k,
                                     const char* v, int n_ubatch = 23) {
  Session session(model, {.n_ctx = int(tokens.size()), .n_ubatch = n_ubatch, .k = {.format = k}, .v = {.format = v}});
  std::vector<float> all;
  const size_t prompt = tokens.size() * 3 / 4;
  const int64_t vocab = model.info().vocab_size;
  session.prefill(std::span(tokens).first(prompt),
                  [&](int, int n, const float* rows) { all.insert(all.end(), rows, rows + n * vocab); });
  for (size_t i = prompt; i < tokens.size(); ++i) {
    const auto row = session.decode(tokens[i]);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

}  // namespace ridge
