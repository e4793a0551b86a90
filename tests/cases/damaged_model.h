// The smallest model that ships (f32 matrices) with one value made NaN, as a file.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <string_view>

#include "cases/paths.h"
#include "cases/temp_dir.h"
#include "format/list.h"
#include "io/gguf.h"

namespace ridge {

/// The path of a copy, in `directory`, whose tensor `name` has another format and `damage` done to its bytes.
template <class Damage>
std::string changed_model(const TempDir& directory, std::string_view name, std::string_view format,
                          const Damage& damage) {
  const io::GgufFile source = io::open_gguf(RIDGE_SOURCE_DIR "/models/stories260K.gguf").or_throw();
  const WeightFormat* const own = find_weight_format(format).value();
  std::vector<io::GgufTensorSpec> specs;
  for (const io::Tensor& of : source.gguf.tensors)
    specs.push_back({of.name, of.name == name ? own : of.format, of.shape});
  const std::string path = (directory.path() / "damaged.gguf").string();
  io::write_gguf(path, source.gguf.metadata, specs, [&](size_t i, std::vector<std::byte>& out) -> Status {
    const io::Tensor& of = source.gguf.tensors[i];
    out.assign(of.data.begin(), of.data.end());
    if (of.name != name) return {};
    std::vector<float> values(of.data.size() / 4);
    std::memcpy(values.data(), of.data.data(), of.data.size());
    out.resize(size_t(own->row_bytes(ssize(values))));
    own->encode(values.data(), ssize(values), out.data());
    damage(out);
    return {};
  }).or_throw();
  return path;
}

/// The path of a copy whose value `index` of `tensor` is not a number, or `value`.
inline std::string damaged_model(const TempDir& directory, std::string_view tensor, int64_t index, float value = NAN) {
  return changed_model(directory, tensor, "f32",
                       [&](std::vector<std::byte>& bytes) { std::memcpy(bytes.data() + 4 * index, &value, 4); });
}

}  // namespace ridge
