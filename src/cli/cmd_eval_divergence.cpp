// ridge eval divergence: the first token at which greedy texts differ.
#include "cli/eval.h"
#include "cli/interrupt.h"
#include "lab/quality/divergence.h"

namespace ridge::cli {
namespace {

struct DivergenceFlags {
  TextFlags text;
  OutputFlags output;
  std::string list = "f16,q8_0,rotor-3", base = "f16";
  lab::DivergenceOptions options;
};

int divergence(const DivergenceFlags& flags) {
  lab::DivergenceOptions options = flags.options;
  options.device = flags.text.model.device;
  options.base = parse_kv_choice(flags.base).or_throw();
  options.candidates = parse_kv_list(flags.list).or_throw();
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  const Model model = load_model(flags.text.model);
  const lab::Corpus corpus = lab::read_corpus(model, flags.text.file);
  const lab::Row subject = lab::subject("eval_divergence", model.info(), corpus, options.device);

  Progress progress("eval", !flags.output.quiet);
  std::vector<lab::Row> rows;
  lab::DivergenceHooks hooks;
  hooks.stop = interrupted;
  hooks.on_progress = [&](int64_t done, int64_t total) { progress.set(done, total, "texts"); };
  hooks.on_result = [&](const lab::DivergenceResult& result) {
    rows.push_back(lab::to_row(subject, options, result));
    store_row(rows.back(), model, results);
  };
  lab::run_divergence(model, corpus, options, hooks);
  progress.restart();
  print_study(rows, lab::divergence_table(rows), flags.output);
  return end_of_study(rows.size(), options.candidates.size());
}

}  // namespace

Action declare_eval_divergence(CLI::App& app) {
  const auto flags = std::make_shared<DivergenceFlags>();
  DivergenceFlags& f = *flags;
  add_corpus_flags(app, f.text);
  in_group(app, "Text");
  add_whole(app, "--prompts", f.options.n_prompts, 1, 1 << 20, "prompts, evenly spread over the text");
  add_whole(app, "--prompt-tokens", f.options.prompt_tokens, 2, 1 << 20, "tokens per prompt");
  add_whole(app, "-n,--n-predict", f.options.n_generate, 1, 1 << 20, "tokens to generate");
  add_list_flag(app, f.list, f.list);
  in_group(app, "KV cache");
  add_text(app, "--base", f.base, "KV", "the cache whose text is the reference");
  add_output_flags(app, f.output, true);
  return [flags] { return divergence(*flags); };
}

}  // namespace ridge::cli
