#include "cli/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace ridge::cli {
namespace {

volatile std::sig_atomic_t pressed = 0, end_asked = 0;

extern "C" void on_interrupt(int) {
  pressed = 1;
  constexpr char kText[] = "\ninterrupted: ending cleanly, Ctrl-C again to kill\n";
  // What cannot be written here is not worth an error.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
}

extern "C" void on_chat_interrupt(int signal) {
  if (signal == SIGTERM) end_asked = 1;
  pressed = pressed + 1;
  if (pressed >= 3) std::signal(signal, SIG_DFL), std::raise(signal);
}

void handle(void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

// SA_RESETHAND: the second Ctrl-C meets the default, which kills.
void install_interrupt_handler() { handle(on_interrupt, SA_RESTART | int(SA_RESETHAND)); }
bool interrupted() { return pressed != 0; }
void ignore_interrupts() { handle(SIG_IGN, SA_RESTART); }

// SA_RESTART: a Ctrl-C in the middle of a write must not lose text. poll, where the input is waited for, still ends.
void install_chat_interrupts() { handle(on_chat_interrupt, SA_RESTART); }
void clear_interrupt() { pressed = end_asked; }
bool asked_to_end() { return end_asked != 0; }

}  // namespace ridge::cli
