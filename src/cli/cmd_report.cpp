// ridge report: hands stored rows to tools/report/report.py, which draws them. Nothing is measured here.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/result.h"
#include "cli/report.h"

namespace ridge::cli {
namespace {

constexpr int kNotFound = 127;  // the exit code of shells for a missing program

struct ReportFlags {
  std::vector<std::string> results;
  std::string out = "report";
  OutputFlags output;
};

/// The script: beside an installed program, or in the source tree that this program was built from.
std::filesystem::path report_script() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path places[] = {program.parent_path().parent_path() / "share/ridge/report/report.py",
                                          RIDGE_SOURCE_DIR "/tools/report/report.py"};
  for (const std::filesystem::path& place : places)
    if (std::filesystem::is_regular_file(place, error)) return place;
  throw Error(ErrorKind::no_device,
              four_parts("cannot draw a report", places[1].native(), "the script is not there, nor in share/ridge",
                         "keep the source tree, or cmake --install build/release"));
}

/// Runs a program found on PATH and waits for it; its exit code.
int run_to_end(const std::vector<std::string>& args) {
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw Error(ErrorKind::failure, four_parts("cannot start", args[0], std::strerror(errno), ""));
  if (child == 0) {
    ::execvp(argv[0], argv.data());
    ::_exit(kNotFound);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      throw Error(ErrorKind::failure, four_parts("cannot wait for", args[0], std::strerror(errno), ""));
  if (WIFSIGNALED(status)) return int(WTERMSIG(status) == SIGINT ? ErrorKind::interrupted : ErrorKind::failure);
  if (WEXITSTATUS(status) == kNotFound)
    throw Error(ErrorKind::no_device, four_parts("cannot draw a report", args[0], "the program is not installed",
                                                 "apt-get install --no-install-recommends python3-matplotlib"));
  return WEXITSTATUS(status);
}

std::vector<std::string> report_call(const std::string& out, const OutputFlags& output) {
  std::vector<std::string> args{"python3", report_script().native(), "-o", out};
  if (output.json) args.emplace_back("--json");
  if (output.quiet) args.emplace_back("--quiet");
  return args;
}

int report(ReportFlags flags) {
  if (flags.results.empty()) {
    if (!std::filesystem::is_directory("results"))
      bad_flag("--results", "no rows are named and there is no directory results here",
               "name files or directories of rows");
    flags.results.emplace_back("results");
  }
  std::vector<std::string> args = report_call(flags.out, flags.output);
  // One word each: a name that begins with a dash stays a name.
  for (const std::string& path : flags.results) args.push_back("--results=" + path);
  return run_to_end(args);
}

}  // namespace

int draw_decision(const std::string& record, const std::string& out, const OutputFlags& output) {
  std::vector<std::string> args = report_call(out, output);
  args.push_back("--decision=" + record);
  return run_to_end(args);
}

static Action declare_report(CLI::App& app) {
  const auto flags = std::make_shared<ReportFlags>();
  ReportFlags& f = *flags;
  add_repeatable(app, "--results", f.results, "PATH", "a .jsonl file of rows or a directory of them; default: results");
  add_text(app, "-o,--out", f.out, "DIR", "directory for the report");
  add_output_flags(app, f.output, false);
  return [flags] { return report(*flags); };
}

extern const Command report_command = {
    "report", "stored rows as figures and one page",
    R"(Draws CSV, SVG and PNG files and index.html, one page that needs no network: ceilings, roofline, where a step
spends its time, speed by batch and depth, quality against bytes, and the row behind every figure. Measures
nothing and needs no GPU. Rows whose check failed or is not recorded are in no figure; the page counts them.
Needs python3-matplotlib (exit code 6 without).)",
    R"(ridge report -o report
ridge report --results results --results lab.jsonl -o report)",
    declare_report};

}  // namespace ridge::cli
