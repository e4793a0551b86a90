#include "base/pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace ridge {
namespace {

constexpr size_t kBytes = 4 << 20;

/// A mapped file of sevens.
class MappedSevens : public testing::Test {
 protected:
  MappedSevens() {
    char name[] = "/tmp/ridge-pages-XXXXXX";
    const int fd = mkstemp(name);
    unlink(name);
    const std::vector<char> sevens(kBytes, 7);
    EXPECT_EQ(write(fd, sevens.data(), kBytes), ssize_t(kBytes));
    void* const at = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
    EXPECT_NE(at, MAP_FAILED);
    close(fd);
    bytes_ = {static_cast<const std::byte*>(at), kBytes};
  }
  ~MappedSevens() override { munmap(const_cast<std::byte*>(bytes_.data()), kBytes); }

  bool all_sevens() const { return std::ranges::count(bytes_, std::byte(7)) == ssize_t(kBytes); }
  /// KiB of the mapping in this process's memory.
  long resident() const {
    std::ifstream maps("/proc/self/smaps");
    char begin[32];
    snprintf(begin, sizeof begin, "%lx-", reinterpret_cast<unsigned long>(bytes_.data()));
    bool here = false;
    for (std::string line; std::getline(maps, line);) {
      if (line.starts_with(begin)) here = true;
      if (here && line.starts_with("Rss:")) return std::stol(line.substr(4));
    }
    return -1;
  }
  std::span<const std::byte> bytes_;
};

TEST_F(MappedSevens, ReleasedPagesLeaveMemoryAndComeBackWhenRead) {
  ASSERT_TRUE(all_sevens());
  const long before = resident();
  if (before < 0) GTEST_SKIP() << "this system does not say what is in memory";
  release_pages(bytes_.subspan(1, kBytes / 2));  // its first page begins behind
  EXPECT_LE(resident(), before - long(kBytes / 2 / 1024) + 8);
  EXPECT_GE(resident(), long(kBytes / 2 / 1024));
  EXPECT_TRUE(all_sevens());
}

TEST_F(MappedSevens, FetchedPagesHaveTheirBytes) {
  release_pages(bytes_);
  fetch_pages(bytes_.subspan(5000));
  fetch_pages({});
  EXPECT_TRUE(all_sevens());
}

TEST(Pages, FetchingOtherMemoryLeavesItsBytes) {
  const std::vector<std::byte> bytes(kBytes, std::byte(7));
  fetch_pages(bytes);
  EXPECT_EQ(std::ranges::count(bytes, std::byte(7)), ssize_t(kBytes));
}

}  // namespace
}  // namespace ridge
