// A command of the program: one cmd_*.cpp file, which has its row, and a name in list.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace ridge::cli {

/// Runs after parsing; returns the exit code. Errors are thrown.
using Action = std::function<int()>;

/// Use of an MPI job's processes by a command that has --tp.
enum class RankUse : uint8_t {
  led,              ///< the first rank runs it, the others follow (engine/lead.h)
  led_for_clients,  ///< the same; between passes the first rank may wait for clients or people without a limit
  each,             ///< every rank runs it: the op between ranks is all that it does
};

struct Command {
  std::string_view name;     ///< words nest: "bench decode" is `decode` inside the group `bench`
  std::string_view summary;  ///< one line
  std::string_view details;  ///< what it does and prints, for --help; line breaks are blanks
  std::string_view example;  ///< command lines to copy
  /// Declares the flags on `app`; the action owns the values they are stored in.
  Action (*declare)(CLI::App& app);
  RankUse ranks = RankUse::led;
};

struct Group {
  std::string_view name;
  std::string_view summary;
};

/// Every command, in the order help lists them.
std::span<const Command> commands();
/// The words that hold nested commands.
std::span<const Group> groups();

}  // namespace ridge::cli
