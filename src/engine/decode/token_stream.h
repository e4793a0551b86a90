// From token ids to streamed text: the part of generate(), and of a server, that does not care where tokens come from.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "io/tokenizer.h"
#include "ridge/engine.h"

namespace ridge {

/// Streams text, holding back what may still become a stop string.
class StopFilter {
 public:
  /// `stops` must outlive the filter.
  explicit StopFilter(const std::vector<std::string>& stops) : stops_(stops) {}

  /// Adds text; returns what is final. After a match, matched() names the stop string and nothing more comes out.
  std::string push(std::string_view text);
  /// Returns the held-back text.
  std::string finish() { return std::exchange(held_, {}); }
  const std::string* matched() const { return matched_; }

 private:
  size_t longest_open_match() const;

  const std::vector<std::string>& stops_;
  std::string held_;
  const std::string* matched_ = nullptr;
};

/// Takes tokens one by one and decides when generation ends. Fills tokens, text, reason and stop of a GenerateResult.
class TokenStream {
 public:
  struct Vocabulary {
    std::function<std::string(int32_t)> piece;  ///< raw bytes of a token
    std::function<bool(int32_t)> is_end;
    std::function<std::string(int32_t)> mark = {};  ///< a control token's spelling where on_mark wants it, else ""
  };
  using OnText = std::function<bool(std::string_view)>;  ///< as generate()'s

  /// `options`, `on_text` and `result` must outlive the stream. Throws usage when max_tokens is below -1. `on_mark`
  /// hears of marks between the texts; they are no text, for stop strings neither.
  TokenStream(Vocabulary vocabulary, const GenerateOptions& options, const OnText& on_text, GenerateResult& result,
              OnText on_mark = {});

  /// Whether another token is wanted; after the last one result.reason says why not.
  bool wants_more() const { return wants_more_; }
  /// Adds a token; returns wants_more().
  bool push(int32_t token);
  /// No token will come. Streams what was held back, unless a stop string ended the text. Of a character that a limit
  /// cut through nothing is streamed.
  void finish();

 private:
  void emit(const std::string& text);
  void emit_mark(const std::string& mark);
  bool stop(StopReason reason);

  Vocabulary vocabulary_;
  const GenerateOptions& options_;
  const OnText& on_text_;
  const OnText on_mark_;
  GenerateResult& result_;
  io::Utf8Stream utf8_;
  StopFilter filter_;
  bool wants_more_ = true, interrupted_ = false;
};

}  // namespace ridge
