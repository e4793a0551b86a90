// AlignedBuffer: zeroed, aligned, move-only, and an error instead of a crash when there is no memory.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/aligned.h"
#include "ridge/error.h"

namespace ridge {
namespace {

TEST(AlignedBuffer, IsZeroedAndAligned) {
  for (const int64_t bytes : {int64_t(1), int64_t(64), int64_t(4097), int64_t(5) << 20}) {
    const AlignedBuffer buffer(bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes, [](std::byte b) { return b == std::byte(0); }));
  }
  EXPECT_EQ(AlignedBuffer().data(), nullptr);
  EXPECT_EQ(AlignedBuffer(0).bytes(), 0);
}

TEST(AlignedBuffer, MovesLeaveTheSourceEmpty) {
  AlignedBuffer a(100);
  std::byte* data = a.data();
  AlignedBuffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.bytes(), 0);  // NOLINT: the moved-from state is the point
  AlignedBuffer c(7);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(b.data(), nullptr);  // NOLINT
}

TEST(AlignedBuffer, EnsureGrowsOnlyWhenItMust) {
  AlignedBuffer buffer;
  float* first = buffer.ensure<float>(1000);
  first[999] = 1;
  EXPECT_GE(buffer.bytes(), 4000);
  EXPECT_EQ(buffer.ensure<float>(500), first);
  EXPECT_EQ(buffer.ensure<float>(1000), first);
  float* larger = buffer.ensure<float>(1'000'000);
  larger[999'999] = 1;
  EXPECT_GE(buffer.bytes(), 4'000'000);
}

TEST(AlignedBuffer, NoMemoryIsAnErrorWithTheSize) {
  try {
    AlignedBuffer buffer(int64_t(1) << 60);
    FAIL() << "there is no machine with 2^60 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::no_memory);
    EXPECT_NE(std::string(error.what()).find("MiB"), std::string::npos);
  }
  EXPECT_THROW(AlignedBuffer(-1), Error);
}

}  // namespace
}  // namespace ridge
