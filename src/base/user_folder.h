// Folders of a user's own files, by the rules of XDG.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace ridge {

/// NAME/ridge where the environment variable NAME holds an absolute path, else HOME/below_home/ridge; empty without
/// either. Nothing is created.
inline std::filesystem::path user_folder(const char* name, const char* below_home) {
  const auto folder = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return std::filesystem::path(value != nullptr && value[0] == '/' ? value : "");  // relative paths are ignored
  };
  if (const auto named = folder(name); !named.empty()) return named / "ridge";
  if (const auto home = folder("HOME"); !home.empty()) return home / below_home / "ridge";
  return {};
}

}  // namespace ridge
