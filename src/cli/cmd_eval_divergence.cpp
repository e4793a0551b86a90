// ridge eval divergence: the first token at which greedy texts differ.
#include "cli/eval.h"
#include "lab/quality/divergence.h"

namespace ridge::cli {
namespace {

struct DivergenceFlags {
  StudyFlags study{.list = "f16,q8_0,rotor-3"};
  std::string base = "f16";
  lab::DivergenceOptions options;
};

int divergence(const DivergenceFlags& flags) {
  lab::DivergenceOptions options = flags.options;
  options.base = parse_kv_choice(flags.base).or_throw();
  return run_study<lab::DivergenceResult>(flags.study, "eval_divergence", "texts", options, lab::run_divergence,
                                          lab::divergence_table);
}

}  // namespace

Action declare_eval_divergence(CLI::App& app) {
  const auto flags = std::make_shared<DivergenceFlags>();
  DivergenceFlags& f = *flags;
  add_corpus_flags(app, f.study.text);
  in_group(app, "Text");
  add_whole(app, "--prompts", f.options.n_prompts, 1, 1 << 20, "prompts, evenly spread over the text");
  add_whole(app, "--prompt-tokens", f.options.prompt_tokens, 2, 1 << 20, "tokens per prompt");
  add_whole(app, "-n,--n-predict", f.options.n_generate, 1, 1 << 20, "tokens to generate");
  add_list_flag(app, f.study.list, f.study.list);
  in_group(app, "KV cache");
  add_text(app, "--base", f.base, "KV", "the cache whose text is the reference");
  add_output_flags(app, f.study.output, true);
  return [flags] { return divergence(*flags); };
}

}  // namespace ridge::cli
