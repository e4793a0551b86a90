// The endpoint /completion of llama.cpp's server: a request is read as a completion, an answer is written in its form.
#pragma once

#include "serve/api/form.h"

namespace ridge::serve {

/// Throws ApiError.
ApiRequest read_llama_request(const ApiModel& model, const Json& body);
std::unique_ptr<ApiForm> llama_form(const AnswerData& answer);

}  // namespace ridge::serve
