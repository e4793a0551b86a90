// The arithmetic that stands for tensor cores on RDNA3 (gpu/dot_mma.h), lane by lane on the host.
#include "gpu/dot_mma.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace ridge::gpu {
namespace {

struct Operands {
  uint32_t a[32][4], b[32][2];
};
Operands random_operands(uint64_t seed) {
  Rng rng(seed);
  Operands o;
  for (auto& lane : o.a)
    for (uint32_t& word : lane) word = uint32_t(rng.next());
  for (auto& lane : o.b)
    for (uint32_t& word : lane) word = uint32_t(rng.next());
  return o;
}
struct WordsOfLane {
  const Operands& all;
  int lane;

  template <int kWord, int kQuad>
  uint32_t a() const {
    return all.a[lane / 4 * 4 + kQuad][kWord];
  }
  uint32_t b(int word, int of) const { return all.b[of][word]; }
};

int dot4(uint32_t x, uint32_t y, int sum) {
  for (int i = 0; i < 32; i += 8) sum += int8_t(x >> i) * int8_t(y >> i);
  return sum;
}

/// Element k of row m of A and of column n of B, from the fragments that gpu/tensor.h describes.
int a_at(const Operands& o, int m, int k) {
  return int8_t(o.a[4 * (m % 8) + k % 16 / 4][2 * (k / 16) + m / 8] >> (8 * (k % 4)));
}
int b_at(const Operands& o, int n, int k) { return int8_t(o.b[4 * n + k % 16 / 4][k / 16] >> (8 * (k % 4))); }

TEST(DotMma, EqualsTheMatrixProduct) {
  const Operands o = random_operands(7);
  for (int lane = 0; lane < 32; ++lane) {
    int d[4] = {5, -6, 7, -8};
    const int start[4] = {5, -6, 7, -8};
    mma_by_dots(lane, d, WordsOfLane{o, lane}, dot4);
    for (int i = 0; i < 4; ++i) {
      int expected = start[i];
      for (int k = 0; k < 32; ++k) expected += a_at(o, lane / 4 + 8 * (i / 2), k) * b_at(o, lane % 4 * 2 + i % 2, k);
      EXPECT_EQ(d[i], expected) << "lane " << lane << ", element " << i;
    }
  }
}

TEST(DotMma, EqualsTheMatrixProductOfHalfTheDepth) {
  const Operands o = random_operands(8);
  for (int lane = 0; lane < 32; ++lane) {
    int d[4] = {5, -6, 7, -8};
    const int start[4] = {5, -6, 7, -8};
    mma_by_dots_k16(lane, d, WordsOfLane{o, lane}, dot4);
    for (int i = 0; i < 4; ++i) {
      int expected = start[i];
      for (int k = 0; k < 16; ++k) expected += a_at(o, lane / 4 + 8 * (i / 2), k) * b_at(o, lane % 4 * 2 + i % 2, k);
      EXPECT_EQ(d[i], expected) << "lane " << lane << ", element " << i;
    }
  }
}

TEST(ByteSelector, HasAByteForEachNibble) {
  for (uint32_t nibbles = 0; nibbles < 0x10000; ++nibbles) {
    const uint32_t bytes = byte_selector(nibbles | 0xABCD0000u);
    for (int i = 0; i < 4; ++i) ASSERT_EQ(bytes >> (8 * i) & 0xFFu, nibbles >> (4 * i) & 7u) << nibbles << " " << i;
  }
}

}  // namespace
}  // namespace ridge::gpu
