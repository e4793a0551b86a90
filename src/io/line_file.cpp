#include "io/line_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "io/mapped_file.h"
#include "io/pending_file.h"
#include "io/text.h"

namespace ridge::io {
namespace {

bool write_bytes(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(size_t(written));
  }
  return true;
}

/// Bytes behind the last line end; nothing where the file cannot be read.
std::optional<std::string> last_line(int fd, off_t size) {
  constexpr off_t kBlock = 1 << 16;
  std::string line;
  for (off_t end = size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - kBlock);
    std::string block(size_t(end - begin), '\0');
    if (::pread(fd, block.data(), block.size(), begin) != ssize_t(block.size())) return std::nullopt;
    const size_t at = block.rfind('\n');
    line.insert(0, at == block.npos ? block : block.substr(at + 1));
    if (at != block.npos) break;
    end = begin;
  }
  return line;
}

}  // namespace

Result<LineFile> LineFile::open(const std::filesystem::path& path, const Options& options) {
  LineFile file;
  file.path_ = path;
  file.options_ = options;
  RIDGE_TRY_STATUS(file.reopen());
  RIDGE_TRY_STATUS(file.lock());
  const Status ended = file.end_last_line();
  file.unlock();
  if (!ended) return ended.error();
  return file;
}

LineFile::LineFile(LineFile&& other) noexcept { *this = std::move(other); }

LineFile& LineFile::operator=(LineFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(options_, other.options_);
  std::swap(report_, other.report_);
  std::swap(fd_, other.fd_);
  return *this;
}

LineFile::~LineFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status LineFile::reopen() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  // O_NONBLOCK: a FIFO fails instead of waiting for its other end.
  const int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | options_.extra_flags;
  fd_ = ::open(path_.c_str(), flags, options_.mode);
  if (fd_ < 0) return refused("open", strerror(errno));
  struct stat facts {};
  if (::fstat(fd_, &facts) == 0 && S_ISREG(facts.st_mode)) return {};
  ::close(std::exchange(fd_, -1));
  return refused("open", "not a regular file");
}

/// Waits for the lock of the file that the path names now: rewrite() puts another one in its place.
Status LineFile::lock() {
  for (;;) {
    while (::flock(fd_, LOCK_EX) != 0)
      if (errno != EINTR) return refused("lock", strerror(errno));
    struct stat ours {
    }, named{};
    if (::stat(path_.c_str(), &named) != 0 || ::fstat(fd_, &ours) != 0) return {};
    if (ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) return {};
    RIDGE_TRY_STATUS(reopen());
  }
}

void LineFile::unlock() { ::flock(fd_, LOCK_UN); }

Status LineFile::add(std::string_view line) {
  RIDGE_TRY_STATUS(lock());
  Status status = end_last_line();
  if (status) status = append(std::string(line) + "\n");
  unlock();
  return status;
}

Result<std::string> LineFile::read(uint64_t max_bytes) {
  RIDGE_TRY_STATUS(lock());
  const Status ended = end_last_line();
  const bool is_empty = ::lseek(fd_, 0, SEEK_END) == 0;
  Result<std::string> text = is_empty ? Result<std::string>("") : read_text_file(path_, max_bytes);
  unlock();
  if (!ended) return ended.error();
  return text;
}

/// One write, flushed; what a failed one has written is taken back.
Status LineFile::append(std::string_view bytes) {
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  if (size >= 0 && write_bytes(fd_, bytes) && ::fsync(fd_) == 0) return {};
  const Failure failure = refused("append to", strerror(errno));
  if (size >= 0 && ::ftruncate(fd_, size) != 0) return failure;  // a cut line, which the next writer takes care of
  return failure;
}

Status LineFile::end_last_line() {
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  const std::optional<std::string> line = size < 0 ? std::nullopt : last_line(fd_, size);
  if (!line) return refused("read the last line of", strerror(errno));
  if (line->empty()) return {};
  if (options_.is_whole(*line)) {
    report_ = fmt::format("{}: its last line had no end; it has one now", in_quotes(path_.native()));
    return append("\n");
  }
  RIDGE_TRY_STATUS(keep_aside(*line));
  if (::ftruncate(fd_, size - off_t(line->size())) != 0 || ::fsync(fd_) != 0)
    return refused("take a cut line from", strerror(errno));
  report_ = fmt::format("{}: its last line was cut off when it was written; it is in {} now", in_quotes(path_.native()),
                        in_quotes(path_.native() + ".cut"));
  return {};
}

Status LineFile::keep_aside(std::string_view line) {
  const std::string path = path_.native() + ".cut";
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, options_.mode);
  const bool kept = fd >= 0 && write_bytes(fd, std::string(line) + "\n") && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (kept) return {};
  return fail(ErrorKind::failure, "{}",
              four_parts("cannot keep a cut line aside", in_quotes(path), strerror(error),
                         fmt::format("delete the last line of {}", in_quotes(path_.native()))));
}

Status LineFile::rewrite(uint64_t max_bytes,
                         const std::function<std::optional<std::string>(const std::string&)>& change) {
  RIDGE_TRY_STATUS(lock());
  const auto replace = [&]() -> Status {
    if (::lseek(fd_, 0, SEEK_END) == 0) return {};
    RIDGE_TRY(const std::string text, read_text_file(path_, max_bytes));
    const std::optional<std::string> changed = change(text);
    if (!changed) return {};
    PendingFile file(path_);
    RIDGE_TRY_STATUS(file.create());
    RIDGE_TRY_STATUS(file.write(*changed));
    return file.commit();
  };
  const Status status = replace();
  unlock();
  return status;
}

Failure LineFile::refused(std::string_view what, std::string_view why) const {
  return fail(ErrorKind::failure, "cannot {} {}: {}", what, in_quotes(path_.native()), why);
}

}  // namespace ridge::io
