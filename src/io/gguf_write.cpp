// write_gguf(): the header is built in memory and checked first; then tensors are pulled and written one by one into a
// temporary file that takes the real name only when every byte is on the disk.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <unordered_set>

#include "base/checked.h"
#include "io/gguf_layout.h"
#include "io/pending_file.h"
#include "io/text.h"

namespace ridge::io {
namespace {

using Metadata = std::map<std::string, GgufValue, std::less<>>;

/// Little-endian bytes of a header.
class Header {
 public:
  template <class T>
  void number(T value) {
    const auto* const bytes = reinterpret_cast<const char*>(&value);
    bytes_.append(bytes, sizeof(T));
  }
  void type(GgufType type) { number(uint32_t(type)); }
  void text(std::string_view value) {
    number(uint64_t(value.size()));
    bytes_.append(value);
  }
  void raw(std::string_view value) { bytes_.append(value); }
  void pad(uint64_t alignment) { bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment, '\0'); }
  std::string_view bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

template <class Narrow, class Wide>
bool fits(Wide value) {
  return value >= Wide(std::numeric_limits<Narrow>::lowest()) && value <= Wide(std::numeric_limits<Narrow>::max());
}

/// NaN and infinity exist in f32; only finite values past its range need 64 bits.
bool fits_f32(double value) {
  return !(std::abs(value) > double(std::numeric_limits<float>::max())) || std::isinf(value);
}

/// One value, or the elements of an array, as the narrow type when all of them fit and else as the wide one.
template <class Narrow, class Wide, class Fits>
void put_numbers(Header& header, std::span<const Wide> values, bool is_array, GgufType narrow, GgufType wide,
                 Fits fit) {
  const bool all_fit = std::ranges::all_of(values, fit);
  if (is_array) header.type(GgufType::array);
  header.type(all_fit ? narrow : wide);
  if (is_array) header.number(uint64_t(values.size()));
  for (const Wide value : values) all_fit ? header.number(Narrow(value)) : header.number(value);
}

void put(Header& header, std::span<const int64_t> values, bool is_array) {
  put_numbers<int32_t>(header, values, is_array, GgufType::i32, GgufType::i64, fits<int32_t, int64_t>);
}
void put(Header& header, std::span<const uint64_t> values, bool is_array) {
  put_numbers<uint32_t>(header, values, is_array, GgufType::u32, GgufType::u64, fits<uint32_t, uint64_t>);
}
void put(Header& header, std::span<const double> values, bool is_array) {
  put_numbers<float>(header, values, is_array, GgufType::f32, GgufType::f64, fits_f32);
}

/// Writes a metadata value with its type id.
struct PutValue {
  Header& header;

  void operator()(bool value) const {
    header.type(GgufType::boolean);
    header.number(uint8_t(value));
  }
  void operator()(const std::string& value) const {
    header.type(GgufType::string);
    header.text(value);
  }
  void operator()(const std::vector<bool>& values) const {
    array(GgufType::boolean, values.size());
    for (const bool value : values) header.number(uint8_t(value));
  }
  void operator()(const std::vector<std::string>& values) const {
    array(GgufType::string, values.size());
    for (const std::string& value : values) header.text(value);
  }
  template <class Number>
  void operator()(const std::vector<Number>& values) const {
    put(header, std::span<const Number>(values), true);
  }
  template <class Number>
  requires std::is_arithmetic_v<Number>
  void operator()(Number value) const { put(header, std::span<const Number>(&value, 1), false); }

 private:
  void array(GgufType type, size_t count) const {
    header.type(GgufType::array);
    header.type(type);
    header.number(uint64_t(count));
  }
};

struct Plan {
  uint64_t alignment = 0;
  std::vector<uint64_t> tensor_bytes;
  Header header;  ///< everything in front of the data, padded
};

Status plan_metadata(const Metadata& metadata, Header& header) {
  for (const auto& [key, value] : metadata) {
    if (const Status ok = check_gguf_name(key); !ok) return bad_file("key {} {}", in_quotes(key), ok.error().message);
    header.text(key);
    std::visit(PutValue{header}, value);
  }
  return {};
}

Status check_spec_name(std::string_view name) {
  RIDGE_TRY_STATUS(check_gguf_name(name));
  if (name.size() > kMaxWrittenTensorName)
    return bad_file("has {} bytes, expected at most {} (other readers stop there)", name.size(), kMaxWrittenTensorName);
  return {};
}

Result<uint64_t> check_spec(const GgufTensorSpec& spec) {
  RIDGE_CHECK(spec.format != nullptr, "tensor {} has no format", in_quotes(spec.name));
  if (spec.shape.size() > kMaxGgufDims)
    return bad_file("has {} dimensions, expected at most {}", spec.shape.size(), kMaxGgufDims);
  if (spec.format->gguf_type < 0) return bad_file("has format {}, which GGUF does not know", spec.format->name);
  return storage_bytes(*spec.format, spec.shape);
}

Status plan_tensors(const std::vector<GgufTensorSpec>& tensors, Plan& plan) {
  std::unordered_set<std::string_view> names;
  uint64_t offset = 0;
  for (const GgufTensorSpec& spec : tensors) {
    if (const Status ok = check_spec_name(spec.name); !ok)
      return bad_file("tensor name {} {}", in_quotes(spec.name), ok.error().message);
    if (!names.insert(spec.name).second) return bad_file("tensor {} appears twice", in_quotes(spec.name));
    const Result<uint64_t> bytes = check_spec(spec);
    if (!bytes) return bad_file("tensor {} {}", in_quotes(spec.name), bytes.error().message);
    plan.tensor_bytes.push_back(*bytes);

    plan.header.text(spec.name);
    plan.header.number(uint32_t(spec.shape.size()));
    for (size_t i = spec.shape.size(); i-- > 0;) plan.header.number(spec.shape[i]);  // contiguous dimension first
    plan.header.number(uint32_t(spec.format->gguf_type));
    plan.header.number(offset);
    const std::optional<uint64_t> end = checked_add(offset, *bytes);
    const std::optional<uint64_t> next = end ? checked_align(*end, plan.alignment) : std::nullopt;
    if (!next) return bad_file("tensor {} ends past 64 bits", in_quotes(spec.name));
    offset = *next;
  }
  return {};
}

Result<Plan> make_plan(const Metadata& metadata, const std::vector<GgufTensorSpec>& tensors) {
  Plan plan;
  RIDGE_TRY(plan.alignment, gguf_alignment(metadata));
  plan.header.raw(kGgufMagic);
  plan.header.number(kGgufVersion);
  plan.header.number(uint64_t(tensors.size()));
  plan.header.number(uint64_t(metadata.size()));
  RIDGE_TRY_STATUS(plan_metadata(metadata, plan.header));
  RIDGE_TRY_STATUS(plan_tensors(tensors, plan));
  if (plan.header.bytes().size() > kMaxGgufHeaderBytes)
    return bad_file("the header has {} bytes, expected at most {}", plan.header.bytes().size(), kMaxGgufHeaderBytes);
  plan.header.pad(plan.alignment);
  return plan;
}

Status write_all(PendingFile& file, const Plan& plan, const std::vector<GgufTensorSpec>& tensors,
                 const GgufPayload& payload) {
  RIDGE_TRY_STATUS(file.create());
  RIDGE_TRY_STATUS(file.write(plan.header.bytes()));
  std::vector<std::byte> data;
  for (size_t i = 0; i < tensors.size(); ++i) {
    data.clear();
    RIDGE_TRY_STATUS(payload(i, data));
    if (data.size() != plan.tensor_bytes[i])
      return bad_file("tensor {} came with {} bytes, expected {}", in_quotes(tensors[i].name), data.size(),
                      plan.tensor_bytes[i]);
    RIDGE_TRY_STATUS(file.write({reinterpret_cast<const char*>(data.data()), data.size()}));
    const uint64_t rest = data.size() % plan.alignment;
    if (rest != 0) RIDGE_TRY_STATUS(file.write(std::string(plan.alignment - rest, '\0')));
  }
  return file.commit();
}

}  // namespace

Status write_gguf(const std::filesystem::path& path, const Metadata& metadata,
                  const std::vector<GgufTensorSpec>& tensors, const GgufPayload& payload) {
  const Result<Plan> plan = make_plan(metadata, tensors);
  if (!plan) return bad_file("cannot write {}: {}", in_quotes(path.native()), plan.error().message);
  PendingFile file(path);
  return write_all(file, *plan, tensors, payload);
}

}  // namespace ridge::io
