// One text to generate, and who hears of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ridge/engine.h"

namespace ridge::serve {

/// How the hidden states of a prompt's tokens become one embedding.
enum class Pooling : uint8_t { none, mean, last };

struct GenerationRequest {
  std::vector<int32_t> prompt;    ///< not empty; ids are valid
  std::vector<int> message_ends;  ///< lengths of the prompt where another request may branch off
  std::string kv;                 ///< cache formats as kv_text() writes them; empty: the server's
  GenerateOptions options;        ///< max_tokens -1: until the context is full
  float presence_penalty = 0;     ///< taken from the logit of every token that was generated
  float frequency_penalty = 0;    ///< the same, times how often
  std::vector<std::pair<int32_t, float>> logit_bias;
  int min_tokens = 0;                     ///< no end token comes before so many tokens
  std::vector<int32_t> marks;             ///< control tokens that Listener::on_mark() hears of
  int n_top_logprobs = -1;                ///< alternatives of every token; -1: no log probabilities at all
  bool prompt_logprobs = false;           ///< of the tokens of the prompt but its first, too
  Pooling pooling = Pooling::none;        ///< an embedding of the prompt; with max_tokens 0
  std::unique_ptr<TokenRule> constraint;  ///< a grammar's position
  std::optional<bool> speculative;        ///< whether proposals are made; unset: where the server has a proposer
  int key = 0;                            ///< whose request: turns are shared out fairly among keys

  /// Whether what is asked of the prompt needs a pass over all of its tokens, cached ones too.
  bool reads_whole_prompt() const { return prompt_logprobs || pooling != Pooling::none; }
  /// Whether logits must come to the host before a token is sampled.
  bool needs_logits() const {
    return presence_penalty != 0 || frequency_penalty != 0 || !logit_bias.empty() || n_top_logprobs >= 0 ||
           constraint || min_tokens > 0;
  }
};

/// A token with the natural logarithm of its probability before sampling, and the likeliest ones, best first.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;
};

enum class FinishReason : uint8_t { stop, length, cancelled, failed };

struct Usage {
  int n_prompt = 0;
  int n_cached = 0;  ///< tokens of the prompt that were not computed again
  int n_generated = 0;
  int n_proposed = 0, n_accepted = 0;  ///< of speculation; accepted tokens are generated ones
  double queue_seconds = 0, prompt_seconds = 0, decode_seconds = 0;
};

/// Wish of a listener: more text, no more since the text is complete, or nothing since nobody listens.
enum class Wish : uint8_t { more, enough, gone };

/// Why a request failed. Empty message: it did not.
struct RequestError {
  enum class Code : uint8_t { other, not_finite, too_ambiguous };
  std::string message = {};
  Code code = Code::other;
};

/// Hears of one request, from the scheduler's thread: must not block. Nothing comes after on_end().
class Listener {
 public:
  virtual ~Listener() = default;
  /// Final text, and the log probabilities of the tokens since the last call where asked for.
  virtual Wish on_text(std::string_view text, std::span<const TokenLogprob> logprobs) = 0;
  /// A control token of GenerationRequest::marks, by its spelling, in its place between the texts.
  virtual Wish on_mark(std::string_view) { return Wish::more; }
  /// The embedding of the prompt, [d_model], where one is asked for; before on_end().
  virtual void on_embedding(std::span<const float>) {}
  /// `error` says why where the reason is `failed`.
  virtual void on_end(FinishReason reason, const Usage& usage, const RequestError& error) = 0;
};

}  // namespace ridge::serve
