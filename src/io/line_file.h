// Files of lines that grow at their end: results, the history of a chat.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace ridge::io {

/// A regular file that several processes append lines to, each under the file's lock.
///
/// A writer that was killed can leave a line without its end. The next line never joins it: a line that is whole gets
/// its end, another one moves to PATH.cut, and report() says so.
class LineFile {
 public:
  struct Options {
    int mode = 0644;      ///< permissions of a file that is made
    int extra_flags = 0;  ///< for open(2), e.g. O_NOFOLLOW
    bool (*is_whole)(std::string_view line) = [](std::string_view) { return true; };
  };

  /// Opens or makes the file and takes care of a cut last line.
  static Result<LineFile> open(const std::filesystem::path& path, const Options& options);
  LineFile() = default;
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&& other) noexcept;
  ~LineFile();

  bool is_open() const { return fd_ >= 0; }
  /// Appends `line` and its end, and flushes them to the disk. After a failure the file ends as it did before.
  Status add(std::string_view line);
  /// The whole text, which ends with a whole line: no writer is in the middle of one. Files of more than `max_bytes`
  /// are refused.
  Result<std::string> read(uint64_t max_bytes);
  /// Replaces the whole text at once by what `change` makes of it, while no line can come in between. `change` gives
  /// nothing where the text stays. Files of more than `max_bytes` are refused.
  Status rewrite(uint64_t max_bytes, const std::function<std::optional<std::string>(const std::string&)>& change);
  /// Report about a cut line, given once; empty when there was none.
  std::string report() { return std::exchange(report_, {}); }

 private:
  Status reopen();
  Status lock();
  void unlock();
  Status append(std::string_view bytes);
  Status end_last_line();
  Status keep_aside(std::string_view line);
  Failure refused(std::string_view what, std::string_view why) const;

  std::filesystem::path path_;
  Options options_;
  std::string report_;
  int fd_ = -1;
};

}  // namespace ridge::io
