// Ctrl-C (and SIGTERM): the first asks the running command to end cleanly with its results so far, the second kills.
#pragma once

namespace ridge::cli {

void install_interrupt_handler();
/// Whether Ctrl-C was pressed; cheap enough to ask every token.
bool interrupted();

}  // namespace ridge::cli
