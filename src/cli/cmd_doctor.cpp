// ridge doctor: is this machine fit to measure on?
#include <memory>

#include "cli/options.h"
#include "lab/sweep/doctor.h"

namespace ridge::cli {
namespace {

struct DoctorFlags {
  std::vector<std::string> results;
  OutputFlags output;
};

std::string verdict(const std::vector<lab::Check>& checks) {
  std::string problems;
  int notes = 0;
  for (const lab::Check& check : checks) {
    if (check.finding == lab::Finding::problem) problems += (problems.empty() ? "" : ", ") + check.name;
    notes += check.finding == lab::Finding::note;
  }
  const std::string ending = fmt::format("{} checks, {} note{}", checks.size(), notes, notes == 1 ? "" : "s");
  return problems.empty() ? "GREEN: " + ending : fmt::format("NOT GREEN ({}): {}", problems, ending);
}

void print_json(const std::vector<lab::Check>& checks) {
  lab::Row row{{"kind", "doctor"}, {"green", lab::is_green(checks)}, {"checks", lab::Row::array()}};
  for (const lab::Check& check : checks)
    row["checks"].push_back({{"name", check.name},
                             {"finding", lab::finding_name(check.finding)},
                             {"what", check.what},
                             {"advice", check.advice}});
  row.update(lab::provenance(0, 0));
  fmt::print("{}\n", lab::json_text(row, 2));
}

int doctor(const DoctorFlags& flags) {
  std::vector<std::filesystem::path> results(flags.results.begin(), flags.results.end());
  if (results.empty() && std::filesystem::is_directory("results")) results.emplace_back("results");
  const std::vector<lab::Check> checks = lab::examine(lab::look_around(results));
  if (flags.output.json) {
    print_json(checks);
  } else {
    for (const lab::Check& check : checks)
      if (!flags.output.quiet || check.finding != lab::Finding::ok)
        fmt::print("{:<8} {:<13} {}{}\n", lab::finding_name(check.finding), check.name, check.what,
                   check.advice.empty() ? "" : " -> " + check.advice);
    fmt::print("{}\n", verdict(checks));
  }
  return lab::is_green(checks) ? 0 : int(ErrorKind::failure);
}

}  // namespace

static Action declare_doctor(CLI::App& app) {
  const auto flags = std::make_shared<DoctorFlags>();
  add_repeatable(app, "--results", flags->results, "PATH",
                 "rows of earlier runs: a .jsonl file or a directory; default: results");
  add_output_flags(app, flags->output, false);
  return [flags] { return doctor(*flags); };
}

extern const Command doctor_command = {
    "doctor", "is this machine fit to measure on",
    R"(One line a check: ok, a note (worth knowing, or optional) or a problem (figures would be wrong, or a run would
fail), with the remedy. Build, processor, threads, load, clocks, memory, ceilings in the stored rows, GPU and
driver, optional programs. Prints GREEN, or lists the problems and exits with 1.)",
    R"(ridge doctor
ridge doctor --results results --json)",
    declare_doctor};

}  // namespace ridge::cli
