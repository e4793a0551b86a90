// A file that appears under its name only when it is complete.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ridge::io {

/// A temporary beside `target` that becomes `target` at commit(), and vanishes when it is destroyed before.
class PendingFile {
 public:
  explicit PendingFile(const std::filesystem::path& target) : target_(target) {}
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile();

  Status create();
  Status write(std::string_view bytes);
  /// Flushes the bytes, renames, and flushes the directory.
  Status commit();

 private:
  Failure refused(std::string_view what, int error) const;
  Status flush_directory();

  std::filesystem::path target_;
  std::string name_;  ///< the temporary's path while there is one
  int fd_ = -1;
};

}  // namespace ridge::io
