// ridge bench bandwidth: the machine's memory ceilings.
#include <memory>

#include "cli/interrupt.h"
#include "cli/options.h"
#include "lab/ceilings.h"
#include "lab/machine.h"

namespace ridge::cli {
namespace {

struct BandwidthFlags {
  ModelFlags device;
  OutputFlags output;
  int size_mib = 0;
  int repeats = 21;
};

void print_table(const lab::Ceilings& ceilings) {
  const lab::MachineInfo machine = lab::machine_info();
  fmt::print("{}, {} thread{}, {} kernels\n", machine.cpu_model, ceilings.n_threads, ceilings.n_threads == 1 ? "" : "s",
             ceilings.kernel);
  fmt::print("buffers of {} MiB ({})\n\n", ceilings.size.bytes >> 20, ceilings.size.why);
  fmt::print("| stream | GB/s median | quartiles | max | repeats |\n|---|---:|---:|---:|---:|\n");
  for (const lab::StreamResult& s : ceilings.streams)
    fmt::print("| {} | {:.2f} | {:.2f} - {:.2f} | {:.2f} | {} |\n", s.name, s.gb_s.median, s.gb_s.lower, s.gb_s.upper,
               s.gb_s.max, s.repeats);
  fmt::print(
      "\nGB = 10^9 bytes loaded and stored by the kernel; a line fetched before an ordinary store is not counted.\n");
  if (machine.load_1min > 0.5)
    fmt::print("The machine was not idle (load {:.1f}): quartiles far apart mean that others took part of it.\n",
               machine.load_1min);
}

int bandwidth(const BandwidthFlags& flags) {
  check_cpu_only(flags.device.device, "bench bandwidth");
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  const lab::CeilingOptions options{.n_threads = flags.device.n_threads,
                                    .isa = flags.device.isa,
                                    .bytes = int64_t(flags.size_mib) << 20,
                                    .repeats = flags.repeats,
                                    .max_seconds = 10,
                                    .read_only = false,
                                    .stop = interrupted};
  const lab::Ceilings ceilings = lab::measure_ceilings(options);
  lab::Row row = lab::to_row(ceilings);
  row.update(lab::provenance(ceilings.n_threads, 0));
  row["kind"] = "bandwidth";
  results.add(row);
  if (flags.output.json) fmt::print("{}\n", row.dump(2, ' ', false, lab::Row::error_handler_t::replace));
  else print_table(ceilings);
  return interrupted() ? int(ErrorKind::interrupted) : 0;
}

}  // namespace

Action declare_bench_bandwidth(CLI::App& app) {
  const auto flags = std::make_shared<BandwidthFlags>();
  BandwidthFlags& f = *flags;
  app.add_option("--device", f.device.device, "cpu or cuda[:N] (-dev)")->type_name("NAME")->default_str("cpu");
  add_whole(app, "-t,--threads", f.device.n_threads, 0, 1024, "threads; 0: one per processor");
  app.add_option("--isa", f.device.isa, "highest instruction set to use: scalar, avx2, avx512")->type_name("NAME");
  add_whole(app, "--size", f.size_mib, 0, 1 << 22, "MiB of one buffer; 0: at least 4 x the last-level cache and 1 GiB");
  add_whole(app, "-r,--repetitions", f.repeats, 3, 100000, "times each stream runs, within ten seconds");
  add_output_flags(app, f.output, true);
  return [flags] { return bandwidth(*flags); };
}

}  // namespace ridge::cli
