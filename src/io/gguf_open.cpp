// open_gguf(): a GGUF file on disk, or all the shards of a split one. Shards are named `NAME-00001-of-00003.gguf`
// (from 1) and carry split.no (from 0), split.count and split.tensors.count; the first has the model's metadata.
#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <unordered_set>

#include "io/gguf_layout.h"
#include "io/text.h"

namespace ridge::io {
namespace {

constexpr std::string_view kSplitNo = "split.no", kSplitCount = "split.count", kSplitTensors = "split.tensors.count";
constexpr std::string_view kExtension = ".gguf";

struct ShardName {
  std::string base, extension;  ///< what is around "-00001-of-00003"; the extension is .gguf in letters of any case
  int number = 0;               ///< from 1
  int count = 0;
};

std::optional<int> five_digits(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.size() != 5 || error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

/// The parts of a shard's file name, or nothing when the name is not one.
std::optional<ShardName> shard_name(std::string_view file_name) {
  constexpr std::string_view kSuffix = "-00001-of-00003";
  constexpr std::string_view kOf = "-of-";
  if (file_name.size() < kSuffix.size() + kExtension.size()) return std::nullopt;
  const std::string_view extension = file_name.substr(file_name.size() - kExtension.size());
  const auto same = [](char a, char b) { return (a | 0x20) == (b | 0x20); };
  if (!std::ranges::equal(extension, kExtension, same)) return std::nullopt;
  file_name.remove_suffix(kExtension.size());
  const std::string_view suffix = file_name.substr(file_name.size() - kSuffix.size());
  if (suffix[0] != '-' || suffix.substr(6, kOf.size()) != kOf) return std::nullopt;
  const std::optional<int> number = five_digits(suffix.substr(1, 5)), count = five_digits(suffix.substr(10));
  if (!number || !count || *number > *count) return std::nullopt;
  return ShardName{std::string(file_name.substr(0, file_name.size() - kSuffix.size())), std::string(extension), *number,
                   *count};
}

std::filesystem::path shard_path(const std::filesystem::path& sibling, const ShardName& name, int number) {
  return sibling.parent_path() / fmt::format("{}-{:05}-of-{:05}{}", name.base, number, name.count, name.extension);
}

Result<Gguf> map_and_parse(const std::filesystem::path& path, std::vector<MappedFile>& files) {
  RIDGE_TRY(MappedFile file, MappedFile::open(path));
  RIDGE_TRY(Gguf gguf, parse_gguf(file.bytes(), path.native()));
  files.push_back(std::move(file));
  return gguf;
}

Failure bad_shard(const Gguf& shard, std::string why) {
  return {ErrorKind::bad_file,
          four_parts("bad GGUF shard", shard.where, why, "fetch all the shards of one model into one directory")};
}

Status expect(const Gguf& shard, std::string_view key, int64_t expected) {
  RIDGE_TRY(const int64_t found, shard.integer(key));
  if (found == expected) return {};
  return bad_shard(shard, fmt::format("key '{}' is {}, expected {}", key, found, expected));
}

/// Keys that describe one file and not the model.
bool is_per_file(std::string_view key) { return key.starts_with("split.") || key == "general.alignment"; }

/// Checks that metadata of the model which a later shard repeats agree with the first shard.
Status check_same_model(const Gguf& first, const Gguf& shard) {
  for (const auto& [key, value] : shard.metadata) {
    if (is_per_file(key)) continue;
    const auto found = first.metadata.find(key);
    if (found == first.metadata.end() || found->second != value)
      return bad_shard(shard,
                       fmt::format("key {} differs from the first shard's, so it is of another model", in_quotes(key)));
  }
  return {};
}

Status check_tensors(const Gguf& merged, int64_t expected) {
  std::unordered_set<std::string_view> names;
  for (const Tensor& tensor : merged.tensors)
    if (!names.insert(tensor.name).second)
      return bad_shard(merged, fmt::format("tensor {} is in two shards", in_quotes(tensor.name)));
  if (int64_t(merged.tensors.size()) == expected) return {};
  return bad_shard(merged, fmt::format("the shards hold {} tensors, expected {} (key '{}')", merged.tensors.size(),
                                       expected, kSplitTensors));
}

Result<GgufFile> open_shards(const std::filesystem::path& path, const ShardName& name) {
  GgufFile merged;
  int64_t tensor_count = 0;
  for (int number = 1; number <= name.count; ++number) {
    Result<Gguf> shard = map_and_parse(shard_path(path, name, number), merged.files);
    if (!shard) return bad_file("shard {} of {}: {}", number, name.count, shard.error().message);
    RIDGE_TRY_STATUS(expect(*shard, kSplitCount, name.count));
    RIDGE_TRY_STATUS(expect(*shard, kSplitNo, number - 1));
    if (number == 1) {
      RIDGE_TRY(tensor_count, shard->integer(kSplitTensors));
      merged.gguf = *std::move(shard);
      continue;
    }
    RIDGE_TRY_STATUS(expect(*shard, kSplitTensors, tensor_count));
    RIDGE_TRY_STATUS(check_same_model(merged.gguf, *shard));
    std::move(shard->tensors.begin(), shard->tensors.end(), std::back_inserter(merged.gguf.tensors));
  }
  RIDGE_TRY_STATUS(check_tensors(merged.gguf, tensor_count));
  for (const std::string_view key : {kSplitNo, kSplitCount, kSplitTensors})
    merged.gguf.metadata.erase(merged.gguf.metadata.find(key));
  return merged;
}

/// The magic and a small version behind it: a README may begin with the letters.
bool is_gguf(const std::filesystem::path& path) {
  char begin[8] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof(begin));
  return std::string_view(begin, 4) == "GGUF" && std::string_view(begin + 5, 3) == std::string_view("\0\0", 3);
}

/// A header's length, and JSON behind it.
bool is_safetensors(const std::filesystem::path& path) {
  char begin[9] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof(begin));
  return begin[8] == '{' && std::string_view(begin + 4, 4) == std::string_view("\0\0\0\0", 4);
}

/// The GGUF files of a folder, by their first bytes. A split model counts once.
std::vector<std::filesystem::path> gguf_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  std::error_code error, ignored;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::optional<ShardName> shard = shard_name(it->path().filename().native());
    if (it->is_regular_file(ignored) && (!shard || shard->number == 1) && is_gguf(it->path()))
      found.push_back(it->path());
  }
  std::ranges::sort(found);
  return found;
}

/// "https://...", "hf.co/Org/Name" or "Org/Name": what programs that download take.
bool names_a_download(std::string_view given) {
  if (given.find("://") != given.npos || given.starts_with("hf.co/") || given.starts_with("huggingface.co/"))
    return true;
  const size_t slash = given.find('/');
  return slash != given.npos && slash > 0 && given[0] != '.' && given[0] != '~' && slash + 1 < given.size() &&
         given.find('/', slash + 1) == given.npos && !given.ends_with(kExtension) &&
         !std::filesystem::exists(given.substr(0, slash));
}

}  // namespace

namespace {
bool has_safetensors(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (entry.path().filename().native().find(".safetensors") != std::string::npos) return true;
  return false;
}
}  // namespace

Result<std::filesystem::path> find_model(const std::filesystem::path& given) {
  std::error_code ignored;
  if (!std::filesystem::exists(given, ignored)) {
    if (!names_a_download(given.native())) return given;  // whoever opens it says what is wrong
    return fail(ErrorKind::usage, "{}: there is no such file, and Ridge downloads nothing ({})", given.native(),
                "download the model, then -m FILE or -m DIRECTORY");
  }
  if (!std::filesystem::is_directory(given, ignored)) {
    const std::filesystem::path folder = given.has_parent_path() ? given.parent_path() : ".";
    const bool is_part = std::filesystem::exists(folder / "config.json", ignored) && is_safetensors(given);
    return is_part ? folder : given;
  }
  const std::vector<std::filesystem::path> found = gguf_files(given);
  // Repositories of GGUF files often keep the config.json of the model they were made from.
  const bool has_config = std::filesystem::exists(given / "config.json", ignored);
  if (has_config && (found.empty() || has_safetensors(given))) return given;
  if (found.size() == 1) return found[0];
  if (found.empty()) return given;
  constexpr size_t kShown = 8;
  std::string names;
  for (size_t i = 0; i < std::min(found.size(), kShown); ++i)
    names += (i > 0 ? ", " : "") + found[i].filename().string();
  return fail(ErrorKind::usage, "{}: the folder has {} GGUF files ({}{}): name one of them", given.native(),
              found.size(), names, found.size() > kShown ? ", ..." : "");
}

Result<GgufFile> open_gguf(const std::filesystem::path& path) {
  const std::optional<ShardName> name = shard_name(path.filename().native());
  if (name && name->count > 1) return open_shards(path, *name);
  GgufFile single;
  RIDGE_TRY(single.gguf, map_and_parse(path, single.files));
  if (!single.gguf.has(kSplitCount)) return single;
  RIDGE_TRY(const int64_t count, single.gguf.integer(kSplitCount));
  if (count == 1 || count == 0) return single;
  return bad_file(
      "bad GGUF shard: {}: it is one of {} shards, but its name does not end in -00001-of-{:05}.gguf "
      "(give the shards back their names)",
      path.native(), count, count);
}

}  // namespace ridge::io
