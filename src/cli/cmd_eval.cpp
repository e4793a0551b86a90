// ridge eval ppl, ridge eval kld: quality of KV cache configurations on a text.
#include <cstdio>

#include "cli/eval.h"
#include "cli/interrupt.h"

namespace ridge::cli {
namespace {

struct EvalFlags {
  TextFlags text;
  BaseFlags base;
  KvFlags kv;
  OutputFlags output;
  std::string list, save_base;
  bool curve = false;
};

std::vector<KvChoice> read_candidates(const EvalFlags& flags) {
  if (flags.list.empty()) return {flags.kv.choice()};
  if (flags.kv.any())
    bad_flag("--kv", "does not go with --kv-quant, -ctk, -ctv and their refinements",
             "write them into the list: rotor-3:planar:window=32");
  return parse_kv_list(flags.list).or_throw();
}

/// --save-base writes what running the base gives, so the base must be run.
void check_save_base(const EvalFlags& flags, const lab::EvalOptions& options) {
  if (flags.save_base.empty() || !options.base_file) return;
  bad_flag("--save-base", "does not go with a base that comes from a file", "name a cache for --base");
}

void use_windows_of_file(const TextFlags& flags, lab::EvalOptions& options) {
  const int n_ctx = options.base_file->base().shape.n_ctx;
  if (flags.context.n_ctx != 0 && flags.context.n_ctx != n_ctx)
    bad_flag("--ctx-size", fmt::format("{} is not the {} that the base file was made with", flags.context.n_ctx, n_ctx),
             "leave it out");
  options.n_ctx = n_ctx;
}

void print_result(const lab::EvalResult& result, const EvalFlags& flags, const lab::Row& provenance) {
  if (flags.output.json) {
    lab::Row rows = lab::Row::array();
    for (const lab::CandidateResult& candidate : result.candidates) {
      lab::Row row = lab::to_row(result, candidate);
      row.update(provenance);
      rows.push_back(std::move(row));
    }
    fmt::print("{}\n", lab::json_text(rows, 2));
    return;
  }
  const bool pairs = result.options.against_base;
  if (!pairs)
    for (const lab::CandidateResult& candidate : result.candidates) fmt::print("{}", lab::ppl_text(result, candidate));
  // The blocks of many candidates would bury the table; --json has them all.
  if (pairs && result.candidates.size() <= 2) fmt::print("{}\n", lab::kld_text(result.candidates.back()));
  if (pairs || result.candidates.size() > 1) fmt::print("{}", lab::markdown_table(result));
  if (flags.curve) fmt::print("\n{}", lab::curve_text(result));
}

int eval(const EvalFlags& flags, bool against_base) {
  lab::EvalOptions options = eval_options(flags.text);
  options.candidates = read_candidates(flags);
  options.whole_curve = flags.curve;
  options.save_base = flags.save_base;
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  const Model model = load_model(flags.text.model);
  std::optional<io::KlBaseFile> base_file;
  const lab::Corpus corpus = against_base ? read_base(flags.base, flags.text.file, model, options, base_file)
                                          : lab::read_corpus(model, flags.text.file);
  check_save_base(flags, options);
  if (options.base_file) use_windows_of_file(flags.text, options);
  // Refused before anything is said about what will run.
  const lab::Windows windows = lab::plan_evaluation(model, corpus, options).windows;
  if (!flags.output.quiet) print_start(corpus, windows, options, model);

  // The perplexities of one candidate run on along one line, where no bar can be drawn.
  const bool one_line = !against_base && options.candidates.size() == 1;
  Progress progress("eval", !flags.output.quiet && !one_line);
  bool heading_due = true;
  lab::EvalHooks hooks;
  hooks.stop = interrupted;
  hooks.on_progress = [&](int64_t steps, int64_t total) { progress.add(steps, total, "tokens"); };
  hooks.on_chunk = [&](const lab::EvalResult& so_far) {
    if (flags.output.quiet) return;
    progress.clear();
    if (one_line && so_far.chunks_done == 1)
      fmt::print(stderr, "{:.2f} s per chunk, about {} in all\n", so_far.seconds,
                 short_duration(so_far.seconds * so_far.windows.n_chunks));
    if (const std::string heading = lab::chunk_heading(so_far); heading_due && !heading.empty())
      fmt::print(stderr, "{}\n", heading);
    heading_due = false;
    fmt::print(stderr, "{}{}", lab::chunk_text(so_far), one_line ? "" : "\n");
    std::fflush(stderr);
  };
  const lab::EvalResult result = lab::evaluate(model, corpus, options, hooks);
  progress.restart();
  if (!flags.output.quiet && one_line) fmt::print(stderr, "\n");
  if (!result.complete())
    fmt::print(stderr, "interrupted: {} of {} chunks done{}\n", result.chunks_done, result.windows.n_chunks,
               flags.save_base.empty() ? "" : ", no base file was written");
  if (result.chunks_done == 0) return int(ErrorKind::interrupted);
  const lab::Row provenance = lab::provenance(model.info().n_threads, 0);
  for (const lab::CandidateResult& candidate : result.candidates) {
    lab::Row row = lab::to_row(result, candidate);
    row.update(provenance);
    results.add(row);
  }
  print_result(result, flags, provenance);
  return result.complete() ? 0 : int(ErrorKind::interrupted);
}

Action declare(CLI::App& app, bool against_base) {
  const auto flags = std::make_shared<EvalFlags>();
  EvalFlags& f = *flags;
  add_text_flags(app, f.text);
  if (!against_base) app.get_option("--file")->required();
  add_rank_flags(app, &f.text.model.n_stages);
  in_group(app, "KV cache");
  add_text(app, "--kv", f.list, "LIST",
           "comma list of caches: K or K/V[;LAYERS:K/V], options after ':' as rotor-3:planar:window=32");
  add_kv_flags(app, f.kv);
  if (against_base) {
    add_base_flags(app, f.base);
    in_group(app, "KV cache");
    add_text(app, "--save-base", f.save_base, "FILE",
             "write the base's distributions to a file for --base and llama-perplexity");
    in_group(app, "Output");
    app.add_flag("--curve", f.curve, "print the divergence by position, over the whole window");
  }
  add_output_flags(app, f.output, true);
  return [flags, against_base] { return eval(*flags, against_base); };
}

}  // namespace

Action declare_eval_ppl(CLI::App& app) { return declare(app, false); }
Action declare_eval_kld(CLI::App& app) { return declare(app, true); }

}  // namespace ridge::cli
