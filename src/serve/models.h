// The models of a server: one that stays, or several that are loaded when a request names them.
#pragma once

#include <atomic>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serve/chat.h"
#include "serve/scheduler.h"
#include "serve/state_dir.h"

namespace ridge::serve {

/// A loaded model with its scheduler. Whoever uses it holds it.
struct Served {
  std::shared_ptr<void> owner;  ///< of the engine; null: somebody else's
  ApiModel model;
  std::unique_ptr<StateDir> state;
  std::unique_ptr<Scheduler> scheduler = {};
};

/// A model that can be loaded.
struct ModelSource {
  /// An engine with what a server needs to know of it.
  struct Opened {
    std::shared_ptr<void> owner;
    Engine& engine;
    ModelTemplate chat_template;
    SchedulerOptions options;
  };
  std::string name;
  int64_t bytes = 0;             ///< of memory that it takes, its caches among them
  std::function<Opened()> open;  ///< throws Error
};

/// Free to share between threads, but load() has one caller at a time.
class Models {
 public:
  using Pointer = std::shared_ptr<Served>;
  using MakeServed = std::function<Pointer(const std::string& name, ModelSource::Opened opened)>;

  /// A model that stays: it answers to every name.
  explicit Models(Pointer only) : names_({only->model.name}), only_(std::move(only)) {}
  /// Models of which those fit that take max_bytes together; each alone must.
  Models(std::vector<ModelSource> sources, int64_t max_bytes, MakeServed make);

  const int64_t opened = std::time(nullptr);  ///< seconds of the clock
  /// All names, loaded or not.
  const std::vector<std::string>& names() const { return names_; }
  bool knows(const std::string& name) const;
  bool one() const { return only_ != nullptr; }
  /// The loaded model of that name, as used now; of an empty name the one used last. Null: none, or one that must leave
  /// because another one waits for its memory.
  Pointer find(const std::string& name);
  /// find() without a trace.
  Pointer look(const std::string& name) const;
  /// Loads a model. While its memory is taken, the model used longest ago leaves as soon as nobody uses it. Null when
  /// `given_up` says so first, or stop() was called. Throws Error when the model cannot be loaded.
  Pointer load(const std::string& name, const std::function<bool()>& given_up);
  std::vector<Pointer> loaded() const;
  /// load() ends soon.
  void stop() { stopping_ = true; }

 private:
  struct Entry {
    Pointer served;
    uint64_t used = 0;
  };
  const ModelSource& source_of(const std::string& name) const;
  /// Whether a model of so many bytes fits now; unloads the one used longest ago where it does not.
  bool make_room(int64_t bytes);

  const std::vector<std::string> names_;
  const Pointer only_;
  const std::vector<ModelSource> sources_;
  const int64_t max_bytes_ = 0;
  const MakeServed make_;
  std::atomic<bool> stopping_ = false;

  mutable std::mutex mutex_;  // guards all below
  std::map<std::string, Entry> loaded_;
  std::string leaving_;  ///< the model whose memory another one waits for
  uint64_t clock_ = 0;
};

}  // namespace ridge::serve
