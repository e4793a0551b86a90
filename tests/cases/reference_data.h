// Where the reference data is that is too large to ship: models, vocabularies, texts.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "cases/paths.h"

namespace ridge {

/// The folder named by the environment variable RIDGE_DATA, else shared/data beside the source tree, else nothing: then
/// the test calls GTEST_SKIP() with the reason.
inline std::optional<std::filesystem::path> reference_data() {
  const char* const named = std::getenv("RIDGE_DATA");
  const std::filesystem::path path = named != nullptr ? named : RIDGE_SOURCE_DIR "/../shared/data";
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return std::nullopt;
  return path;
}

}  // namespace ridge
