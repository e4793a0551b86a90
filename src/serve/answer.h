// The answer to one generation request: from what its choices generate to OpenAI's JSON, whole or as events.
#pragma once

#include <memory>

#include "serve/chat.h"
#include "serve/event_writer.h"
#include "serve/scheduler.h"

namespace ridge::serve {

/// Submits the choices of a request and answers when and as they are generated. The reply is answered in every case.
void answer_request(Scheduler& scheduler, const ApiModel& model, ApiRequest request, const http::Reply& reply);

}  // namespace ridge::serve
