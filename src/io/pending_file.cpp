#include "io/pending_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <utility>

#include "io/text.h"

namespace ridge::io {
namespace {

// Names of temporaries: their length does not depend on the target's.
constexpr std::string_view kPrefix = ".ridge-", kSuffix = ".part";

std::string link_of(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

/// The lock of a temporary's writer, or none where another process holds it.
bool lock_now(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0; }

bool has_name(int fd) {
  struct stat facts {};
  return ::fstat(fd, &facts) == 0 && facts.st_nlink > 0;
}

}  // namespace

PendingFile::~PendingFile() {
  if (!name_.empty()) ::unlink(name_.c_str());
  if (fd_ >= 0) ::close(fd_);
}

Status PendingFile::create() {
  RIDGE_TRY_STATUS(check_target());
  remove_stale();
  if (may_be_unnamed_ && open_unnamed()) return {};
  return open_named();
}

Status PendingFile::check_target() {
  if (target_.native().find('\0') != std::string::npos || !target_.has_filename())
    return fail(ErrorKind::usage, "cannot write {}: not a file name", in_quotes(target_.native()));
  struct stat facts {};
  if (::lstat(target_.c_str(), &facts) != 0) {
    if (errno == ENOENT) return {};
    return refused("write", errno);
  }
  if (S_ISDIR(facts.st_mode)) return refused("write", EISDIR);
  if (S_ISREG(facts.st_mode) || S_ISLNK(facts.st_mode)) return {};
  return fail(ErrorKind::usage, "cannot replace {}: not a regular file (name another file)",
              in_quotes(target_.native()));
}

/// A file without a name, which commit() links through /proc. False where that cannot be.
bool PendingFile::open_unnamed() {
#ifdef O_TMPFILE  // Linux
  fd_ = ::open(directory().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (fd_ >= 0 && ::access(link_of(fd_).c_str(), F_OK) == 0 && lock_now(fd_)) return true;
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
#endif
  return false;
}

Status PendingFile::open_named() {
  for (;;) {
    const std::string path = random_path();
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno == EEXIST) continue;
    if (fd_ < 0 && errno == ENOENT)
      return fail(ErrorKind::failure, "cannot write {}: there is no folder {} (make it, or name another place)",
                  in_quotes(target_.native()), in_quotes(directory().native()));
    if (fd_ < 0) return refused("create a temporary beside", errno);
    name_ = path;
    // Before the lock another process may take it for a stale one. Where there are no locks nothing is taken away.
    if ((lock_now(fd_) || errno != EWOULDBLOCK) && has_name(fd_)) return {};
    ::unlink(path.c_str());
    ::close(std::exchange(fd_, -1));
    name_.clear();
  }
}

Status PendingFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return refused("write", errno);
    bytes.remove_prefix(size_t(written));
  }
  return {};
}

Status PendingFile::commit() {
  struct stat before {};
  if (::lstat(target_.c_str(), &before) == 0 && S_ISREG(before.st_mode) && ::fchmod(fd_, before.st_mode & 0777) != 0)
    return refused("keep the permissions of", errno);
  if (::fsync(fd_) != 0) return refused("flush", errno);
  if (name_.empty()) RIDGE_TRY_STATUS(give_name());
  if (::rename(name_.c_str(), target_.c_str()) != 0) return refused("rename to", errno);
  name_.clear();
  ::close(std::exchange(fd_, -1));  // last: its lock keeps the temporary; the bytes are flushed
  return flush_directory();
}

/// Under its target's name it could not replace a file: rename does.
Status PendingFile::give_name() {
  for (;;) {
    const std::string path = random_path();
    if (::linkat(AT_FDCWD, link_of(fd_).c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      name_ = path;
      return {};
    }
    if (errno != EEXIST) return refused("give a name to", errno);
  }
}

std::filesystem::path PendingFile::directory() const { return target_.has_parent_path() ? target_.parent_path() : "."; }

std::string PendingFile::random_path() const {
  std::random_device random;
  return (directory() / fmt::format("{}{:08x}{:08x}{}", kPrefix, random(), random(), kSuffix)).native();
}

/// Removes named temporaries whose writer ended without doing so: their lock is free.
void PendingFile::remove_stale() const {
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory(), error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().native();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const int fd = ::open(at->path().c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    struct stat facts {};
    if (::fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid == ::geteuid() && lock_now(fd))
      ::unlink(at->path().c_str());
    ::close(fd);
  }
}

Failure PendingFile::refused(std::string_view what, int error) const {
  return fail(ErrorKind::failure, "cannot {} {}: {} (nothing was left behind)", what, in_quotes(target_.native()),
              strerror(error));
}

/// Makes the rename itself durable. File systems that cannot flush a directory say so with EINVAL.
Status PendingFile::flush_directory() {
  const int fd = ::open(directory().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return {};  // a directory that may be written but not read
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error == 0 || error == EINVAL) return {};
  return fail(ErrorKind::failure, "{} is written, but its directory cannot be flushed: {}", in_quotes(target_.native()),
              strerror(error));
}

}  // namespace ridge::io
