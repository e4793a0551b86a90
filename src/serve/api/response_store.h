// Answers of /v1/responses that clients may read again or go on with. Memory only: they end with the server.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "serve/fields.h"

namespace ridge::serve {

struct StoredResponse {
  std::string id;
  int key = 0;       ///< the API key that may read it
  Json response;     ///< as the client got it
  Json messages;     ///< of the chat, the answer among them; without instructions
  size_t bytes = 0;  ///< of both as text
};

/// Holds up to kMaxBytes and kMaxCount; the answer that was used longest ago leaves first. Free to share between
/// threads.
class ResponseStore {
 public:
  static constexpr size_t kMaxBytes = size_t(64) << 20, kMaxCount = 1024;
  using Stored = std::shared_ptr<const StoredResponse>;

  /// An answer that alone is too large is not kept.
  void put(StoredResponse answer);
  /// Null where there is none with this id and this key.
  Stored find(const std::string& id, int key);
  bool erase(const std::string& id, int key);

 private:
  using Place = std::list<Stored>::iterator;
  void drop(Place place);

  std::mutex mutex_;          // guards all below
  std::list<Stored> recent_;  // the last used first
  std::map<std::string, Place, std::less<>> by_id_;
  size_t bytes_ = 0;
};

}  // namespace ridge::serve
