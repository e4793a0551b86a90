// Builds safetensors file images in memory, valid or hostile.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace ridge {

/// A file image of this header text and data. `length` overrides the header length that the file claims.
inline std::string safetensors_image(std::string_view header, std::string_view data,
                                     std::optional<uint64_t> length = std::nullopt) {
  const uint64_t claimed = length.value_or(header.size());
  std::string file(sizeof(claimed), '\0');
  std::memcpy(file.data(), &claimed, sizeof(claimed));
  return file.append(header).append(data);
}

/// The header text, with spaces up to a multiple of 8 as the format's own library writes it.
inline std::string padded_header(std::string header) {
  while (header.size() % 8 != 0) header += ' ';
  return header;
}

/// A small valid file: f32 "a" [2, 3] and bf16 "b" [4], listed against the order of their data, and strings.
inline constexpr std::string_view kSmallSafetensorsHeader =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
    R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";

inline std::string small_safetensors() {
  return safetensors_image(padded_header(std::string(kSmallSafetensorsHeader)), "AAAABBBBCCCCDDDDEEEEFFFFbbbbbbbb");
}

/// A file of f32 tensors with one element each, with these names.
inline std::string safetensors_of(std::initializer_list<std::string_view> names) {
  std::string header = "{";
  std::string data;
  for (const std::string_view name : names) {
    if (!data.empty()) header += ",";
    const std::string begin = std::to_string(data.size()), end = std::to_string(data.size() + 4);
    header.append("\"").append(name).append(R"(":{"dtype":"F32","shape":[1],"data_offsets":[)");
    header.append(begin).append(",").append(end).append("]}");
    data += "1234";
  }
  return safetensors_image(padded_header(header + "}"), data);
}

}  // namespace ridge
