#include "serve/state_dir.h"

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

StateDir::StateDir(fs::path path) : path_(std::move(path)) {
  make_private(path_);
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

fs::path StateDir::folder(const Lane& lane) const {
  return path_ / fmt::format("{:016x}", hash_of(kv_text(lane.options().kv)));
}

std::string StateDir::load(Engine& engine, Lane& lane) const {
  SequencePool& pool = lane.pool();
  int n = 0, refused = 0;
  std::string why;
  for (const fs::path& path : state_files(folder(lane))) {
    // A slot for the sequence and one for its checkpoint; what runs later wants slots and pages of its own.
    if (pool.report().slots_free < 2) break;
    const auto read = [&]() -> Status {
      RIDGE_TRY(const io::MappedFile file, io::MappedFile::open(path));
      RIDGE_TRY(const SequenceImage image, read_kv_state(pool, lane.options().n_ctx, engine.hash(lane.options().n_ctx),
                                                         file.bytes(), path.string()));
      RIDGE_TRY(const SeqId seq, pool.load(image));
      if (auto checkpoint = pool.checkpoint(seq)) pool.retain(*checkpoint, *hex(path.stem().string()));
      pool.close(seq);
      return {};
    };
    if (const Status status = read(); status) ++n;
    else ++refused, why = status.error().message;
  }
  return fmt::format("{} prefixes of {} read from {}{}", n, kv_text(lane.options().kv), path_.string(),
                     refused > 0 ? fmt::format("; {} left alone, the last because: {}", refused, why) : "");
}

std::string StateDir::save(Engine& engine, Lane& lane) const {
  SequencePool& pool = lane.pool();
  const fs::path to = folder(lane);
  make_private(to);
  std::vector<fs::path> old = state_files(to);
  int n = 0;
  for (const uint64_t key : pool.retained()) {
    const fs::path path = to / fmt::format("{:016x}.kv", key);
    std::erase(old, path);
    const auto seq = pool.open(*pool.find(key));
    if (!seq) return fmt::format("prefixes not saved: {}", seq.error().message);
    const Status saved =
        save_kv_state(pool.memory().layouts(), pool.save(*seq), engine.hash(lane.options().n_ctx), path);
    pool.close(*seq);
    if (!saved) return fmt::format("prefixes not saved: {}", saved.error().message);
    ++n;
  }
  std::error_code ignored;
  for (const fs::path& path : old) fs::remove(path, ignored);
  return fmt::format("{} prefixes of {} saved in {}", n, kv_text(lane.options().kv), path_.string());
}

}  // namespace ridge::serve
