// One answer of a session to a prompt: what `ridge run` and `ridge chat` generate.
#pragma once

#include <functional>
#include <vector>

#include "ridge/engine.h"

namespace ridge::cli {

struct AnswerOptions {
  GenerateOptions generate;
  int n_held = 0;               ///< tokens of the prompt that the session holds already; less than all
  int n_step = 0;               ///< tokens between two looks at Ctrl-C while the prompt is read; 0: the engine's steps
  bool shows_progress = false;  ///< of reading the prompt, on stderr
  std::vector<int32_t> marks = {};                          ///< control tokens that on_mark hears of
  std::function<void(std::string_view)> on_mark = nullptr;  ///< their spelling, in its place between the texts
  bool ids = false;  ///< the text is the tokens' ids, each before a space: a model without a tokenizer
};

/// Reads what the session does not hold of the prompt, and generates. Ctrl-C ends both: the reason is then
/// `interrupted`, and the session holds what it got to. n_prompt and prefill_seconds count what was read here.
GenerateResult answer(Session& session, const Model& model, std::span<const int32_t> prompt,
                      const AnswerOptions& options, const std::function<void(std::string_view text)>& on_text);

/// Reads tokens in steps until Ctrl-C; returns how many. Progress is a line that a terminal on stderr shows until they are
/// read; elsewhere a line now and then (ReadingNotes).
int read_tokens(Session& session, const Model& model, std::span<const int32_t> tokens, int n_step,
                bool shows_progress = false);

/// Lines about a long prompt for a log: the first after half a minute, each of the next after twice the time.
class ReadingNotes {
 public:
  /// What to say `seconds` after the begin; empty: nothing yet.
  std::string line(size_t n_read, size_t n, double seconds);

 private:
  double next_s_ = 30;
};

double tokens_per_second(int n, double seconds);

}  // namespace ridge::cli
