// ridge eval needle: copying a planted sequence from far back.
#include "cli/eval.h"
#include "cli/interrupt.h"
#include "lab/quality/needle.h"

namespace ridge::cli {
namespace {

struct NeedleFlags {
  TextFlags text;
  OutputFlags output;
  std::string list = "f16,q8_0,rotor-3";
  lab::NeedleOptions options;
  int seed = 42;
};

int needle(const NeedleFlags& flags) {
  lab::NeedleOptions options = flags.options;
  options.device = flags.text.model.device;
  options.seed = uint64_t(flags.seed);
  options.candidates = parse_kv_list(flags.list).or_throw();
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  const Model model = load_model(flags.text.model);
  const lab::Corpus corpus = lab::read_corpus(model, flags.text.file);
  const lab::Row subject = lab::subject("eval_needle", model.info(), corpus, options.device);

  Progress progress("eval", !flags.output.quiet);
  std::vector<lab::Row> rows;
  lab::NeedleHooks hooks;
  hooks.stop = interrupted;
  hooks.on_progress = [&](int64_t done, int64_t total) { progress.set(done, total, "probes"); };
  hooks.on_result = [&](const lab::NeedleResult& result) {
    rows.push_back(lab::to_row(subject, options, result));
    store_row(rows.back(), model, results);
  };
  lab::run_needle(model, corpus, options, hooks);
  progress.restart();
  print_study(rows, lab::needle_table(rows), flags.output);
  return end_of_study(rows.size(), options.candidates.size());
}

}  // namespace

Action declare_eval_needle(CLI::App& app) {
  const auto flags = std::make_shared<NeedleFlags>();
  NeedleFlags& f = *flags;
  add_corpus_flags(app, f.text);
  in_group(app, "Text");
  add_whole(app, "-c,--ctx-size", f.options.n_ctx, 8, 1 << 26, "tokens per probe, all in all");
  add_whole(app, "--trials", f.options.n_trials, 1, 1 << 20, "probes per depth");
  add_whole(app, "--depths", f.options.n_depths, 1, 1000, "depths, evenly from first to last");
  add_whole(app, "--needle", f.options.needle, 2, 4096, "tokens of the planted sequence");
  add_whole(app, "--copies", f.options.copies, 1, 1000, "times it is planted, one behind the other");
  add_whole(app, "--cue", f.options.cue, 1, 4095, "of which this many are repeated at the end");
  add_whole(app, "--seed", f.seed, 0, INT32_MAX, "seed of the sequences");
  add_list_flag(app, f.list, f.list);
  add_output_flags(app, f.output, true);
  return [flags] { return needle(*flags); };
}

}  // namespace ridge::cli
