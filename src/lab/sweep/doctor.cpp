#include "lab/sweep/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <sstream>

#include "base/limits.h"
#include "base/result.h"
#include "rank/mpi.h"

namespace ridge::lab {
namespace {

constexpr double kMib = 1048576, kGib = 1073741824;

Check check_build(const Surroundings& here) {
  const BuildInfo& build = here.build;
  Check check{"build", Finding::ok,
              fmt::format("ridge {} ({}), {}, {}", build.version, build.commit, build.compiler, build.build_type), ""};
  if (!here.sanitizer.empty() || build.build_type != "Release") {
    check.finding = Finding::problem;
    if (!here.sanitizer.empty()) check.what += ", " + here.sanitizer;
    check.what += ": times of this build mean nothing";
    check.advice = "cmake --preset release && cmake --build --preset release";
  } else if (build.commit.ends_with("-dirty") || build.commit == "unknown")
    check.worsen(Finding::note, ": rows will not say which source made them",
                 "commit before measuring for the record, then build again");
  return check;
}

Check check_processor(const Surroundings& here) {
  const MachineInfo& machine = here.machine;
  Check check{"processor", Finding::ok, fmt::format("{}, kernels up to {}", machine.cpu_model, machine.isa), ""};
  if (!machine.abilities.empty()) check.what += fmt::format(" (has {})", fmt::join(machine.abilities, ", "));
  if (machine.isa == "scalar")
    check.worsen(Finding::note, ": only the scalar kernels run here, far below memory bandwidth",
                 "a processor with AVX2, or with ARM's dot products (asimddp); in a virtual machine pass the host's "
                 "features on");
  return check;
}

/// Cores behind the processors, by who shares one; 0 when the kernel does not say.
int cores(const std::filesystem::path& root, int n_processors) {
  std::set<std::string> siblings;
  for (int cpu = 0; cpu < n_processors; ++cpu) {
    const std::string list =
        first_line(root / fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    if (list.empty()) return 0;
    siblings.insert(list);
  }
  return int(siblings.size());
}

Check check_threads(const Surroundings& here) {
  const int n = here.machine.n_processors;
  const int n_cores = cores(here.root, n);
  Check check{"threads", Finding::ok, fmt::format("{} processors for this process", n), ""};
  if (n_cores > 0) check.what += fmt::format(", {} cores", n_cores);
  const double quota = processor_quota(here.root);
  if (quota < 1) {
    check.worsen(Finding::problem,
                 fmt::format(", but the cgroup pays for {:.2g}: threads will be stopped in the middle of a run", quota),
                 "raise the container's CPU limit to 1 at least");
  } else if (quota < n) {
    check.worsen(
        Finding::note,
        fmt::format(", but the cgroup pays for {:.2g}: more threads are stopped in the middle of a run", quota),
        fmt::format("leave threads at {}, the default here, or raise the container's CPU limit", int(quota)));
  } else if (n_cores > 0 && n_cores < n)
    check.worsen(Finding::note, "", fmt::format("threads share cores: compare with threads set to {}", n_cores));
  return check;
}

Check check_load(const Surroundings& here) {
  constexpr double kQuiet = 0.1, kBusy = 0.5;
  Check check{"load", Finding::ok,
              fmt::format("others keep {:.2f} of {} processors busy now, load {:.2f}", here.busy_others,
                          here.machine.n_processors, here.machine.load_1min),
              ""};
  if (here.busy_others <= kQuiet) return check;
  check.worsen(here.busy_others > kBusy ? Finding::problem : Finding::note, "",
               "stop what else runs, or expect wide quartiles (every row stores the load)");
  return check;
}

Check check_clocks(const Surroundings& here) {
  const std::filesystem::path cpu = here.root / "sys/devices/system/cpu";
  const std::string governor = first_line(cpu / "cpu0/cpufreq/scaling_governor");
  const bool no_turbo = first_line(cpu / "intel_pstate/no_turbo") == "1" || first_line(cpu / "cpufreq/boost") == "0";
  if (governor.empty()) return {"clocks", Finding::ok, "set by the host; the kernel shows no governor", ""};
  Check check{"clocks", Finding::ok, fmt::format("governor {}, turbo {}", governor, no_turbo ? "off" : "on"), ""};
  if (governor == "performance") return check;
  check.worsen(Finding::note, "", "clocks rise only under load: cpupower frequency-set -g performance");
  return check;
}

Check check_timer(const Surroundings& here) {
  const std::string source = first_line(here.root / "sys/devices/system/clocksource/clocksource0/current_clocksource");
  Check check{"timer", Finding::ok, source.empty() ? "clock source unknown" : "clock source " + source, ""};
  if (source == "hpet" || source == "acpi_pm" || source == "jiffies")
    check.worsen(Finding::note, ": reading the time costs a microsecond",
                 "boot with tsc=reliable, if the processor's TSC is");
  return check;
}

Check check_memory(const Surroundings& here) {
  const MachineInfo& machine = here.machine;
  const int64_t cache = machine.last_level_cache_bytes();
  Check check{
      "memory", Finding::ok,
      fmt::format("{:.1f} GiB, {:.1f} available; last-level cache {:.0f} MiB", double(machine.memory_bytes) / kGib,
                  double(machine.available_bytes) / kGib, double(cache) / kMib),
      ""};
  if (cache == 0) {
    check.worsen(Finding::note, " (unknown)", "give bench bandwidth a size of several times the cache");
  } else if (machine.available_bytes / 8 < 4 * cache) {
    // The bench takes an eighth of what is available for a buffer.
    check.worsen(Finding::problem, ": too little for buffers of four times the cache, so reads would come from it",
                 "free memory, or run where there is more");
  }
  return check;
}

Check check_pages(const Surroundings& here) {
  const std::string setting = first_line(here.root / "sys/kernel/mm/transparent_hugepage/enabled");
  Check check{"huge pages", Finding::ok, setting.empty() ? "unknown" : setting, ""};
  if (setting.find("[never]") == std::string::npos) return check;
  check.worsen(Finding::note, ": small pages cost bandwidth",
               "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  return check;
}

/// The stream `read` of a row of bench bandwidth; null when it has none.
Row read_stream(const Row& row) {
  const auto streams = row.find("streams");
  if (streams == row.end() || !streams->is_array()) return nullptr;
  for (const Row& stream : *streams)
    if (stream.is_object() && text_in(stream, "name") == "read") return stream;
  return nullptr;
}

bool is_of(const Row& row, const MachineInfo& machine) {
  const std::string cpu = text_in(row, "cpu").empty() ? text_in(row, "cpu_info") : text_in(row, "cpu");
  const double processors = number_in(row, "processors");
  return cpu == machine.cpu_model && (std::isnan(processors) || processors == machine.n_processors) &&
         !text_in(row, "device").starts_with("cuda") && !text_in(row, "device").starts_with("hip");
}

Check check_ceilings(const Surroundings& here) {
  constexpr double kLeast = 0.5, kMost = 5000, kSpread = 0.15, kAbove = 103;
  const char* const measure = "ridge bench bandwidth --results results/bandwidth-cpu.jsonl";
  Check check{"ceilings", Finding::note, "this machine's read bandwidth is in no stored row", measure};
  if (!here.rows_trouble.empty()) return {"ceilings", Finding::problem, here.rows_trouble, "repair or remove the file"};
  const Row* newest = nullptr;
  for (const Row& row : here.rows)
    if (text_in(row, "kind") == "bandwidth" && is_of(row, here.machine) && read_stream(row).is_object() &&
        (!newest || text_in(row, "date") >= text_in(*newest, "date")))
      newest = &row;
  if (!newest) return check;
  const Row read = read_stream(*newest);
  const double median = number_in(read, "median_gb_s"), lower = number_in(read, "lower_quartile_gb_s"),
               upper = number_in(read, "upper_quartile_gb_s");
  check = {
      "ceilings", Finding::ok,
      fmt::format("read bandwidth {:.1f} GB/s ({:.1f} to {:.1f}), {}", median, lower, upper, text_in(*newest, "date")),
      ""};
  double above = 0;
  for (const Row& row : here.rows)
    if (is_of(row, here.machine) && row.value("in_cache", Row()) == Row(false) && row.contains("n_gen"))
      above = std::fmax(above, number_in(row, "pct_of_roof"));
  if (!(median >= kLeast && median <= kMost)) {
    check.worsen(Finding::problem, ": no memory reads like that", measure);
  } else if (above > kAbove) {
    check.finding = Finding::problem;
    check.what +=
        fmt::format("; a decode row is at {:.0f} % of the bandwidth of its run, which was measured too low", above);
    check.advice = "stop what else runs and measure that row again";
  } else if ((upper - lower) / median > kSpread)
    check.worsen(Finding::note, ": quartiles far apart", std::string("measure again on a quiet machine: ") + measure);
  return check;
}

Check check_program(const Surroundings& here, const char* name, const char* command, const char* serves,
                    const char* advice) {
  if (const std::optional<std::string> answer = here.ask(command)) return {name, Finding::ok, *answer, ""};
  return {name, Finding::note, fmt::format("not found: no {}", serves), advice};
}

Check check_ranks(const Surroundings& here) {
  const std::string version = mpi_version();
  if (version.empty())
    return {"ranks", Finding::note, "this build has no MPI: no --tp",
            "apt-get install libopenmpi-dev openmpi-bin, then configure and build again"};
  if (here.gpus.devices.empty()) return {"ranks", Finding::ok, version + ", of CPU ranks", ""};
  if (here.nccl.empty())
    return {"ranks", Finding::note, version + ", of CPU ranks; no NCCL for a GPU each", here.why_no_nccl};
  return {"ranks", Finding::ok, fmt::format("{}, of CPU ranks and, by NCCL {}, with a GPU each", version, here.nccl),
          ""};
}

}  // namespace

std::string_view finding_name(Finding finding) {
  return finding == Finding::ok ? "ok" : finding == Finding::note ? "note" : "problem";
}

std::vector<Check> examine(const Surroundings& here) {
  std::vector<Check> checks{check_build(here),  check_processor(here), check_threads(here),
                            check_load(here),   check_clocks(here),    check_timer(here),
                            check_memory(here), check_pages(here),     check_ceilings(here)};
  for (Check& check : examine_gpu(here)) checks.push_back(std::move(check));
  checks.push_back(check_ranks(here));
  checks.push_back(check_program(here, "matplotlib",
                                 "python3 -c 'import matplotlib as m; print(m.__version__)' 2> /dev/null || "
                                 "/usr/bin/python3 -c 'import matplotlib as m; print(m.__version__)' 2> /dev/null",
                                 "ridge report", "apt-get install --no-install-recommends python3-matplotlib"));
  checks.push_back(check_program(here, "chromium", "command -v chromium || command -v chromium-browser",
                                 "check of the report in a browser",
                                 "apt-get install --no-install-recommends chromium"));
  return checks;
}

bool is_green(const std::vector<Check>& checks) {
  return std::none_of(checks.begin(), checks.end(), [](const Check& c) { return c.finding == Finding::problem; });
}

}  // namespace ridge::lab
