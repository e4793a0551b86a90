#include "format/list.h"

#include <array>
#include <cmath>
#include <vector>

#include "base/closest.h"
#include "format/kv_types.h"
#include "format/weight_types.h"

namespace ridge {
namespace {

template <class... Formats>
constexpr std::array<WeightFormat, sizeof...(Formats)> make_weight_table(WeightTypes<Formats...>) {
  return {make_weight_format<Formats>()...};
}
constexpr std::array kWeightFormats = make_weight_table(WeightFormatTypes());

template <class... Formats>
constexpr std::array<KvFormat, sizeof...(Formats)> make_kv_table(KvTypes<Formats...>) {
  return {make_kv_format<Formats>()...};
}
constexpr std::array kKvFormats = make_kv_table(KvFormatTypes());

template <class Format>
Result<const Format*> find(std::span<const Format> formats, std::string_view what, std::string_view name) {
  std::vector<std::string_view> names;
  for (const Format& format : formats) {
    if (format.name == name) return &format;
    names.push_back(format.name);
  }
  return fail(ErrorKind::usage, "unknown {} format '{}' ({})", what, name, choices_text(name, names));
}

}  // namespace

std::span<const WeightFormat> weight_formats() { return kWeightFormats; }
std::span<const KvFormat> kv_formats() { return kKvFormats; }

Result<const WeightFormat*> find_weight_format(std::string_view name) { return find(weight_formats(), "weight", name); }
Result<const KvFormat*> find_kv_format(std::string_view name) { return find(kv_formats(), "KV cache", name); }

std::string_view scale_name(KvScale scale) {
  constexpr std::string_view kNames[] = {"none", "absmax", "norm", "lsq", "unbiased"};
  return kNames[size_t(scale)];
}

Result<KvScale> find_scale(const KvFormat& format, std::string_view name) {
  std::vector<std::string_view> names;
  for (const KvScale scale : format.scales) {
    if (scale_name(scale) == name) return scale;
    names.push_back(scale_name(scale));
  }
  return fail(ErrorKind::usage, "KV format {} has no scale rule '{}' ({})", format.name, name,
              choices_text(name, names));
}

std::string_view rounding_name(KvRounding rounding) {
  return rounding == KvRounding::weighted ? "weighted" : "nearest";
}

Result<KvRounding> find_rounding(std::string_view name) {
  for (const KvRounding rounding : {KvRounding::nearest, KvRounding::weighted})
    if (rounding_name(rounding) == name) return rounding;
  return fail(ErrorKind::usage, "unknown rounding rule '{}' (there are: nearest, weighted)", name);
}

const WeightFormat* weight_format_of_gguf(uint32_t type) {
  for (const WeightFormat& format : kWeightFormats)
    if (format.gguf_type >= 0 && uint32_t(format.gguf_type) == type) return &format;
  return nullptr;
}

const WeightFormat* weight_format_of_dtype(std::string_view dtype) {
  for (const WeightFormat& format : kWeightFormats)
    if (!dtype.empty() && format.safetensors_dtype == dtype) return &format;
  return nullptr;
}

Status encode_rows(const WeightFormat& format, std::span<const float> values, int64_t n_in, std::span<std::byte> out) {
  RIDGE_CHECK(n_in <= 0 || int64_t(values.size()) % n_in == 0, "{} values in rows of {}", values.size(), n_in);
  if (!format.encode) return fail(ErrorKind::usage, "{} is read, not written (there is no encoder)", format.name);
  if (n_in <= 0 || n_in % format.group != 0)
    return fail(ErrorKind::bad_file, "rows of {} elements do not divide into groups of {} ({})", n_in, format.group,
                format.name);
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      return bad_file("row {} column {} is {}", int64_t(i) / n_in, int64_t(i) % n_in, values[i]);
  RIDGE_CHECK(int64_t(out.size()) == format.row_bytes(int64_t(values.size())), "output is {} bytes, needs {}",
              out.size(), format.row_bytes(int64_t(values.size())));
  // A finite value beyond the range of an fp16 value or scale would come back as infinity or NaN: look at what was
  // stored.
  std::vector<float> stored(size_t(n_in), 0.0f);
  for (int64_t row = 0; row < int64_t(values.size()) / n_in; ++row) {
    const float* in = values.data() + row * n_in;
    std::byte* blocks = out.data() + row * format.row_bytes(n_in);
    format.encode(in, n_in, blocks);
    format.decode(blocks, n_in, stored.data());
    for (int64_t i = 0; i < n_in; ++i)
      if (!std::isfinite(stored[size_t(i)]))
        return bad_file("row {} column {} is {}, in a group too large for {}", row, i, in[i], format.name);
    if (!format.check) continue;
    if (const Status ok = format.check(blocks, n_in); !ok)
      return bad_file("row {} {}: a group too large for {}", row, ok.error().message, format.name);
  }
  return {};
}

std::vector<std::byte> random_blocks(const WeightFormat& format, Rng& rng, double size, int64_t n) {
  std::vector<std::byte> blocks(size_t(format.row_bytes(n)));
  if (format.fill) {
    format.fill(rng, float(size), n, blocks.data());
    return blocks;
  }
  std::vector<float> values(size_t(n), 0.0f);
  for (float& value : values) value = float(size * rng.normal());
  format.encode(values.data(), n, blocks.data());
  return blocks;
}

}  // namespace ridge
