// Fuzz target of packed matrices: a configuration, a NUL byte and a safetensors image give tensors of weight formats,
// or a reason.
#include <algorithm>

#include "fuzz/touch.h"
#include "io/packed.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ridge;
  using namespace ridge::io;
  const auto* const end = std::find(data, data + size, 0);
  const std::string_view config(reinterpret_cast<const char*>(data), size_t(end - data));
  const auto packing = read_packing(config, config, "fuzz");
  touch(packing);
  if (!packing || end == data + size) return 0;
  // In memory of its own: an image begins at a multiple of every element's size.
  const std::vector<std::byte> image(reinterpret_cast<const std::byte*>(end + 1),
                                     reinterpret_cast<const std::byte*>(data + size));
  auto tensors = parse_safetensors(image, "fuzz");
  if (!tensors) return 0;
  std::vector<AlignedBuffer> buffers;
  const auto text = unpack_tensors(*packing, *tensors, buffers, "fuzz");
  touch(text);
  if (!text) return 0;
  for (const Tensor& tensor : *tensors) {
    touch(tensor);
    std::vector<bool> seen(tensor.order.size());
    for (const int32_t column : tensor.order) {
      RIDGE_CHECK(column >= 0 && size_t(column) < seen.size() && !seen[size_t(column)], "column {} of {}", column,
                  tensor.name);
      seen[size_t(column)] = true;
    }
    RIDGE_CHECK(tensor.order.empty() || tensor.shape.back() == ssize(tensor.order), "{} sorted columns of {}",
                tensor.order.size(), tensor.name);
  }
  return 0;
}
