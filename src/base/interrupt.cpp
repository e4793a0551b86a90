#include "base/interrupt.h"

#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "base/result.h"

namespace ridge {
namespace {

volatile std::sig_atomic_t pressed = 0, end_asked = 0, is_silent = 0;
termios shown_typing;  // the terminal as it was, while is_silent

extern "C" void on_interrupt(int) {
  pressed = 1;
  constexpr char kText[] = "\ninterrupted: ending cleanly, Ctrl-C again to kill\n";
  // Ignores a failed write: it is not worth an error.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
}

extern "C" void on_chat_interrupt(int signal) {
  if (signal == SIGTERM) end_asked = 1;
  pressed = pressed + 1;
  if (pressed < 3) return;
  if (is_silent) tcsetattr(STDIN_FILENO, TCSADRAIN, &shown_typing);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
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

// A Ctrl-C that comes just before the wait, or in another thread, does not end the wait: hence the looks in between.
bool wait_for_input(int descriptor) {
  constexpr int kLookMs = 100;
  pollfd input{.fd = descriptor, .events = POLLIN, .revents = 0};
  while (!interrupted())
    if (poll(&input, 1, kLookMs) > 0) return true;
  return false;
}

int exit_code_of(bool done) {
  if (!done) return int(ErrorKind::interrupted);
  // Once: the next one would kill.
  if (std::exchange(pressed, 0) != 0)
    fmt::print(stderr, "the interruption came after the work was done: nothing is missing\n");
  return 0;
}

void ignore_interrupts() { handle(SIG_IGN, SA_RESTART); }

// SA_RESTART: a Ctrl-C in the middle of a write must not lose text. poll, where the input is waited for, still ends.
void install_chat_interrupts() { handle(on_chat_interrupt, SA_RESTART); }

SilentTyping::SilentTyping() {
  // A job in the background may not change the terminal: it would be stopped.
  if (tcgetattr(STDIN_FILENO, &shown_typing) != 0 || tcgetpgrp(STDIN_FILENO) != getpgrp()) return;
  termios silent = shown_typing;
  // Without lines of its own the terminal keeps a Ctrl-D and half a line for the next read.
  silent.c_lflag &= ~tcflag_t(ECHO | ICANON);
  silent.c_lflag |= NOFLSH;  // nor does a Ctrl-C lose it
  is_silent = 1;
  tcsetattr(STDIN_FILENO, TCSADRAIN, &silent);
}
SilentTyping::~SilentTyping() {
  if (is_silent) tcsetattr(STDIN_FILENO, TCSADRAIN, &shown_typing);
  is_silent = 0;
}

void clear_interrupt() { pressed = end_asked; }
bool asked_to_end() { return end_asked != 0; }

}  // namespace ridge
