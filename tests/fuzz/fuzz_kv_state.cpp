// Fuzz target of KV state files: any bytes become a sequence or are refused with a reason. The cache has every kind of
// section: centres, head scales, sinks, a ring, plain rows.
#include "cases/kv_state_file.h"

namespace {

using namespace ridge;

void restore(SequencePool& pool, std::span<const std::byte> file) {
  const Result<SequenceImage> image = read_kv_state(pool, 128, 0x1234, file, "fuzz");
  if (!image) {
    RIDGE_CHECK(!image.error().message.empty(), "refused without a reason");
    return;
  }
  const SeqId seq = pool.load(*image).or_throw();
  const SequenceImage again = pool.save(seq);
  for (size_t i = 0; i < again.sides.size(); ++i)
    RIDGE_CHECK(again.sides[i].bytes == image->sides[i].bytes, "side {} changed on its way", i);
  read_back(pool, seq);  // what attention would read is inside the cache
  const int half = pool.length(seq) / 2;
  const Result<TrimReport> trimmed = pool.trim(seq, half, TrimMode::coded_window);
  if (trimmed) read_back(pool, seq);
  else RIDGE_CHECK(!trimmed.error().message.empty(), "refused without a reason");
  pool.close(seq);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<SequencePool> pool = host_pool(fuzz_layers(), {}, 3, 2);
  std::vector<std::byte> file(reinterpret_cast<const std::byte*>(data),
                              reinterpret_cast<const std::byte*>(data) + size);
  restore(*pool, file);
  sign_state(file);
  restore(*pool, file);
  return 0;
}
