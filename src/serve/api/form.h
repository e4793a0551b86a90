// The form of an API: how it writes one answer, whole or as events. Every API generates by serve/answer.h.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "serve/chat.h"
#include "serve/event_writer.h"
#include "serve/models.h"

namespace ridge::serve {

/// One choice of an answer as far as it is generated.
struct ChoiceText {
  std::string content, reasoning;
  std::vector<text::ToolCall> calls;
  std::vector<TokenLogprob> logprobs;
  FinishReason reason = FinishReason::failed;
  std::string stop = {};  ///< the request's stop string that ended the content; empty: none did
  Usage usage;
};

/// A request with the answer to it.
struct AnswerData {
  const ApiModel& model;
  ApiRequest request;
  const Clock::time_point arrived = Clock::now();
  const int64_t created = std::time(nullptr);
  std::vector<ChoiceText> choices = {};  ///< those of the first prompt come first

  /// Tokens of all choices; a prompt counts once, whatever the number of its choices.
  Usage usage() const;
};

/// JSON as APIs send it; bytes that are no UTF-8 are replaced.
std::string dump(const Json& json);
/// Tokens, milliseconds and tokens a second of the prompt and of the text, as llama.cpp's server names them.
Json timings_json(const Usage& u);
/// "PREFIX" and 24 random hexadecimal digits.
std::string new_id(std::string_view prefix);

/// Writes one answer. Calls come one at a time: begin(); add() and end() of each choice; then finish() or fail().
class ApiForm {
 public:
  /// `answer` outlives the form.
  ApiForm(const AnswerData& answer, std::string id) : answer_(answer), id_(std::move(id)) {}
  virtual ~ApiForm() = default;

  const std::string& id() const { return id_; }
  /// Sends events from now on; without this call all events are dropped.
  void stream_to(std::shared_ptr<EventWriter> events) { events_ = std::move(events); }
  bool streams() const { return events_ != nullptr; }
  /// Whether the client of a stream has left.
  bool gone() const { return gone_; }

  /// The events before the first text.
  virtual void begin() {}
  /// The choice has grown by `delta`, or by log probabilities alone.
  virtual void add(size_t index, const text::OutputDelta& delta) = 0;
  /// The choice is complete; its reason is not `failed`.
  virtual void end(size_t index) = 0;
  /// All choices are complete: the last events.
  virtual void finish() = 0;
  /// The whole answer, behind finish().
  virtual Json whole() = 0;
  /// The event of an error that ends a stream.
  virtual void fail(const ApiError& error) { push(error.json()); }
  /// An error in place of the whole answer.
  virtual http::Response refusal(const ApiError& error) const { return error.response(); }
  /// Fields of the answer's head.
  virtual http::Headers headers() const { return {}; }

 protected:
  /// Sends an event; `name` is its type in APIs that name events.
  void push(const Json& json, std::string_view name = {}) { push_text(dump(json), name); }
  void push_text(std::string_view data, std::string_view name = {});

  const AnswerData& answer_;
  const std::string id_;

 private:
  std::shared_ptr<EventWriter> events_;
  bool gone_ = false;
};

/// Makes the form of an answer.
using MakeForm = std::function<std::unique_ptr<ApiForm>(const AnswerData&)>;

}  // namespace ridge::serve
