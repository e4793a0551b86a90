// Plan of a sweep: the cells to measure, those already stored, and about how long the rest takes.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "base/build_info.h"
#include "engine/device_name.h"
#include "engine/kv_choice.h"
#include "engine/kv_options.h"
#include "gpu/device_query.h"
#include "io/mapped_file.h"
#include "lab/rows/machine.h"
#include "lab/sweep/sweep.h"
#include "model/weights.h"

namespace ridge::lab {
namespace {

// For estimates only; rows hold measured bandwidth.
constexpr double kCpuGbS = 20, kGpuGbS = 1500;
constexpr double kSampleSeconds = 2e-3;  // the least a sample takes
constexpr double kCeilingSeconds = 3;    // memory bandwidth is measured once a comparison
constexpr double kLoadGbS = 0.5;         // making a model or buffers

std::string program_hash() {
  constexpr uint64_t kMaxProgramBytes = uint64_t(1) << 32;
  const auto text = io::read_text_file("/proc/self/exe", kMaxProgramBytes);
  return text ? fmt::format("{:016x}", XXH64(text->data(), text->size(), 0)) : "unknown";
}

double work_bytes(const Work& work) { return double(work.read_bytes + work.write_bytes); }

/// Bytes that a decode step in the middle of the cell reads: weights, and the cache of every layer.
std::optional<double> decode_read_bytes(const SweepCell& cell) {
  constexpr std::string_view kSynth = "synth:";
  if (!cell.model.starts_with(kSynth)) return std::nullopt;
  const SynthPlan plan = plan_synth_model(std::string_view(cell.model).substr(kSynth.size())).or_throw();
  const KvChoice kv = parse_kv_choice(cell.format).or_throw();
  return double(plan.decode_matrix_bytes() + kv_row_bytes(session_options(kv, cell.depth + cell.n_gen, 1),
                                                          make_plan(plan.config), cell.depth + (cell.n_gen + 1) / 2));
}

double estimated_seconds(const SweepSpec& spec, const SweepTarget& target, const PlannedCell& planned) {
  const bool on_cpu = target.device == "cpu";
  const double call = planned.read_bytes.value_or(1e9) / 1e9 / (on_cpu ? kCpuGbS : kGpuGbS);
  if (planned.cell.is_decode())
    return call * planned.cell.n_gen * (spec.repeats + 1) + 2 * planned.read_bytes.value_or(1e9) / 1e9;
  const double cache_bytes = on_cpu ? double(machine_info().last_level_cache_bytes()) : 1e8;
  const double buffers = std::max(4 * cache_bytes, 2 * call * 1e9);
  return std::min(spec.max_seconds, spec.samples * std::max(kSampleSeconds, 2 * call)) +
         (on_cpu ? buffers / 1e9 / kLoadGbS : 0.5);
}

Row without_build(Row cell) {
  cell.erase("build");
  return cell;
}

}  // namespace

std::string build_identity() {
  const std::string commit(build_info().commit);
  if (commit != "unknown" && !commit.ends_with("-dirty")) return commit;
  static const std::string hash = program_hash();
  return commit + "+" + hash;
}

int SweepPlan::n_left() const {
  return int(std::count_if(cells.begin(), cells.end(), [](const PlannedCell& c) { return !c.is_done; }));
}
double SweepPlan::seconds_left() const {
  double seconds = 0;
  std::string comparison;
  for (const PlannedCell& c : cells) {
    if (c.is_done) continue;
    if (c.cell.comparison() != comparison) seconds += kCeilingSeconds;
    comparison = c.cell.comparison();
    seconds += c.seconds;
  }
  return seconds;
}

SweepPlan plan_sweep(const SweepSpec& spec, const SweepTarget& target, std::span<const Row> stored) {
  SweepPlan plan;
  plan.target = target;
  Row place{{"seed", spec.seed}, {"device", target.device}};
  if (const std::optional<int> device = parse_device(target.device)) {
    const gpu::DeviceReport report = gpu::query_devices();
    if (size_t(*device) >= report.devices.size())
      throw Error(ErrorKind::no_device, four_parts("device is not available", target.device, report.why_none, ""));
    plan.target.device = gpu::device_text(*device);
    plan.target.n_threads = 0;
    place["device"] = gpu::kDeviceWord;
    place["device_name"] = report.devices[size_t(*device)].name;
    place["n_threads"] = 0;
  } else {
    const MachineInfo machine = machine_info();
    if (plan.target.n_threads == 0) plan.target.n_threads = machine.n_threads;
    if (plan.target.isa.empty()) plan.target.isa = machine.isa;
    place["device_name"] = machine.cpu_model;
    place["n_threads"] = plan.target.n_threads;
    place["isa"] = plan.target.isa;
  }
  place["build"] = build_identity();

  std::map<std::string, bool> done;
  std::map<std::string, double> took;  // [cell, of any build]
  for (const Row& row : stored) {
    const auto cell = row.find("cell");
    if (cell == row.end() || !cell->is_object() || row_state(row) != "done") continue;
    done[cell_key(row)] = true;
    if (const double seconds = number_in(row, "cell_seconds"); !std::isnan(seconds))
      took[cell_key({{"cell", without_build(*cell)}})] = seconds;
  }
  for (const SweepCell& cell : spec.cells) {
    PlannedCell planned{.cell = cell, .identity = cell.fields()};
    planned.identity.update(place);
    planned.is_done = done.contains(cell_key({{"cell", planned.identity}}));
    planned.read_bytes =
        cell.is_decode() ? decode_read_bytes(cell) : std::optional(work_bytes(op_work(op_problem(spec, cell))));
    const auto known = took.find(cell_key({{"cell", without_build(planned.identity)}}));
    planned.seconds = known != took.end() ? known->second : estimated_seconds(spec, plan.target, planned);
    plan.cells.push_back(std::move(planned));
  }
  return plan;
}

}  // namespace ridge::lab
