#include "serve/answer.h"

namespace ridge::serve {
namespace {

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(Models::Pointer served, AnswerData data, const http::Reply& reply, const MakeForm& make)
      : served_(std::move(served)), data_(std::move(data)), reply_(reply), form_(make(data_)) {}

  void start();

 private:
  /// Splits the text of one choice.
  struct Splitter {
    explicit Splitter(const ApiRequest& request) : parser(request.output), stops(request.stop) {}
    text::OutputParser parser;
    StopFilter stops;  ///< what the client reads as content ends before a stop string
  };
  /// Hears of one choice, and keeps the answer alive.
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

  const ApiRequest& request() const { return data_.request; }
  Wish on_text(size_t index, std::string_view text, std::span<const TokenLogprob> logprobs);
  Wish on_mark(size_t index, std::string_view mark);
  void on_end(size_t index, FinishReason reason, const Usage& usage, const RequestError& error);
  Wish add_parsed(size_t index, text::OutputDelta delta);
  Wish add(size_t index, text::OutputDelta delta);
  void log_prompts() const;
  void log(const ChoiceText& choice, const std::string& error) const;
  void finish();

  const Models::Pointer served_;
  AnswerData data_;
  const http::Reply reply_;
  const std::unique_ptr<ApiForm> form_;
  std::vector<Splitter> splitters_;  // one a choice
  std::shared_ptr<EventWriter> events_;
  size_t n_ended_ = 0;
  RequestError error_;
};

void Answer::start() {
  if (!request().chat) data_.request.output.reasoning = false;
  const auto n_choices = size_t(request().n_choices), n = request().prompts.size() * n_choices;
  data_.choices.resize(n);
  std::vector<Scheduler::Submission> submissions;
  for (size_t i = 0; i < n; ++i) {
    splitters_.emplace_back(request());
    if (request().echo) data_.choices[i].content = request().prompt_texts[i / n_choices];
    submissions.push_back(
        {request().choice(i / n_choices, int(i % n_choices)), std::make_shared<ChoiceListener>(shared_from_this(), i)});
  }
  if (data_.model.log_prompts) log_prompts();
  const auto ids = served_->scheduler->submit(std::move(submissions), [&] {
    if (!request().stream) return;
    http::Headers headers = http::sse_headers();
    for (const auto& [name, value] : form_->headers().fields) headers.add(name, value);
    events_ = std::make_shared<EventWriter>(reply_.stream(200, http::kEventStream, headers));
    form_->stream_to(events_);
    form_->begin();
  });
  if (!ids) throw submit_error(ids.error());
  reply_.on_gone([served = std::weak_ptr(served_), ids = *ids] {
    if (const Models::Pointer still = served.lock())
      for (const uint64_t id : ids) still->scheduler->cancel(id);
  });
}

Wish Answer::on_text(size_t index, std::string_view text, std::span<const TokenLogprob> logprobs) {
  auto& all = data_.choices[index].logprobs;
  all.insert(all.end(), logprobs.begin(), logprobs.end());
  if (!request().chat) return add_parsed(index, {.content = std::string(text)});
  return add_parsed(index, splitters_[index].parser.feed(text));
}

Wish Answer::on_mark(size_t index, std::string_view mark) {
  return add_parsed(index, splitters_[index].parser.feed_mark(mark));
}

/// Adds what the parser made of a text, up to a stop string in the content. Reasoning and calls have none.
Wish Answer::add_parsed(size_t index, text::OutputDelta delta) {
  StopFilter& stops = splitters_[index].stops;
  if (stops.matched()) delta = {};  // what stood behind the stop string
  else delta.content = stops.push(delta.content);
  const Wish wish = add(index, std::move(delta));
  return wish == Wish::more && stops.matched() ? Wish::enough : wish;
}

/// Adds to a choice; the form hears of it, and of log probabilities that came since.
Wish Answer::add(size_t index, text::OutputDelta delta) {
  ChoiceText& choice = data_.choices[index];
  if (request().one_call && !delta.calls.empty()) delta.calls.resize(choice.calls.empty() ? 1 : 0);
  choice.content += delta.content;
  choice.reasoning += delta.reasoning;
  choice.calls.insert(choice.calls.end(), delta.calls.begin(), delta.calls.end());
  form_->add(index, delta);
  return form_->gone() ? Wish::gone : Wish::more;
}

void Answer::on_end(size_t index, FinishReason reason, const Usage& usage, const RequestError& error) {
  ChoiceText& choice = data_.choices[index];
  auto& [parser, stops] = splitters_[index];
  if (request().chat) add_parsed(index, parser.finish());
  if (stops.matched()) {
    choice.stop = *stops.matched();
    if (reason == FinishReason::length) reason = FinishReason::stop;  // the stop string was held back
  } else if (std::string held = stops.finish(); request().chat || !held.empty()) {
    add(index, {.content = std::move(held)});
  }
  choice.reason = reason;
  choice.usage = usage;
  log(choice, error.message);
  if (reason == FinishReason::failed) error_ = error;
  else form_->end(index);
  if (++n_ended_ == data_.choices.size()) finish();
}

void Answer::log_prompts() const {
  const Engine& engine = data_.model.engine;
  for (const auto& prompt : request().prompts) {
    std::string text;
    for (const int32_t token : prompt)
      text += engine.has_tokenizer() ? engine.tokenizer().piece(token, true) : fmt::format("{} ", token);
    data_.model.log(fmt::format("{} prompt: {}", form_->id(), dump(Json(text))));
  }
}

void Answer::log(const ChoiceText& choice, const std::string& error) const {
  constexpr std::string_view kReasons[] = {"stop", "length", "cancelled", "failed"};
  const Usage& u = choice.usage;
  std::string line =
      fmt::format("{} prompt {} cached {} generated {} {} queue {:.0f} ms prompt {:.0f} ms decode {:.0f} ms",
                  form_->id(), u.n_prompt, u.n_cached, u.n_generated, kReasons[size_t(choice.reason)],
                  1e3 * u.queue_seconds, 1e3 * u.prompt_seconds, 1e3 * u.decode_seconds);
  if (!error.empty()) line += ": " + error;
  data_.model.log(line);
}

void Answer::finish() {
  const bool failed = !error_.message.empty();
  if (failed && !events_) return reply_.send(form_->refusal(generation_error(error_)));
  if (failed) form_->fail(generation_error(error_));
  else form_->finish();
  if (events_) return events_->finish();
  reply_.send({.body = dump(form_->whole()), .headers = form_->headers()});
}

}  // namespace

ApiError submit_error(const Failure& failure) {
  if (failure.kind == ErrorKind::no_memory)
    return {.status = 429, .message = failure.message, .type = "rate_limit_error", .code = "queue_full"};
  if (failure.kind == ErrorKind::failure)
    return {.status = 503, .message = failure.message, .type = "unavailable_error"};
  return {.message = failure.message, .param = failure.field};
}

ApiError generation_error(const RequestError& failure) {
  ApiError error{.status = 500, .message = failure.message, .type = "server_error"};
  if (failure.code == RequestError::Code::not_finite) error.code = "logits_not_finite";
  if (failure.code == RequestError::Code::too_ambiguous)
    error = {.status = 400, .message = failure.message, .param = "grammar", .code = "grammar_too_ambiguous"};
  return error;
}

void answer_request(const Models::Pointer& served, ApiRequest request, const http::Reply& reply, const MakeForm& make) {
  std::make_shared<Answer>(served, AnswerData{.model = served->model, .request = std::move(request)}, reply, make)
      ->start();
}

}  // namespace ridge::serve
