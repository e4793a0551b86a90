// Files that appear whole or not at all: after kills, on full disks, with long names, beside other writers.
#include "io/pending_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

#include "cases/temp_dir.h"
#include "io/mapped_file.h"

namespace ridge::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string content_of(const std::filesystem::path& path) { return read_text_file(path, 1 << 20).or_throw(); }

Status write_file(const std::filesystem::path& path, std::string_view text, bool named = false) {
  PendingFile file(path);
  if (named) file.use_named_temporary();
  RIDGE_TRY_STATUS(file.create());
  RIDGE_TRY_STATUS(file.write(text));
  return file.commit();
}

/// Starts a process that has written a part of `path`, and kills it; or leaves that to the caller.
pid_t begin_in_another_process(const std::filesystem::path& path, bool named, bool killed) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    PendingFile file(path);
    if (named) file.use_named_temporary();
    const bool begun = bool(file.create()) && bool(file.write("a part"));
    const char byte = begun ? 'y' : 'n';
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  ::close(ready[0]);
  ::close(ready[1]);
  if (killed) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  return child;
}

class PendingFiles : public testing::TestWithParam<bool> {
 protected:
  bool named() const { return GetParam(); }
  TempDir dir;
};
INSTANTIATE_TEST_SUITE_P(Temporaries, PendingFiles, testing::Bool(),
                         [](const auto& named) { return named.param ? "Named" : "Unnamed"; });

TEST_P(PendingFiles, AppearWhenTheyAreComplete) {
  {
    PendingFile file(dir / "a");
    if (named()) file.use_named_temporary();
    file.create().or_throw();
    file.write("one ").or_throw();
    EXPECT_FALSE(std::filesystem::exists(dir / "a"));
    file.write("two").or_throw();
    file.commit().or_throw();
  }
  EXPECT_EQ(content_of(dir / "a"), "one two");
  write_file(dir / "a", "three", named()).or_throw();
  EXPECT_EQ(content_of(dir / "a"), "three");
  EXPECT_THAT(dir.names(), ElementsAre("a"));
}

TEST_P(PendingFiles, VanishWhenTheyAreGivenUp) {
  {
    PendingFile file(dir / "a");
    if (named()) file.use_named_temporary();
    file.create().or_throw();
    file.write("one").or_throw();
  }
  EXPECT_THAT(dir.names(), IsEmpty());
}

TEST_P(PendingFiles, OfKilledProcessesDoNotStay) {
  for (int i = 0; i < 3; ++i) begin_in_another_process(dir / "a", named(), true);
  EXPECT_EQ(dir.names().size(), named() ? 1u : 0u);  // each one took the stale one before it away
  write_file(dir / "b", "text", named()).or_throw();
  EXPECT_THAT(dir.names(), ElementsAre("b"));
}

TEST_P(PendingFiles, OfLivingProcessesStay) {
  const pid_t other = begin_in_another_process(dir / "a", named(), false);
  write_file(dir / "a", "text", named()).or_throw();
  EXPECT_EQ(dir.names().size(), named() ? 2u : 1u);
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

TEST_P(PendingFiles, OfOthersAreLeftAlone) {
  dir.write(".ridge-notes", "mine");
  dir.write("ridge-1.part", "mine");
  std::filesystem::create_directory(dir / ".ridge-folder.part");
  std::filesystem::create_symlink(dir / "ridge-1.part", dir / ".ridge-link.part");
  write_file(dir / "a", "text", named()).or_throw();
  EXPECT_THAT(dir.names(), ElementsAre(".ridge-folder.part", ".ridge-link.part", ".ridge-notes", "a", "ridge-1.part"));
}

TEST_P(PendingFiles, TakeTheLongestNamesAndRefuseLongerOnesAtOnce) {
  const std::string longest(255, 'x'), longer(256, 'x');
  write_file(dir / longest, "text", named()).or_throw();
  EXPECT_EQ(content_of(dir / longest), "text");
  write_file(dir / longest, "again", named()).or_throw();
  EXPECT_EQ(content_of(dir / longest), "again");
  PendingFile file(dir / longer);
  if (named()) file.use_named_temporary();
  const Status refused = file.create();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("File name too long"));
}

TEST_P(PendingFiles, KeepThePermissionsOfWhatTheyReplace) {
  const auto mode_of = [](const std::filesystem::path& path) {
    struct stat facts {};
    EXPECT_EQ(::stat(path.c_str(), &facts), 0);
    return facts.st_mode & 07777;
  };
  const mode_t before = ::umask(022);
  write_file(dir / "new", "text", named()).or_throw();
  EXPECT_EQ(mode_of(dir / "new"), 0644u);
  for (const mode_t mode : {0600, 0640, 0664, 0444}) {
    ASSERT_EQ(::chmod((dir / "new").c_str(), mode), 0);
    write_file(dir / "new", "text", named()).or_throw();
    EXPECT_EQ(mode_of(dir / "new"), mode);
  }
  ::umask(before);
}

TEST_P(PendingFiles, NeverReplaceDevicesFoldersAndPipes) {
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  for (const std::filesystem::path& path : {std::filesystem::path("/dev/null"), std::filesystem::path("/dev/full"),
                                            dir / "fifo", dir.path(), std::filesystem::path("/")}) {
    PendingFile file(path);
    if (named()) file.use_named_temporary();
    EXPECT_FALSE(file.create()) << path;
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_THAT(dir.names(), ElementsAre("fifo"));
}

TEST_P(PendingFiles, SayWhyAFolderTakesNone) {
  EXPECT_THAT(write_file(dir / "none/a", "text", named()).error().message, HasSubstr("there is no folder"));
  EXPECT_THAT(write_file(dir.write("file", "x") / "a", "text", named()).error().message, HasSubstr("Not a directory"));
  if (::geteuid() == 0) return;  // root writes anywhere
  ASSERT_EQ(::chmod(dir.path().c_str(), 0500), 0);
  EXPECT_THAT(write_file(dir / "a", "text", named()).error().message, HasSubstr("Permission denied"));
  ASSERT_EQ(::chmod(dir.path().c_str(), 0700), 0);
}

TEST_P(PendingFiles, LeaveTheOldFileWhereTheDiskIsFull) {
  dir.write("a", "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const Status status = write_file(dir / "a", std::string(1 << 16, 'x'), named());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("File too large"));
  EXPECT_EQ(content_of(dir / "a"), "old");
  EXPECT_THAT(dir.names(), ElementsAre("a"));
}

TEST(PendingFileProcesses, WriteOneFileAtOnce) {
  TempDir dir;
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      bool good = true;
      for (int turn = 0; turn < 50; ++turn)
        good = good && write_file(dir / "a", std::string(1000, char('a' + i)), turn % 2 == 0);
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const std::string text = content_of(dir / "a");
  EXPECT_EQ(text, std::string(1000, text[0]));
  EXPECT_THAT(dir.names(), ElementsAre("a"));
}

}  // namespace
}  // namespace ridge::io
