// Anthropic's /v1/messages: a request is read as a chat, an answer is written as content blocks.
#pragma once

#include "serve/api/form.h"

namespace ridge::serve {

/// The chat that a body of /v1/messages or of its count_tokens asks for. Throws ApiError that names the place in
/// `body`.
Json anthropic_chat(const Json& body);
/// Throws ApiError.
ApiRequest read_anthropic_request(const ApiModel& model, const Json& body);
/// Tokens of the prompt, which may be longer than the context. Throws ApiError.
int64_t count_anthropic_tokens(const ApiModel& model, const Json& body);

std::unique_ptr<ApiForm> anthropic_form(const AnswerData& answer);
http::Response anthropic_refusal(const ApiError& error);

}  // namespace ridge::serve
