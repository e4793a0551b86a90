// Reading a prompt into a session for `ridge run` and `ridge chat`: progress, Ctrl-C.
#pragma once

#include "ridge/engine.h"

namespace ridge::chat {

struct ReadingOptions {
  int n_step = 0;  ///< tokens between two looks at Ctrl-C; 0: the engine's steps
  bool shows_progress =
      false;  ///< on stderr: a line that a terminal shows until all is read; elsewhere one now and then
};

/// Reads tokens in steps until Ctrl-C; returns how many.
int read_tokens(Session& session, const Model& model, std::span<const int32_t> tokens, const ReadingOptions& options);

/// Lines about a long prompt for a log: the first after half a minute, each of the next after twice the time.
class ReadingNotes {
 public:
  /// Line to print `seconds` after the begin; empty: nothing yet.
  std::string line(size_t n_read, size_t n, double seconds);

 private:
  double next_s_ = 30;
};

double tokens_per_second(int n, double seconds);

}  // namespace ridge::chat
