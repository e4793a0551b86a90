// Token ids from a file that another program wrote: safetensors or JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"

namespace ridge::io {

/// The ids of a safetensors file (tensor `input_ids`, I32 or I64, [T] or [1, T]) or of a JSON file
/// ({"input_ids": [...]} or a list alone), told apart by their first bytes. At least one id, none negative and none
/// past 31 bits. Errors: bad_file, naming the file, what was found and what is expected.
Result<std::vector<int32_t>> read_token_ids(const std::filesystem::path& path);

}  // namespace ridge::io
