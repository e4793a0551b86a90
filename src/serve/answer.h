// The answer to one generation request: from what its choices generate to the form of an API.
#pragma once

#include "serve/api/form.h"

namespace ridge::serve {

/// Why the scheduler refused a request, and why it could not be answered: as clients are told.
ApiError submit_error(const Failure& failure);
ApiError generation_error(const RequestError& failure);

/// Submits the choices of a request, and answers when and as they are generated, in the form that `make` makes. Throws
/// ApiError where the scheduler refuses the request; else the reply is answered in every case.
void answer_request(const Models::Pointer& served, ApiRequest request, const http::Reply& reply, const MakeForm& make);

}  // namespace ridge::serve
