// Files that several processes append lines to: no line joins another one, whatever was killed or full.
#include "io/line_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cases/temp_dir.h"
#include "io/mapped_file.h"

namespace ridge::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string text_of(const std::filesystem::path& path) { return read_text_file(path, 1 << 24).or_throw(); }

const LineFile::Options kInBraces = {
    .is_whole = [](std::string_view line) { return line.starts_with('{') && line.ends_with('}'); }};

TEST(LineFile, LinesGoBehindWhatIsThere) {
  TempDir dir;
  dir.write("a", "{0}\n");
  for (const char* line : {"{1}", "{2}"}) LineFile::open(dir / "a", kInBraces).or_throw().add(line).or_throw();
  EXPECT_EQ(text_of(dir / "a"), "{0}\n{1}\n{2}\n");
  EXPECT_THAT(dir.names(), ElementsAre("a"));
}

TEST(LineFile, ACutLineMovesAsideAndIsReported) {
  for (const char* whole : {"", "{0}\n", "\n\n{0}\n"}) {
    TempDir dir;
    dir.write("a", std::string(whole) + "{1, 2");
    LineFile file = LineFile::open(dir / "a", kInBraces).or_throw();
    EXPECT_THAT(file.report(), HasSubstr("cut off"));
    EXPECT_THAT(file.report(), IsEmpty());
    file.add("{3}").or_throw();
    EXPECT_EQ(text_of(dir / "a"), std::string(whole) + "{3}\n");
    EXPECT_EQ(text_of(dir / "a.cut"), "{1, 2\n");
  }
}

TEST(LineFile, ReadingGivesWholeLinesAlone) {
  TempDir dir;
  LineFile file = LineFile::open(dir / "a", kInBraces).or_throw();
  EXPECT_EQ(file.read(100).or_throw(), "");
  file.add("{0}").or_throw();
  const int other = ::open((dir / "a").c_str(), O_WRONLY | O_APPEND);
  ASSERT_EQ(::write(other, "{1", 2), 2);
  ::close(other);
  EXPECT_EQ(file.read(100).or_throw(), "{0}\n");
  EXPECT_THAT(file.report(), HasSubstr("a.cut"));
  EXPECT_FALSE(file.read(3));
}

TEST(LineFile, AWholeLineWithoutAnEndGetsOne) {
  TempDir dir;
  dir.write("a", "{0}\n{1}");
  LineFile file = LineFile::open(dir / "a", kInBraces).or_throw();
  EXPECT_THAT(file.report(), HasSubstr("no end"));
  file.add("{2}").or_throw();
  EXPECT_EQ(text_of(dir / "a"), "{0}\n{1}\n{2}\n");
  EXPECT_THAT(dir.names(), ElementsAre("a"));
}

TEST(LineFile, ALongCutLineIsKeptWhole) {
  TempDir dir;
  for (const size_t size : {size_t(65535), size_t(65536), size_t(65537), size_t(200000)}) {
    std::filesystem::remove(dir / "a.cut");
    dir.write("a", "{0}\n" + std::string(size, 'x'));
    LineFile::open(dir / "a", kInBraces).or_throw();
    EXPECT_EQ(text_of(dir / "a"), "{0}\n");
    EXPECT_EQ(text_of(dir / "a.cut"), std::string(size, 'x') + "\n");
  }
}

TEST(LineFile, ALineThatIsCutWhileTheFileIsOpenDoesNotJoinTheNextOne) {
  TempDir dir;
  LineFile file = LineFile::open(dir / "a", kInBraces).or_throw();
  file.add("{0}").or_throw();
  for (const char* part : {"{1", "{2, "}) {
    const int other = ::open((dir / "a").c_str(), O_WRONLY | O_APPEND);
    ASSERT_EQ(::write(other, part, strlen(part)), ssize_t(strlen(part)));
    ::close(other);
    file.add("{3}").or_throw();
    EXPECT_THAT(file.report(), HasSubstr("a.cut"));
  }
  EXPECT_EQ(text_of(dir / "a"), "{0}\n{3}\n{3}\n");
  EXPECT_EQ(text_of(dir / "a.cut"), "{1\n{2, \n");
}

TEST(LineFile, AFullDiskTakesThePartOfALineBack) {
  TempDir dir;
  LineFile file = LineFile::open(dir / "a", kInBraces).or_throw();
  file.add("{0}").or_throw();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const Status full = file.add("{" + std::string(8192, '1') + "}");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(full);
  EXPECT_THAT(full.error().message, HasSubstr("File too large"));
  EXPECT_EQ(text_of(dir / "a"), "{0}\n");
  file.add("{2}").or_throw();
  EXPECT_EQ(text_of(dir / "a"), "{0}\n{2}\n");
}

TEST(LineFile, WhatIsNoRegularFileIsRefused) {
  TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink(dir / "other", dir / "link");
  for (const std::filesystem::path& path :
       {dir / "fifo", dir.path(), std::filesystem::path("/dev/null"), dir / "none/a", dir / std::string(256, 'x')})
    EXPECT_FALSE(LineFile::open(path, kInBraces)) << path;
  EXPECT_FALSE(LineFile::open(dir / "link", {.extra_flags = O_NOFOLLOW}));
  EXPECT_FALSE(std::filesystem::exists(dir / "other"));
}

TEST(LineFile, ACutLineThatCannotBeKeptStaysWhereItIs) {
  TempDir dir;
  const std::string name(255, 'x');  // with .cut it is too long
  dir.write(name, "{0}\n{1");
  const auto refused = LineFile::open(dir / name, kInBraces);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("delete the last line"));
  EXPECT_EQ(text_of(dir / name), "{0}\n{1");
}

TEST(LineFile, WritersAtOnceAndKilledOnesLoseNoLineOfOthers) {
  TempDir dir;
  const auto start = [&](char name, int n_lines) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    LineFile file = LineFile::open(dir / "a", kInBraces).or_throw();
    for (int i = 0; i < n_lines; ++i)
      if (!file.add("{" + std::string(200 + size_t(i), name) + "}")) ::_exit(1);
    ::_exit(0);
  };
  const std::vector<pid_t> writers = {start('a', 100), start('b', 100)};
  for (int i = 0; i < 10; ++i) {
    const pid_t victim = start('v', 1 << 20);
    ::usleep(2000);
    ::kill(victim, SIGKILL);
    ::waitpid(victim, nullptr, 0);
  }
  for (const pid_t writer : writers) {
    int status = 0;
    ::waitpid(writer, &status, 0);
    EXPECT_EQ(status, 0);
  }
  LineFile::open(dir / "a", kInBraces).or_throw();
  std::vector<int> lines(256);
  const std::string text = text_of(dir / "a");
  for (size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1) {
    const std::string line = text.substr(at, end - at);
    ASSERT_TRUE(kInBraces.is_whole(line)) << line;
    EXPECT_EQ(std::count(line.begin(), line.end(), line[1]), ptrdiff_t(line.size() - 2)) << line;
    ++lines[size_t(uint8_t(line[1]))];
  }
  EXPECT_EQ(lines['a'], 100);
  EXPECT_EQ(lines['b'], 100);
}

TEST(LineFile, ATextThatIsRewrittenKeepsTheLinesOfOtherWriters) {
  TempDir dir;
  dir.write("a", "1\n2\n3\n");
  LineFile one = LineFile::open(dir / "a", {.mode = 0600}).or_throw();
  LineFile other = LineFile::open(dir / "a", {.mode = 0600}).or_throw();
  one.rewrite(100, [](const std::string& text) { return std::optional(text.substr(2)); }).or_throw();
  other.add("4").or_throw();
  one.add("5").or_throw();
  EXPECT_EQ(text_of(dir / "a"), "2\n3\n4\n5\n");
  EXPECT_FALSE(one.rewrite(3, [](const std::string&) { return std::optional<std::string>("x\n"); }));
  EXPECT_EQ(text_of(dir / "a"), "2\n3\n4\n5\n");
}

}  // namespace
}  // namespace ridge::io
