// The server's endpoints: a row for each, with the function that answers it.
#pragma once

#include <string_view>

#include "http/auth.h"
#include "http/server.h"
#include "serve/models.h"

namespace ridge::serve {

/// One request, and what its answer is made of.
struct Call {
  const Models& models;
  const Models::Pointer& served;  ///< the model that the request names; null for an `io` route while none is loaded
  const http::Server& http;
  const http::Keys& keys;
  const http::Request& request;
  const Json& body;  ///< of a `worker` route
  const http::Reply& reply;

  Scheduler& scheduler() const { return *served->scheduler; }
  const ApiModel& model() const { return served->model; }
};

/// The threads that answer: I/O threads at once, whatever else runs; views wait for a step; prompts are long to read.
enum class Answerer : uint8_t { io, view, worker };

struct Route {
  std::string_view method, path;  ///< a path that ends in "/" has a name behind it
  Answerer by;
  void (*answer)(const Call& call);  ///< throws ApiError, WorkEnded, Error
  bool open = false;                 ///< needs no key
  /// The form of errors of this API.
  http::Response (*refusal)(const ApiError& error) = [](const ApiError& error) { return error.response(); };
};

ApiError no_model(const std::string& name, const Models& models);

/// The route of a request; HEAD is answered as GET. Throws ApiError: 404 for an unknown path, 405 for another method.
const Route& route_of(const http::Request& request);

}  // namespace ridge::serve
