#include "io/tensor.h"

#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "format/e4m3.h"

namespace ridge::io {
namespace {

template <class Word>
struct Whole {
  using Block = Word;
  static constexpr const char* kName = sizeof(Word) == 1 ? "u8" : sizeof(Word) == 4 ? "i32" : "i64";
  static constexpr const char* kDtype = sizeof(Word) == 1 ? "U8" : sizeof(Word) == 4 ? "I32" : "I64";
  static constexpr int kGroup = 1;
  static void decode(const Block& block, float* out) { *out = float(block); }
  static void encode(const float* in, Block& block) { block = Block(*in); }
};
struct E4m3 {
  using Block = uint8_t;
  static constexpr const char* kName = "f8_e4m3";
  static constexpr const char* kDtype = "F8_E4M3";
  static constexpr int kGroup = 1;
  static void decode(const Block& block, float* out) { *out = e4m3_value(block); }
  static void set_scale(Block&, float) {}
};
constexpr WeightFormat kPackedE4m3 = make_weight_format<E4m3>();
constexpr WeightFormat kPackedWords = make_weight_format<Whole<int32_t>>();
constexpr WeightFormat kWideWords = make_weight_format<Whole<int64_t>>();
constexpr WeightFormat kPackedBytes = make_weight_format<Whole<uint8_t>>();

}  // namespace

const WeightFormat& packed_words() { return kPackedWords; }
const WeightFormat& packed_bytes() { return kPackedBytes; }
const WeightFormat& packed_e4m3() { return kPackedE4m3; }
const WeightFormat& wide_words() { return kWideWords; }

Result<uint64_t> storage_bytes(const WeightFormat& format, std::span<const int64_t> shape) {
  if (shape.empty()) return bad_file("has no dimensions (a scalar is not a model weight)");
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] < 1) return bad_file("has dimension {} of size {}, expected at least 1", i, shape[i]);
  const std::optional<int64_t> elements = checked_product(shape);
  if (!elements) return bad_file("has more elements than 63 bits can count: [{}]", fmt::join(shape, ", "));
  if (shape.back() % format.group != 0)
    return bad_file("has rows of {} elements, expected a multiple of {} ({} packs that many together)", shape.back(),
                    format.group, format.name);
  const auto blocks = checked_mul(uint64_t(*elements / format.group), uint64_t(format.block_bytes));
  const auto bytes = blocks ? checked_add(*blocks, uint64_t(format.tail_bytes)) : std::nullopt;
  if (!bytes) return bad_file("has more bytes than 64 bits can count: {} elements of {}", *elements, format.name);
  return *bytes;
}

Result<float> tensor_scale(const Tensor& tensor) {
  if (tensor.format->tail_bytes == 0) return tensor.scale;
  float scale;
  std::memcpy(&scale, tensor.data.data() + tensor.data.size() - size_t(tensor.format->tail_bytes), sizeof scale);
  if (!std::isfinite(scale)) return bad_file("the scale behind the {} codes is {}", tensor.format->name, scale);
  return scale;
}

}  // namespace ridge::io
