// ridge eval needle: copying a planted sequence from far back.
#include "cli/eval.h"
#include "lab/quality/needle.h"

namespace ridge::cli {
namespace {

struct NeedleFlags {
  StudyFlags study{.list = "f16,q8_0,rotor-3"};
  lab::NeedleOptions options;
  int seed = 42;
};

int needle(const NeedleFlags& flags) {
  lab::NeedleOptions options = flags.options;
  options.seed = uint64_t(flags.seed);
  return run_study<lab::NeedleResult>(flags.study, "eval_needle", "probes", options, lab::run_needle,
                                      lab::needle_table);
}

}  // namespace

Action declare_eval_needle(CLI::App& app) {
  const auto flags = std::make_shared<NeedleFlags>();
  NeedleFlags& f = *flags;
  add_corpus_flags(app, f.study.text);
  in_group(app, "Text");
  add_whole(app, "-c,--ctx-size", f.options.n_ctx, 8, 1 << 26, "tokens per probe, all in all");
  add_whole(app, "--trials", f.options.n_trials, 1, 1 << 20, "probes per depth");
  add_whole(app, "--depths", f.options.n_depths, 1, 1000, "depths, evenly from first to last");
  add_whole(app, "--needle", f.options.needle, 2, 4096, "tokens of the planted sequence");
  add_whole(app, "--copies", f.options.copies, 1, 1000, "times it is planted, one behind the other");
  add_whole(app, "--cue", f.options.cue, 1, 4095, "of which this many are repeated at the end");
  add_whole(app, "--seed", f.seed, 0, INT32_MAX, "seed of the sequences");
  add_list_flag(app, f.study.list, f.study.list);
  add_output_flags(app, f.study.output, true);
  return [flags] { return needle(*flags); };
}

}  // namespace ridge::cli
