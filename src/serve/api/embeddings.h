// OpenAI's /v1/embeddings: hidden states of a causal model, pooled over the tokens of a text.
#pragma once

#include "http/server.h"
#include "serve/models.h"

namespace ridge::serve {

struct EmbeddingsRequest {
  std::vector<std::vector<int32_t>> inputs;
  Pooling pooling = Pooling::mean;
  int dimensions = 0;  ///< the first so many values of each
  bool base64 = false;
  std::string kv;
  int key = 0;  ///< whose request
};

/// Throws ApiError.
EmbeddingsRequest read_embeddings_request(const ApiModel& model, const Json& body);
/// Computes the embeddings and answers. Throws ApiError where the scheduler refuses the request.
void answer_embeddings(const Models::Pointer& served, EmbeddingsRequest request, const http::Reply& reply);

}  // namespace ridge::serve
