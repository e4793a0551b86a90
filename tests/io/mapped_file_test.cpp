#include "io/mapped_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "cases/bytes.h"
#include "cases/temp_dir.h"

namespace ridge::io {
namespace {

namespace fs = std::filesystem;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(MappedFile, GivesTheBytesOfARegularFile) {
  const TempDir dir;
  const auto file = MappedFile::open(dir.write("a", "hello"));
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(text_of(file->bytes()), "hello");
  EXPECT_EQ(file->path(), dir / "a");
}

TEST(MappedFile, MovesKeepTheMappingAndEmptyTheSource) {
  const TempDir dir;
  MappedFile first = MappedFile::open(dir.write("a", "one")).or_throw();
  MappedFile second = std::move(first);
  EXPECT_TRUE(first.bytes().empty());
  EXPECT_EQ(text_of(second.bytes()), "one");
  second = MappedFile::open(dir.write("b", "two")).or_throw();
  EXPECT_EQ(text_of(second.bytes()), "two");
  MappedFile& same = second;
  second = std::move(same);
  EXPECT_EQ(text_of(second.bytes()), "two");
}

TEST(MappedFile, FollowsALinkToAFile) {
  const TempDir dir;
  dir.write("blob", "data");
  fs::create_symlink("blob", dir / "link");
  EXPECT_EQ(text_of(MappedFile::open(dir / "link").or_throw().bytes()), "data");
}

TEST(MappedFile, KeepsTheOldBytesWhenTheFileIsReplaced) {
  const TempDir dir;
  const MappedFile file = MappedFile::open(dir.write("a", "old")).or_throw();
  fs::rename(dir.write("b", "new and longer"), dir / "a");
  EXPECT_EQ(text_of(file.bytes()), "old");
}

// Whatever a path may name that is not a file with bytes, for both readers. None of them may hang.
struct NotAFile {
  const char* name;
  const char* message;
  std::function<fs::path(const TempDir&)> make;
};
class NotAFileTest : public testing::TestWithParam<NotAFile> {};

TEST_P(NotAFileTest, IsRefusedWithTheReason) {
  const TempDir dir;
  const fs::path path = GetParam().make(dir);
  expect_refused(MappedFile::open(path), GetParam().message);
  if (std::string_view(GetParam().name) != "EmptyFile") expect_refused(read_text_file(path, 100), GetParam().message);
}

const NotAFile kNotFiles[] = {
    {"Missing", "No such file", [](const TempDir& dir) { return dir / "none"; }},
    {"Directory", "it is a directory", [](const TempDir& dir) { return dir.path(); }},
    {"EmptyFile", "the file is empty", [](const TempDir& dir) { return dir.write("a", ""); }},
    {"EmptyName", "No such file", [](const TempDir&) { return fs::path(); }},
    {"NulInName", "NUL byte", [](const TempDir& dir) { return dir.write("a", "x").native() + std::string("\0b", 2); }},
    {"ZeroDevice", "it is a device", [](const TempDir&) { return "/dev/zero"; }},
    {"FileAsDirectory", "Not a directory", [](const TempDir& dir) { return dir.write("a", "x") / "b"; }},
    {"LongName", "File name too long", [](const TempDir& dir) { return dir / std::string(300, 'a'); }},
    {"Fifo", "it is a pipe",
     [](const TempDir& dir) {
       EXPECT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
       return dir / "fifo";
     }},
    {"Socket", "cannot open",
     [](const TempDir& dir) {
       sockaddr_un address{};
       address.sun_family = AF_UNIX;
       std::strncpy(address.sun_path, (dir / "s").c_str(), sizeof(address.sun_path) - 1);
       const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
       EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
       ::close(fd);
       return dir / "s";
     }},
    {"LinkLoop", "loop of symbolic links",
     [](const TempDir& dir) {
       fs::create_symlink("b", dir / "a");
       fs::create_symlink("a", dir / "b");
       return dir / "a";
     }},
    {"DanglingLink", "No such file",
     [](const TempDir& dir) {
       fs::create_symlink("none", dir / "a");
       return dir / "a";
     }},
    {"LinkToDirectory", "it is a directory",
     [](const TempDir& dir) {
       fs::create_directory_symlink(dir.path(), dir / "a");
       return dir / "a";
     }},
};
INSTANTIATE_TEST_SUITE_P(All, NotAFileTest, testing::ValuesIn(kNotFiles),
                         [](const testing::TestParamInfo<NotAFile>& test) { return std::string(test.param.name); });

TEST(ReadTextFile, GivesTheWholeTextUpToTheLimit) {
  const TempDir dir;
  const fs::path path = dir.write("a", "12345");
  EXPECT_EQ(read_text_file(path, 5).or_throw(), "12345");
  expect_refused(read_text_file(path, 4), "it has 5 bytes, expected at most 4");
  EXPECT_EQ(read_text_file(dir.write("empty", ""), 0).or_throw(), "");
}

TEST(ReadTextFile, RefusesAHugeFileWithoutReadingIt) {
  const TempDir dir;
  const fs::path path = dir.write("sparse", "x");
  fs::resize_file(path, uint64_t(1) << 40);
  expect_refused(read_text_file(path, 1000), "it has 1099511627776 bytes");
}

/// Maps a file of two pages, cuts it to nothing, and reads the second page.
void read_past_a_cut() {
  const TempDir dir;
  const MappedFile file = MappedFile::open(dir.write("a", std::string(8192, 'x'))).or_throw();
  fs::resize_file(dir / "a", 0);
  const volatile std::byte* const bytes = file.bytes().data();
  (void)bytes[5000];
}

TEST(SigbusMessageDeathTest, AFileCutWhileMappedEndsWithAMessageAndExitCode4) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT((install_sigbus_message(), read_past_a_cut()), testing::ExitedWithCode(4), "cut short");
}

TEST(SigbusMessageDeathTest, OtherBusErrorsKeepTheirMeaning) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT((install_sigbus_message(), ::raise(SIGBUS)), testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace ridge::io
