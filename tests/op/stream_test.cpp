// Every stream kernel touches every byte it says it touches, and only those.
#include "op/stream/stream.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"

namespace ridge {
namespace {

constexpr int64_t kBytes = 3 * kStreamUnit;

class Streams : public testing::TestWithParam<size_t> {
 protected:
  Streams() : variant_(stream_variants()[GetParam()]), a_(kBytes), b_(kBytes), out_(2 * kBytes) {
    Rng rng(7);
    for (int64_t i = 0; i < kBytes / 4; ++i) {
      floats(a_)[i] = float(rng.normal());
      floats(b_)[i] = float(rng.normal());
    }
    std::memset(out_.data(), 0x11, size_t(2 * kBytes));
  }
  void SetUp() override {
    if (variant_.isa > detect_isa()) GTEST_SKIP() << variant_.name << " needs " << isa_name(variant_.isa);
  }
  static float* floats(AlignedBuffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }
  /// What lies behind the written part was left alone.
  bool tail_untouched() const {
    for (int64_t i = kBytes; i < 2 * kBytes; ++i)
      if (out_.data()[i] != std::byte{0x11}) return false;
    return true;
  }

  const StreamVariant& variant_;
  AlignedBuffer a_, b_, out_;
};
INSTANTIATE_TEST_SUITE_P(Variants, Streams, testing::Range<size_t>(0, stream_variants().size()));

TEST_P(Streams, ReadDependsOnEveryWord) {
  const uint64_t before = variant_.read(a_.data(), kBytes);
  for (int64_t i = 0; i < kBytes; i += 8) {
    auto& byte = a_.data()[i];
    byte ^= std::byte{1};
    ASSERT_NE(variant_.read(a_.data(), kBytes), before) << "byte " << i;
    byte ^= std::byte{1};
  }
}

TEST_P(Streams, ReadIsTheSumOfWords) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < kBytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, a_.data() + i, 8);
    sum += word;
  }
  EXPECT_EQ(variant_.read(a_.data(), kBytes), sum);
}

TEST_P(Streams, WritesFillExactlyTheirPart) {
  for (const auto write : {variant_.write, variant_.write_nt}) {
    if (!write) continue;
    write(out_.data(), kBytes, 0xA5);
    for (int64_t i = 0; i < kBytes; ++i) ASSERT_EQ(out_.data()[i], std::byte{0xA5}) << i;
    EXPECT_TRUE(tail_untouched());
    std::memset(out_.data(), 0, size_t(kBytes));
  }
}

TEST_P(Streams, CopiesAreExact) {
  for (const auto copy : {variant_.copy, variant_.copy_nt}) {
    if (!copy) continue;
    copy(a_.data(), out_.data(), kBytes);
    EXPECT_EQ(std::memcmp(a_.data(), out_.data(), size_t(kBytes)), 0);
    EXPECT_TRUE(tail_untouched());
    std::memset(out_.data(), 0, size_t(kBytes));
  }
}

TEST_P(Streams, TriadIsAPlusThreeB) {
  variant_.triad(a_.data(), b_.data(), out_.data(), kBytes);
  for (int64_t i = 0; i < kBytes / 4; ++i)
    ASSERT_NEAR(floats(out_)[i], floats(a_)[i] + 3.0f * floats(b_)[i], 2e-6f) << i;
  EXPECT_TRUE(tail_untouched());
}

}  // namespace
}  // namespace ridge
