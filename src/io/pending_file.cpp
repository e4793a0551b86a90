#include "io/pending_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "io/text.h"

namespace ridge::io {

PendingFile::~PendingFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!name_.empty()) ::unlink(name_.c_str());
}

Status PendingFile::create() {
  if (target_.native().find('\0') != std::string::npos || !target_.has_filename())
    return fail(ErrorKind::usage, "cannot write {}: not a file name", in_quotes(target_.native()));
  const std::string name = fmt::format(".{}.{}.part", target_.filename().native(), ::getpid());
  const std::string path = (target_.parent_path() / name).native();
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) return refused("create a temporary beside", errno);
  name_ = path;
  return {};
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
  if (::fsync(fd_) != 0) return refused("flush", errno);
  if (::close(std::exchange(fd_, -1)) != 0) return refused("close", errno);
  if (::rename(name_.c_str(), target_.c_str()) != 0) return refused("rename to", errno);
  name_.clear();
  return flush_directory();
}

Failure PendingFile::refused(std::string_view what, int error) const {
  return fail(ErrorKind::failure, "cannot {} {}: {} (nothing was left behind)", what, in_quotes(target_.native()),
              strerror(error));
}

/// Makes the rename itself durable. File systems that cannot flush a directory say so with EINVAL.
Status PendingFile::flush_directory() {
  const std::filesystem::path directory = target_.has_parent_path() ? target_.parent_path() : ".";
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return {};  // a directory that may be written but not read
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error == 0 || error == EINVAL) return {};
  return fail(ErrorKind::failure, "{} is written, but its directory cannot be flushed: {}", in_quotes(target_.native()),
              strerror(error));
}

}  // namespace ridge::io
