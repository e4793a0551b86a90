#include "io/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <string_view>

#include "io/text.h"

namespace ridge::io {
namespace {

/// Owner of a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct RegularFile {
  Descriptor descriptor;
  uint64_t size;
};

std::string shown(const std::filesystem::path& path) { return in_quotes(path.native()); }

std::string_view file_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

/// O_NONBLOCK: opening a FIFO that nobody writes to returns at once instead of hanging.
Result<RegularFile> open_regular(const std::filesystem::path& path) {
  if (path.native().find('\0') != std::string::npos)
    return bad_file("cannot open {}: the name holds a NUL byte", shown(path));
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.get() < 0) {
    const int error = errno;
    return bad_file("cannot open {}: {}{}", shown(path), strerror(error),
                    error == ELOOP ? " (the name is a loop of symbolic links)" : "");
  }
  struct stat facts {};
  if (::fstat(descriptor.get(), &facts) != 0) return bad_file("cannot stat {}: {}", shown(path), strerror(errno));
  if (!S_ISREG(facts.st_mode))
    return bad_file("cannot read {}: it is {}, expected a regular file", shown(path), file_kind(facts.st_mode));
  return RegularFile{std::move(descriptor), uint64_t(facts.st_size)};
}

void unmap(std::span<const std::byte> bytes) {
  if (!bytes.empty()) ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
}

/// Only async-signal-safe calls in here. Bus errors that are not about the end of a file keep their usual meaning.
void on_sigbus(int, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) {
    ::signal(SIGBUS, SIG_DFL);
    ::raise(SIGBUS);
    return;
  }
  static constexpr std::string_view kMessage =
      "error: a mapped file can no longer be read: it was cut short or its disk failed while in use "
      "(do not change model files of a running program; start again)\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  ::_exit(int(ErrorKind::bad_file));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  RIDGE_TRY(const RegularFile file, open_regular(path));
  if (file.size == 0) return bad_file("cannot read {}: the file is empty", shown(path));
  void* const address = ::mmap(nullptr, file.size, PROT_READ, MAP_SHARED, file.descriptor.get(), 0);
  if (address == MAP_FAILED) {
    const int error = errno;
    return fail(error == ENOMEM ? ErrorKind::no_memory : ErrorKind::bad_file, "cannot map {} ({} bytes): {}",
                shown(path), file.size, strerror(error));
  }
  MappedFile mapped;
  mapped.path_ = path;
  mapped.bytes_ = {static_cast<const std::byte*>(address), file.size};
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this == &other) return *this;
  unmap(bytes_);
  path_ = std::move(other.path_);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

MappedFile::~MappedFile() { unmap(bytes_); }

Result<std::string> read_text_file(const std::filesystem::path& path, uint64_t max_bytes) {
  RIDGE_TRY(const RegularFile file, open_regular(path));
  if (file.size > max_bytes)
    return bad_file("cannot read {}: it has {} bytes, expected at most {}", shown(path), file.size, max_bytes);
  std::string text(file.size, '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(file.descriptor.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return bad_file("cannot read {}: {}", shown(path), strerror(errno));
    if (got == 0) break;  // cut short since the fstat
    filled += size_t(got);
  }
  text.resize(filled);
  return text;
}

void install_sigbus_message() {
  struct sigaction action {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  if (::sigaction(SIGBUS, &action, nullptr) != 0) throw Error(ErrorKind::failure, "cannot install the SIGBUS handler");
}

}  // namespace ridge::io
