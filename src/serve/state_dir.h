// Prefixes that outlive the server: checkpoints of prompts as KV state files in one folder.
#pragma once

#include <filesystem>

#include "engine/engine.h"
#include "serve/lane.h"

namespace ridge::serve {

/// The folder holds `secret` (of the hashes of prefixes) and, for every pool, a folder named by a hash of its formats with
/// one file a checkpoint, named by the hash of its tokens. Every file appears whole. The files hold what people wrote, in
/// coded form: the folder is open to its owner only.
class StateDir {
 public:
  /// Makes what is missing. Throws Error when the folder cannot be used.
  explicit StateDir(std::filesystem::path path);

  uint64_t secret() const { return secret_; }
  /// Puts the stored checkpoints into a pool, those written last as those used last. Files of another model or of other
  /// settings are left alone. Returns a line for the log.
  std::string load(Engine& engine, Lane& lane) const;
  /// Replaces the pool's files by its checkpoints. Returns a line for the log.
  std::string save(Engine& engine, Lane& lane) const;

 private:
  std::filesystem::path folder(const Lane& lane) const;

  const std::filesystem::path path_;
  uint64_t secret_ = 0;
};

}  // namespace ridge::serve
