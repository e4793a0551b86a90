// ridge eval attention: caches against exact attention, on the model's own rows.
#include "cli/eval.h"
#include "cli/interrupt.h"
#include "lab/quality/attention_study.h"

namespace ridge::cli {
namespace {

struct AttentionFlags {
  TextFlags text;
  OutputFlags output;
  std::string list;
  lab::AttentionOptions options;
};

int attention(const AttentionFlags& flags) {
  lab::AttentionOptions options = flags.options;
  options.device = flags.text.model.device;
  if (!flags.list.empty()) options.candidates = parse_kv_list(flags.list).or_throw();
  if (options.device != "cpu")
    bad_flag("--device", "the study runs on the CPU: its reference is scalar, in double precision", "use --device cpu");
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  const Model model = load_model(flags.text.model);
  if (flags.list.empty()) options.candidates = lab::default_attention_list(model.info().head_dim);
  const lab::Corpus corpus = lab::read_corpus(model, flags.text.file);
  const lab::Row subject = lab::subject("eval_attention", model.info(), corpus, options.device);

  Progress progress("eval", !flags.output.quiet);
  lab::AttentionHooks hooks;
  hooks.stop = interrupted;
  hooks.on_progress = [&](int64_t done, int64_t total) { progress.set(done, total, "caches"); };
  const std::vector<lab::AttentionResult> results_of = lab::run_attention(model, corpus, options, hooks);
  progress.restart();
  if (interrupted()) return end_of_study(0, results_of.size());
  std::vector<lab::Row> rows;
  for (const lab::AttentionResult& result : results_of) {
    rows.push_back(lab::to_row(subject, options, result));
    store_row(rows.back(), model, results);
  }
  print_study(rows, lab::attention_table(rows), flags.output);
  return 0;
}

}  // namespace

Action declare_eval_attention(CLI::App& app) {
  const auto flags = std::make_shared<AttentionFlags>();
  AttentionFlags& f = *flags;
  add_corpus_flags(app, f.text);
  in_group(app, "Text");
  add_whole(app, "-c,--ctx-size", f.options.n_ctx, 4, 1 << 20, "tokens per window");
  add_whole(app, "--windows", f.options.n_windows, 1, 1 << 20, "windows of the text");
  add_whole(app, "--queries", f.options.n_queries, 1, 1 << 20, "queries of each window, the last ones");
  add_list_flag(app, f.list, "every format with no window and no sinks, rotor-3 by rotation");
  add_output_flags(app, f.output, true);
  return [flags] { return attention(*flags); };
}

}  // namespace ridge::cli
