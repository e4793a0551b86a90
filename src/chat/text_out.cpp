#include "chat/text_out.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace ridge::chat {
namespace {

bool is_open = false;  // the last line of the text

bool outputs_are_one() {
  struct stat out {
  }, err{};
  return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
         out.st_ino == err.st_ino;
}

}  // namespace

void write_text(std::string_view text) {
  if (text.empty()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  is_open = !text.ends_with('\n');
}

void end_text(bool on_stderr) {
  if (!std::exchange(is_open, false)) return;
  if (isatty(STDOUT_FILENO)) {
    std::fputc('\n', stdout);
    std::fflush(stdout);
  } else if (on_stderr && (isatty(STDERR_FILENO) || outputs_are_one())) {
    std::fputc('\n', stderr);
  }
}

}  // namespace ridge::chat
