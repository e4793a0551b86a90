// safetensors reader: one file, or the shards of a model.safetensors.index.json.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/mapped_file.h"
#include "io/tensor.h"

namespace ridge::io {

/// Parses one safetensors image: u64 header length, JSON header, data. Refuses a header over 100 MB, deep JSON,
/// reversed, negative, gapped or overlapping offsets, unknown dtypes, duplicate names and trailing bytes. Scalars and
/// tensors without elements are refused too (no model weight is one), as is data not aligned to its element size.
/// Tensors come in the order of their data.
Result<std::vector<Tensor>> parse_safetensors(std::span<const std::byte> file, std::string_view where);

/// A Hugging Face model directory: config.json, tokenizer files and weights (single file or sharded), all mapped.
struct HfDirectory {
  std::filesystem::path path;
  std::string config_json;
  std::string tokenizer_json;         ///< empty when the file is absent
  std::string tokenizer_config_json;  ///< empty when the file is absent
  std::vector<MappedFile> files;
  std::vector<Tensor> tensors;
  const Tensor* find(std::string_view name) const;
};
/// Weights are model.safetensors, else the shards that model.safetensors.index.json names, else the only *.safetensors
/// file there is; other *.safetensors files are ignored. Shard names in the index must be plain file names inside the
/// directory (no '/', no '..'), and every tensor must be in exactly the file that the index says.
Result<HfDirectory> open_hf_directory(const std::filesystem::path& path);

}  // namespace ridge::io
