// ridge eval attention: caches against exact attention, on the model's own rows.
#include "cli/eval.h"
#include "lab/quality/attention_study.h"

namespace ridge::cli {
namespace {

struct AttentionFlags {
  StudyFlags study;
  lab::AttentionOptions options;
};

int attention(const AttentionFlags& flags) {
  if (flags.study.text.model.device != "cpu")
    bad_flag("--device", "the study runs on the CPU: its reference is scalar, in double precision", "use --device cpu");
  const auto run = [](const Model& model, const lab::Corpus& corpus, lab::AttentionOptions& options,
                      const lab::AttentionHooks& hooks) {
    if (options.candidates.empty()) options.candidates = lab::default_attention_list(model.info().head_dim);
    lab::run_attention(model, corpus, options, hooks);
  };
  return run_study<lab::AttentionResult>(flags.study, "eval_attention", "caches", flags.options, run,
                                         lab::attention_table);
}

}  // namespace

Action declare_eval_attention(CLI::App& app) {
  const auto flags = std::make_shared<AttentionFlags>();
  AttentionFlags& f = *flags;
  add_corpus_flags(app, f.study.text);
  in_group(app, "Text");
  add_whole(app, "-c,--ctx-size", f.options.n_ctx, 4, 1 << 20, "tokens per window");
  add_whole(app, "--windows", f.options.n_windows, 1, 1 << 20, "windows of the text");
  add_whole(app, "--queries", f.options.n_queries, 1, 1 << 20, "queries of each window, the last ones");
  add_list_flag(app, f.study.list, "every format with no window and no sinks, rotor-3 by rotation");
  add_output_flags(app, f.study.output, true);
  return [flags] { return attention(*flags); };
}

}  // namespace ridge::cli
