// OpenAI's /v1/responses: a request is read as a chat, an answer is written as items.
#pragma once

#include "serve/api/form.h"

namespace ridge::serve {

/// A request with the facts that its answer needs.
struct ResponsesRequest {
  ApiRequest generation;
  Json echo;         ///< fields of the request that the answer repeats
  Json messages;     ///< of the chat, without instructions
  size_t bytes = 0;  ///< of the messages as text, about
  bool store = true;
  int key = 0;  ///< whose request
};

/// The messages of `input` in a chat. Throws ApiError that names the place.
Json chat_of_input(const Json& input);
/// `key`: whose stored answers the request may go on with. Throws ApiError.
ResponsesRequest read_responses_request(const ApiModel& model, const Json& body, int key);
/// The form of the answer to a request; `request.generation` is not used.
MakeForm responses_form(ResponsesRequest request);

}  // namespace ridge::serve
