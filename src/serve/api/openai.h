// OpenAI's /v1/chat/completions and /v1/completions: the form of their answers.
#pragma once

#include "serve/api/form.h"

namespace ridge::serve {

std::unique_ptr<ApiForm> openai_form(const AnswerData& answer);

}  // namespace ridge::serve
