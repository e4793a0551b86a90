// Builds GGUF file images in memory, valid or hostile: every field can be set to a lie. It shares no code with the
// reader and the writer, so a misunderstanding of the format shows as a difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

/// Little-endian bytes.
class ByteString {
 public:
  template <class T>
  ByteString& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  ByteString& raw(std::string_view value) {
    bytes_.append(value);
    return *this;
  }
  /// A u64 length and the text.
  ByteString& text(std::string_view value) { return number(uint64_t(value.size())).raw(value); }
  ByteString& pad(uint64_t alignment) {
    while (alignment != 0 && bytes_.size() % alignment != 0) bytes_.push_back('\0');
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  std::string bytes_;
};

struct GgufBuilder {
  enum Type : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

  struct Pair {
    std::string key;
    std::string value;  ///< type id and payload, as in the file
    std::optional<uint64_t> key_length = {};
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> ne;  ///< file order: contiguous dimension first
    uint32_t type = 0;
    std::string data = {};
    std::optional<uint64_t> offset = {};  ///< else after the tensor before, aligned
    std::optional<uint32_t> n_dims = {};  ///< else ne.size()
    std::optional<uint64_t> name_length = {};
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<Pair> pairs;
  std::vector<Tensor> tensors;
  std::optional<uint64_t> tensor_count, pair_count;
  uint64_t alignment = 32;  ///< of the layout only; the key general.alignment is a pair like any other
  std::string tail;         ///< after the data

  template <class T>
  GgufBuilder& number(std::string key, Type type, T value) {
    pairs.push_back({std::move(key), ByteString().number(uint32_t(type)).number(value).str()});
    return *this;
  }
  GgufBuilder& u32(std::string key, uint32_t value) { return number(std::move(key), kU32, value); }
  GgufBuilder& text(std::string key, std::string_view value) {
    pairs.push_back({std::move(key), ByteString().number(uint32_t(kString)).text(value).str()});
    return *this;
  }
  /// An array header that claims `count` elements of `type`, and its payload.
  GgufBuilder& array(std::string key, uint32_t type, uint64_t count, std::string_view payload) {
    pairs.push_back(
        {std::move(key), ByteString().number(uint32_t(kArray)).number(type).number(count).raw(payload).str()});
    return *this;
  }
  template <class T>
  GgufBuilder& numbers(std::string key, Type type, const std::vector<T>& values) {
    ByteString payload;
    for (const T value : values) payload.number(value);
    return array(std::move(key), type, values.size(), payload.str());
  }
  GgufBuilder& texts(std::string key, const std::vector<std::string>& values) {
    ByteString payload;
    for (const std::string& value : values) payload.text(value);
    return array(std::move(key), kString, values.size(), payload.str());
  }
  /// An f32 tensor whose elements count up from `first`.
  GgufBuilder& f32(std::string name, const std::vector<uint64_t>& ne, float first = 0) {
    uint64_t count = 1;
    for (const uint64_t n : ne) count *= n;
    ByteString data;
    for (uint64_t i = 0; i < count; ++i) data.number(first + float(i));
    tensors.push_back({std::move(name), ne, 0, data.str()});
    return *this;
  }

  /// The file image.
  std::string build() const {
    ByteString file;
    file.raw(magic).number(version).number(tensor_count.value_or(tensors.size()));
    file.number(pair_count.value_or(pairs.size()));
    for (const Pair& pair : pairs) file.number(pair.key_length.value_or(pair.key.size())).raw(pair.key).raw(pair.value);
    ByteString data;
    for (const Tensor& tensor : tensors) {
      data.pad(alignment);
      file.number(tensor.name_length.value_or(tensor.name.size())).raw(tensor.name);
      file.number(tensor.n_dims.value_or(uint32_t(tensor.ne.size())));
      for (const uint64_t n : tensor.ne) file.number(n);
      file.number(tensor.type).number(tensor.offset.value_or(data.str().size()));
      data.raw(tensor.data);
    }
    if (!tensors.empty()) file.pad(alignment);
    return file.raw(data.str()).raw(tail).str();
  }
};

/// The value of a pair: its type and a number.
template <class T>
std::string number_value(GgufBuilder::Type type, T value) {
  return ByteString().number(uint32_t(type)).number(value).str();
}

/// A small valid file: every kind of metadata value and two tensors, under 1 KiB.
inline GgufBuilder small_gguf() {
  GgufBuilder gguf;
  gguf.text("general.architecture", "llama");
  gguf.number("n.u8", GgufBuilder::kU8, uint8_t(200)).number("n.i8", GgufBuilder::kI8, int8_t(-100));
  gguf.number("n.u16", GgufBuilder::kU16, uint16_t(60000)).number("n.i16", GgufBuilder::kI16, int16_t(-30000));
  gguf.number("n.u32", GgufBuilder::kU32, uint32_t(4000000000)).number("n.i32", GgufBuilder::kI32, int32_t(-5));
  gguf.number("n.u64", GgufBuilder::kU64, uint64_t(1) << 63).number("n.i64", GgufBuilder::kI64, INT64_MIN);
  gguf.number("n.f32", GgufBuilder::kF32, 0.5f).number("n.f64", GgufBuilder::kF64, 1e300);
  gguf.number("b", GgufBuilder::kBool, uint8_t(1));
  gguf.numbers<int32_t>("a.i32", GgufBuilder::kI32, {1, -2, 3}).numbers<float>("a.f32", GgufBuilder::kF32, {1.5f, -2});
  gguf.numbers<uint64_t>("a.u64", GgufBuilder::kU64, {7, uint64_t(1) << 63});
  gguf.numbers<uint8_t>("a.bool", GgufBuilder::kBool, {0, 1, 1}).texts("a.text", {"x", "", "\xE2\x96\x81y"});
  gguf.f32("token_embd.weight", {4, 3}).f32("output_norm.weight", {4}, 100);
  return gguf;
}

}  // namespace ridge
