#include "serve/chat.h"

#include <algorithm>
#include <charconv>
#include <random>

#include "serve/messages.h"

namespace ridge::serve {
namespace {

constexpr size_t kMaxStops = 16, kMaxPrompts = 128;
constexpr int kMaxTopLogprobs = 20;
constexpr size_t kMaxBias = 4096;
/// Checkpoints at the ends of so many of the newest messages.
constexpr ptrdiff_t kMessageEnds = 4;

/// Known fields that would change the answer and are not supported, with the values that ask for nothing.
struct Unsupported {
  const char* name;
  std::vector<Json> harmless;
};
const std::vector<Unsupported> kUnsupported = {{"prediction", {}},
                                               {"service_tier", {"auto", "default"}},
                                               {"store", {false}},
                                               // Samplers and views of llama.cpp's server.
                                               {"typical_p", {1}},
                                               {"top_n_sigma", {0, -1}},
                                               {"mirostat", {0}},
                                               {"dynatemp_range", {0}},
                                               {"xtc_probability", {0}},
                                               {"dry_multiplier", {0}},
                                               {"samplers", {Json::array()}},
                                               {"n_probs", {0}},
                                               {"post_sampling_probs", {false}},
                                               {"t_max_predict_ms", {0, -1}},
                                               {"lora", {Json::array()}}};
const std::vector<Unsupported> kUnsupportedInChat = {
    {"functions", {Json::array()}}, {"function_call", {"none", "auto"}},     {"audio", {}},
    {"web_search_options", {}},     {"modalities", {Json::array({"text"})}}, {"verbosity", {"medium"}}};
const std::vector<Unsupported> kUnsupportedInCompletions = {{"suffix", {""}}};

void refuse_unsupported(const Json& body, const std::vector<Unsupported>& fields) {
  for (const auto& [name, harmless] : fields)
    if (const Json* value = Fields(body).find(name); value && std::ranges::find(harmless, *value) == harmless.end())
      refuse(name, fmt::format("{} is not supported (leave the field out)", shown(*value)));
}

/// Known fields that change nothing: their types are checked all the same.
void check_ignored(const Fields& f) {
  for (const char* name : {"model", "user", "safety_identifier", "prompt_cache_key"}) f.text(name);
  f.flag("cache_prompt");
  f.whole("id_slot", -1, INT32_MAX);
  if (const Json* metadata = f.find("metadata"); metadata && !metadata->is_object())
    refuse("metadata", fmt::format("{} is not an object", shown(*metadata)));
}

void read_sampling(const ApiModel& model, const Json& body, ApiRequest& request) {
  const Fields f(body);
  check_ignored(f);
  SamplerOptions& s = request.options.sampler;
  s.temperature = float(f.number("temperature", 0, 100).value_or(s.temperature));
  s.top_p = float(f.number("top_p", 0, 1).value_or(s.top_p));
  s.min_p = float(f.number("min_p", 0, 1).value_or(s.min_p));
  s.top_k = int(f.whole("top_k", -1, 1 << 26).value_or(s.top_k));
  s.top_k = std::max(s.top_k, 0);  // -1 is how some clients say "all"
  s.repeat_penalty = float(f.number("repeat_penalty", 0.01, 100).value_or(s.repeat_penalty));
  s.repeat_last_n = int(f.whole("repeat_last_n", 0, 1024).value_or(s.repeat_last_n));
  s.seed = f.find("seed") ? uint64_t(*f.whole("seed", INT64_MIN, INT64_MAX)) : std::random_device{}();
  request.presence_penalty = float(f.number("presence_penalty", -2, 2).value_or(0));
  request.frequency_penalty = float(f.number("frequency_penalty", -2, 2).value_or(0));
  (request.chat ? request.stop : request.options.stop) = f.texts("stop", kMaxStops);
  request.options.ignore_eos = f.flag("ignore_eos").value_or(false);
  request.min_tokens = int(f.whole("min_tokens", 0, 1 << 26).value_or(0));
  request.n_choices = int(f.whole("n", 1, model.max_choices).value_or(1));
  request.kv = f.text("kv_quant").value_or("");
  request.speculative = f.flag("speculative");
  if (request.kv == "auto") refuse("kv_quant", "auto is not supported yet (name a format, or leave the field out)");
  if (const Json* bias = f.find("logit_bias")) {
    if (!bias->is_object()) refuse("logit_bias", "not an object of token ids and numbers");
    if (bias->size() > kMaxBias) refuse("logit_bias", fmt::format("more than {} tokens", kMaxBias));
    const int vocab_size = model.engine.plan().vocab_size;
    for (const auto& [id, value] : bias->items()) {
      int token = -1;
      const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), token);
      if (error != std::errc() || end != id.data() + id.size() || token < 0 || token >= vocab_size)
        refuse("logit_bias", fmt::format("'{}' is not a token id below {}", id, vocab_size));
      if (!value.is_number() || !(std::abs(value.get<double>()) <= 100))
        refuse("logit_bias", fmt::format("the bias of {} is not a number from -100 to 100", id));
      request.logit_bias.emplace_back(token, value.get<float>());
    }
  }
  request.stream = f.flag("stream").value_or(false);
  if (const Json* options = f.find("stream_options")) {
    if (!options->is_object()) refuse("stream_options", "not an object");
    request.include_usage = Fields(*options, "stream_options.").flag("include_usage").value_or(false);
  }
}

/// The limit of tokens by any of its names; -1: until the context is full.
std::optional<int64_t> read_max_tokens(const Fields& f, int64_t least) {
  std::optional<int64_t> first;
  for (const char* name : {"max_completion_tokens", "max_tokens", "n_predict"}) {
    const auto n = f.whole(name, -1, 1 << 26);
    if (n && *n >= 0 && *n < least)
      refuse(name, fmt::format("{} is out of range ({} or more, -1: no limit)", *n, least));
    if (!first) first = n;
  }
  return first;
}

/// Whether every prompt fits, and what is left for the answer.
void check_length(const ApiModel& model, int64_t max_tokens, ApiRequest& request) {
  if (request.min_tokens > 0 && request.constraint)
    refuse("min_tokens",
           "not together with response_format, grammar, thinking_budget_tokens or a tool_choice that wants a call");
  if (max_tokens >= 0 && request.min_tokens > max_tokens)
    refuse("min_tokens", fmt::format("{} is more than the limit of {} tokens", request.min_tokens, max_tokens));
  for (const auto& prompt : request.prompts) {
    if (prompt.empty())
      throw ApiError{.message = "the prompt has no tokens", .param = request.chat ? "messages" : "prompt"};
    if (ssize(prompt) >= model.n_ctx)
      throw ApiError{.message = fmt::format("the prompt has {} tokens, the context holds {} with the answer",
                                            prompt.size(), model.n_ctx),
                     .param = request.chat ? "messages" : "prompt",
                     .code = "context_length_exceeded"};
    request.clamped = request.clamped || max_tokens > model.n_ctx - ssize(prompt);
  }
  request.options.max_tokens = int(std::min<int64_t>(max_tokens, model.n_ctx));
}

/// Variables of the template that fields of a request set; those of chat_template_kwargs come first.
Json template_variables(const Fields& f) {
  Json extra = Json::object();
  if (const Json* more = f.find("chat_template_kwargs")) {
    if (!more->is_object()) refuse("chat_template_kwargs", "not an object");
    extra = *more;
  }
  if (const auto effort = f.text("reasoning_effort")) {
    extra.emplace("reasoning_effort", *effort);
    if (*effort == "none") extra.emplace("enable_thinking", false);
  }
  const bool goes_on = f.flag("continue_final_message").value_or(false);
  const bool begins = f.flag("add_generation_prompt").value_or(!goes_on);
  if (goes_on && begins) refuse("continue_final_message", "not together with add_generation_prompt");
  if (!begins) extra["add_generation_prompt"] = false;
  return extra;
}

/// The prompt up to the end of its last message, which the model goes on with.
std::string cut_behind_last(std::string prompt, const Json& messages) {
  constexpr const char* kField = "continue_final_message";
  constexpr const char* kBlanks = " \t\r\n";
  const std::string* text = member_text(messages.back(), "content");
  const size_t first = text ? text->find_first_not_of(kBlanks) : std::string::npos;
  if (first == std::string::npos || !member_is(messages.back(), "role", "assistant"))
    refuse(kField, "the last message is not a text of the assistant");
  const size_t last = text->find_last_not_of(kBlanks) + 1;  // many templates strip texts
  const size_t at = prompt.rfind(std::string_view(*text).substr(first, last - first));
  if (at == std::string::npos) refuse(kField, "the chat template does not write the last message as it is");
  size_t end = at + last - first;
  if (std::string_view(prompt).substr(end).starts_with(std::string_view(*text).substr(last)))
    end += text->size() - last;
  prompt.resize(end);
  return prompt;
}

template <class T>
T or_refuse(Result<T> made) {
  if (made) return std::move(*made);
  throw ApiError{.message = made.error().message, .param = "messages", .code = "template_error"};
}

text::ToolFormat calls_of(const ApiModel& model) {
  return or_refuse(format_of_calls(model.engine, model.chat_template));
}

}  // namespace

std::string render_chat(const ApiModel& model, const Json& body, const UserText* user) {
  const Fields f(body);
  Conversation c{.messages = read_messages(body), .tools = read_tools(body), .extra = template_variables(f)};
  if (!model.engine.has_tokenizer())
    throw ApiError{.message = "this model has no tokenizer: use /v1/completions with token ids"};
  if (user) {
    c.messages = user->guarded(std::move(c.messages));
    c.tools = user->guarded_texts(std::move(c.tools));
  }
  // A model that may not call is not told how to.
  if (read_tool_choice(body).kind == ToolChoice::Kind::none && !c.tools.is_null())
    if (calls_of(model) == text::ToolFormat::json) c.tools = nullptr;
  std::string prompt = or_refuse(render_conversation(model.engine, model.chat_template, c));
  if (f.flag("continue_final_message").value_or(false)) return cut_behind_last(std::move(prompt), c.messages);
  return prompt;
}

ChatPrompt read_chat_prompt(const ApiModel& model, const Json& body) {
  const bool has_template = !model.chat_template.plain();
  const UserText user(model.engine);
  const std::string guarded = render_chat(model, body, has_template ? &user : nullptr);
  // A template writes the special tokens itself.
  return {user.released(guarded), user.tokens(guarded, !has_template, has_template)};
}

ApiRequest read_chat_request(const ApiModel& model, const Json& body) {
  refuse_unsupported(body, kUnsupported);
  refuse_unsupported(body, kUnsupportedInChat);
  ApiRequest request;
  request.chat = true;
  read_sampling(model, body, request);
  const Fields f(body);
  ChatPrompt prompt = read_chat_prompt(model, body);
  request.prompts = {std::move(prompt.tokens)};
  const auto part_end = model.engine.tokenizer().find_special("<|end|>");  // of a message in harmony
  for (size_t i = 0; i < request.prompts[0].size(); ++i)
    if (const int32_t id = request.prompts[0][i]; id == part_end || model.engine.tokenizer().is_end(id))
      request.message_ends.push_back(int(i) + 1);
  if (ssize(request.message_ends) > kMessageEnds)
    request.message_ends.erase(request.message_ends.begin(), request.message_ends.end() - kMessageEnds);
  if (f.flag("logprobs").value_or(false))
    request.n_top_logprobs = int(f.whole("top_logprobs", 0, kMaxTopLogprobs).value_or(0));
  else if (f.whole("top_logprobs", 0, kMaxTopLogprobs).value_or(0) > 0) refuse("top_logprobs", "needs logprobs: true");

  const Json tools = read_tools(body);
  const ToolChoice choice = read_tool_choice(body);
  AnswerForm form = answer_form(model.engine, model.chat_template, prompt.text, tools);
  // DeepSeek's calls are no JSON as a whole: one that must come does without its marks.
  if (choice.kind == ToolChoice::Kind::required && form.output.format == text::ToolFormat::deepseek)
    form.output.format = text::ToolFormat::json;
  form.reasoning_budget = int(f.whole("thinking_budget_tokens", -1, 1 << 26).value_or(-1));
  request.constraint = model.structures->read(body, tools, form);
  request.output = std::move(form.output);
  request.marks = std::move(form.marks);
  if (choice.kind == ToolChoice::Kind::none) request.output.format = text::ToolFormat::none;
  request.one_call = f.flag("parallel_tool_calls") == false;
  if (model.chat_template.plain()) request.options.stop = text::plain_stops();
  request.output.seed = request.options.sampler.seed;
  check_length(model, read_max_tokens(f, 1).value_or(-1), request);
  return request;
}

Json read_prompt_list(const Json& body, const char* field, size_t most) {
  const Json* found = Fields(body).find(field);
  if (!found) refuse(field, "missing");
  const bool one = found->is_string() || (found->is_array() && !found->empty() && found->front().is_number());
  Json prompts = one ? Json::array({*found}) : *found;
  if (!prompts.is_array() || prompts.empty() || prompts.size() > most)
    refuse(field, fmt::format("a text, a list of token ids, or a list of at most {} of those", most));
  return prompts;
}

std::vector<int32_t> read_prompt(const ApiModel& model, const char* field, const Json& prompt) {
  if (!prompt.is_array() && !prompt.is_string()) refuse(field, "a prompt is a text or a list of token ids");
  if (prompt.is_string() && !model.engine.has_tokenizer()) refuse(field, "this model has no tokenizer: give token ids");
  if (prompt.is_string()) return model.engine.tokenize(prompt.get_ref<const std::string&>(), true, false);
  const int vocab_size = model.engine.plan().vocab_size;
  std::vector<int32_t> tokens;
  for (const Json& id : prompt) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size)
      refuse(field, fmt::format("a token id is a whole number below {}", vocab_size));
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

ApiRequest read_completion_request(const ApiModel& model, const Json& body) {
  refuse_unsupported(body, kUnsupported);
  refuse_unsupported(body, kUnsupportedInCompletions);
  ApiRequest request;
  read_sampling(model, body, request);
  const Fields f(body);
  if (const Json* asked = f.find("logprobs"); asked && *asked != false)
    request.n_top_logprobs = int(f.whole("logprobs", 0, kMaxTopLogprobs).value_or(-1));
  if (const auto best_of = f.whole("best_of", 1, model.max_choices); best_of && *best_of != request.n_choices)
    refuse("best_of", "not supported (leave the field out)");
  request.constraint = model.structures->read(body, nullptr, {});
  request.echo = f.flag("echo").value_or(false);
  if (request.echo && !model.engine.has_tokenizer()) refuse("echo", "this model has no tokenizer");

  for (const Json& p : read_prompt_list(body, "prompt", kMaxPrompts)) {
    request.prompts.push_back(read_prompt(model, "prompt", p));
    if (request.echo)
      request.prompt_texts.push_back(p.is_string() ? p.get<std::string>()
                                                   : model.engine.tokenizer().decode(request.prompts.back()));
  }
  if (request.echo && request.n_top_logprobs >= 0) {
    constexpr size_t kMostScores = size_t(1) << 21;  // of an answer: some hundred bytes each
    size_t n_scores = 0;
    for (const auto& tokens : request.prompts) n_scores += tokens.size() * size_t(1 + request.n_top_logprobs);
    if (n_scores > kMostScores)
      refuse("logprobs", fmt::format("{} scores of prompts, {} are told at most (fewer prompts, or less logprobs)",
                                     n_scores, kMostScores));
  }
  if (request.prompts.size() * size_t(request.n_choices) > kMaxPrompts)
    refuse("n", "too many choices for so many prompts");
  check_length(model, read_max_tokens(f, 0).value_or(16), request);
  return request;
}

GenerationRequest ApiRequest::choice(size_t p, int i) const {
  GenerationRequest r;
  r.prompt = prompts[p];
  r.message_ends = message_ends;
  r.kv = kv;
  r.speculative = speculative;
  r.options = options;
  r.options.sampler.seed += uint64_t(i);
  r.min_tokens = min_tokens;
  r.presence_penalty = presence_penalty;
  r.frequency_penalty = frequency_penalty;
  r.logit_bias = logit_bias;
  r.marks = marks;
  r.n_top_logprobs = n_top_logprobs;
  r.prompt_logprobs = echo && n_top_logprobs >= 0;
  if (constraint) r.constraint = constraint();
  r.key = key;
  return r;
}

}  // namespace ridge::serve
