// Fuzz target of parse_safetensors_index(): any text gives shards inside the directory, or a reason.
#include "fuzz/touch.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ridge::io;
  const auto shards = parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "fuzz");
  touch(shards);
  if (!shards) return 0;
  RIDGE_CHECK(!shards->empty(), "an index without tensors");
  for (const auto& [tensor, shard] : *shards)
    RIDGE_CHECK(shard.find('/') == std::string::npos && shard.ends_with(".safetensors"), "{} is in {}", tensor, shard);
  return 0;
}
