// ridge eval probe: what a person would notice of a cache.
#include "cli/eval.h"
#include "lab/quality/acceptance.h"
#include "lab/quality/probe.h"

namespace ridge::cli {
namespace {

struct ProbeFlags {
  StudyFlags study{.list = "f16,q8_0,rotor-4,rotor-3"};
  std::string base = "f16", spec_type, head, draft_base = "q8_0";
  lab::ProbeOptions options;
  int seed = 42;
};

/// Who proposes: the model's own head where nothing else was said.
lab::ProbeDraft draft_of(const ProbeFlags& flags, const Model& model) {
  lab::ProbeDraft draft = flags.options.draft;
  draft.base = parse_kv_choice(flags.draft_base).or_throw();
  draft.type = flags.spec_type.empty() ? "mtp" : flags.spec_type;
  draft.why_not.clear();
  if (draft.type == "none") {
    draft.why_not = "not asked";
  } else if (draft.type == "lookup") {
    draft.open = [](const Model&, int) -> ProposerMaker { return make_lookup_proposer; };
  } else if (flags.spec_type.empty() && flags.head.empty() && !lab::has_mtp_head(model)) {
    draft.why_not = "the model has no MTP head";
  } else {
    draft.open = [head = flags.head](const Model& target, int n_ctx) {
      return mtp_proposers(target, head, {.n_ctx = n_ctx});
    };
  }
  return draft;
}

void check_spec(const ProbeFlags& flags) {
  constexpr std::string_view kTypes[] = {"", "none", "lookup", "mtp"};
  if (std::ranges::find(kTypes, flags.spec_type) == std::end(kTypes))
    bad_flag("--spec-type", fmt::format("expects none, lookup, mtp, found '{}'", flags.spec_type));
  if (!flags.head.empty() && !flags.spec_type.empty() && flags.spec_type != "mtp")
    bad_flag("--draft-model", "only --spec-type mtp has a head", "leave it out");
}

int probe(const ProbeFlags& flags) {
  check_spec(flags);
  lab::ProbeOptions options = flags.options;
  options.seed = uint64_t(flags.seed);
  options.base = parse_kv_choice(flags.base).or_throw();
  bool failed = false;
  const auto run = [&](const Model& model, const lab::Corpus& corpus, const lab::ProbeOptions& asked,
                       const lab::ProbeHooks& hooks) {
    lab::ProbeOptions drafted = asked;
    drafted.draft = draft_of(flags, model);
    lab::ProbeHooks noting = hooks;
    noting.on_result = [&](const lab::ProbeResult& result) {
      for (const lab::ProbeLine& line : result.lines) failed |= line.verdict == lab::ProbeVerdict::fail;
      hooks.on_result(result);
    };
    lab::run_probe(model, corpus, drafted, noting);
  };
  const int code = run_study<lab::ProbeResult>(flags.study, "eval_probe", "prompts", options, run, lab::probe_table);
  return code == 0 && failed ? int(ErrorKind::gate) : code;
}

}  // namespace

static Action declare_eval_probe(CLI::App& app) {
  const auto flags = std::make_shared<ProbeFlags>();
  ProbeFlags& f = *flags;
  add_corpus_flags(app, f.study.text);
  in_group(app, "Text");
  lab::ProbeOptions& options = f.options;
  add_whole(app, "--prompts", options.n_prompts, 1, 1 << 20, "prompts of each depth, evenly spread over the text");
  add_whole(app, "--positions", options.n_positions, 1, 1 << 20, "next tokens of each prompt, the last ones");
  add_whole(app, "-n,--n-predict", options.n_generate, 1, 1 << 20, "tokens of a canary and of the equalities");
  add_whole(app, "--trials", options.needle_trials, 1, 1 << 20, "needles at each depth of a context");
  add_whole(app, "--seed", f.seed, 0, INT32_MAX, "seed of the needles");
  add_list_flags(app, f.study);
  in_group(app, "KV cache");
  add_text(app, "--base", f.base, "KV", "the cache that the others are to agree with");
  lab::ProbeDraft& draft = options.draft;
  in_group(app, "Draft tokens");
  add_text(app, "--spec-type", f.spec_type, "TYPE",
           "who proposes: none, lookup, mtp; left out: the model's MTP head, if any");
  add_text(app, "--draft-model", f.head, "FILE", "of mtp: the file of the head");
  add_text(app, "--draft-base", f.draft_base, "KV",
           "the cache along whose texts tokens are proposed, and whose acceptance is the measure");
  add_whole(app, "--spec-depth", draft.depth, 1, kMaxSpecDepth, "draft tokens a step, always");
  add_whole(app, "--draft-texts", draft.n_texts, 1, 1 << 20, "texts, of 128 prompt tokens each");
  add_whole(app, "--draft-tokens", draft.n_generate, 1, 1 << 20, "greedy tokens of each of them");
  add_output_flags(app, f.study.output, true);
  return [flags] { return probe(*flags); };
}

extern const Command eval_probe_command = {
    "eval probe", "what a person would notice of a cache",
    R"(Next tokens behind 128 to 57344 others (likeliest token, ten likeliest, their log-probabilities,
Jensen-Shannon divergence), needles, JSON and code, the same text twice, the same text from a kept prefix:
each against the base's own and with limits. PASS, FAIL, NO VERDICT where errors reach a limit, NOT APPLICABLE
beyond the trained context or where the base itself finds nothing. A FAIL ends the command with 3. Greedy texts
and the token at which they first differ: eval tasks --only continuation.)",
    R"(ridge eval probe -m model.gguf -f wiki.test.raw
ridge eval probe -m model.gguf -f wiki.test.raw --kv q8_0,rotor-3 --prompts 32 --results probe.jsonl)",
    declare_eval_probe};

}  // namespace ridge::cli
