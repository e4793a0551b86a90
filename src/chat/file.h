// A conversation on disk: {"version": 1, "model": ..., "kv": ..., "messages": [{"role", "content"}, ...]}.
#pragma once

#include <string>

#include "chat/model.h"

namespace ridge::chat {

struct SavedChat {
  std::string model, kv;  ///< the model's name, the cache's formats
  text::Json messages = text::Json::array();
};

/// The file appears under its name only when it is complete.
Status save_chat(const SavedChat& chat, const std::string& path);
/// Refuses all but messages of the roles system, user and assistant with texts, the system's first.
Result<SavedChat> load_chat(const std::string& path);

}  // namespace ridge::chat
