// ridge bench collective: sums over ranks, checked and held against their link.
#include <memory>

#include "cli/bench.h"
#include "engine/device_name.h"
#include "lab/op/collective_bench.h"
#include "rank/mpi.h"

namespace ridge::cli {
namespace {

constexpr int kMaxBytes = 1 << 30;

struct CollectiveFlags {
  OutputFlags output;
  std::string device = "cpu", format = "md";
  std::vector<std::string> bytes, kernels;
  int roof_mib = 0;
  lab::CollectiveBenchParams params;  ///< but what the texts say
};

lab::CollectiveBenchParams read_params(const CollectiveFlags& flags) {
  lab::CollectiveBenchParams params = flags.params;
  std::vector<int> bytes;
  read_numbers("--bytes", flags.bytes, 4, kMaxBytes, bytes);
  params.bytes.assign(bytes.begin(), bytes.end());
  if (!flags.kernels.empty()) params.kernels = split(joined(flags.kernels), ',');
  params.devices = parse_devices(flags.device);
  params.roof_bytes = int64_t(flags.roof_mib) << 20;
  lab::collective_sizes(params);  // refuses impossible ones before a device is looked for
  return params;
}

void check_places(const lab::CollectiveBenchParams& params) {
  for (const int device : params.devices) check_device(fmt::format("cuda:{}", device));
  if (params.devices.empty() && !joined_ranks())
    bad_flag("--device", "one process has nothing to add",
             "name several GPUs, --device cuda:0,1, or start ranks: mpirun -np N ridge bench collective --tp N");
  if (params.devices.size() == 1) bad_flag("--device", "one GPU has nothing to add", "name several, --device cuda:0,1");
  if (!params.devices.empty() && joined_ranks())
    bad_flag("--tp", "sums of GPUs are timed in one process", "leave out --tp and mpirun: --device cuda:0,1");
  if (params.devices.empty() && !params.kernels.empty())
    bad_flag("--kernel", "CPU ranks have one way to add", "leave it out");
}

int bench_collective(const CollectiveFlags& flags) {
  const lab::CollectiveBenchParams params = read_params(flags);
  check_places(params);
  Ranks* const ranks = joined_ranks();
  if (ranks && !ranks->is_first())
    return lab::run_collective_bench_on_cpu(*ranks, params, {}) > 0 ? int(ErrorKind::gate) : 0;
  BenchOutput output(flags.output, flags.format, lab::collective_columns().head());
  lab::CollectiveHooks hooks;
  output.attach(hooks);
  hooks.on_row = [&](const lab::CollectiveRow& row) { output.add(lab::collective_columns(), row, !row.failed()); };
  hooks.on_skipped = [&](const std::string&, const std::string& why) {
    output.clear();
    if (!flags.output.quiet) fmt::print(stderr, "{}\n", why);
  };
  const int n_failed = params.devices.empty() ? lab::run_collective_bench_on_cpu(*ranks, params, hooks)
                                              : lab::run_collective_bench_on_gpus(params, hooks);
  const int code = output.finish(n_failed);
  if (n_failed > 0)
    fmt::print(stderr, "error: {} row{} failed the check and got no times\n", n_failed, n_failed == 1 ? "" : "s");
  return code;
}

}  // namespace

static Action declare_bench_collective(CLI::App& app) {
  const auto flags = std::make_shared<CollectiveFlags>();
  CollectiveFlags& f = *flags;
  in_group(app, "Problems");
  add_list(app, "--bytes", f.bytes, "4096 to 8388608", "bytes of a rank, whole floats");
  add_text(app, "--device", f.device, "NAMES", "GPUs that are the ranks: cuda:0,1; or cpu (-dev)");
  add_rank_flags(app, nullptr);
  in_group(app, "Run");
  add_repeatable(app, "--kernel", f.kernels, "NAME",
                 "of GPUs, timed in turns: one-shot, two-shot, nccl; all: every one that can", "what models take");
  add_whole(app, "-r,--repeat", f.params.replays, 1, 100000,
            "samples of many calls; on GPUs replays of a graph of calls");
  add_whole(app, "--max-seconds", f.params.max_seconds, 1, 3600, "samples end after this long a size, five at least");
  add_whole(app, "--roof-size", f.roof_mib, 0, 1 << 14, "MiB of a copy for the link's rate; 0: 256, of the CPU 32");
  add_whole(app, "--seed", f.params.seed, 0, INT64_MAX, "seed of the data");
  in_group(app, "Output");
  add_text(app, "-o,--output", f.format, "FORMAT", "md, json or jsonl, to stdout");
  add_output_flags(app, f.output, true);
  app.footer(lab::columns_help(lab::collective_columns().texts()));
  return [flags] { return bench_collective(*flags); };
}

extern const Command bench_collective_command = {
    "bench collective",
    "all-reduce over ranks: GPUs of one machine, or CPU ranks over MPI",
    R"(Every rank gives --bytes of floats and gets the sum. Every rank checks the result before the timing and again
after. GPUs: one process with one thread each, calls in recorded graphs; one-shot and two-shot write into the
other GPUs' memory, nccl is NVIDIA's library. CPU: ranks of an MPI job.)",
    R"(ridge bench collective --device cuda:0,1 --kernel all
mpirun -np 2 --bind-to none ridge bench collective --tp 2 --bytes 4096,65536)",
    declare_bench_collective,
    RankUse::each};

}  // namespace ridge::cli
