#include "serve/state_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "base/rng.h"
#include "engine/kv_state.h"
#include "io/mapped_file.h"
#include "io/pending_file.h"

namespace ridge::serve {
namespace {

namespace fs = std::filesystem;

void make_private(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) fs::permissions(path, fs::perms::owner_all, error);
  if (error) throw_error(ErrorKind::usage, "{}: {} (give a folder of your own)", path.string(), error.message());
}

std::optional<uint64_t> hex(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

/// A number that no model's text decides: names of folders.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0;
  for (const char c : text) hash = splitmix64(hash + uint64_t(uint8_t(c)) * kSplitmixStep);
  return hash;
}

std::vector<fs::path> state_files(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".kv" && hex(entry.path().stem().string()))
      files.emplace_back(entry.last_write_time(error), entry.path());
  std::ranges::sort(files);
  std::vector<fs::path> paths;
  for (const auto& [time, path] : files) paths.push_back(path);
  return paths;
}

}  // namespace

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

FileLock FileLock::take(const fs::path& path, bool wait) {
  FileLock lock;
  lock.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const auto refuse = [&](const char* what) {
    throw_error(ErrorKind::usage, "{}: {}: {} (give a folder of your own on a local disk)", path.string(), what,
                strerror(errno));
  };
  if (lock.fd_ < 0) refuse("cannot make the lock");
  int failed = -1;
  do failed = ::flock(lock.fd_, LOCK_EX | (wait ? 0 : LOCK_NB));
  while (failed != 0 && errno == EINTR);
  if (failed == 0) return lock;
  if (errno != EWOULDBLOCK) refuse("cannot lock");
  return {};
}

StateDir::StateDir(fs::path path) : path_(std::move(path)) {
  make_private(path_);
  const FileLock alone = FileLock::take(path_ / "lock", true);  // two servers that begin together make one secret
  const fs::path file = path_ / "secret";
  std::error_code error;
  if (fs::exists(file, error)) {
    const auto secret = hex(io::read_text_file(file, 64).or_throw());
    if (!secret)
      throw_error(ErrorKind::bad_file, "{}: not 16 hexadecimal digits (delete the folder's files to begin anew)",
                  file.string());
    secret_ = *secret;
    return;
  }
  std::random_device random;
  secret_ = uint64_t(random()) << 32 | random();
  const std::string text = fmt::format("{:016x}", secret_);
  io::PendingFile pending(file);
  pending.create().or_throw();
  pending.write(text).or_throw();
  pending.commit().or_throw();
}

fs::path StateDir::path_of(Engine& engine, const PoolRunner& runner) const {
  return path_ /
         fmt::format("{:016x}-{:016x}", engine.hash(runner.options().n_ctx), hash_of(kv_text(runner.options().kv)));
}

std::string StateDir::load(Engine& engine, PoolRunner& runner) {
  const fs::path from = path_of(engine, runner);
  make_private(from);
  Folder folder{.lock = FileLock::take(from / "lock", false), .own = {}};
  const bool held = folder.lock.held();
  SequencePool& pool = runner.pool();
  int n = 0, refused = 0;
  std::string why;
  const std::vector<fs::path> files = state_files(from);
  // A slot for the sequence and one for its checkpoint; what runs later wants slots and pages of its own. The newest
  // files are read, in the order of their age. The others are not this server's to remove.
  const size_t n_read = std::min(files.size(), size_t(std::max(0, int(pool.report().slots_free) - 1)));
  for (const fs::path& path : std::span(files).last(n_read)) {
    if (pool.report().slots_free < 2) break;
    const auto read = [&]() -> Status {
      RIDGE_TRY(const io::MappedFile file, io::MappedFile::open(path));
      RIDGE_TRY(const SequenceImage image,
                read_kv_state(pool, runner.options().n_ctx, engine.hash(runner.options().n_ctx), file.bytes(),
                              path.string()));
      RIDGE_TRY(const SeqId seq, pool.load(image));
      if (auto checkpoint = pool.checkpoint(seq)) pool.retain(*checkpoint, *hex(path.stem().string()));
      pool.close(seq);
      return {};
    };
    if (const Status status = read(); status) ++n, folder.own.push_back(path);
    else ++refused, why = status.error().message;
  }
  if (!held) folder.own.clear();  // another server's
  const std::scoped_lock locked(mutex_);
  folders_[from] = std::move(folder);
  const size_t left = files.size() - n_read;
  return fmt::format("{} prefixes of {} read from {}{}{}{}", n, kv_text(runner.options().kv), from.string(),
                     left > 0 ? fmt::format("; {} older ones stay unread: no slot is free", left) : "",
                     refused > 0 ? fmt::format("; {} left alone, the last because: {}", refused, why) : "",
                     held ? "" : "; another server has the folder, its files stay as they are");
}

std::string StateDir::save(Engine& engine, PoolRunner& runner) {
  SequencePool& pool = runner.pool();
  const fs::path to = path_of(engine, runner);
  Folder folder;
  {
    const std::scoped_lock locked(mutex_);
    if (auto known = folders_.extract(to)) folder = std::move(known.mapped());
  }
  make_private(to);
  if (!folder.lock.held()) folder.lock = FileLock::take(to / "lock", false);
  if (!folder.lock.held())
    return fmt::format("prefixes of {} not saved: another server has {}", kv_text(runner.options().kv), to.string());
  int n = 0;
  for (const uint64_t key : pool.retained()) {
    const fs::path path = to / fmt::format("{:016x}.kv", key);
    std::erase(folder.own, path);
    const auto seq = pool.open(*pool.find(key));
    if (!seq) return fmt::format("prefixes not saved: {}", seq.error().message);
    const Status saved =
        save_kv_state(pool.memory().layouts(), pool.save(*seq), engine.hash(runner.options().n_ctx), path);
    pool.close(*seq);
    if (!saved) return fmt::format("prefixes not saved: {}", saved.error().message);
    ++n;
  }
  std::error_code ignored;
  for (const fs::path& path : folder.own) fs::remove(path, ignored);
  return fmt::format("{} prefixes of {} saved in {}", n, kv_text(runner.options().kv), to.string());
}

}  // namespace ridge::serve
