// Fuzz target of KV state files: any bytes restore into a cache or are refused with a reason, and a refusal changes
// nothing. The cache has every kind of section: centres, head scales, sinks, a ring, plain rows.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <vector>

#include "model/kv_state.h"

namespace {

using namespace ridge;

KvCache make_cache() {
  const auto format = [](const char* name) { return find_kv_format(name).or_throw(); };
  const KvPolicy full{.rotation = Rotation::hadamard, .centre = true, .window = 32, .sinks = 4, .scale = KvScale::norm};
  KvPolicy small_ring = full;
  small_ring.recent = "i8r";
  const KvSideConfig k[] = {{format("rotor-3s"), full}, {format("q8_0"), format("q8_0")->policy}},
                     v[] = {{format("rotor-3"), small_ring}, {format("f16"), format("f16")->policy}};
  return KvCache(k, v, 1, 32, 128);
}

/// Makes sizes and checksums right where the bytes look like sections, so that what is behind them is reached.
void sign(std::vector<std::byte>& file) {
  const auto put = [&](size_t at, uint64_t value) { std::memcpy(&file[at], &value, 8); };
  if (file.size() < 56) return;
  put(40, file.size());
  put(48, XXH64(file.data(), 48, 0));
  for (size_t at = 56; at + 80 <= file.size();) {
    uint64_t payload;
    std::memcpy(&payload, &file[at + 64], 8);
    if (payload > file.size() - at - 80) return;
    put(at + 72, XXH64(file.data() + at + 80, size_t(payload), XXH64(&file[at], 72, 0)));
    at += 80 + size_t(payload);
  }
}

void restore(KvCache& cache, std::span<const std::byte> file) {
  const int before = cache.n_past;
  const Status status = restore_kv_state(cache, 0x1234, file, "fuzz");
  RIDGE_CHECK(status || cache.n_past == before, "a refused state changed the cache");
  RIDGE_CHECK(status || !status.error().message.empty(), "refused without a reason");
  RIDGE_CHECK(cache.n_past >= 0 && cache.n_past <= cache.n_ctx(), "{} positions", cache.n_past);
  for (int layer = 0; status && layer < 2; ++layer) {  // what attention would read is inside the cache
    cache.k(layer).decode_side(cache.n_past);
    cache.v(layer).decode_side(cache.n_past);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static KvCache cache = make_cache();
  std::vector<std::byte> file(reinterpret_cast<const std::byte*>(data),
                              reinterpret_cast<const std::byte*>(data) + size);
  restore(cache, file);
  sign(file);
  restore(cache, file);
  if (cache.n_past > 0) cache.truncate(cache.n_past / 2);
  return 0;
}
