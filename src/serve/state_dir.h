// Prefixes that outlive the server: checkpoints of prompts as KV state files in one folder.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "serve/pool_runner.h"

namespace ridge::serve {

/// A lock that ends with the process, however it ends: flock() of a file that stays.
class FileLock {
 public:
  FileLock() = default;
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileLock();

  /// Makes the file where it is missing. `wait`: until others have given it back; else not held where another process,
  /// or another FileLock, has it. Throws Error where the file cannot be made or the file system has no locks.
  static FileLock take(const std::filesystem::path& path, bool wait);
  bool held() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// The folder holds `secret` (of the hashes of prefixes) and, for every model and formats of its cache, a folder named
/// by hashes of both with one file a checkpoint, named by the hash of its tokens. Every file appears whole. The files
/// hold what people wrote, in coded form: the folder is open to its owner only.
///
/// A server locks the folders that it uses. One that finds a folder locked reads it, and adds its own files at its end
/// if the folder is free by then. Files that a server did not read or write are never removed.
class StateDir {
 public:
  /// Makes what is missing. Throws Error when the folder cannot be used.
  explicit StateDir(std::filesystem::path path);

  uint64_t secret() const { return secret_; }
  /// Puts the stored checkpoints into a pool, those written last as those used last. Files that do not fit (damaged,
  /// longer than the context) are left alone. Returns a line for the log.
  std::string load(Engine& engine, PoolRunner& runner);
  /// Writes the pool's checkpoints, and removes what load() read and the pool has forgotten. Returns a line for the
  /// log.
  std::string save(Engine& engine, PoolRunner& runner);

 private:
  /// Folder of a pool while it is open.
  struct Folder {
    FileLock lock;
    std::vector<std::filesystem::path> own;  ///< files read, or passed over for want of room
  };

  std::filesystem::path path_of(Engine& engine, const PoolRunner& runner) const;

  const std::filesystem::path path_;
  uint64_t secret_ = 0;
  std::mutex mutex_;
  std::map<std::filesystem::path, Folder> folders_;  // of pools that are open
};

}  // namespace ridge::serve
