// Whether this machine is fit to measure on: one line a check, each with what to do about it.
//
// A problem makes figures wrong or a run fail; a note is worth knowing, or optional. look_around() reads the machine;
// examine() only judges the facts it gets, so that tests can give it simulated machines.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/build_info.h"
#include "gpu/device_query.h"
#include "lab/rows/machine.h"
#include "lab/rows/results.h"

namespace ridge::lab {

enum class Finding : uint8_t { ok, note, problem };
std::string_view finding_name(Finding finding);

struct Check {
  std::string name;
  Finding finding = Finding::ok;
  std::string what;
  std::string advice;  ///< what to do; empty when nothing need be done

  /// Finds worse: more of what there is, and what to do about it.
  void worsen(Finding found, std::string_view more, std::string what_to_do) {
    finding = found;
    what += more;
    advice = std::move(what_to_do);
  }
};

/// Facts about the machine that checks are made from.
struct Surroundings {
  std::filesystem::path root = "/";  ///< has proc/ and sys/
  /// First line that a shell command prints; nothing when it fails or prints nothing.
  std::function<std::optional<std::string>(const std::string& command)> ask;
  MachineInfo machine;
  BuildInfo build;
  std::string sanitizer;   ///< this program was built with; empty for none
  double busy_others = 0;  ///< processors that other processes kept busy while nothing of ours ran
  gpu::DeviceReport gpus;
  std::string why_no_links;  ///< of several GPUs: gpu::why_no_links()
  std::string nccl;          ///< its version; empty where it cannot be used ...
  std::string why_no_nccl;   ///< ... and why
  std::vector<Row> rows;     ///< of earlier runs, on any machine
  std::string rows_trouble;  ///< why some could not be read
};

/// Reads the machine; takes a third of a second, to see what else runs. `results`: files of rows, or directories of
/// them.
Surroundings look_around(const std::vector<std::filesystem::path>& results);

/// Every check, in the order they are shown.
std::vector<Check> examine(const Surroundings& here);

/// Those of GPUs: device, driver, clocks, MIG, counters, toolkit; one line where there is no GPU.
std::vector<Check> examine_gpu(const Surroundings& here);

/// No check found a problem.
bool is_green(const std::vector<Check>& checks);

}  // namespace ridge::lab
