#include "serve/prefix_cache.h"

#include "base/rng.h"

namespace ridge::serve {
uint64_t extend_hash(uint64_t hash, int32_t token) {
  return splitmix64(hash + (uint64_t(uint32_t(token)) + 1) * kSplitmixStep);
}

std::vector<uint64_t> prefix_hashes(std::span<const int32_t> tokens, uint64_t secret) {
  std::vector<uint64_t> hashes = {splitmix64(secret)};
  for (const int32_t token : tokens) hashes.push_back(extend_hash(hashes.back(), token));
  return hashes;
}

Result<PrefixCache::Hit> PrefixCache::open(std::span<const uint64_t> hashes) {
  const int n = int(hashes.size()) - 1;
  for (int length = n; length > 0; --length) {
    const auto found = pool_.find(hashes[size_t(length)]);
    if (!found) continue;
    auto seq = pool_.open(*found);
    // Giving up another checkpoint makes room; should it be this one, the next shorter one is looked for.
    while (!seq && pool_.evict() && pool_.find(hashes[size_t(length)])) seq = pool_.open(*found);
    if (!seq) continue;
    if (length < n) return Hit{*seq, length};
    if (pool_.trim(*seq, n - 1, TrimMode::exact)) return Hit{*seq, n - 1};
    pool_.close(*seq);
  }
  auto seq = pool_.open();
  while (!seq && pool_.evict()) seq = pool_.open();
  if (!seq) return seq.error();
  return Hit{*seq, 0};
}

void PrefixCache::keep(SeqId seq, uint64_t hash) {
  if (pool_.find(hash) || pool_.is_lost(seq)) return;
  auto made = pool_.checkpoint(seq);
  while (!made && pool_.evict()) made = pool_.checkpoint(seq);
  if (made) pool_.retain(*made, hash);
}

}  // namespace ridge::serve
