#include "serve/api/embeddings.h"

#include <boost/beast/core/detail/base64.hpp>
#include <cmath>
#include <numeric>

#include "serve/answer.h"

namespace ridge::serve {
namespace {

constexpr size_t kMaxInputs = 128;

std::string base64_of(std::span<const float> values) {
  std::string text(boost::beast::detail::base64::encoded_size(values.size_bytes()), '\0');
  text.resize(boost::beast::detail::base64::encode(text.data(), values.data(), values.size_bytes()));
  return text;
}

/// Cut to the first n values, with length 1 again.
void cut_and_norm(std::vector<float>& values, int n) {
  values.resize(size_t(n));
  const double square = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  for (float& value : values) value = square > 0 ? float(value / std::sqrt(square)) : 0;
}

class Embeddings : public std::enable_shared_from_this<Embeddings> {
 public:
  Embeddings(Models::Pointer served, EmbeddingsRequest request, const http::Reply& reply)
      : served_(std::move(served)), request_(std::move(request)), reply_(reply), vectors_(request_.inputs.size()) {}

  void start() {
    std::vector<Scheduler::Submission> submissions;
    for (size_t i = 0; i < request_.inputs.size(); ++i) {
      GenerationRequest one{.prompt = request_.inputs[i], .kv = request_.kv, .options = {.max_tokens = 0}};
      one.pooling = request_.pooling;
      one.speculative = false;
      one.key = request_.key;
      submissions.push_back({std::move(one), std::make_shared<InputListener>(shared_from_this(), i)});
    }
    const auto ids = served_->scheduler->submit(std::move(submissions));
    if (!ids) throw submit_error(ids.error());
    reply_.on_gone([served = std::weak_ptr(served_), ids = *ids] {
      if (const Models::Pointer still = served.lock())
        for (const uint64_t id : ids) still->scheduler->cancel(id);
    });
  }

 private:
  /// Hears of one input, and keeps the answer alive.
  struct InputListener final : Listener {
    InputListener(std::shared_ptr<Embeddings> whole, size_t i) : answer(std::move(whole)), index(i) {}
    Wish on_text(std::string_view, std::span<const TokenLogprob>) override { return Wish::more; }
    void on_embedding(std::span<const float> values) override {
      answer->vectors_[index].assign(values.begin(), values.end());
    }
    void on_end(FinishReason reason, const Usage& usage, const RequestError& error) override {
      answer->on_end(reason, usage, error);
    }
    const std::shared_ptr<Embeddings> answer;
    const size_t index;
  };

  void on_end(FinishReason reason, const Usage& usage, const RequestError& error) {
    if (reason == FinishReason::failed) error_ = error;
    n_tokens_ += usage.n_prompt;
    if (++n_ended_ == vectors_.size()) finish();
  }

  void finish() {
    served_->model.log(fmt::format("embeddings of {} texts, {} tokens{}", vectors_.size(), n_tokens_,
                                   error_.message.empty() ? "" : ": " + error_.message));
    if (!error_.message.empty()) return reply_.send(generation_error(error_).response());
    Json data = Json::array();
    for (size_t i = 0; i < vectors_.size(); ++i) {
      if (vectors_[i].empty()) return;  // cancelled: nobody listens
      cut_and_norm(vectors_[i], request_.dimensions);
      data.push_back({{"object", "embedding"},
                      {"index", i},
                      {"embedding", request_.base64 ? Json(base64_of(vectors_[i])) : Json(vectors_[i])}});
    }
    reply_.send({.body = dump({{"object", "list"},
                               {"data", std::move(data)},
                               {"model", served_->model.name},
                               {"usage", {{"prompt_tokens", n_tokens_}, {"total_tokens", n_tokens_}}}})});
  }

  const Models::Pointer served_;
  const EmbeddingsRequest request_;
  const http::Reply reply_;
  std::vector<std::vector<float>> vectors_;
  int64_t n_tokens_ = 0;
  size_t n_ended_ = 0;
  RequestError error_;
};

}  // namespace

EmbeddingsRequest read_embeddings_request(const ApiModel& model, const Json& body) {
  const Fields f(body);
  for (const char* name : {"model", "user"}) f.text(name);
  EmbeddingsRequest request;
  const std::string encoding = f.text("encoding_format").value_or("float");
  if (encoding != "float" && encoding != "base64")
    refuse("encoding_format", fmt::format("{} is not float or base64", shown(encoding)));
  request.base64 = encoding == "base64";
  const std::string pooling = f.text("pooling").value_or("mean");
  if (pooling != "mean" && pooling != "last")
    refuse("pooling", fmt::format("{} is not supported: a causal model's hidden states are pooled by mean or last",
                                  shown(pooling)));
  request.pooling = pooling == "mean" ? Pooling::mean : Pooling::last;
  const int d_model = model.engine.plan().d_model;
  request.dimensions = int(f.whole("dimensions", 1, d_model).value_or(d_model));
  request.kv = f.text("kv_quant").value_or("");
  for (const Json& text : read_prompt_list(body, "input", kMaxInputs)) {
    request.inputs.push_back(read_prompt(model, "input", text));
    const std::vector<int32_t>& input = request.inputs.back();
    if (input.empty()) refuse("input", "a text has no tokens");
    if (ssize(input) >= model.n_ctx)
      throw ApiError{
          .message = fmt::format("input: a text has {} tokens, the context holds {}", input.size(), model.n_ctx),
          .param = "input",
          .code = "context_length_exceeded"};
  }
  return request;
}

void answer_embeddings(const Models::Pointer& served, EmbeddingsRequest request, const http::Reply& reply) {
  std::make_shared<Embeddings>(served, std::move(request), reply)->start();
}

}  // namespace ridge::serve
