// Typed access to GGUF metadata, and the rules that reader and writer share.
#include <limits>

#include "io/gguf_layout.h"
#include "io/text.h"

namespace ridge::io {
namespace {

using Metadata = std::map<std::string, GgufValue, std::less<>>;

constexpr std::string_view kKinds[] = {"a bool",
                                       "an integer",
                                       "an integer",
                                       "a float",
                                       "a string",
                                       "an array of bools",
                                       "an array of integers",
                                       "an array of integers",
                                       "an array of floats",
                                       "an array of strings"};
static_assert(std::size(kKinds) == std::variant_size_v<GgufValue>);

std::string_view kind_of(const GgufValue& value) { return kKinds[value.index()]; }

Failure wrong(std::string_view where, std::string_view key, std::string_view why) {
  return {ErrorKind::bad_file,
          four_parts("bad GGUF metadata", where, fmt::format("key {} {}", in_quotes(key), why), "")};
}

Failure wrong_kind(const Gguf& gguf, std::string_view key, const GgufValue& value, std::string_view expected) {
  return wrong(gguf.where, key, fmt::format("is {}, expected {}", kind_of(value), expected));
}

Result<const GgufValue*> look_up(const Gguf& gguf, std::string_view key) {
  const auto found = gguf.metadata.find(key);
  if (found == gguf.metadata.end()) return wrong(gguf.where, key, "is missing");
  return &found->second;
}

/// The value as a T that the file holds as exactly this type.
template <class T>
Result<T> exact(const Gguf& gguf, std::string_view key, std::string_view expected) {
  RIDGE_TRY(const GgufValue* const value, look_up(gguf, key));
  if (const T* const held = std::get_if<T>(value)) return *held;
  return wrong_kind(gguf, key, *value, expected);
}

Failure too_large(const Gguf& gguf, std::string_view key, uint64_t value) {
  return wrong(gguf.where, key, fmt::format("is {}, which is past 63 bits", value));
}

}  // namespace

const Tensor* Gguf::find(std::string_view name) const {
  for (const Tensor& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

Result<std::string> Gguf::text(std::string_view key) const { return exact<std::string>(*this, key, "a string"); }
Result<bool> Gguf::flag(std::string_view key) const { return exact<bool>(*this, key, "a bool"); }
Result<std::vector<std::string>> Gguf::texts(std::string_view key) const {
  return exact<std::vector<std::string>>(*this, key, "an array of strings");
}

Result<int64_t> Gguf::integer(std::string_view key) const {
  RIDGE_TRY(const GgufValue* const value, look_up(*this, key));
  if (const auto* const held = std::get_if<int64_t>(value)) return *held;
  const auto* const held = std::get_if<uint64_t>(value);
  if (held == nullptr) return wrong_kind(*this, key, *value, "an integer");
  if (*held > uint64_t(std::numeric_limits<int64_t>::max())) return too_large(*this, key, *held);
  return int64_t(*held);
}

Result<double> Gguf::number(std::string_view key) const {
  RIDGE_TRY(const GgufValue* const value, look_up(*this, key));
  if (const auto* const held = std::get_if<double>(value)) return *held;
  if (const auto* const held = std::get_if<int64_t>(value)) return double(*held);
  if (const auto* const held = std::get_if<uint64_t>(value)) return double(*held);
  return wrong_kind(*this, key, *value, "a number");
}

Result<std::vector<int64_t>> Gguf::integers(std::string_view key) const {
  RIDGE_TRY(const GgufValue* const value, look_up(*this, key));
  if (const auto* const held = std::get_if<std::vector<int64_t>>(value)) return *held;
  const auto* const held = std::get_if<std::vector<uint64_t>>(value);
  if (held == nullptr) return wrong_kind(*this, key, *value, "an array of integers");
  for (const uint64_t element : *held)
    if (element > uint64_t(std::numeric_limits<int64_t>::max())) return too_large(*this, key, element);
  return std::vector<int64_t>(held->begin(), held->end());
}

Result<std::vector<double>> Gguf::numbers(std::string_view key) const {
  RIDGE_TRY(const GgufValue* const value, look_up(*this, key));
  if (const auto* const held = std::get_if<std::vector<double>>(value)) return *held;
  if (const auto* const held = std::get_if<std::vector<int64_t>>(value))
    return std::vector<double>(held->begin(), held->end());
  if (const auto* const held = std::get_if<std::vector<uint64_t>>(value))
    return std::vector<double>(held->begin(), held->end());
  return wrong_kind(*this, key, *value, "an array of numbers");
}

Status check_gguf_name(std::string_view name) {
  if (name.empty()) return bad_file("is empty");
  if (name.size() > kMaxGgufNameBytes)
    return bad_file("has {} bytes, expected at most {}", name.size(), kMaxGgufNameBytes);
  if (name.find('\0') != name.npos) return bad_file("holds a NUL byte");
  if (!valid_utf8(name)) return bad_file("is not valid UTF-8");
  return {};
}

Result<uint64_t> gguf_alignment(const Metadata& metadata) {
  constexpr std::string_view kAlignment = "general.alignment";
  const auto found = metadata.find(kAlignment);
  if (found == metadata.end()) return kGgufAlignment;
  const auto* const held = std::get_if<uint64_t>(&found->second);
  if (held == nullptr)
    return bad_file("key '{}' is {}, expected an unsigned integer", kAlignment, kind_of(found->second));
  if (!std::has_single_bit(*held) || *held < kMinGgufAlignment || *held > kMaxGgufAlignment)
    return bad_file("key '{}' is {}, expected a power of two from {} to {}", kAlignment, *held, kMinGgufAlignment,
                    kMaxGgufAlignment);
  return *held;
}

}  // namespace ridge::io
