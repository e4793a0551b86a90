#include "serve/answer.h"

#include <algorithm>
#include <random>

namespace ridge::serve {
namespace {

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string new_id(std::string_view prefix) {
  std::random_device random;
  return fmt::format("{}-{:08x}{:08x}{:08x}", prefix, random(), random(), random());
}

int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (uint8_t(c) & 0xC0) != 0x80; });
}

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(uint8_t(c));
  return bytes;
}

Json call_json(const text::ToolCall& call) {
  return {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

ApiError submit_error(const Failure& failure) {
  if (failure.kind == ErrorKind::no_memory)
    return {.status = 429, .message = failure.message, .type = "rate_limit_error", .code = "queue_full"};
  if (failure.kind == ErrorKind::failure)
    return {.status = 503, .message = failure.message, .type = "unavailable_error"};
  return {.message = failure.message, .param = failure.field};
}

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(Scheduler& scheduler, const ApiModel& model, ApiRequest request, const http::Reply& reply)
      : scheduler_(scheduler),
        model_(model),
        request_(std::move(request)),
        reply_(reply),
        id_(new_id(request_.chat ? "chatcmpl" : "cmpl")),
        created_(std::time(nullptr)) {}

  void start();

 private:
  /// One choice; its listener keeps the answer alive.
  struct Choice {
    explicit Choice(const ApiRequest& request) : parser(request.output), stops(request.stop) {}
    text::OutputParser parser;
    StopFilter stops;  ///< of a chat: what the client reads as content ends before a stop string
    std::string content, reasoning;
    std::vector<text::ToolCall> calls;
    std::vector<TokenLogprob> logprobs;
    size_t n_logprobs_sent = 0;
    int64_t n_characters = 0;  ///< of the tokens whose log probabilities were sent
    bool echoed = false;       ///< the first token of the prompt is among them
    FinishReason reason = FinishReason::failed;
    Usage usage;
    bool ended = false;
  };
  class ChoiceListener : public Listener {
   public:
    ChoiceListener(std::shared_ptr<Answer> answer, size_t index) : answer_(std::move(answer)), index_(index) {}
    Wish on_text(std::string_view text, std::span<const TokenLogprob> logprobs) override {
      return answer_->on_text(index_, text, logprobs);
    }
    Wish on_mark(std::string_view mark) override { return answer_->on_mark(index_, mark); }
    void on_end(FinishReason reason, const Usage& usage, const RequestError& error) override {
      answer_->on_end(index_, reason, usage, error);
    }

   private:
    const std::shared_ptr<Answer> answer_;
    const size_t index_;
  };

  Wish on_text(size_t index, std::string_view text, std::span<const TokenLogprob> logprobs);
  Wish on_mark(size_t index, std::string_view mark);
  void on_end(size_t index, FinishReason reason, const Usage& usage, const RequestError& error);
  Wish add_parsed(size_t index, text::OutputDelta delta);
  Wish add(size_t index, text::OutputDelta delta);
  void log(const Choice& choice, const std::string& error) const;
  Json head(const char* chunk_or_whole) const;
  Json chunk(size_t index, Json delta, Json finish_reason);
  Json logprobs_json(Choice& choice, size_t first) const;
  Json text_logprobs(Choice& choice, size_t first) const;
  Json finish_json(const Choice& choice) const;
  Json usage_json() const;
  Json timings_json() const;
  void finish();
  std::string text_of(std::span<const int32_t> tokens) const {
    std::string text;
    for (const int32_t token : tokens) text += piece(token);
    return text;
  }
  std::string piece(int32_t token) const {
    return model_.engine.has_tokenizer() ? model_.engine.tokenizer().piece(token, true) : fmt::format("{} ", token);
  }

  /// What the token adds to a text: control tokens nothing.
  std::string shown_piece(int32_t token) const {
    return model_.engine.has_tokenizer() ? model_.engine.tokenizer().piece(token) : piece(token);
  }

  Scheduler& scheduler_;
  const ApiModel& model_;
  ApiRequest request_;
  const http::Reply reply_;
  const std::string id_;
  const int64_t created_;
  const Clock::time_point arrived_ = Clock::now();
  std::vector<Choice> choices_;
  std::shared_ptr<EventWriter> events_;
  size_t n_ended_ = 0;
  RequestError error_;
};

void Answer::start() {
  if (!request_.chat) request_.output.reasoning = false;
  for (size_t i = 0; i < request_.prompts.size() * size_t(request_.n_choices); ++i) choices_.emplace_back(request_);
  std::vector<Scheduler::Submission> submissions;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const size_t prompt = i / size_t(request_.n_choices);
    if (request_.echo) choices_[i].content = request_.prompt_texts[prompt];
    submissions.push_back({request_.choice(prompt, int(i % size_t(request_.n_choices))),
                           std::make_shared<ChoiceListener>(shared_from_this(), i)});
  }
  if (model_.log_prompts)
    for (const auto& prompt : request_.prompts)
      model_.log(fmt::format("{} prompt: {}", id_,
                             Json(text_of(prompt)).dump(-1, ' ', false, Json::error_handler_t::replace)));
  const auto ids = scheduler_.submit(std::move(submissions), [&] {
    if (!request_.stream) return;
    events_ = std::make_shared<EventWriter>(reply_.stream(200, http::kEventStream, http::sse_headers()));
    for (size_t i = 0; i < choices_.size(); ++i) {
      Json first = request_.chat ? Json{{"role", "assistant"}, {"content", ""}} : Json{{"text", choices_[i].content}};
      if (request_.chat || request_.echo) events_->push(dump(chunk(i, std::move(first), nullptr)));
    }
  });
  if (!ids) return reply_.send(submit_error(ids.error()).response());
  reply_.on_gone([scheduler = &scheduler_, ids = *ids] {
    for (const uint64_t id : ids) scheduler->cancel(id);
  });
}

Wish Answer::on_text(size_t index, std::string_view text, std::span<const TokenLogprob> logprobs) {
  Choice& choice = choices_[index];
  choice.logprobs.insert(choice.logprobs.end(), logprobs.begin(), logprobs.end());
  if (request_.chat) return add_parsed(index, choice.parser.feed(text));
  return add(index, {.content = std::string(text)});
}

Wish Answer::on_mark(size_t index, std::string_view mark) {
  return add_parsed(index, choices_[index].parser.feed_mark(mark));
}

/// Adds what the parser made of a chat's text, up to a stop string in the content. Reasoning and calls have none.
Wish Answer::add_parsed(size_t index, text::OutputDelta delta) {
  StopFilter& stops = choices_[index].stops;
  if (stops.matched()) delta = {};  // what stood behind the stop string
  else delta.content = stops.push(delta.content);
  const Wish wish = add(index, std::move(delta));
  return wish == Wish::more && stops.matched() ? Wish::enough : wish;
}

/// Adds to a choice; a stream hears of it, and of log probabilities that came since.
Wish Answer::add(size_t index, text::OutputDelta delta) {
  Choice& choice = choices_[index];
  if (request_.one_call && !delta.calls.empty()) delta.calls.resize(choice.calls.empty() ? 1 : 0);
  choice.content += delta.content;
  choice.reasoning += delta.reasoning;
  choice.calls.insert(choice.calls.end(), delta.calls.begin(), delta.calls.end());
  if (!events_) return Wish::more;
  Json json = Json::object();
  if (!request_.chat) json["text"] = delta.content;
  else if (!delta.content.empty()) json["content"] = delta.content;
  if (!delta.reasoning.empty()) json["reasoning_content"] = delta.reasoning;
  for (size_t i = 0; i < delta.calls.size(); ++i) {
    Json call = call_json(delta.calls[i]);
    call["index"] = choice.calls.size() - delta.calls.size() + i;
    json["tool_calls"].push_back(std::move(call));
  }
  if (json.empty() && choice.n_logprobs_sent == choice.logprobs.size()) return Wish::more;
  return events_->push(dump(chunk(index, std::move(json), nullptr))) ? Wish::more : Wish::gone;
}

void Answer::on_end(size_t index, FinishReason reason, const Usage& usage, const RequestError& error) {
  Choice& choice = choices_[index];
  if (request_.chat) {
    add_parsed(index, choice.parser.finish());
    if (!choice.stops.matched()) add(index, {.content = choice.stops.finish()});
    else if (reason == FinishReason::length) reason = FinishReason::stop;  // the stop string was held back
  }
  choice.reason = reason;
  choice.usage = usage;
  log(choice, error.message);
  if (reason == FinishReason::failed) error_ = error;
  if (events_ && reason != FinishReason::failed)
    events_->push(dump(chunk(index, request_.chat ? Json::object() : Json{{"text", ""}}, finish_json(choice))));
  if (++n_ended_ == choices_.size()) finish();
}

void Answer::log(const Choice& choice, const std::string& error) const {
  constexpr std::string_view kReasons[] = {"stop", "length", "cancelled", "failed"};
  const Usage& u = choice.usage;
  std::string line =
      fmt::format("{} prompt {} cached {} generated {} {} queue {:.0f} ms prompt {:.0f} ms decode {:.0f} ms", id_,
                  u.n_prompt, u.n_cached, u.n_generated, kReasons[size_t(choice.reason)], 1e3 * u.queue_seconds,
                  1e3 * u.prompt_seconds, 1e3 * u.decode_seconds);
  if (!error.empty()) line += ": " + error;
  model_.log(line);
}

Json Answer::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.name}};
}

Json Answer::finish_json(const Choice& choice) const {
  if (!choice.calls.empty() && choice.reason == FinishReason::stop) return "tool_calls";
  return choice.reason == FinishReason::length ? "length" : "stop";
}

Json Answer::chunk(size_t index, Json delta, Json finish_reason) {
  Choice& choice = choices_[index];
  Json json = head(request_.chat ? "chat.completion.chunk" : "text_completion");
  Json one = {{"index", index}};
  if (request_.chat) one["delta"] = std::move(delta);
  else one["text"] = delta["text"];
  one["logprobs"] = logprobs_json(choice, choice.n_logprobs_sent);
  choice.n_logprobs_sent = choice.logprobs.size();
  one["finish_reason"] = std::move(finish_reason);
  json["choices"] = Json::array({std::move(one)});
  if (request_.include_usage) json["usage"] = nullptr;
  return json;
}

Json Answer::logprobs_json(Choice& choice, size_t first) const {
  if (request_.n_top_logprobs < 0) return nullptr;
  if (!request_.chat) return text_logprobs(choice, first);
  const auto one = [&](int32_t token, float logprob) {
    const std::string text = piece(token);
    return Json{{"token", text}, {"logprob", logprob}, {"bytes", bytes_of(text)}};
  };
  Json content = Json::array();
  for (size_t i = first; i < choice.logprobs.size(); ++i) {
    const TokenLogprob& t = choice.logprobs[i];
    Json entry = one(t.token, t.logprob), list = Json::array();
    for (const auto& [token, logprob] : t.top) list.push_back(one(token, logprob));
    entry["top_logprobs"] = std::move(list);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

/// Of completions. With echo the prompt's tokens come first; nothing comes before the first of them, whose are null.
Json Answer::text_logprobs(Choice& choice, size_t first) const {
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  const auto add = [&](int32_t token, Json value, Json top) {
    tokens.push_back(piece(token));
    values.push_back(std::move(value));
    tops.push_back(std::move(top));
    offsets.push_back(choice.n_characters);
    const std::string text = shown_piece(token);
    // The echoed text lacks the blank that some tokenizers put in front of it.
    const bool drops =
        request_.echo && choice.n_characters == 0 && text.starts_with(' ') && !choice.content.starts_with(' ');
    choice.n_characters += count_characters(text) - (drops ? 1 : 0);
  };
  if (request_.echo && !std::exchange(choice.echoed, true))
    add(request_.prompts[size_t(&choice - choices_.data()) / size_t(request_.n_choices)][0], nullptr, nullptr);
  for (size_t i = first; i < choice.logprobs.size(); ++i) {
    const TokenLogprob& t = choice.logprobs[i];
    Json top = Json::object();
    for (const auto& [token, logprob] : t.top) top.emplace(piece(token), logprob);
    add(t.token, t.logprob, std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json Answer::usage_json() const {
  int64_t prompt = 0, cached = 0, generated = 0, proposed = 0, accepted = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Usage& u = choices_[i].usage;
    // A prompt counts once, whatever the number of its choices.
    if (i % size_t(request_.n_choices) == 0) prompt += u.n_prompt, cached += u.n_cached;
    generated += u.n_generated;
    proposed += u.n_proposed;
    accepted += u.n_accepted;
  }
  Json usage = {{"prompt_tokens", prompt},
                {"completion_tokens", generated},
                {"total_tokens", prompt + generated},
                {"prompt_tokens_details", {{"cached_tokens", cached}}}};
  if (proposed > 0)
    usage["completion_tokens_details"] = {{"accepted_prediction_tokens", accepted},
                                          {"rejected_prediction_tokens", proposed - accepted}};
  if (request_.clamped) usage["max_tokens_clamped"] = true;
  return usage;
}

Json Answer::timings_json() const {
  const Usage& u = choices_[0].usage;
  const int n_computed = u.n_prompt - u.n_cached;
  const auto rate = [](int n, double seconds) { return seconds > 0 ? n / seconds : 0.0; };
  return {{"queue_ms", 1e3 * u.queue_seconds},
          {"prompt_n", n_computed},
          {"cache_n", u.n_cached},
          {"prompt_ms", 1e3 * u.prompt_seconds},
          {"prompt_per_second", rate(n_computed, u.prompt_seconds)},
          {"predicted_n", u.n_generated},
          {"predicted_ms", 1e3 * u.decode_seconds},
          {"predicted_per_second", rate(u.n_generated - 1, u.decode_seconds)}};
}

void Answer::finish() {
  const double latency_ms = 1e3 * seconds_since(arrived_);
  if (!error_.message.empty()) {
    ApiError error{.status = 500, .message = error_.message, .type = "server_error"};
    if (error_.code == RequestError::Code::not_finite) error.code = "logits_not_finite";
    if (error_.code == RequestError::Code::too_ambiguous)
      error = {.status = 400, .message = error_.message, .param = "grammar", .code = "grammar_too_ambiguous"};
    if (!events_) return reply_.send(error.response());
    events_->push(dump(error.json()));
    return events_->finish();
  }
  if (events_) {
    if (request_.include_usage) {
      Json json = head(request_.chat ? "chat.completion.chunk" : "text_completion");
      json["choices"] = Json::array();
      json["usage"] = usage_json();
      json["timings"] = timings_json();
      json["latency_ms"] = latency_ms;
      events_->push(dump(json));
    }
    events_->push("[DONE]");
    return events_->finish();
  }
  Json json = head(request_.chat ? "chat.completion" : "text_completion");
  json["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Json one = {{"index", i}};
    if (request_.chat) {
      Json message = {{"role", "assistant"}, {"content", choice.content}};
      if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
      if (!choice.calls.empty()) {
        if (choice.content.empty()) message["content"] = nullptr;
        for (const text::ToolCall& call : choice.calls) message["tool_calls"].push_back(call_json(call));
      }
      one["message"] = std::move(message);
    } else {
      one["text"] = choice.content;
    }
    one["logprobs"] = logprobs_json(choice, 0);
    one["finish_reason"] = finish_json(choice);
    json["choices"].push_back(std::move(one));
  }
  json["usage"] = usage_json();
  json["timings"] = timings_json();
  json["latency_ms"] = latency_ms;
  reply_.send({.body = dump(json)});
}

}  // namespace

void answer_request(Scheduler& scheduler, const ApiModel& model, ApiRequest request, const http::Reply& reply) {
  std::make_shared<Answer>(scheduler, model, std::move(request), reply)->start();
}

}  // namespace ridge::serve
