// parse_safetensors(): u64 header length, JSON header, data. The format's promise that the data has no gaps and no
// overlaps is checked by sorting, so that the header may list tensors in any order.
#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "format/list.h"
#include "io/json.h"
#include "io/text.h"

namespace ridge::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is read in place, little-endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxNameBytes = 65535;

/// A tensor whose data is not placed yet; offsets count from the start of the data.
struct TensorEntry {
  Tensor tensor;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Member of `object` under `key`, or a failure that names the key.
Result<const Json*> need_member(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  if (found == object.end()) return bad_file("has no '{}'", key);
  return &*found;
}

Result<const WeightFormat*> read_dtype(const Json& entry) {
  RIDGE_TRY(const Json* const dtype, need_member(entry, "dtype"));
  if (!dtype->is_string()) return bad_file("has a 'dtype' that is {}, expected a string", dtype->type_name());
  const auto& name = dtype->get_ref<const std::string&>();
  if (const WeightFormat* const format = weight_format_of_dtype(name)) return format;
  const WeightFormat* const others[] = {&packed_words(), &wide_words(), &packed_bytes(), &packed_e4m3()};
  for (const WeightFormat* const other : others)
    if (name == other->safetensors_dtype) return other;
  std::string supported;
  for (const WeightFormat& format : weight_formats())
    if (!format.safetensors_dtype.empty()) supported += fmt::format("{}, ", format.safetensors_dtype);
  for (const WeightFormat* const other : others)
    supported += fmt::format("{}{}", other == others[0] ? "" : ", ", other->safetensors_dtype);
  return bad_file("has dtype {} (not supported; supported: {})", in_quotes(name), supported);
}

/// An array of integers from 0 to 2^63 - 1.
Result<std::vector<int64_t>> read_sizes(const Json& entry, std::string_view key) {
  RIDGE_TRY(const Json* const array, need_member(entry, key));
  if (!array->is_array()) return bad_file("has a '{}' that is {}, expected an array", key, array->type_name());
  std::vector<int64_t> sizes;
  for (const Json& element : *array) {
    if (!element.is_number_unsigned() || element.get<uint64_t>() > uint64_t(INT64_MAX))
      return bad_file("has {} in '{}', expected an integer from 0 to 2^63 - 1",
                      element.is_number() ? element.dump() : element.type_name(), key);
    sizes.push_back(element.get<int64_t>());
  }
  return sizes;
}

Status read_entry(const Json& entry, uint64_t data_bytes, TensorEntry& record) {
  if (!entry.is_object()) return bad_file("is {}, expected an object", entry.type_name());
  RIDGE_TRY(record.tensor.format, read_dtype(entry));
  RIDGE_TRY(record.tensor.shape, read_sizes(entry, "shape"));
  if (record.tensor.shape.empty()) record.tensor.shape = {1};  // a scalar: the scale of a matrix
  if (record.tensor.shape.size() > kMaxDims)
    return bad_file("has {} dimensions, expected at most {}", record.tensor.shape.size(), kMaxDims);
  RIDGE_TRY(const uint64_t bytes, storage_bytes(*record.tensor.format, record.tensor.shape));
  RIDGE_TRY(const std::vector<int64_t> offsets, read_sizes(entry, "data_offsets"));
  if (offsets.size() != 2) return bad_file("has {} data_offsets, expected 2", offsets.size());
  record.begin = uint64_t(offsets[0]);
  record.end = uint64_t(offsets[1]);
  if (record.begin > record.end) return bad_file("has data_offsets [{}, {}) in reverse", record.begin, record.end);
  if (record.end > data_bytes)
    return bad_file("has data_offsets [{}, {}), but the data has {} bytes", record.begin, record.end, data_bytes);
  if (record.end - record.begin != bytes)
    return bad_file("has data_offsets [{}, {}), {} bytes, expected {} for {} [{}]", record.begin, record.end,
                    record.end - record.begin, bytes, record.tensor.format->name, fmt::join(record.tensor.shape, ", "));
  return {};
}

Status check_metadata(const Json& metadata) {
  if (!metadata.is_object()) return bad_file("'__metadata__' is {}, expected an object", metadata.type_name());
  for (const auto& [key, value] : metadata.items())
    if (!value.is_string())
      return bad_file("'__metadata__' has {} under {}, expected a string", value.type_name(), in_quotes(key));
  return {};
}

Result<std::vector<TensorEntry>> read_entries(const Json& header, uint64_t data_bytes) {
  std::vector<TensorEntry> records;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      RIDGE_TRY_STATUS(check_metadata(entry));
      continue;
    }
    if (name.empty() || name.size() > kMaxNameBytes)
      return bad_file("a tensor name has {} bytes, expected 1 to {}", name.size(), kMaxNameBytes);
    TensorEntry& record = records.emplace_back();
    record.tensor.name = name;
    if (const Status ok = read_entry(entry, data_bytes, record); !ok)
      return bad_file("tensor {} {}", in_quotes(name), ok.error().message);
  }
  return records;
}

/// Sorts the records by place and checks that together they cover the data exactly once.
Status check_cover(std::vector<TensorEntry>& records, uint64_t data_bytes) {
  std::ranges::sort(records, {}, &TensorEntry::begin);
  uint64_t covered = 0;
  for (const TensorEntry& record : records) {
    if (record.begin != covered)
      return bad_file("tensor {} starts at byte {} of the data, expected {} ({})", in_quotes(record.tensor.name),
                      record.begin, covered, record.begin < covered ? "it overlaps the one before" : "there is a gap");
    covered = record.end;
  }
  if (covered == data_bytes) return {};
  return bad_file("{} bytes follow the last tensor, expected none", data_bytes - covered);
}

Result<uint64_t> header_length(std::span<const std::byte> file) {
  uint64_t length = 0;
  if (file.size() < sizeof(length))
    return bad_file("has {} bytes, expected at least {} for the header length", file.size(), sizeof(length));
  std::memcpy(&length, file.data(), sizeof(length));
  if (length == 0) return bad_file("header length is 0, expected a JSON object");
  if (length > kMaxHeaderBytes)
    return bad_file("header length is {}, expected at most {} (is it another kind of file?)", length, kMaxHeaderBytes);
  if (length > file.size() - sizeof(length))
    return bad_file("header length is {}, but only {} bytes follow it", length, file.size() - sizeof(length));
  return length;
}

Result<std::vector<Tensor>> read_tensors(std::span<const std::byte> file) {
  RIDGE_TRY(const uint64_t length, header_length(file));
  const std::span<const std::byte> header_bytes = file.subspan(sizeof(length), length);
  const std::span<const std::byte> data = file.subspan(sizeof(length) + length);
  RIDGE_TRY(const Json header,
            parse_json({reinterpret_cast<const char*>(header_bytes.data()), header_bytes.size()}, "header"));
  if (!header.is_object()) return bad_file("header is {}, expected an object", header.type_name());
  RIDGE_TRY(std::vector<TensorEntry> records, read_entries(header, data.size()));
  RIDGE_TRY_STATUS(check_cover(records, data.size()));

  std::vector<Tensor> tensors;
  for (TensorEntry& record : records) {
    const uint64_t element_bytes = uint64_t(record.tensor.format->block_bytes);
    if ((sizeof(length) + length + record.begin) % element_bytes != 0)
      return bad_file(
          "tensor {} is not aligned to its elements of {} bytes (save the file again with a current "
          "safetensors library)",
          in_quotes(record.tensor.name), element_bytes);
    record.tensor.data = data.subspan(record.begin, record.end - record.begin);
    tensors.push_back(std::move(record.tensor));
  }
  return tensors;
}

}  // namespace

Result<std::vector<Tensor>> parse_safetensors(std::span<const std::byte> file, std::string_view where) {
  Result<std::vector<Tensor>> tensors = read_tensors(file);
  if (!tensors) return bad_file("bad safetensors file: {}: {}", where, tensors.error().message);
  return tensors;
}

}  // namespace ridge::io
