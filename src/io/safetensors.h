// safetensors reader and writer: one file, or the shards of a model.safetensors.index.json.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/mapped_file.h"
#include "io/tensor.h"

namespace ridge::io {

/// Parses one safetensors image: u64 header length, JSON header, data. Refuses a header over 100 MB, deep JSON,
/// reversed, negative, gapped or overlapping offsets, unknown dtypes, duplicate names and trailing bytes. Tensors
/// without elements are refused too (no model weight is one), as is data not aligned to its element size. A scalar has
/// the shape [1]. Tensors come in the order of their data.
Result<std::vector<Tensor>> parse_safetensors(std::span<const std::byte> file, std::string_view where);

/// Record of one tensor for write_safetensors().
struct SafetensorsSpec {
  std::string name;
  const WeightFormat* format = nullptr;  ///< one with a safetensors dtype
  std::vector<int64_t> shape;
};
/// Takes the next bytes of a tensor. A failure must end the payload.
using SafetensorsSink = std::function<Status(std::span<const std::byte> bytes)>;
/// Gives `sink` the bytes of one tensor, in as many parts as it likes.
using SafetensorsPayload = std::function<Status(size_t tensor_index, const SafetensorsSink& sink)>;

/// Writes one safetensors file; nothing is left behind on failure or exception. Tensors are pulled one at a time, those
/// with the larger elements first and equals in their order, so that all are aligned. Errors: bad_file for names,
/// shapes, formats or payload sizes that do not fit; failure for what the disk refused.
Status write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& tensors,
                         const SafetensorsPayload& payload);

/// The shard of every tensor, by the text of a model.safetensors.index.json. Shards are plain *.safetensors file names;
/// `where` names the file in errors.
using WeightMap = std::map<std::string, std::string, std::less<>>;
Result<WeightMap> parse_safetensors_index(std::string_view text, std::string_view where);

/// A Hugging Face model directory: config.json, tokenizer files and weights (single file or sharded), all mapped.
struct HfDirectory {
  std::filesystem::path path;
  std::string config_json;
  std::string tokenizer_json;                                   ///< empty when the file is absent
  std::string tokenizer_config_json;                            ///< empty when the file is absent
  std::string special_tokens_map_json, generation_config_json;  ///< empty when the file is absent
  std::string hf_quant_config_json;                             ///< likewise: how ModelOpt packed the matrices
  std::vector<MappedFile> files;
  std::vector<Tensor> tensors;
  const Tensor* find(std::string_view name) const;
};
/// Weights are model.safetensors, else the shards that model.safetensors.index.json names, else the only *.safetensors
/// file there is; other *.safetensors files are ignored. Shard names in the index must be plain file names inside the
/// directory (no '/', no '..'), and every tensor must be in exactly the file that the index says.
Result<HfDirectory> open_hf_directory(const std::filesystem::path& path);

}  // namespace ridge::io
