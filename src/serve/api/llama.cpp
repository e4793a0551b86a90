#include "serve/api/llama.h"

#include "serve/api/chat_body.h"

namespace ridge::serve {
namespace {

constexpr std::pair<std::string_view, std::string_view> kLlamaNames[] = {{"response_format", "json_schema"}};

/// `logit_bias` as a list of pairs: a token id, and a number or false for never.
Json biases_of(const Json& pairs) {
  Json bias = Json::object();
  for (const Json& pair : pairs) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() ||
        !(pair[1].is_number() || pair[1] == false))
      refuse("logit_bias", "every entry is [token id, number or false]");
    bias[std::to_string(pair[0].get<int64_t>())] = pair[1].is_number() ? pair[1] : Json(-100);
  }
  return bias;
}

class LlamaForm final : public ApiForm {
 public:
  explicit LlamaForm(const AnswerData& answer) : ApiForm(answer, new_id("cmpl-")) {}

  void add(size_t, const text::OutputDelta& delta) override {
    if (!delta.content.empty()) push(part(delta.content, false));
  }
  void end(size_t) override {}
  void finish() override { push(last("")); }
  Json whole() override { return last(answer_.choices[0].content); }

 private:
  static Json part(const std::string& content, bool stop) {
    return {{"index", 0}, {"content", content}, {"tokens", Json::array()}, {"id_slot", -1}, {"stop", stop}};
  }

  Json last(const std::string& content) const {
    const ChoiceText& choice = answer_.choices[0];
    Json json = part(content, true);
    json["model"] = answer_.model.name;
    json["tokens_predicted"] = choice.usage.n_generated;
    json["tokens_evaluated"] = choice.usage.n_prompt;
    json["tokens_cached"] = choice.usage.n_cached;
    json["truncated"] = false;
    json["stop_type"] = choice.reason == FinishReason::length ? "limit" : choice.stop.empty() ? "eos" : "word";
    json["stopping_word"] = choice.stop;
    json["timings"] = timings_json(choice.usage);
    return json;
  }
};

}  // namespace

ApiRequest read_llama_request(const ApiModel& model, const Json& body) {
  Json completion = body;
  for (const char* name : {"n", "echo", "logprobs", "stream_options", "best_of"}) completion.erase(name);
  const Fields f(body);
  if (const Json* prompt = f.find("prompt"); prompt && prompt->is_array())
    for (const Json& token : *prompt)
      if (!token.is_number()) refuse("prompt", "a text or a list of token ids");
  if (!f.find("n_predict")) completion["n_predict"] = -1;
  if (const Json* seed = f.find("seed"); seed && *seed == -1) completion.erase("seed");  // a random one
  if (const Json* bias = f.find("logit_bias"); bias && bias->is_array()) completion["logit_bias"] = biases_of(*bias);
  if (const Json* schema = f.find("json_schema"))
    completion["response_format"] = {{"type", "json_object"}, {"schema", *schema}};
  ApiRequest request = reading_chat(kLlamaNames, [&] { return read_completion_request(model, completion); });
  request.stop = std::exchange(request.options.stop, {});  // the answer names the one that ended it
  return request;
}

std::unique_ptr<ApiForm> llama_form(const AnswerData& answer) { return std::make_unique<LlamaForm>(answer); }

}  // namespace ridge::serve
