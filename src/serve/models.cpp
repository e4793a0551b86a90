#include "serve/models.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

namespace ridge::serve {
namespace {

std::vector<std::string> names_of(const std::vector<ModelSource>& sources) {
  std::vector<std::string> names;
  for (const ModelSource& source : sources) names.push_back(source.name);
  return names;
}

}  // namespace

Models::Models(std::vector<ModelSource> sources, int64_t max_bytes, MakeServed make)
    : names_(names_of(sources)), sources_(std::move(sources)), max_bytes_(max_bytes), make_(std::move(make)) {
  constexpr double kGib = 1 << 30;
  for (const ModelSource& source : sources_)
    if (source.bytes > max_bytes_)
      throw_error(ErrorKind::no_memory, "model {} takes {:.2f} GiB with its cache, all models may take {:.2f} GiB",
                  source.name, double(source.bytes) / kGib, double(max_bytes_) / kGib);
}

bool Models::knows(const std::string& name) const { return one() || std::ranges::find(names_, name) != names_.end(); }

Models::Pointer Models::find(const std::string& name) {
  const Pointer found = look(name);
  if (!found || one()) return found;
  const std::lock_guard lock(mutex_);
  if (found->model.name == leaving_) return nullptr;
  if (const auto entry = loaded_.find(found->model.name); entry != loaded_.end()) entry->second.used = ++clock_;
  return found;
}

Models::Pointer Models::look(const std::string& name) const {
  if (one()) return only_;
  const std::lock_guard lock(mutex_);
  auto found = loaded_.find(name);
  if (name.empty()) found = std::ranges::max_element(loaded_, {}, [](const auto& e) { return e.second.used; });
  return found == loaded_.end() ? nullptr : found->second.served;
}

std::vector<Models::Pointer> Models::loaded() const {
  if (one()) return {only_};
  const std::lock_guard lock(mutex_);
  std::vector<Pointer> all;
  for (const auto& [name, entry] : loaded_) all.push_back(entry.served);
  return all;
}

const ModelSource& Models::source_of(const std::string& name) const {
  const auto found = std::ranges::find(sources_, name, &ModelSource::name);
  RIDGE_CHECK(found != sources_.end(), "no model is called {}", name);
  return *found;
}

bool Models::make_room(int64_t bytes) {
  Pointer leaves;
  {
    const std::lock_guard lock(mutex_);
    const int64_t taken = std::accumulate(loaded_.begin(), loaded_.end(), int64_t(0),
                                          [&](int64_t sum, const auto& e) { return sum + source_of(e.first).bytes; });
    leaving_.clear();
    if (taken + bytes <= max_bytes_) return true;
    const auto oldest = std::ranges::min_element(loaded_, {}, [](const auto& e) { return e.second.used; });
    if (oldest->second.served.use_count() > 1) {
      leaving_ = oldest->first;
      return false;
    }
    leaves = std::move(oldest->second.served);
    loaded_.erase(oldest);
  }
  leaves->scheduler->stop(0);  // nothing runs: prefixes are saved
  leaves->model.log(fmt::format("unloaded {}", leaves->model.name));
  leaves.reset();
  return make_room(bytes);
}

Models::Pointer Models::load(const std::string& name, const std::function<bool()>& given_up) {
  if (Pointer there = find(name)) return there;
  const ModelSource& source = source_of(name);
  while (!make_room(source.bytes)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (!stopping_ && !given_up()) continue;
    const std::lock_guard lock(mutex_);
    leaving_.clear();
    return nullptr;
  }
  Pointer served = make_(name, source.open());
  const std::lock_guard lock(mutex_);
  loaded_[name] = {served, ++clock_};
  return served;
}

}  // namespace ridge::serve
