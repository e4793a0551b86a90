// ridge profile: where the time of a step goes.
#include <memory>

#include "base/interrupt.h"
#include "base/progress.h"
#include "cli/options.h"
#include "io/pending_file.h"
#include "lab/model/profile.h"

namespace ridge::cli {
namespace {

constexpr int kMaxTokens = 1 << 24;

struct ProfileFlags {
  ModelFlags model;
  KvFlags kv;
  OutputFlags output;
  std::string list, trace;
  lab::ProfileParams params;  ///< but model and cache
};

KvChoice read_kv(const ProfileFlags& flags) {
  if (flags.list.empty()) return flags.kv.choice();
  if (flags.kv.any())
    bad_flag("--kv", "does not go with --kv-quant, -ctk and their kind", "write K/V:OPTION into --kv");
  return parse_kv_choice(flags.list).or_throw();
}

int profile(const ProfileFlags& flags) {
  check_device(flags.model.device);
  if (flags.params.counters && flags.model.device != "cpu")
    bad_flag("--counters", "reads the CPU's counters", "on a GPU run this command under ncu, which reads those");
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  lab::ProfileParams params = flags.params;
  params.model = flags.model.model;
  params.load = flags.model.load_options();
  params.kv = read_kv(flags);
  Progress progress("profile", !flags.output.quiet);
  const std::optional<lab::Profile> result = lab::run_profile(
      params, {.stop = interrupted,
               .on_status = [&](const std::string& what, int done, int total) { progress.set(done, total, what); }});
  progress.clear();
  if (!result) return int(ErrorKind::interrupted);
  const lab::Row row = lab::profile_columns().fields(*result);
  if (!flags.trace.empty()) {
    const lab::Row events = lab::trace_events(result->example, fmt::format("ridge {}", result->model.name));
    io::PendingFile file(flags.trace);
    file.create().or_throw();
    file.write(lab::json_text(events, 1)).or_throw();
    file.commit().or_throw();
  }
  results.add(row);
  if (flags.output.json) fmt::print("{}\n", lab::json_text(row, 2));
  else fmt::print("{}", lab::profile_markdown(*result));
  return 0;
}

}  // namespace

static Action declare_profile(CLI::App& app) {
  const auto flags = std::make_shared<ProfileFlags>();
  ProfileFlags& f = *flags;
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  add_rank_flags(app, &f.model.n_stages);
  add_kv_flags(app, f.kv);
  add_text(app, "--kv", f.list, "KV", "the cache as benches name it: rotor-3, q8_0/rotor-3:window=32");
  in_group(app, "Profile");
  add_whole(app, "-d,--n-depth", f.params.n_depth, 0, kMaxTokens, "tokens already in the cache");
  add_whole(app, "-p,--n-prompt", f.params.n_prompt, 0, 65536,
            "profile a prompt's chunk of so many tokens; 0: a decode step");
  add_whole(app, "-r,--repetitions", f.params.n_steps, 1, 4096, "steps to record");
  add_whole(app, "--seconds", f.params.max_seconds, 1, 3600, "stop recording after this time");
  add_whole(app, "--seed", f.params.seed, 0, INT64_MAX, "seed of tokens and cache rows");
  add_text(app, "--trace", f.trace, "FILE", "write the median step for chrome://tracing or ui.perfetto.dev");
  add_off_flag(app, "--no-check", f.params.check, "do not compare with the reference kernels; the row says so");
  app.add_flag("--counters", f.params.counters,
               "instructions, cycles and cache misses of each part, where the CPU has them");
  add_output_flags(app, f.output, true);
  app.footer(lab::columns_help(lab::profile_part_texts()));
  return [flags] { return profile(*flags); };
}

extern const Command profile_command = {
    "profile", "where the time of a forward pass goes, op by op",
    R"(Divides the time of decode passes (with -p: of a prompt's pass) over ops on the CPU and kernels on a GPU.
Ops and the gaps between them add up to the pass. --trace writes one pass for ui.perfetto.dev.)",
    R"(ridge profile -m synth:qwen2.5-1.5b@weights=q4_0 -d 4096 --kv-quant rotor-3
ridge profile -m model.gguf -p 512 --trace step.json)",
    declare_profile};

}  // namespace ridge::cli
