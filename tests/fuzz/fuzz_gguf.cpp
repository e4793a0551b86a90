// Fuzz target of parse_gguf() and config_from_gguf(): any bytes give a model or a reason, everything a model points at
// can be read, and a configuration can be planned.
#include "fuzz/touch.h"
#include "io/gguf.h"
#include "model/arch/arch.h"
#include "model/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ridge::io;
  const auto gguf = parse_gguf({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
  if (!gguf) return 0;
  for (const Tensor& tensor : gguf->tensors) touch(tensor);
  for (const auto& [key, value] : gguf->metadata) {
    touch(gguf->integer(key));
    touch(gguf->number(key));
    touch(gguf->flag(key));
    touch(gguf->text(key));
    touch(gguf->integers(key));
    touch(gguf->numbers(key));
    touch(gguf->texts(key));
  }
  const auto config = ridge::config_from_gguf(*gguf, "fuzz");
  touch(config);
  if (config) ridge::make_plan(*config);
  return 0;
}
