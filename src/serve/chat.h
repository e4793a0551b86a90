// From the fields of a request to a GenerationRequest: /v1/chat/completions and /v1/completions.
#pragma once

#include "engine/engine.h"
#include "serve/api/response_store.h"
#include "serve/fields.h"
#include "serve/model_template.h"
#include "serve/structure.h"
#include "serve/user_text.h"

namespace ridge::serve {

/// Model and limits that requests are checked against.
struct ApiModel {
  Engine& engine;
  std::string name;
  ModelTemplate chat_template;
  int n_ctx = 0;
  int max_choices = 8;
  int64_t loaded = 0;  ///< seconds of the clock
  std::function<void(const std::string& line)> log = [](const std::string&) {};
  bool log_prompts = false;
  std::shared_ptr<Structures> structures = std::make_shared<Structures>(engine);
  std::shared_ptr<ResponseStore> responses = std::make_shared<ResponseStore>();
};

/// A request of either kind, read and checked.
struct ApiRequest {
  bool chat = false;
  bool stream = false, include_usage = false;
  bool echo = false;                          ///< completions: the prompt's text comes first
  int n_top_logprobs = -1;                    ///< -1: no log probabilities
  std::vector<std::vector<int32_t>> prompts;  ///< one of a chat
  std::vector<std::string> prompt_texts;      ///< of echo
  std::vector<int> message_ends;              ///< of a chat
  bool one_call = false;                      ///< of a chat: calls behind the first are dropped
  int n_choices = 1;                          ///< of every prompt
  text::OutputParser::Options output;         ///< of a chat
  std::vector<int32_t> marks;                 ///< of a chat: GenerationRequest::marks
  bool clamped = false;                       ///< max_tokens does not fit behind a prompt
  std::string kv;
  std::optional<bool> speculative;
  int key = 0;

  /// The request of choice i of prompt p.
  GenerationRequest choice(size_t p, int i) const;
  /// Settings common to all choices.
  GenerateOptions options;        ///< `stop` ends what the model writes, whatever it is
  std::vector<std::string> stop;  ///< ends the content that the client reads
  int min_tokens = 0;
  float presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
  Structures::Maker constraint;  ///< null: none
};

/// Both throw ApiError.
ApiRequest read_chat_request(const ApiModel& model, const Json& body);
ApiRequest read_completion_request(const ApiModel& model, const Json& body);
/// The prompts of a field, up to `most`: texts or lists of token ids, one as a list too. Throws ApiError.
Json read_prompt_list(const Json& body, const char* field, size_t most);
/// The tokens of one of them. Throws ApiError.
std::vector<int32_t> read_prompt(const ApiModel& model, const char* field, const Json& prompt);
/// The prompt of a chat: what its template writes, and the tokens of it. Throws ApiError.
struct ChatPrompt {
  std::string text;
  std::vector<int32_t> tokens;
};
ChatPrompt read_chat_prompt(const ApiModel& model, const Json& body);
/// The prompt of a chat as text, of messages that `user` guards where it is given.
std::string render_chat(const ApiModel& model, const Json& body, const UserText* user = nullptr);

}  // namespace ridge::serve
