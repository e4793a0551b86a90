// GGUF v2/v3 reader and writer. The reader takes a byte span and trusts nothing in it: counts are capped by the file
// size, arithmetic is checked (base/checked.h), and every failure names the field, what was expected and what was
// found.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/mapped_file.h"
#include "io/tensor.h"

namespace ridge::io {

/// A metadata value. Integers of every width are kept as int64 or uint64, floats as double.
/// Arrays are homogeneous; arrays of arrays are refused.
using GgufValue = std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<bool>, std::vector<int64_t>,
                               std::vector<uint64_t>, std::vector<double>, std::vector<std::string>>;

struct Gguf {
  uint32_t version = 3;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<Tensor> tensors;  ///< file order; shapes reversed to row-major; data spans point into the input
  std::string where;            ///< the path, for messages

  const Tensor* find(std::string_view name) const;
  bool has(std::string_view key) const { return metadata.contains(key); }
  /// Typed access. A missing key or another type is a failure that names the key; integers convert when in range.
  Result<std::string> text(std::string_view key) const;
  Result<int64_t> integer(std::string_view key) const;
  Result<double> number(std::string_view key) const;  ///< float or integer
  Result<bool> flag(std::string_view key) const;
  Result<std::vector<int64_t>> integers(std::string_view key) const;
  Result<std::vector<double>> numbers(std::string_view key) const;
  Result<std::vector<std::string>> texts(std::string_view key) const;
};

/// general.alignment must be a power of two in this range. The format asks for a multiple of 8; 1 MiB is past every
/// page and file system block in use, so more could only serve to overflow something.
inline constexpr uint64_t kMinGgufAlignment = 8, kMaxGgufAlignment = uint64_t(1) << 20, kGgufAlignment = 32;

/// Parses a whole GGUF file image. `where` (the path) goes into messages. Refuses what a model file cannot need:
/// a header over 128 MiB, keys over 65535 bytes, arrays of arrays, types that are not on the format shelf.
Result<Gguf> parse_gguf(std::span<const std::byte> file, std::string_view where);

/// A GGUF file on disk with all its shards mapped and merged. Any shard may be named (`-00002-of-00003`). The metadata
/// is the first shard's without its split.* keys, so the result looks like the unsplit file.
struct GgufFile {
  std::vector<MappedFile> files;
  Gguf gguf;
};
Result<GgufFile> open_gguf(const std::filesystem::path& path);

/// Finds the model of `-m`: a GGUF file, a Hugging Face folder (it has a config.json) or weights in one, or the only
/// GGUF file of another folder, whatever the file's name. Several such files are a failure that names them, and so is
/// the name of a model on a server.
Result<std::filesystem::path> find_model(const std::filesystem::path& given);

/// Record of one tensor for write_gguf().
struct GgufTensorSpec {
  std::string name;
  const WeightFormat* format = nullptr;
  std::vector<int64_t> shape;  ///< row-major
};
/// Fills `out` (empty at the call) with the packed bytes of one tensor.
using GgufPayload = std::function<Status(size_t tensor_index, std::vector<std::byte>& out)>;

/// Writes a GGUF v3 file: to a temporary beside `path`, fsync, rename. Nothing is left behind on failure.
/// Tensor payloads are pulled one at a time, so memory stays at the size of one tensor. Numbers get the widths that
/// other readers insist on: 32-bit integers unless a value needs 64, floats as f32 unless out of its range.
/// Errors: bad_file for names, shapes or payload sizes that do not fit; failure when the disk refuses.
Status write_gguf(const std::filesystem::path& path, const std::map<std::string, GgufValue, std::less<>>& metadata,
                  const std::vector<GgufTensorSpec>& tensors, const GgufPayload& payload);

}  // namespace ridge::io
