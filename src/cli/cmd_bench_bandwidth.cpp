// ridge bench bandwidth: the memory ceilings of the machine, or of a GPU.
#include <memory>

#include "base/interrupt.h"
#include "cli/options.h"
#include "engine/device_name.h"
#include "lab/op/ceilings.h"
#include "lab/op/device_ceilings.h"
#include "lab/rows/gpu_state.h"
#include "lab/rows/machine.h"

namespace ridge::cli {
namespace {

struct BandwidthFlags {
  ModelFlags device;
  OutputFlags output;
  int size_mib = 0;
  int repeats = 21;
};

void print_bandwidths(const lab::Bandwidths& b, double read_gb_s, std::string_view cache_unit) {
  fmt::print("buffers of {} MiB ({})\n\n", b.size.bytes >> 20, b.size.why);
  std::vector<lab::StreamResult> streams = b.streams;
  for (const lab::CacheResult& cache : b.caches) {
    streams.push_back(cache.stream);
    streams.back().name += fmt::format(", {} {}", cache.bytes >> 10, cache_unit);
  }
  fmt::print(
      "{}\n{}\nA multiply-add is two operations. Work with fewer operations a byte than the ridge is bound by reading "
      "memory ({:.1f} GB/s).\n",
      lab::stream_columns().table(streams), lab::rate_columns(read_gb_s).table(b.rates), read_gb_s);
}

void print_table(const lab::Ceilings& ceilings) {
  const lab::MachineInfo machine = lab::machine_info();
  fmt::print("{}, {} thread{}, {} kernels\n", machine.cpu_model, ceilings.n_threads, ceilings.n_threads == 1 ? "" : "s",
             ceilings.kernel);
  print_bandwidths(ceilings, ceilings.read_gb_s(), "KiB a thread");
  fmt::print(
      "GB = 10^9 bytes loaded and stored by the kernel; a line fetched before an ordinary store is not counted.\n");
  if (machine.load_1min > 0.5)
    fmt::print("The machine was not idle (load {:.1f}): quartiles far apart mean that others took part of it.\n",
               machine.load_1min);
}

void print_table(const lab::DeviceCeilings& ceilings) {
  fmt::print("{} {}, {}, {} processors\n", gpu::device_text(ceilings.index), ceilings.device.name,
             ceilings.device.target(), ceilings.device.n_processors);
  print_bandwidths(ceilings, ceilings.read_gb_s(), "KiB");
  fmt::print("\n{}", lab::edge_columns().table(ceilings.edges));
  if (const lab::StreamResult* best = ceilings.best_read())
    fmt::print("\nGB = 10^9 bytes loaded and stored. Memory bandwidth is that of `{}`: {:.1f} GB/s.\n", best->name,
               ceilings.read_gb_s());
}

/// Stores and shows what was measured.
template <class Measured>
int finish(const OutputFlags& flags, lab::ResultsFile& results, const Measured& ceilings, lab::Row row, int n_threads,
           std::string_view kind) {
  row.update(lab::provenance(n_threads, 0));
  row["kind"] = kind;
  results.add(row);
  if (flags.json) fmt::print("{}\n", lab::json_text(row, 2));
  else print_table(ceilings);
  return interrupted() ? int(ErrorKind::interrupted) : 0;
}

int bandwidth(const BandwidthFlags& flags) {
  check_device(flags.device.device);
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  const int64_t bytes = int64_t(flags.size_mib) << 20;
  if (const std::optional<int> device = parse_device(flags.device.device)) {
    const lab::DeviceCeilings ceilings = lab::measure_device_ceilings(
        {.device = *device, .bytes = bytes, .replays = flags.repeats, .max_seconds = 10, .stop = interrupted});
    lab::Row row = lab::device_ceiling_columns().fields(ceilings);
    row["gpu_after"] = lab::to_row(lab::read_gpu_state(ceilings.device.pci_bus_id));
    return finish(flags.output, results, ceilings, row, 0, "bandwidth-device");
  }
  const lab::Ceilings ceilings = lab::measure_ceilings({.n_threads = flags.device.n_threads,
                                                        .isa = flags.device.isa,
                                                        .bytes = bytes,
                                                        .repeats = flags.repeats,
                                                        .max_seconds = 10,
                                                        .stop = interrupted});
  const lab::Row row = lab::ceiling_columns().fields(ceilings);
  return finish(flags.output, results, ceilings, row, ceilings.n_threads, "bandwidth");
}

}  // namespace

static Action declare_bench_bandwidth(CLI::App& app) {
  const auto flags = std::make_shared<BandwidthFlags>();
  BandwidthFlags& f = *flags;
  add_place_flags(app, f.device);
  add_whole(app, "--size", f.size_mib, 0, 1 << 22,
            "MiB of one buffer; 0: several times the last-level cache, and 1 GiB (GPU: 4 GiB)");
  add_whole(app, "-r,--repetitions", f.repeats, 3, 100000, "times each stream runs, within ten seconds");
  add_output_flags(app, f.output, true);
  app.footer(lab::columns_help(lab::stream_columns().texts()) + lab::columns_help(lab::rate_columns().texts()));
  return [flags] { return bandwidth(*flags); };
}

extern const Command bench_bandwidth_command = {
    "bench bandwidth", "the ceilings: bandwidth of memory and caches, multiply-adds",
    R"(Reads, writes and copies of buffers of at least 4 x the last-level cache, reads that fit the caches, and
multiply-adds in registers, with Ridge's own kernels. The read rate is the memory bandwidth that decode is
compared with. A ridge point is the number of operations per byte above which arithmetic is the limit. On a
GPU also the cost of an edge between two kernels of a graph and of a graph's launch.)",
    R"(ridge bench bandwidth
ridge bench bandwidth -t 1 --size 4096
ridge bench bandwidth --device cuda)",
    declare_bench_bandwidth};

}  // namespace ridge::cli
