// Runs the built program and collects what it says.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cases/paths.h"
#include "cases/temp_dir.h"

namespace ridge {

inline constexpr const char* kTinyModel = RIDGE_SOURCE_DIR "/models/stories260K.gguf";

struct Outcome {
  int code = -1;    ///< exit code; 128 + n when killed by signal n
  std::string out;  ///< stdout
  std::string err;  ///< stderr
};

struct RunOptions {
  std::string input;                              ///< stdin
  std::vector<std::string> env;                   ///< "NAME=value" each, added to the environment
  std::string out_path;                           ///< stdout goes there when set
  bool one_output = false;                        ///< stderr goes where stdout goes
  std::function<void(pid_t)> while_running = {};  ///< called once after the start
  int limit_s = 120;
  std::string program = RIDGE_BINARY_DIR "/ridge";
};

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The words of a command line; each word {} is the next of `values`.
inline std::vector<std::string> words(std::string_view line, std::initializer_list<std::string> values = {}) {
  std::istringstream text{std::string(line)};
  std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
  auto value = values.begin();
  for (std::string& word : words)
    if (word == "{}") word = *value++;
  return words;
}

/// Runs `ridge args...`; a run over the limit is killed and reads as 128 + 9.
inline Outcome run_ridge(const std::vector<std::string>& args, const RunOptions& options = {}) {
  TempDir dir;
  const std::string& program = options.program;
  const std::string in = dir.write("in", options.input).native();
  const std::string out = options.out_path.empty() ? (dir / "out").native() : options.out_path;
  const std::string err = (dir / "err").native();
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) {
    const auto redirect = [](const std::string& path, int flags, int target) {
      const int fd = open(path.c_str(), flags, 0600);
      if (fd < 0 || dup2(fd, target) < 0) _exit(125);
    };
    redirect(in, O_RDONLY, 0);
    redirect(out, O_WRONLY | O_CREAT, 1);
    if (options.one_output) dup2(1, 2);
    else redirect(err, O_WRONLY | O_CREAT, 2);
    for (const std::string& variable : options.env) putenv(const_cast<char*>(variable.c_str()));
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    execv(program.c_str(), argv.data());
    _exit(126);
  }
  if (options.while_running) options.while_running(pid);
  int status = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.limit_s);
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), options.out_path.empty() ? slurp(out) : "",
          slurp(err)};
}

}  // namespace ridge
