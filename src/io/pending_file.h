// A file that appears under its name only when it is complete.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ridge::io {

/// A temporary beside `target` that becomes `target` at commit(), and vanishes when it is destroyed before.
///
/// The temporary has no name where the file system can do that (O_TMPFILE), so a killed process leaves nothing.
/// Elsewhere its name is random, and a lock says that its writer lives: create() removes those of this user without
/// one.
class PendingFile {
 public:
  explicit PendingFile(const std::filesystem::path& target) : target_(target) {}
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile();

  /// Refuses a target that commit() could not replace: no file name, one that is too long, a folder, a device.
  Status create();
  Status write(std::string_view bytes);
  /// Flushes the bytes, renames, and flushes the directory. A file that was there hands on its permissions.
  Status commit();

  /// For tests: the temporary has a name, as where the file system knows no other.
  void use_named_temporary() { may_be_unnamed_ = false; }

 private:
  Failure refused(std::string_view what, int error) const;
  Status check_target();
  bool open_unnamed();
  Status open_named();
  Status give_name();
  Status flush_directory();
  std::filesystem::path directory() const;
  std::string random_path() const;
  void remove_stale() const;

  std::filesystem::path target_;
  std::string name_;  ///< the temporary's path while it has one
  int fd_ = -1;
  bool may_be_unnamed_ = true;
};

}  // namespace ridge::io
