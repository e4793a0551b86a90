// open_hf_directory(): config, tokenizer and weights of a Hugging Face model directory.
#include <algorithm>
#include <iterator>
#include <set>
#include <system_error>

#include "io/json.h"
#include "io/safetensors.h"
#include "io/text.h"

namespace ridge::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingle = "model.safetensors", kIndex = "model.safetensors.index.json";
constexpr std::string_view kWeightsExtension = ".safetensors";
constexpr uint64_t kMaxConfigBytes = uint64_t(16) << 20;
constexpr uint64_t kMaxTokenizerBytes = uint64_t(128) << 20;
constexpr uint64_t kMaxIndexBytes = uint64_t(128) << 20;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

/// The text of a file, or "" when there is none.
Result<std::string> read_optional(const fs::path& path, uint64_t max_bytes) {
  if (!is_there(path)) return std::string();
  return read_text_file(path, max_bytes);
}

Failure bad_directory(const fs::path& path, std::string_view why, std::string_view next) {
  return {ErrorKind::bad_file, four_parts("bad model directory", path.native(), why, next)};
}

Status load_file(const fs::path& path, HfDirectory& directory) {
  RIDGE_TRY(MappedFile file, MappedFile::open(path));
  RIDGE_TRY(std::vector<Tensor> tensors, parse_safetensors(file.bytes(), path.native()));
  directory.files.push_back(std::move(file));
  std::ranges::move(tensors, std::back_inserter(directory.tensors));
  return {};
}

/// A name that can only mean a file inside the directory.
bool is_plain_name(std::string_view name) {
  const auto bad = [](char c) { return c == '/' || c == '\\' || uint8_t(c) < 0x20 || c == 0x7F; };
  return name.size() > kWeightsExtension.size() && name.size() <= 255 && name.front() != '.' &&
         name.ends_with(kWeightsExtension) && std::ranges::none_of(name, bad);
}

/// Every tensor of a shard must be the index's, in this shard; takes what it finds out of `wanted`.
Status claim(std::span<const Tensor> tensors, std::string_view shard, WeightMap& wanted) {
  for (const Tensor& tensor : tensors) {
    const auto entry = wanted.find(tensor.name);
    if (entry == wanted.end())
      return bad_file("shard {} has tensor {}, which the index does not list or another shard has too",
                      in_quotes(shard), in_quotes(tensor.name));
    if (entry->second != shard)
      return bad_file("tensor {} is in shard {}, but the index says {}", in_quotes(tensor.name), in_quotes(shard),
                      in_quotes(entry->second));
    wanted.erase(entry);
  }
  return {};
}

Status load_shards(HfDirectory& directory) {
  const fs::path index = directory.path / kIndex;
  RIDGE_TRY(const std::string text, read_text_file(index, kMaxIndexBytes));
  RIDGE_TRY(WeightMap wanted, parse_safetensors_index(text, index.native()));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : wanted) shards.insert(shard);
  for (const std::string& shard : shards) {
    const size_t before = directory.tensors.size();
    RIDGE_TRY_STATUS(load_file(directory.path / shard, directory));
    if (const Status ok = claim(std::span(directory.tensors).subspan(before), shard, wanted); !ok)
      return bad_directory(directory.path, ok.error().message, "fetch the model again");
  }
  if (wanted.empty()) return {};
  return bad_directory(directory.path,
                       fmt::format("tensor {} is not in shard {}, where the index says it is ({} such)",
                                   in_quotes(wanted.begin()->first), in_quotes(wanted.begin()->second), wanted.size()),
                       "fetch the model again");
}

/// The weights when they have no usual name: the only *.safetensors file there is.
Result<fs::path> only_weights(const fs::path& path) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    if (it->path().native().ends_with(kWeightsExtension)) found.push_back(it->path());
  if (error) return bad_directory(path, error.message(), "");
  if (found.size() == 1) return found.front();
  return bad_directory(path,
                       fmt::format("there is no {} and no {}, and {} other *{} files, expected one", kSingle, kIndex,
                                   found.size(), kWeightsExtension),
                       found.empty() ? "only safetensors weights are read here; convert others first"
                                     : "fetch the index that belongs to the shards");
}

Status load_weights(HfDirectory& directory) {
  if (is_there(directory.path / kSingle)) return load_file(directory.path / kSingle, directory);
  if (is_there(directory.path / kIndex)) return load_shards(directory);
  RIDGE_TRY(const fs::path path, only_weights(directory.path));
  return load_file(path, directory);
}

}  // namespace

Result<WeightMap> parse_safetensors_index(std::string_view text, std::string_view where) {
  RIDGE_TRY(const Json index, parse_json(text, where));
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (found == index.end() || !found->is_object())
    return bad_file("bad safetensors index: {}: it has no object 'weight_map'", where);
  WeightMap weight_map;
  for (const auto& [tensor, shard] : found->items()) {
    if (!shard.is_string() || !is_plain_name(shard.get_ref<const std::string&>()))
      return bad_file("bad safetensors index: {}: tensor {} is said to be in {}, expected a plain *{} file name", where,
                      in_quotes(tensor),
                      shard.is_string() ? in_quotes(shard.get_ref<const std::string&>()) : shard.type_name(),
                      kWeightsExtension);
    weight_map[tensor] = shard.get<std::string>();
  }
  if (weight_map.empty()) return bad_file("bad safetensors index: {}: 'weight_map' is empty", where);
  return weight_map;
}

const Tensor* HfDirectory::find(std::string_view name) const {
  for (const Tensor& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

Result<HfDirectory> open_hf_directory(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return bad_directory(path, error ? error.message() : "it is not a directory", "");
  HfDirectory directory;
  directory.path = path;
  if (!is_there(path / "config.json"))
    return bad_directory(path, "there is no config.json and no GGUF file",
                         "give the directory that a model's snapshot is in");
  RIDGE_TRY(directory.config_json, read_text_file(path / "config.json", kMaxConfigBytes));
  directory.config_json = with_finite_numbers(directory.config_json);
  RIDGE_TRY(directory.tokenizer_json, read_optional(path / "tokenizer.json", kMaxTokenizerBytes));
  RIDGE_TRY(directory.tokenizer_config_json, read_optional(path / "tokenizer_config.json", kMaxConfigBytes));
  RIDGE_TRY(directory.special_tokens_map_json, read_optional(path / "special_tokens_map.json", kMaxConfigBytes));
  RIDGE_TRY(directory.generation_config_json, read_optional(path / "generation_config.json", kMaxConfigBytes));
  RIDGE_TRY(directory.hf_quant_config_json, read_optional(path / "hf_quant_config.json", kMaxConfigBytes));
  RIDGE_TRY_STATUS(load_weights(directory));
  return directory;
}

}  // namespace ridge::io
