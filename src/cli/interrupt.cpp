#include "cli/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace ridge::cli {
namespace {

volatile std::sig_atomic_t pressed = 0;

extern "C" void on_interrupt(int) {
  pressed = 1;
  constexpr char kText[] = "\ninterrupted: ending cleanly, Ctrl-C again to kill\n";
  // What cannot be written here is not worth an error.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  // SA_RESETHAND: the second Ctrl-C meets the default, which kills.
  action.sa_flags = SA_RESTART | int(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return pressed != 0; }

}  // namespace ridge::cli
