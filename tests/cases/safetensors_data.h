// Reference tensors out of a safetensors file, trusted: any dtype, as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ridge {

inline std::map<std::string, std::vector<std::byte>> read_safetensors(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint64_t header = 0;
  std::memcpy(&header, all.data(), sizeof header);
  const char* const data = all.data() + sizeof header + header;
  std::map<std::string, std::vector<std::byte>> tensors;
  const auto entries = nlohmann::json::parse(all.substr(sizeof header, header));
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const auto first = entry["data_offsets"][0].get<size_t>(), last = entry["data_offsets"][1].get<size_t>();
    tensors[name].resize(last - first);
    std::memcpy(tensors[name].data(), data + first, last - first);
  }
  return tensors;
}

template <class T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace ridge
