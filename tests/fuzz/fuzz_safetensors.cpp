// Fuzz target of parse_safetensors(): any bytes give tensors or a reason, and the tensors cover the data exactly.
#include "fuzz/touch.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ridge::io;
  const auto tensors = parse_safetensors({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
  if (!tensors) return 0;
  size_t covered = 0;
  for (const Tensor& tensor : *tensors) {
    touch(tensor);
    covered += tensor.data.size();
  }
  RIDGE_CHECK(covered < size, "{} bytes of data in a file of {}", covered, size);
  return 0;
}
