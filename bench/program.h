// What the tuning programs of a device share: the device they run on, how they time, and how they end.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "gpu/device_query.h"
#include "gpu/graph.h"
#include "ridge/error.h"

namespace ridge {

/// The first device, made the current one. Throws Error(no_device) with the reason when there is none.
inline gpu::Device use_first_device() {
  const gpu::DeviceReport report = gpu::query_devices();
  if (report.devices.empty()) throw Error(ErrorKind::no_device, report.why_none);
  gpu::use_device(0);
  return report.devices[0];
}

/// Median time of n_repeats calls of launch(), microseconds on the stream; the first warms up and does not count.
template <class Launch>
double median_microseconds(const gpu::Stream& stream, int n_repeats, const Launch& launch) {
  const gpu::Event start, end;
  std::vector<double> times;
  for (int repeat = 0; repeat < n_repeats; ++repeat) {
    start.record(stream);
    launch();
    end.record(stream);
    end.synchronize();
    times.push_back(end.microseconds_since(start));
  }
  std::sort(times.begin() + 1, times.end());
  return times[times.size() / 2 + times.size() % 2];
}

/// run(arguments) as a program of this name; errors are told on stderr and become the exit code.
template <class Run>
int run_program(const char* name, const Run& run, int argc, char** argv) {
  try {
    return run(std::span(argv + 1, size_t(argc - 1)));
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return int(error.kind());
  }
}

}  // namespace ridge
