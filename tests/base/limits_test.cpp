// Limits of a process, read from trees of /proc and /sys that a test writes: groups of version 1, 2 and both, nested,
// without limits, damaged and missing.
#include "base/limits.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "base/aligned.h"
#include "base/thread_pool.h"

namespace ridge {
namespace {

constexpr int64_t kMib = 1 << 20;

class LimitsOf : public testing::Test {
 protected:
  LimitsOf() {
    root_ = std::filesystem::temp_directory_path() / ("ridge-limits-" + std::to_string(getpid()));
    std::filesystem::remove_all(root_);
    write("proc/meminfo", "MemTotal:       1048576 kB\nMemFree:         1024 kB\nMemAvailable:    524288 kB\n");
  }
  ~LimitsOf() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void group(const std::string& line) { write("proc/self/cgroup", line + "\n"); }
  double quota() const { return processor_quota(root_); }
  int64_t available() const { return available_memory(root_).value_or(-1); }

  std::filesystem::path root_;
};

TEST_F(LimitsOf, WithoutGroupsNothingLimits) {
  EXPECT_EQ(quota(), INFINITY);
  EXPECT_EQ(available(), 512 * kMib);
  EXPECT_EQ(available_processors(root_), affine_processors());
  write("proc/meminfo", "garbage\n");
  EXPECT_EQ(available(), -1) << "nothing says";
  EXPECT_EQ(free_memory(0, root_), INT64_MAX);
}

TEST_F(LimitsOf, AContainerSeesItsOwnGroupAtTheMount) {
  group("0::/");
  write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  write("sys/fs/cgroup/memory.max", std::to_string(200 * kMib) + "\n");
  write("sys/fs/cgroup/memory.current", std::to_string(50 * kMib) + "\n");
  EXPECT_EQ(quota(), 1);
  EXPECT_EQ(available_processors(root_), 1);
  EXPECT_EQ(available(), 150 * kMib);
}

TEST_F(LimitsOf, TheLeastOfAllLevelsCounts) {
  group("0::/a/b");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 1.5);
  write("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 0.5);
  EXPECT_EQ(available_processors(root_), 1) << "one thread at least";
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/memory.max", std::to_string(100 * kMib) + "\n");
  write("sys/fs/cgroup/a/memory.current", std::to_string(90 * kMib) + "\n");
  EXPECT_EQ(available(), 10 * kMib);
  write("sys/fs/cgroup/a/b/memory.max", std::to_string(20 * kMib) + "\n");
  write("sys/fs/cgroup/a/b/memory.current", std::to_string(15 * kMib) + "\n");
  EXPECT_EQ(available(), 5 * kMib);
}

TEST_F(LimitsOf, HighIsALimitToo) {
  group("0::/a");
  write("sys/fs/cgroup/a/memory.max", "max\n");
  write("sys/fs/cgroup/a/memory.high", std::to_string(64 * kMib) + "\n");
  EXPECT_EQ(available(), 64 * kMib) << "no file says what is used";
  write("sys/fs/cgroup/a/memory.current", std::to_string(80 * kMib) + "\n");
  EXPECT_EQ(available(), 0);
}

TEST_F(LimitsOf, FilesInMemoryAreFree) {
  group("0::/a");
  write("sys/fs/cgroup/a/memory.max", std::to_string(100 * kMib) + "\n");
  write("sys/fs/cgroup/a/memory.current", std::to_string(95 * kMib) + "\n");
  write("sys/fs/cgroup/a/memory.stat",
        "anon 1\ninactive_file " + std::to_string(40 * kMib) + "\nactive_file " + std::to_string(30 * kMib) + "\n");
  EXPECT_EQ(available(), 75 * kMib);
}

TEST_F(LimitsOf, Version1) {
  group("9:name=systemd:/\n4:memory:/docker/x\n2:cpu,cpuacct:/docker/x");
  write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), INFINITY);
  write("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "250000\n");
  write("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 2.5);
  write("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(available(), 512 * kMib) << "no limit";
  write("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", std::to_string(64 * kMib) + "\n");
  write("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", std::to_string(60 * kMib) + "\n");
  write("sys/fs/cgroup/memory/docker/x/memory.stat",
        "inactive_file 1\ntotal_inactive_file " + std::to_string(10 * kMib) + "\n");
  EXPECT_EQ(available(), 14 * kMib);
}

TEST_F(LimitsOf, AContainerOfVersion1WhoseGroupIsMountedAsTheRoot) {
  group("4:memory:/docker/x\n2:cpu:/docker/x");  // names of the host, which the container's mounts do not have
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(32 * kMib) + "\n");
  EXPECT_EQ(quota(), 2);
  EXPECT_EQ(available(), 32 * kMib);
}

TEST_F(LimitsOf, BothVersions) {
  group("4:memory:/m\n0::/u");
  write("sys/fs/cgroup/unified/u/cpu.max", "300000 100000\n");
  write("sys/fs/cgroup/memory/m/memory.limit_in_bytes", std::to_string(16 * kMib) + "\n");
  EXPECT_EQ(quota(), 3);
  EXPECT_EQ(available(), 16 * kMib);
}

TEST_F(LimitsOf, WhatIsDamagedLimitsNothing) {
  for (const char* const line : {"", "garbage", "0:", "::", "0::", "0::/../../..", "1:cpu"}) {
    group(line);
    for (const char* const text : {"", "garbage\n", "-5 100000\n", "0 100000\n", "12x 100000\n", "100000 0\n", "max\n",
                                   "99999999999999999999 1\n"}) {
      write("sys/fs/cgroup/cpu.max", text);
      EXPECT_EQ(quota(), INFINITY) << line << ", " << text;
    }
    for (const char* const text : {"", "garbage\n", "-1\n", "7q\n"}) {
      write("sys/fs/cgroup/memory.max", text);
      EXPECT_EQ(available(), 512 * kMib) << line << ", " << text;
    }
  }
  write("sys/fs/cgroup/cpu.max", "200000\n");
  EXPECT_EQ(quota(), 2) << "the kernel's period where none is given";
  group("0::/../../sys");
  write("sys/fs/cgroup/sys/cpu.max", "100000 100000\n");
  EXPECT_EQ(quota(), 1) << "'..' ends at the mount";
}

TEST_F(LimitsOf, BuffersCountBeforeTheyAreTouched) {
  const int64_t before = AlignedBuffer::all_bytes();
  {
    AlignedBuffer buffer(64 * kMib);
    EXPECT_EQ(AlignedBuffer::all_bytes(), before + 64 * kMib);
    AlignedBuffer moved = std::move(buffer);
    EXPECT_EQ(AlignedBuffer::all_bytes(), before + 64 * kMib);
    write("proc/self/status", "VmSize: 9 kB\n");  // nothing is touched
    EXPECT_EQ(free_memory(0, root_), 448 * kMib - before);
    EXPECT_EQ(free_memory(100 * kMib, root_), 348 * kMib - before);
    write("proc/self/status", "RssAnon:\t   65536 kB\nVmSwap:\t " + std::to_string(before / 1024 + 1) + " kB\n");
    EXPECT_EQ(free_memory(0, root_), 512 * kMib) << "what is touched is missing in MemAvailable";
    EXPECT_EQ(free_memory(513 * kMib, root_), 0);
  }
  EXPECT_EQ(AlignedBuffer::all_bytes(), before);
}

TEST(Limits, OfThisProcess) {
  EXPECT_GE(affine_processors(), 1);
  EXPECT_LE(available_processors(), affine_processors());
  EXPECT_EQ(ThreadPool(0).size(), available_processors());
  share_processors(2);
  EXPECT_EQ(ThreadPool(0).size(), std::max(1, available_processors() / 2));
  share_processors(1);
  EXPECT_GT(available_memory().value_or(0), 0);
}

TEST(LimitsDeathTest, TheAffinityMaskAndAddressSpaceCount) {
  const auto in_child = [] {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &all)) {
        CPU_SET(i, &one);
        break;
      }
    sched_setaffinity(0, sizeof one, &one);
    if (available_processors() != 1) _exit(1);
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t space = rlim_t(pages * sysconf(_SC_PAGESIZE) + 64 * kMib);
    const rlimit limit{space, space};
    setrlimit(RLIMIT_AS, &limit);
    const int64_t left = available_memory().value_or(0);
    _exit(left > 48 * kMib && left <= 64 * kMib ? 42 : 2);
  };
  EXPECT_EXIT(in_child(), testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace ridge
