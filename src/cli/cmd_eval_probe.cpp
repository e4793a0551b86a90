// ridge eval probe: what a person would notice of a cache.
#include "cli/eval.h"
#include "lab/quality/probe.h"

namespace ridge::cli {
namespace {

struct ProbeFlags {
  StudyFlags study{.list = "f16,q8_0,rotor-4,rotor-3"};
  std::string base = "f16";
  lab::ProbeOptions options;
};

int probe(const ProbeFlags& flags) {
  lab::ProbeOptions options = flags.options;
  options.base = parse_kv_choice(flags.base).or_throw();
  bool failed = false;
  const auto run = [&](const Model& model, const lab::Corpus& corpus, const lab::ProbeOptions& asked,
                       const lab::ProbeHooks& hooks) {
    lab::ProbeHooks noting = hooks;
    noting.on_result = [&](const lab::ProbeResult& result) {
      for (const lab::ProbeLine& line : result.lines) failed |= line.verdict == lab::ProbeVerdict::fail;
      hooks.on_result(result);
    };
    lab::run_probe(model, corpus, asked, noting);
  };
  const int code = run_study<lab::ProbeResult>(flags.study, "eval_probe", "prompts", options, run, lab::probe_table);
  return code == 0 && failed ? int(ErrorKind::gate) : code;
}

}  // namespace

Action declare_eval_probe(CLI::App& app) {
  const auto flags = std::make_shared<ProbeFlags>();
  ProbeFlags& f = *flags;
  add_corpus_flags(app, f.study.text);
  in_group(app, "Text");
  add_whole(app, "--prompts", f.options.n_prompts, 1, 1 << 20, "prompts of each depth, evenly spread over the text");
  add_whole(app, "--positions", f.options.n_positions, 1, 1 << 20, "next tokens of each prompt, the last ones");
  add_whole(app, "-n,--n-predict", f.options.n_generate, 1, 1 << 20, "tokens of a canary and of the equalities");
  add_whole(app, "--trials", f.options.needle_trials, 1, 1 << 20, "needles at each depth of a context");
  add_list_flag(app, f.study.list, f.study.list);
  in_group(app, "KV cache");
  add_text(app, "--base", f.base, "KV", "the cache that the others are to agree with");
  add_output_flags(app, f.study.output, true);
  return [flags] { return probe(*flags); };
}

}  // namespace ridge::cli
