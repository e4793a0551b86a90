// ridge eval ppl, ridge eval kld: quality of KV cache configurations on a text.
#include <memory>

#include "base/progress.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "lab/quality_report.h"

namespace ridge::cli {
namespace {

struct EvalFlags {
  ModelFlags model;
  ContextFlags context{.n_ctx = 512, .n_batch = 2048, .n_ubatch = 512};
  KvFlags kv;
  OutputFlags output;
  std::string file, list, base = "f16", path = "prefill";
  int chunks = -1;
  bool no_control = false;
};

lab::EvalPath parse_path(const std::string& name) {
  for (const lab::EvalPath path : {lab::EvalPath::prefill, lab::EvalPath::decode})
    if (lab::eval_path_name(path) == name) return path;
  bad_flag("--path", fmt::format("expects prefill or decode, found '{}'", name));
}

lab::EvalOptions eval_options(const EvalFlags& flags, bool against_base) {
  if (!flags.list.empty() && flags.kv.any())
    bad_flag("--kv", "does not go with --kv-quant, -ctk, -ctv and their refinements",
             "write them into the list: rotor-3:planar:window=32");
  lab::EvalOptions options{.n_ctx = flags.context.n_ctx,
                           .max_chunks = flags.chunks,
                           .n_ubatch = std::min(flags.context.n_ubatch, flags.context.n_batch),
                           .path = parse_path(flags.path),
                           .against_base = against_base,
                           .base = lab::parse_kv_choice(flags.base).or_throw(),
                           .candidates = {}};
  if (flags.list.empty()) options.candidates.push_back(flags.kv.choice());
  else options.candidates = lab::parse_kv_list(flags.list).or_throw();
  if (!against_base || flags.no_control) return options;
  const std::string base = lab::kv_text(options.base);
  for (const lab::KvChoice& candidate : options.candidates)
    if (lab::kv_text(candidate) == base) return options;
  options.candidates.insert(options.candidates.begin(), options.base);
  return options;
}

void print_start(const lab::Corpus& corpus, const lab::Windows& windows, const lab::EvalOptions& options,
                 const Model& model) {
  const ModelInfo& info = model.info();
  fmt::print(stderr, "model    {} ({} {}, {:.2f} M parameters), CPU {}, {} threads\n", info.name, info.arch,
             info.weight_format, double(info.n_params) / 1e6, info.isa, info.n_threads);
  fmt::print(stderr, "text     {}: {} bytes, {} tokens, xxh64 {:016x}\n", corpus.path, corpus.bytes,
             corpus.tokens.size(), corpus.xxh64);
  fmt::print(stderr, "windows  {} of {} tokens, the second half of each scored{}, {} path{}\n", windows.n_chunks,
             windows.n_ctx, info.add_bos ? ", BOS first" : "", lab::eval_path_name(options.path),
             options.n_ctx > info.n_ctx_train ? fmt::format(" (the model was trained for {})", info.n_ctx_train) : "");
}

void print_result(const lab::EvalResult& result, bool json, const lab::Row& provenance) {
  if (json) {
    lab::Row rows = lab::Row::array();
    for (const lab::CandidateResult& candidate : result.candidates) {
      lab::Row row = lab::to_row(result, candidate);
      row.update(provenance);
      rows.push_back(std::move(row));
    }
    fmt::print("{}\n", rows.dump(2, ' ', false, lab::Row::error_handler_t::replace));
    return;
  }
  const bool pairs = result.options.against_base;
  if (!pairs)
    for (const lab::CandidateResult& candidate : result.candidates) fmt::print("{}", lab::ppl_text(result, candidate));
  // The blocks of many candidates would bury the table; --json has them all.
  if (pairs && result.candidates.size() <= 2) fmt::print("{}\n", lab::kld_text(result.candidates.back()));
  if (pairs || result.candidates.size() > 1) fmt::print("{}", lab::markdown_table(result));
}

int eval(const EvalFlags& flags, bool against_base) {
  const lab::EvalOptions options = eval_options(flags, against_base);
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  const Model model = load_model(flags.model);
  const lab::Corpus corpus = lab::read_corpus(model, flags.file);
  // Refused before anything is said about what will run.
  const lab::Windows windows =
      lab::plan_windows(int64_t(corpus.tokens.size()), options.n_ctx, options.max_chunks, {}).or_throw();
  if (!flags.output.quiet) print_start(corpus, windows, options, model);

  std::unique_ptr<Progress> progress;
  int64_t steps_done = 0;
  bool heading_due = true;
  // The perplexities of one candidate run on along one line, where no bar can be drawn.
  const bool one_line = !against_base && options.candidates.size() == 1;
  lab::EvalHooks hooks;
  hooks.stop = interrupted;
  hooks.on_progress = [&](int64_t steps, int64_t total) {
    if (!progress) progress = std::make_unique<Progress>("eval", total, !flags.output.quiet && !one_line);
    progress->set(steps_done += steps, "tokens");
  };
  hooks.on_chunk = [&](const lab::EvalResult& so_far) {
    if (flags.output.quiet) return;
    if (progress) progress->clear();
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
  progress.reset();
  if (!flags.output.quiet && one_line) fmt::print(stderr, "\n");
  if (!result.complete())
    fmt::print(stderr, "interrupted: {} of {} chunks done\n", result.chunks_done, result.windows.n_chunks);
  if (result.chunks_done == 0) return int(ErrorKind::interrupted);
  const lab::Row provenance = lab::provenance(model.info().n_threads, 0);
  for (const lab::CandidateResult& candidate : result.candidates) {
    lab::Row row = lab::to_row(result, candidate);
    row.update(provenance);
    results.add(row);
  }
  print_result(result, flags.output.json, provenance);
  return result.complete() ? 0 : int(ErrorKind::interrupted);
}

Action declare(CLI::App& app, bool against_base) {
  const auto flags = std::make_shared<EvalFlags>();
  EvalFlags& f = *flags;
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  app.add_option("-f,--file", f.file, "the text")->type_name("FILE")->required()->group("Text");
  add_context_flags(app, f.context, "tokens per window");
  add_whole(app, "--chunks", f.chunks, -1, 1 << 26, "windows to score; -1: all the text has")->group("Text");
  app.add_option("--path", f.path, "prefill (batched) or decode (token by token, what users get)")
      ->type_name("NAME")
      ->default_str(f.path)
      ->group("Text");
  app.add_option("--kv", f.list, "comma list of caches, each KV[:ROTATION][:window=N][:sinks=N][:centre=on|off] or K/V")
      ->type_name("LIST")
      ->group("KV cache");
  add_kv_flags(app, f.kv);
  if (against_base) {
    app.add_option("--base", f.base, "the cache everything is compared with")
        ->type_name("KV")
        ->default_str(f.base)
        ->group("KV cache");
    app.add_flag("--no-control", f.no_control, "leave out the row of the base against itself")->group("KV cache");
  }
  add_output_flags(app, f.output, true);
  return [flags, against_base] { return eval(*flags, against_base); };
}

}  // namespace

Action declare_eval_ppl(CLI::App& app) { return declare(app, false); }
Action declare_eval_kld(CLI::App& app) { return declare(app, true); }

}  // namespace ridge::cli
