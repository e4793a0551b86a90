// Help: complete, on stdout, and its outline is what docs and users rely on.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cases/paths.h"
#include "cli/command.h"
#include "cli/run_program.h"

namespace ridge {
namespace {

using testing::HasSubstr;

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  std::istringstream stream{std::string(name)};
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// The flags of a help text, one a line, as declared: "-m,--model MODEL (required)".
std::string outline(const std::string& help) {
  std::string text;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  -") && !line.starts_with("  IN ") && !line.starts_with("  OUT ") &&
        !line.starts_with("  OP ") && !line.starts_with("  SPEC "))
      continue;
    text += line.substr(2, line.find("  ", 2) - 2) + "\n";
  }
  return text;
}

TEST(Help, OutlineIsTheGoldenOne) {
  std::string found;
  for (const cli::Command& command : cli::commands()) {
    std::vector<std::string> args = words_of(command.name);
    args.push_back("--help");
    found += fmt::format("ridge {}: {}\n{}\n", command.name, command.summary, outline(run_ridge(args).out));
  }
  const std::string golden = RIDGE_SOURCE_DIR "/tests/golden/cli_help.txt";
  if (std::getenv("RIDGE_UPDATE_GOLDEN")) std::ofstream(golden) << found;
  EXPECT_EQ(found, slurp(golden)) << "changed on purpose? RIDGE_UPDATE_GOLDEN=1 rewrites " << golden;
}

TEST(Help, RootListsEveryCommandAndTheExitCodes) {
  const Outcome outcome = run_ridge({"--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  for (const cli::Command& command : cli::commands())
    EXPECT_THAT(outcome.out, HasSubstr(fmt::format("  {} ", command.name)));
  EXPECT_THAT(outcome.out, HasSubstr("130 interrupted"));
}

TEST(Help, TheWordHelpIsTheFlag) {
  const auto help = [](std::vector<std::string> args) {
    const Outcome outcome = run_ridge(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(help({"help"}), help({"--help"}));
  EXPECT_EQ(help({"help", "run"}), help({"run", "--help"}));
  EXPECT_EQ(help({"help", "eval", "ppl"}), help({"eval", "ppl", "--help"}));
  EXPECT_EQ(help({"eval", "help", "ppl"}), help({"eval", "ppl", "--help"}));
  EXPECT_EQ(help({"bench", "help"}), help({"bench", "--help"}));
}

TEST(Help, EveryCommandShowsUsageAndAnExampleOfItself) {
  for (const cli::Command& command : cli::commands()) {
    std::vector<std::string> args = words_of(command.name);
    args.push_back("--help");
    const Outcome outcome = run_ridge(args);
    EXPECT_EQ(outcome.code, 0) << command.name;
    EXPECT_THAT(outcome.out, HasSubstr(fmt::format("Usage: ridge {}", command.name)));
    EXPECT_THAT(outcome.out, HasSubstr(fmt::format("  ridge {}", command.name)));
    EXPECT_THAT(outcome.out, HasSubstr("--json"));
    EXPECT_THAT(outcome.out, HasSubstr("--quiet"));
  }
}

TEST(Help, LinesFitATerminal) {
  for (const cli::Command& command : cli::commands()) {
    std::vector<std::string> args = words_of(command.name);
    args.push_back("--help");
    std::istringstream lines(run_ridge(args).out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 132u) << line;
  }
}

TEST(Help, VersionNamesTheCommitAndTheCompiler) {
  const Outcome outcome = run_ridge({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out,
              testing::MatchesRegex("ridge [0-9.]+ \\([^,]+, [^,]+, [^,]+, (CUDA (yes|no)|HIP for gfx[^,]*)\\)\n"));
}

}  // namespace
}  // namespace ridge
