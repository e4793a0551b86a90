// Texts of token ids that sessions sample, with and without speculation.
#pragma once

#include <ostream>

#include "engine/decode/text.h"

namespace ridge {

/// What a session sampled, and what its cache and states give then.
struct SampledText {
  std::vector<int32_t> tokens;  // the prompt's too
  int n_past = 0;
  std::vector<float> next;  // logits of one more step

  bool operator==(const SampledText&) const = default;
  friend void PrintTo(const SampledText& text, std::ostream* out) {
    *out << text.n_past << " positions,";
    for (const int32_t token : text.tokens) *out << ' ' << token;
  }
};

inline SampledText sample_text(const Model& model, const SessionOptions& options, const SamplerOptions& sampler,
                               std::span<const int32_t> prompt, int n, Speculation* speculation) {
  Session session(model, options);
  session.prefill(prompt.first(1));  // a session that holds something takes its speculation all the same
  session.speculate(speculation);
  session.prefill(prompt.subspan(1));
  SampledText text{{prompt.begin(), prompt.end()}, 0, {}};
  session.generate(sampler, prompt, 1000, [&](int32_t token) {  // ends anywhere in a step
    text.tokens.push_back(token);
    return ssize(text.tokens) < ssize(prompt) + n;
  });
  text.n_past = session.n_past();
  const std::span<const float> logits = session.decode(text.tokens.back());
  text.next.assign(logits.begin(), logits.end());
  return text;
}

}  // namespace ridge
