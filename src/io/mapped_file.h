// A read-only memory-mapped regular file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"

namespace ridge::io {

/// Move-only owner of one mapping. Directories, FIFOs, devices and empty files are refused with a reason.
/// A file that shrinks while mapped: SIGBUS is turned into a message and exit code 4 (install_sigbus_message()).
class MappedFile {
 public:
  /// Maps the whole file. Never blocks, whatever the path names.
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

/// The whole of a small text file (config.json, tokenizer.json, prompts), refused above `max_bytes`.
Result<std::string> read_text_file(const std::filesystem::path& path, uint64_t max_bytes);

/// Makes a SIGBUS inside a mapping print what happened and exit with code 4 instead of dumping core.
void install_sigbus_message();

}  // namespace ridge::io
