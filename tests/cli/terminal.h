// Runs the built program on a pseudo-terminal and types.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>

#include <chrono>
#include <thread>

#include "cli/run_program.h"

namespace ridge {

/// The program on a terminal of its own.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& args, const std::string& state) {
    pid_ = forkpty(&fd_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    setenv("XDG_STATE_HOME", state.c_str(), 1);
    setenv("TERM", "xterm", 1);
    const std::string program = RIDGE_BINARY_DIR "/ridge";
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    execv(program.c_str(), argv.data());
    _exit(126);
  }
  ~Terminal() {
    if (running_) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    close(fd_);
  }

  void type(const std::string& keys) { ASSERT_EQ(write(fd_, keys.data(), keys.size()), ssize_t(keys.size())); }
  /// Reads until `text` has come; false after a minute or at the end of the program.
  bool wait_for(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (size_t at; std::chrono::steady_clock::now() < deadline;) {
      if ((at = screen_.find(text, seen_)) != screen_.npos) {
        seen_ = at + text.size();
        return true;
      }
      pollfd readable{.fd = fd_, .events = POLLIN, .revents = 0};
      if (poll(&readable, 1, 100) <= 0) continue;
      char buffer[4096];
      const ssize_t n = read(fd_, buffer, sizeof buffer);
      if (n <= 0) return false;
      screen_.append(buffer, size_t(n));
    }
    return false;
  }
  /// The exit code of a program that ends by itself. One that does not is killed: 128 + 9.
  int wait_for_end() {
    wait_for(std::string(1, '\0'));
    int status = 0;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) kill(pid_, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    running_ = false;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// Waits for the prompt, ends the input there and gives the exit code.
  int finish() {
    EXPECT_TRUE(wait_for("> ")) << screen_;
    type("\x04");
    return wait_for_end();
  }
  const std::string& screen() const { return screen_; }

 private:
  int fd_ = -1;
  pid_t pid_ = 0;
  size_t seen_ = 0;
  std::string screen_;
  bool running_ = true;
};

}  // namespace ridge
