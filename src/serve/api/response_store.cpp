#include "serve/api/response_store.h"

namespace ridge::serve {

void ResponseStore::put(StoredResponse answer) {
  const std::lock_guard lock(mutex_);
  if (answer.bytes > kMaxBytes) return;
  bytes_ += answer.bytes;
  recent_.push_front(std::make_shared<const StoredResponse>(std::move(answer)));
  by_id_[recent_.front()->id] = recent_.begin();
  while (bytes_ > kMaxBytes || recent_.size() > kMaxCount) drop(std::prev(recent_.end()));
}

ResponseStore::Stored ResponseStore::find(const std::string& id, int key) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || (*found->second)->key != key) return nullptr;
  recent_.splice(recent_.begin(), recent_, found->second);
  return recent_.front();
}

bool ResponseStore::erase(const std::string& id, int key) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || (*found->second)->key != key) return false;
  drop(found->second);
  return true;
}

void ResponseStore::drop(Place place) {
  bytes_ -= (*place)->bytes;
  by_id_.erase((*place)->id);
  recent_.erase(place);
}

}  // namespace ridge::serve
