// Fuzz target of tokenizer_spec_from_hf(): tokenizer.json, a NUL, tokenizer_config.json.
#include <algorithm>

#include "fuzz/touch_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ridge::io;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(bytes.find('\0'), size);
  const auto spec = tokenizer_spec_from_hf(bytes.substr(0, end), end < size ? bytes.substr(end + 1) : "", "fuzz");
  if (spec) touch(*spec, bytes.substr(size - std::min<size_t>(size, 64)));
  else touch(spec);
  return 0;
}
