// Ctrl-C (and SIGTERM): the first asks the running command to end cleanly with its results so far, the second kills. In
// a conversation it ends one answer.
#pragma once

namespace ridge {

void install_interrupt_handler();
/// Whether Ctrl-C was pressed; cheap enough to ask every token.
bool interrupted();
/// Until stdin, or another file, can be read without waiting, or is at its end; false on Ctrl-C.
bool wait_for_input(int descriptor = 0);

/// The exit code of work that is done, or that Ctrl-C cut: 0 or 130. Says on stderr where Ctrl-C came too late to cut
/// anything.
int exit_code_of(bool done);

/// From here on neither Ctrl-C nor SIGTERM does anything: another process says when this one ends.
void ignore_interrupts();
/// From here on Ctrl-C, and SIGTERM, say nothing, and a poll that waits returns EINTR; the third Ctrl-C that nobody
/// looked at kills.
void install_chat_interrupts();
/// While it lives a terminal on stdin keeps what is typed for the next read and shows none of it; Ctrl-C works. Nothing
/// happens where stdin is no terminal. One at a time.
class SilentTyping {
 public:
  SilentTyping();
  ~SilentTyping();
  SilentTyping(const SilentTyping&) = delete;
  SilentTyping& operator=(const SilentTyping&) = delete;
};
/// Forgets Ctrl-C, but not SIGTERM.
void clear_interrupt();
/// Whether SIGTERM came: the program shall end.
bool asked_to_end();

}  // namespace ridge
