// ridge top as a program: what it asks, what it refuses, and that it leaves the terminal alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "cases/temp_dir.h"
#include "cli/run_program.h"
#include "top/fake_server.h"

namespace ridge {
namespace {

using testing::HasSubstr;
using top::FakeServer;

/// The screen decides: the counts come with the cache page and go with it.
TEST(TopCommand, OnlyTheCachePageAsksForPageCounts) {
  if (std::system("tmux -V > /dev/null 2>&1") != 0) GTEST_SKIP() << "tmux is not here";
  FakeServer server;
  const Outcome once = run_ridge({"top", server.url(), "--once"});
  EXPECT_EQ(once.code, 0) << once.err;
  EXPECT_EQ(server.by_page(), 0);
  TempDir dir;
  const auto tmux = [&](const std::string& words) {
    const std::string command = "env -u TMUX tmux -S '" + (dir.path() / "socket").native() + "' " + words;
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  };
  const int before = server.plain();
  tmux("-f /dev/null new-session -d -x 80 -y 24 \"LC_ALL=C.UTF-8 '" RIDGE_BINARY_DIR "/ridge' top " + server.url() +
       " --interval-ms 50\"");
  EXPECT_TRUE(http::wait_for([&] { return server.plain() >= before + 3; }));
  EXPECT_EQ(server.by_page(), 0);
  tmux("send-keys 3");
  EXPECT_TRUE(http::wait_for([&] { return server.by_page() >= 3; }));
  tmux("send-keys 2");
  const int shown = server.plain();
  EXPECT_TRUE(http::wait_for([&] { return server.plain() >= shown + 2; }));
  const int by_page = server.by_page();
  EXPECT_TRUE(http::wait_for([&] { return server.plain() >= shown + 5; }));
  EXPECT_EQ(server.by_page(), by_page);
  tmux("kill-server");
}

TEST(TopCommand, WithoutAServerOrATerminalItSaysSo) {
  const Outcome refused = run_ridge({"top", "127.0.0.1:9", "--once"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("cannot connect"));
  EXPECT_EQ(refused.out, "");
  const Outcome no_terminal = run_ridge({"top", "127.0.0.1:9"});
  EXPECT_EQ(no_terminal.code, 1);
  EXPECT_THAT(no_terminal.err, HasSubstr("--once"));
  EXPECT_EQ(run_ridge({"top", "ftp://x"}).code, 2);
  EXPECT_EQ(run_ridge({"top", "--interval-ms", "1"}).code, 2);
}

/// Runs under a shell of tmux: pages, a server that is not there, and the terminal afterwards.
TEST(TopCommand, InATerminalItTurnsPagesAndLeavesNoTrace) {
  if (std::system("tmux -V > /dev/null 2>&1") != 0) GTEST_SKIP() << "tmux is not here";
  TempDir dir;
  const std::string script = dir.write("drive.sh", R"(
t() { env -u TMUX tmux -S "$DIR/socket" "$@"; }
shown() { for _ in $(seq 200); do t capture-pane -p > "$DIR/screen"; grep -qF -- "$1" "$DIR/screen" && return 0; sleep 0.1; done
  echo "never shown: $1"; cat "$DIR/screen"; return 1; }
trap 't kill-server' EXIT
t -f /dev/null new-session -d -x 80 -y 24 "env LC_ALL=C.UTF-8 PS1='back> ' sh -i" || exit 9
t send-keys "'$RIDGE' top 127.0.0.1:9; echo ended \$?; stty -a | grep -o ' icanon'" Enter
shown 'trying again' && shown 'running' || exit 1
t send-keys F2; shown 'no cache yet' || exit 2
t send-keys 4; shown 'no pool yet' || exit 3
t send-keys 1; shown 'Type a message' || exit 4
t send-keys q1; shown '> q1' || exit 5
t resize-window -x 40 -y 10; shown '> q1' || exit 6
t send-keys C-c; shown 'ended 0' && shown ' icanon' && shown 'back>' || exit 7
if grep -q 'trying again' "$DIR/screen"; then echo "the screen was not given back"; exit 8; fi
)")
                                 .native();
  const std::string command =
      "DIR='" + dir.path().native() + "' RIDGE='" RIDGE_BINARY_DIR "/ridge' bash '" + script + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace ridge
