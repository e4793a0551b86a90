#include "serve/api/openai.h"

#include <algorithm>

#include "serve/api/chat_body.h"

namespace ridge::serve {
namespace {

int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (uint8_t(c) & 0xC0) != 0x80; });
}

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(uint8_t(c));
  return bytes;
}

class OpenAiForm final : public ApiForm {
 public:
  explicit OpenAiForm(const AnswerData& answer)
      : ApiForm(answer, new_id(answer.request.chat ? "chatcmpl-" : "cmpl-")), sent_(n_choices_of(answer)) {}

  void begin() override;
  void add(size_t index, const text::OutputDelta& delta) override;
  void end(size_t index) override;
  void finish() override;
  Json whole() override;

 private:
  /// Log probabilities of a choice that a stream has sent.
  struct Sent {
    size_t n_logprobs = 0, n_calls = 0;
    int64_t n_characters = 0;  ///< of their tokens
    bool echoed = false;       ///< the first token of the prompt is among them
  };
  static size_t n_choices_of(const AnswerData& answer) {
    return answer.request.prompts.size() * size_t(answer.request.n_choices);
  }
  bool chat() const { return answer_.request.chat; }
  Json head(const char* object) const;
  Json chunk(size_t index, Json delta, Json finish_reason);
  Json logprobs_json(size_t index);
  Json text_logprobs(size_t index);
  Json finish_json(const ChoiceText& choice) const;
  Json usage_json() const;
  void add_counts(Json& json) const;
  std::string piece(int32_t token) const {
    const Engine& engine = answer_.model.engine;
    return engine.has_tokenizer() ? engine.tokenizer().piece(token, true) : fmt::format("{} ", token);
  }
  /// The text that the token adds: none for control tokens.
  std::string shown_piece(int32_t token) const {
    const Engine& engine = answer_.model.engine;
    return engine.has_tokenizer() ? engine.tokenizer().piece(token) : piece(token);
  }

  std::vector<Sent> sent_;
};

void OpenAiForm::begin() {
  if (!chat() && !answer_.request.echo) return;
  for (size_t i = 0; i < answer_.choices.size(); ++i)
    push(chunk(i, chat() ? Json{{"role", "assistant"}, {"content", ""}} : Json{{"text", answer_.choices[i].content}},
               nullptr));
}

void OpenAiForm::add(size_t index, const text::OutputDelta& delta) {
  if (!streams()) return;
  Sent& sent = sent_[index];
  Json json = Json::object();
  if (!chat()) json["text"] = delta.content;
  else if (!delta.content.empty()) json["content"] = delta.content;
  if (!delta.reasoning.empty()) json["reasoning_content"] = delta.reasoning;
  for (const text::ToolCall& one : delta.calls) {
    Json call = chat_call(one.id, one.name, one.arguments);
    call["index"] = sent.n_calls++;
    json["tool_calls"].push_back(std::move(call));
  }
  if (json.empty() && sent.n_logprobs == answer_.choices[index].logprobs.size()) return;
  push(chunk(index, std::move(json), nullptr));
}

void OpenAiForm::end(size_t index) {
  if (streams()) push(chunk(index, chat() ? Json::object() : Json{{"text", ""}}, finish_json(answer_.choices[index])));
}

Json OpenAiForm::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", answer_.created}, {"model", answer_.model.name}};
}

Json OpenAiForm::finish_json(const ChoiceText& choice) const {
  if (!choice.calls.empty() && choice.reason == FinishReason::stop) return "tool_calls";
  return choice.reason == FinishReason::length ? "length" : "stop";
}

Json OpenAiForm::chunk(size_t index, Json delta, Json finish_reason) {
  Json json = head(chat() ? "chat.completion.chunk" : "text_completion");
  Json one = {{"index", index}};
  if (chat()) one["delta"] = std::move(delta);
  else one["text"] = delta["text"];
  one["logprobs"] = logprobs_json(index);
  one["finish_reason"] = std::move(finish_reason);
  json["choices"] = Json::array({std::move(one)});
  if (answer_.request.include_usage) json["usage"] = nullptr;
  return json;
}

/// The log probabilities that were not sent yet.
Json OpenAiForm::logprobs_json(size_t index) {
  if (answer_.request.n_top_logprobs < 0) return nullptr;
  if (!chat()) return text_logprobs(index);
  const auto one = [&](int32_t token, float logprob) {
    const std::string text = piece(token);
    return Json{{"token", text}, {"logprob", logprob}, {"bytes", bytes_of(text)}};
  };
  const std::vector<TokenLogprob>& all = answer_.choices[index].logprobs;
  Json content = Json::array();
  for (size_t& i = sent_[index].n_logprobs; i < all.size(); ++i) {
    Json entry = one(all[i].token, all[i].logprob), list = Json::array();
    for (const auto& [token, logprob] : all[i].top) list.push_back(one(token, logprob));
    entry["top_logprobs"] = std::move(list);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

/// Log probabilities for completions. With echo the prompt's tokens come first; the values of the first of them are
/// null, since nothing comes before it.
Json OpenAiForm::text_logprobs(size_t index) {
  const ApiRequest& request = answer_.request;
  const ChoiceText& choice = answer_.choices[index];
  Sent& sent = sent_[index];
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  const auto add = [&](int32_t token, Json value, Json top) {
    tokens.push_back(piece(token));
    values.push_back(std::move(value));
    tops.push_back(std::move(top));
    offsets.push_back(sent.n_characters);
    const std::string text = shown_piece(token);
    // The echoed text lacks the blank that some tokenizers put in front of it.
    const bool drops =
        request.echo && sent.n_characters == 0 && text.starts_with(' ') && !choice.content.starts_with(' ');
    sent.n_characters += count_characters(text) - (drops ? 1 : 0);
  };
  if (request.echo && !std::exchange(sent.echoed, true))
    add(request.prompts[index / size_t(request.n_choices)][0], nullptr, nullptr);
  for (size_t& i = sent.n_logprobs; i < choice.logprobs.size(); ++i) {
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

Json OpenAiForm::usage_json() const {
  const Usage u = answer_.usage();
  Json usage = {{"prompt_tokens", u.n_prompt},
                {"completion_tokens", u.n_generated},
                {"total_tokens", u.n_prompt + u.n_generated},
                {"prompt_tokens_details", {{"cached_tokens", u.n_cached}}}};
  if (u.n_proposed > 0)
    usage["completion_tokens_details"] = {{"accepted_prediction_tokens", u.n_accepted},
                                          {"rejected_prediction_tokens", u.n_proposed - u.n_accepted}};
  if (answer_.request.clamped) usage["max_tokens_clamped"] = true;
  return usage;
}

void OpenAiForm::add_counts(Json& json) const {
  json["usage"] = usage_json();
  json["timings"] = timings_json(answer_.choices[0].usage);
  json["latency_ms"] = 1e3 * seconds_since(answer_.arrived);
}

void OpenAiForm::finish() {
  if (answer_.request.include_usage) {
    Json json = head(chat() ? "chat.completion.chunk" : "text_completion");
    json["choices"] = Json::array();
    add_counts(json);
    push(json);
  }
  push_text("[DONE]");
}

Json OpenAiForm::whole() {
  Json json = head(chat() ? "chat.completion" : "text_completion");
  json["choices"] = Json::array();
  for (size_t i = 0; i < answer_.choices.size(); ++i) {
    const ChoiceText& choice = answer_.choices[i];
    Json one = {{"index", i}};
    if (chat()) {
      Json message = {{"role", "assistant"}, {"content", choice.content}};
      if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
      if (!choice.calls.empty()) {
        if (choice.content.empty()) message["content"] = nullptr;
        for (const text::ToolCall& call : choice.calls)
          message["tool_calls"].push_back(chat_call(call.id, call.name, call.arguments));
      }
      one["message"] = std::move(message);
    } else {
      one["text"] = choice.content;
    }
    one["logprobs"] = logprobs_json(i);
    one["finish_reason"] = finish_json(choice);
    json["choices"].push_back(std::move(one));
  }
  add_counts(json);
  return json;
}

}  // namespace

std::unique_ptr<ApiForm> openai_form(const AnswerData& answer) { return std::make_unique<OpenAiForm>(answer); }

}  // namespace ridge::serve
