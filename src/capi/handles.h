// Objects behind the handles of ridge/ridge.h.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "capi/guard.h"
#include "ridge/engine.h"
#include "serve/model_template.h"
#include "serve/user_text.h"

namespace ridge::capi {

/// A model, shared by its handle and its sessions.
struct SharedModel {
  explicit SharedModel(Model loaded);
  /// The template of this name or file, read at its first use; "" is the model's own.
  const serve::ModelTemplate& chat_template(const std::string& choice);

  Model model;
  ModelInfo info;  ///< at an address that stays

 private:
  std::mutex mutex_;
  std::map<std::string, serve::ModelTemplate> templates_;
};

/// A session, shared by its handle and its stream.
struct SharedSession {
  SharedSession(std::shared_ptr<SharedModel> of, const SessionOptions& options)
      : model(std::move(of)), session(model->model, options) {}

  std::shared_ptr<SharedModel> model;
  Session session;
  bool has_logits = false;         ///< the last call left logits behind all tokens
  std::vector<int32_t> generated;  ///< by the last ridge_generate()
};

}  // namespace ridge::capi

struct ridge_model {
  std::shared_ptr<ridge::capi::SharedModel> shared;
};
struct ridge_session {
  std::shared_ptr<ridge::capi::SharedSession> shared;
};
