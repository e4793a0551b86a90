#include "io/token_ids_file.h"

#include <algorithm>
#include <cstring>

#include "io/json.h"
#include "io/safetensors.h"
#include "io/text.h"

namespace ridge::io {
namespace {

constexpr std::string_view kName = "input_ids";

/// A safetensors file begins with a length below 2^32, so that bytes 4 to 7 are NUL, which JSON never has.
bool looks_like_safetensors(std::span<const std::byte> bytes) {
  return bytes.size() >= 8 && std::ranges::all_of(bytes.subspan(4, 4), [](std::byte b) { return b == std::byte{0}; });
}

Result<int32_t> checked_id(int64_t id, size_t place) {
  if (id >= 0 && id <= INT32_MAX) return int32_t(id);
  return bad_file("{}[{}] is {}, expected a token id from 0 to {}", kName, place, id, INT32_MAX);
}

template <class Word>
Result<std::vector<int32_t>> ids_of_words(std::span<const std::byte> data) {
  std::vector<int32_t> ids(data.size() / sizeof(Word));
  for (size_t i = 0; i < ids.size(); ++i) {
    Word word;
    std::memcpy(&word, data.data() + i * sizeof word, sizeof word);
    RIDGE_TRY(ids[i], checked_id(word, i));
  }
  return ids;
}

Result<std::vector<int32_t>> ids_of_safetensors(std::span<const std::byte> bytes) {
  RIDGE_TRY(const std::vector<Tensor> tensors, parse_safetensors(bytes, "token ids"));
  const auto found = std::ranges::find(tensors, kName, &Tensor::name);
  if (found == tensors.end())
    return bad_file("has no tensor '{}' among its {}, expected one of I32 or I64, [T] or [1, T]", kName,
                    tensors.size());
  const std::vector<int64_t>& shape = found->shape;
  if (shape.size() != 1 && !(shape.size() == 2 && shape[0] == 1))
    return bad_file("'{}' is [{}], expected [T] or [1, T]", kName, fmt::join(shape, ", "));
  if (found->format == &packed_words()) return ids_of_words<int32_t>(found->data);
  if (found->format == &wide_words()) return ids_of_words<int64_t>(found->data);
  return bad_file("'{}' has dtype {}, expected I32 or I64", kName, found->format->safetensors_dtype);
}

Result<std::vector<int32_t>> ids_of_json(std::span<const std::byte> bytes) {
  RIDGE_TRY(const Json document, parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "token ids"));
  const Json* list = &document;
  if (document.is_object()) {
    const auto member = document.find(kName);
    if (member == document.end()) return bad_file("the object has no '{}', expected a list of token ids", kName);
    list = &*member;
  }
  if (!list->is_array()) return bad_file("'{}' is {}, expected a list of token ids", kName, list->type_name());
  if (list->empty()) return bad_file("'{}' is empty, expected at least one token id", kName);
  std::vector<int32_t> ids;
  for (const Json& element : *list) {
    if (!element.is_number_integer())
      return bad_file("{}[{}] is {}, expected a whole number", kName, ids.size(),
                      element.is_number() ? element.dump() : element.type_name());
    const bool small = !element.is_number_unsigned() || element.get<uint64_t>() <= uint64_t(INT64_MAX);
    RIDGE_TRY(const int32_t id, checked_id(small ? element.get<int64_t>() : INT64_MAX, ids.size()));
    ids.push_back(id);
  }
  return ids;
}

}  // namespace

Result<std::vector<int32_t>> read_token_ids(const std::filesystem::path& path) {
  RIDGE_TRY(const MappedFile file, MappedFile::open(path));
  Result<std::vector<int32_t>> ids =
      looks_like_safetensors(file.bytes()) ? ids_of_safetensors(file.bytes()) : ids_of_json(file.bytes());
  if (!ids) return bad_file("{}: {}", in_quotes(path.native()), ids.error().message);
  return ids;
}

}  // namespace ridge::io
