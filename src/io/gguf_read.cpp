// parse_gguf(): one file image to metadata and tensors. Layout: magic, version, two counts, key-value pairs, tensor
// records, padding to the alignment, tensor data. Inner failures say what is wrong; parse_gguf() adds the file.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <unordered_set>

#include "base/checked.h"
#include "format/list.h"
#include "io/gguf_layout.h"
#include "io/text.h"

namespace ridge::io {
namespace {

// Least bytes in the file of one entry, so that a count can be capped before anything is allocated for it.
constexpr uint64_t kMinPairBytes = 8 + 1 + 4 + 1;            // key length, key, type, value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name length, name, n_dims, one dim, type, offset

/// Reads forward through the header and never past its end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> file)
      : bytes_(file.first(std::min<uint64_t>(file.size(), kMaxGgufHeaderBytes))),
        capped_(bytes_.size() < file.size()) {}

  uint64_t position() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }

  /// One little-endian number.
  template <class T>
  Result<T> number(std::string_view what) {
    if (left() < sizeof(T)) return cut_short(what, sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  /// A u64 length and that many bytes, inside the file.
  Result<std::string_view> text(std::string_view what) {
    RIDGE_TRY(const auto length, number<uint64_t>(what));
    if (length > left()) return cut_short(what, length);
    const std::string_view value(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return value;
  }

  /// A u64 count of entries of at least `min_bytes` each.
  Result<uint64_t> count(std::string_view what, uint64_t min_bytes) {
    RIDGE_TRY(const auto value, number<uint64_t>(what));
    RIDGE_TRY_STATUS(check_count(what, value, min_bytes));
    return value;
  }
  Status check_count(std::string_view what, uint64_t value, uint64_t min_bytes) const {
    if (value <= left() / min_bytes) return {};
    return bad_file("{} is {}, but the {} bytes left hold at most {}", what, value, left(), left() / min_bytes);
  }

 private:
  Failure cut_short(std::string_view what, uint64_t needed) const {
    if (capped_) return bad_file("the header passes {} bytes at {}", kMaxGgufHeaderBytes, what);
    return bad_file("file ends inside the {}: {} bytes needed at byte {}, {} left", what, needed, at_, left());
  }

  std::span<const std::byte> bytes_;
  bool capped_;
  uint64_t at_ = 0;
};

/// One value of file type Stored, kept as Kept. NaN and infinity pass: what a key may hold is its user's business.
template <class Stored, class Kept>
Result<Kept> read_one(Cursor& cursor, bool of_array) {
  if constexpr (std::is_same_v<Stored, std::string>) {
    RIDGE_TRY(const std::string_view value, cursor.text(of_array ? "string of an array" : "string"));
    return std::string(value);
  } else if constexpr (std::is_same_v<Stored, bool>) {
    RIDGE_TRY(const uint8_t value, cursor.number<uint8_t>("bool"));
    if (value > 1) return bad_file("bool is {}, expected 0 or 1", value);
    return value == 1;
  } else {
    RIDGE_TRY(const Stored value, cursor.number<Stored>(of_array ? "array" : "value"));
    return Kept(value);
  }
}

/// A value, or an array of `count`.
template <class Stored, class Kept = Stored>
Result<GgufValue> read_values(Cursor& cursor, std::optional<uint64_t> count) {
  if (!count) {
    RIDGE_TRY(Kept value, (read_one<Stored, Kept>(cursor, false)));
    return GgufValue(std::move(value));
  }
  constexpr uint64_t kLeastBytes = std::is_same_v<Stored, std::string> ? sizeof(uint64_t) : sizeof(Stored);
  RIDGE_TRY_STATUS(cursor.check_count("array length", *count, kLeastBytes));
  std::vector<Kept> values(*count);
  for (uint64_t i = 0; i < *count; ++i) {
    RIDGE_TRY(values[i], (read_one<Stored, Kept>(cursor, true)));
  }
  return GgufValue(std::move(values));
}

/// A value of a type, or an array of `count` of them.
Result<GgufValue> read_typed(Cursor& cursor, uint32_t type, std::optional<uint64_t> count) {
  switch (GgufType(type)) {
    case GgufType::u8: return read_values<uint8_t, uint64_t>(cursor, count);
    case GgufType::i8: return read_values<int8_t, int64_t>(cursor, count);
    case GgufType::u16: return read_values<uint16_t, uint64_t>(cursor, count);
    case GgufType::i16: return read_values<int16_t, int64_t>(cursor, count);
    case GgufType::u32: return read_values<uint32_t, uint64_t>(cursor, count);
    case GgufType::i32: return read_values<int32_t, int64_t>(cursor, count);
    case GgufType::f32: return read_values<float, double>(cursor, count);
    case GgufType::boolean: return read_values<bool>(cursor, count);
    case GgufType::string: return read_values<std::string>(cursor, count);
    case GgufType::array: {
      if (count) return bad_file("is an array of arrays, which no model key needs");
      RIDGE_TRY(const auto element, cursor.number<uint32_t>("array type"));
      RIDGE_TRY(const auto length, cursor.number<uint64_t>("array length"));
      return read_typed(cursor, element, length);
    }
    case GgufType::u64: return read_values<uint64_t>(cursor, count);
    case GgufType::i64: return read_values<int64_t>(cursor, count);
    case GgufType::f64: return read_values<double>(cursor, count);
  }
  if (count) return bad_file("array has value type {}, expected 0 to 12", type);
  return bad_file("value type is {}, expected 0 to 12", type);
}

Result<GgufValue> read_value(Cursor& cursor) {
  RIDGE_TRY(const auto type, cursor.number<uint32_t>("value type"));
  return read_typed(cursor, type, {});
}

Status read_pair(Cursor& cursor, Gguf& gguf) {
  RIDGE_TRY(const std::string_view key, cursor.text("key"));
  if (const Status ok = check_gguf_name(key); !ok) return bad_file("key {} {}", in_quotes(key), ok.error().message);
  Result<GgufValue> value = read_value(cursor);
  if (!value) return bad_file("key {}: {}", in_quotes(key), value.error().message);
  if (!gguf.metadata.try_emplace(std::string(key), *std::move(value)).second)
    return bad_file("key {} appears twice", in_quotes(key));
  return {};
}

/// A tensor whose data is not placed yet.
struct Record {
  Tensor tensor;
  uint64_t offset = 0;  ///< from the start of the data
  uint64_t bytes = 0;
};

Result<std::vector<int64_t>> read_shape(Cursor& cursor) {
  RIDGE_TRY(const auto n_dims, cursor.number<uint32_t>("tensor record"));
  if (n_dims < 1 || n_dims > kMaxGgufDims) return bad_file("has {} dimensions, expected 1 to {}", n_dims, kMaxGgufDims);
  std::vector<int64_t> shape(n_dims);
  for (int64_t& dim : shape) {
    RIDGE_TRY(dim, cursor.number<int64_t>("tensor record"));
  }
  std::reverse(shape.begin(), shape.end());  // the file puts the contiguous dimension first
  return shape;
}

Result<const WeightFormat*> read_format(Cursor& cursor) {
  RIDGE_TRY(const auto type, cursor.number<uint32_t>("tensor record"));
  if (const WeightFormat* const format = weight_format_of_gguf(type)) return format;
  std::string supported;
  for (const WeightFormat& format : weight_formats())
    if (format.gguf_type >= 0)
      supported += fmt::format("{}{} = {}", supported.empty() ? "" : ", ", format.gguf_type, format.name);
  return bad_file("has type id {} (not supported; supported: {})", type, supported);
}

/// Reads the fields behind the name in a tensor record.
Status read_record(Cursor& cursor, uint64_t alignment, Record& record) {
  RIDGE_TRY(record.tensor.shape, read_shape(cursor));
  RIDGE_TRY(record.tensor.format, read_format(cursor));
  RIDGE_TRY(record.offset, cursor.number<uint64_t>("tensor record"));
  RIDGE_TRY(record.bytes, storage_bytes(*record.tensor.format, record.tensor.shape));
  if (record.offset % alignment != 0)
    return bad_file("starts at offset {}, expected a multiple of the alignment {}", record.offset, alignment);
  return {};
}

Result<std::vector<Record>> read_records(Cursor& cursor, uint64_t count, uint64_t alignment) {
  std::vector<Record> records(count);
  std::unordered_set<std::string_view> names;
  for (Record& record : records) {
    RIDGE_TRY(const std::string_view name, cursor.text("tensor name"));
    if (const Status ok = check_gguf_name(name); !ok)
      return bad_file("tensor name {} {}", in_quotes(name), ok.error().message);
    if (!names.insert(name).second) return bad_file("tensor {} appears twice", in_quotes(name));
    record.tensor.name = name;
    if (const Status ok = read_record(cursor, alignment, record); !ok)
      return bad_file("tensor {} {}", in_quotes(name), ok.error().message);
  }
  return records;
}

Status check_overlap(std::span<const Record> records) {
  std::vector<size_t> order(records.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::ranges::sort(order, {}, [&](size_t i) { return records[i].offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const Record &before = records[order[i - 1]], &after = records[order[i]];
    if (before.offset + before.bytes > after.offset)  // both ends lie inside the file, so the sum is exact
      return bad_file("tensors {} and {} overlap: bytes [{}, {}) and [{}, {}) of the data",
                      in_quotes(before.tensor.name), in_quotes(after.tensor.name), before.offset,
                      before.offset + before.bytes, after.offset, after.offset + after.bytes);
  }
  return {};
}

/// Points every tensor at its bytes.
Status place(std::span<const std::byte> file, uint64_t data_start, std::vector<Record>& records, Gguf& gguf) {
  for (Record& record : records) {
    const std::optional<uint64_t> start = checked_add(data_start, record.offset);
    if (!start || !span_fits(*start, record.bytes, file.size()))
      return bad_file("tensor {} needs bytes [{}, {} + {}) after byte {}, but the file has {} bytes",
                      in_quotes(record.tensor.name), record.offset, record.offset, record.bytes, data_start,
                      file.size());
    record.tensor.data = file.subspan(*start, record.bytes);
  }
  RIDGE_TRY_STATUS(check_overlap(records));
  for (Record& record : records) gguf.tensors.push_back(std::move(record.tensor));
  return {};
}

Status check_version(uint32_t version) {
  if (version >= kGgufMinVersion && version <= kGgufVersion) return {};
  if (version == 1) return bad_file("is GGUF version 1, expected 2 or 3 (convert it again with a current converter)");
  const uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= 1 && swapped <= kGgufVersion)
    return bad_file("is a big-endian GGUF, expected little-endian (convert it again for a little-endian machine)");
  return bad_file("is GGUF version {}, expected 2 or 3", version);
}

Status check_magic(std::span<const std::byte> file) {
  const std::string_view start(reinterpret_cast<const char*>(file.data()), std::min(file.size(), kGgufMagic.size()));
  if (start != kGgufMagic.substr(0, start.size()) || start.empty())
    return bad_file("starts with {}, expected '{}' (is it another kind of file?)", in_quotes(start), kGgufMagic);
  return {};
}

Status read_all(std::span<const std::byte> file, Gguf& gguf) {
  RIDGE_TRY_STATUS(check_magic(file));
  Cursor cursor(file);
  RIDGE_TRY([[maybe_unused]] const auto magic, cursor.number<uint32_t>("magic"));
  RIDGE_TRY(gguf.version, cursor.number<uint32_t>("version"));
  RIDGE_TRY_STATUS(check_version(gguf.version));
  RIDGE_TRY(const auto tensor_count, cursor.count("tensor count", kMinTensorBytes));
  RIDGE_TRY(const auto pair_count, cursor.count("key count", kMinPairBytes));
  for (uint64_t i = 0; i < pair_count; ++i) RIDGE_TRY_STATUS(read_pair(cursor, gguf));

  RIDGE_TRY(const uint64_t alignment, gguf_alignment(gguf.metadata));
  RIDGE_TRY_STATUS(cursor.check_count("tensor count", tensor_count, kMinTensorBytes));
  RIDGE_TRY(std::vector<Record> records, read_records(cursor, tensor_count, alignment));
  const std::optional<uint64_t> data_start = checked_align(cursor.position(), alignment);
  RIDGE_CHECK(data_start.has_value(), "header of {} bytes", cursor.position());
  return place(file, *data_start, records, gguf);
}

}  // namespace

Result<Gguf> parse_gguf(std::span<const std::byte> file, std::string_view where) {
  Gguf gguf;
  gguf.where = where;
  if (const Status ok = read_all(file, gguf); !ok) return bad_file("bad GGUF file: {}: {}", where, ok.error().message);
  return gguf;
}

}  // namespace ridge::io
