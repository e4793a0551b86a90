// ridge decide: which cache format pays for a model on this machine, with the evidence.
#include <memory>

#include "base/progress.h"
#include "cli/bench.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "lab/decide/measure.h"
#include "lab/decide/plan.h"

namespace ridge::cli {
namespace {

struct DecideFlags {
  ModelFlags model;
  OutputFlags output;
  lab::DecisionParams params;
  std::string candidates = "q8_0,p8,rotor-4,rotor-3", store, show;
  std::vector<std::string> depths, target_depths, prompts;
  double memory_gib = 0;
  bool no_check = false;
};

/// The record as a page, or as its file has it.
int show(const lab::DecisionRecord& record, bool json) {
  fmt::print("{}", json ? lab::record_text(record) : lab::record_page(record));
  return 0;
}

lab::DecisionParams params_of(const DecideFlags& flags) {
  constexpr double kGib = double(1 << 30);
  lab::DecisionParams params = flags.params;
  params.model = flags.model.model;
  params.place = flags.model.load_options();
  for (const KvChoice& kv : parse_kv_list(flags.candidates).or_throw())
    if (const std::string text = kv_text(kv); text != "f16") params.candidates.push_back(text);
  if (params.candidates.empty()) bad_flag("--candidates", "f16 is what candidates are compared with", "name another");
  read_numbers("--depths", flags.depths, 1, 1 << 24, params.depths);
  read_numbers("--target-depths", flags.target_depths, 1, 1 << 24, params.target_depths);
  read_numbers("--prompts", flags.prompts, 1, 1 << 24, params.prompts);
  params.memory_bytes = int64_t(flags.memory_gib * kGib);
  params.available_bytes = lab::usable_memory(params.place);
  params.check = !flags.no_check;
  return params;
}

int decide(const DecideFlags& flags) {
  if (!flags.show.empty()) return show(lab::read_record(flags.show).or_throw(), flags.output.json);
  if (flags.model.model.empty()) bad_flag("--model", "is required", "or --show RECORD");
  if (flags.store.empty()) bad_flag("--store", "is required", "name a file for the rows; the record comes beside it");
  check_device(flags.model.device);
  const lab::DecisionParams params = params_of(flags);
  const Model model = load_model(flags.model);
  const lab::DecisionQuestion question = lab::ask(model, params);
  lab::Store store = lab::Store::open(flags.store, true).or_throw();
  Progress progress("decide", !flags.output.quiet);
  int n_new = 0;
  lab::DecisionHooks hooks;
  hooks.stop = interrupted;
  hooks.on_status = [&](const std::string& what) { progress.set(0, 0, what); };
  hooks.on_row = [&](const lab::Row&) { ++n_new; };
  lab::measure_missing(model, params, question, store, hooks);
  progress.clear();
  if (!flags.output.quiet) fmt::print(stderr, "decide   {} rows measured, in {}\n", n_new, flags.store);
  if (interrupted()) {
    fmt::print(stderr, "interrupted: the same command goes on from here\n");
    return int(ErrorKind::interrupted);
  }
  const lab::DecisionRecord record = lab::decide(store.rows().or_throw(), question, params.candidates, {});
  const std::filesystem::path path =
      lab::record_path(std::filesystem::path(flags.store).parent_path(), question.subject.model_hash);
  lab::write_record(record, path);
  if (!flags.output.quiet) fmt::print(stderr, "record   {}\n", path.native());
  return show(record, flags.output.json);
}

}  // namespace

Action declare_decide(CLI::App& app) {
  const auto flags = std::make_shared<DecideFlags>();
  DecideFlags& f = *flags;
  lab::DecisionParams& p = f.params;
  add_model_flag(app, f.model, false);
  add_device_flags(app, f.model);
  in_group(app, "Decision");
  add_whole(app, "-c,--ctx-size", p.n_ctx, 0, 1 << 24, "tokens of a session; 0: what the model was trained for");
  add_whole(app, "--sessions", p.n_sessions, 1, 65536, "sequences in memory at once (gate 6)");
  add_text(app, "--candidates", f.candidates, "LIST", "comma list of caches that are compared with f16");
  add_text(app, "--store", f.store, "FILE", "the results store, a SQLite file; the record comes into its directory");
  add_text(app, "-f,--file", p.text, "FILE", "text that quality is measured on; left out: gate 4 has no verdict");
  add_real(app, "--memory-gib", f.memory_gib, 0, 1e6, "GiB that may be used (gate 6); 0: what is available here");
  add_text(app, "--show", f.show, "RECORD", "only print this record");
  in_group(app, "Size");
  add_list(app, "--depths", f.depths, "", "cached tokens of gate 1; left out: up to the context");
  add_list(app, "--target-depths", f.target_depths, "", "cached tokens of gate 2; left out: 4096 to 32768");
  add_list(app, "--prompts", f.prompts, "", "tokens of prompts of gate 3; left out: 4096, or what the context holds");
  add_whole(app, "-n,--n-gen", p.n_gen, 0, 1 << 20, "tokens generated behind them; 0: 1024, at most a quarter of -c");
  add_whole(app, "-r,--repetitions", p.repeats, 1, 1000, "requests of each format; fewer than 5 give no verdict");
  add_whole(app, "--samples", p.samples, 5, 100000, "samples of an attention cell");
  add_real(app, "--max-seconds", p.max_seconds, 0.01, 3600, "seconds of an attention cell's samples");
  add_whole(app, "--roof-mib", p.roof_mib, 0, 1 << 20,
            "MiB of the buffer that attention's read roof is measured with; 0: as bench bandwidth");
  add_whole(app, "--eval-ctx", p.eval_ctx, 0, 1 << 24, "tokens of a window of the text; 0: 1024");
  add_whole(app, "--chunks", p.eval_chunks, 1, 1 << 20, "windows, at most");
  app.add_flag("--no-check", f.no_check, "do not compare with the reference kernels before requests are timed");
  add_output_flags(app, f.output, false);
  return [flags] { return decide(*flags); };
}

}  // namespace ridge::cli
