#include "lab/model/profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "gpu/kernel_times.h"
#include "gpu/launch_log.h"
#include "lab/op/ceilings.h"

namespace ridge::lab {

double ProfiledStep::parts_us() const {
  return std::accumulate(calls.begin(), calls.end(), 0.0, [](double sum, const OpCall& c) { return sum + c.us; });
}

double ProfileCeilings::gop_s(const ProfilePart& part) const {
  for (const std::string_view integers : {"panel", "ternary", "int_gemv"})
    if (part.kernel.starts_with(integers)) return int8_gop_s;
  return float_gop_s;
}

std::string_view part_bound(const ProfilePart& part, const ProfileCeilings& ceilings) {
  const double moved = double(part.work.read_bytes + part.work.write_bytes);
  const double memory_us = ceilings.read_gb_s > 0 ? moved / ceilings.read_gb_s * 1e-3 : 0,
               compute_us = ceilings.gop_s(part) > 0 ? double(part.work.flops) / ceilings.gop_s(part) * 1e-3 : 0;
  if (std::max(memory_us, compute_us) < kExplainedShare * part.us) return "latency";
  return memory_us >= compute_us ? "memory" : "compute";
}

Attribution attribute(const std::vector<ProfiledStep>& steps) {
  Attribution a;
  if (steps.empty()) return a;
  std::vector<const ProfiledStep*> sorted;
  std::vector<double> durations;
  for (const ProfiledStep& step : steps) {
    sorted.push_back(&step);
    durations.push_back(step.us);
  }
  const Spread all = spread(durations);
  a.median_us = all.median;
  a.lower_us = all.lower;
  a.upper_us = all.upper;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* x, const auto* y) { return x->us < y->us; });
  if (sorted.size() >= 4) {
    const size_t cut = sorted.size() / 4;
    sorted = {sorted.begin() + ptrdiff_t(cut), sorted.end() - ptrdiff_t(cut)};
  }
  a.n_steps = int(sorted.size());
  const double each = 1.0 / a.n_steps;

  std::map<std::tuple<std::string, std::string, std::string>, ProfilePart> parts;
  for (const ProfiledStep* step : sorted) {
    a.step_us += step->us * each;
    for (const OpCall& call : step->calls) {
      ProfilePart& part = parts[{std::string(call.op), call.what, std::string(call.kernel)}];
      part.op = call.op;
      part.what = call.what;
      part.kernel = call.kernel;
      part.calls += each;
      part.us += call.us * each;
      part.work += call.work;  // of all steps, divided below
      part.counters += call.counters;
    }
  }
  for (auto& [key, part] : parts) {
    for (int64_t* sum : {&part.work.read_bytes, &part.work.write_bytes, &part.work.flops, &part.counters.cycles,
                         &part.counters.instructions, &part.counters.cache_misses})
      *sum /= a.n_steps;
    a.parts_us += part.us;
    a.calls += part.calls;
    a.work += part.work;
    a.parts.push_back(part);
  }
  std::stable_sort(a.parts.begin(), a.parts.end(), [](const auto& x, const auto& y) { return x.us > y.us; });
  return a;
}

Result<std::vector<ProfiledStep>> device_steps(const gpu::LaunchLog& log, const std::vector<gpu::KernelTime>& times) {
  if (log.launches.size() != times.size())
    return fail(ErrorKind::failure,
                "{} kernels were launched and {} were timed: they cannot be matched (is another program's profiler "
                "attached?)",
                log.launches.size(), times.size());
  std::vector<ProfiledStep> steps;
  int last_op = -1;
  size_t longest = 0;  // call of the op; it has the op's work, so that rates are those of the kernel that does it
  for (size_t i = 0; i < times.size(); ++i) {
    const gpu::LoggedLaunch& launch = log.launches[i];
    const gpu::LoggedOp op = launch.op < 0 ? gpu::LoggedOp{.op = "other"} : log.ops[size_t(launch.op)];
    const bool first_of_op = launch.op < 0 || launch.op != last_op;
    last_op = launch.op;
    const double end_before = i == 0 ? times[0].start_us : times[i - 1].end_us;
    if (op.op == "embed" && first_of_op) steps.push_back({.start_us = end_before, .us = 0});
    if (steps.empty()) continue;
    // Kernels that overlap count from where the one before ended, so that parts add up.
    const double start = std::max(times[i].start_us, end_before), end = std::max(start, times[i].end_us);
    std::vector<OpCall>& calls = steps.back().calls;
    calls.push_back({.op = op.op,
                     .what = op.what,
                     .kernel = launch.kernel,
                     .layer = op.layer,
                     .start_us = start,
                     .us = end - start});
    if (first_of_op) {
      longest = calls.size() - 1;
      calls.back().work = {op.read_bytes, op.write_bytes, op.flops};
    } else if (calls.back().us > calls[longest].us) {
      std::swap(calls.back().work, calls[longest].work);
      longest = calls.size() - 1;
    }
    steps.back().us = end - steps.back().start_us;
  }
  if (!steps.empty()) steps.erase(steps.begin());
  return steps;
}

Row trace_events(const ProfiledStep& step, std::string_view title) {
  Row events = Row::array();
  const auto add = [&](const std::string& name, int thread, double start, double us, Row args) {
    events.push_back({{"name", name},
                      {"ph", "X"},
                      {"pid", 1},
                      {"tid", thread},
                      {"ts", start - step.start_us},
                      {"dur", us},
                      {"args", std::move(args)}});
  };
  const auto label = [&](std::string_view kind, int thread, std::string_view name) {
    Row event{{"name", kind}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", name}}}};
    if (thread > 0) event["tid"] = thread;
    events.push_back(event);
  };
  label("process_name", 0, title);
  label("thread_name", 1, "layers");
  label("thread_name", 2, "ops");
  for (size_t i = 0; i < step.calls.size();) {
    size_t end = i + 1;
    while (end < step.calls.size() && step.calls[end].layer == step.calls[i].layer) ++end;
    const OpCall &first = step.calls[i], &last = step.calls[end - 1];
    if (first.layer >= 0)
      add(fmt::format("layer {}", first.layer), 1, first.start_us, last.start_us + last.us - first.start_us,
          Row::object());
    i = end;
  }
  for (const OpCall& c : step.calls) {
    const double bytes = double(c.work.read_bytes + c.work.write_bytes);
    add(c.what.empty() ? std::string(c.op) : fmt::format("{} {}", c.op, c.what), 2, c.start_us, c.us,
        {{"kernel", c.kernel},
         {"read_bytes", c.work.read_bytes},
         {"write_bytes", c.work.write_bytes},
         {"flops", c.work.flops},
         {"gb_s", number(c.us > 0 ? bytes / c.us * 1e-3 : NAN)}});
  }
  return {{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}};
}

}  // namespace ridge::lab
