// What the eval commands share: model, text, windows.
#pragma once

#include "base/interrupt.h"
#include "base/progress.h"
#include "cli/options.h"
#include "lab/quality/quality_report.h"

namespace ridge::cli {

/// The value of --path: prefill or decode. Throws usage for others.
lab::EvalPath parse_eval_path(const std::string& name);

/// -m, --device, -f, -c, -b, -ub, --chunks, --path.
struct TextFlags {
  ModelFlags model;
  ContextFlags context;
  std::string file, path = "prefill";
  int chunks = -1;
};
void add_text_flags(CLI::App& app, TextFlags& flags);
/// Only -m, --device, -f (required): for studies that have windows of their own.
void add_corpus_flags(CLI::App& app, TextFlags& flags);
/// --kv LIST of a study, and what stands for it when it is left out.
void add_list_flag(CLI::App& app, std::string& list, const std::string& left_out);
/// The part of the options that these flags hold; n_ctx is 512 when none was given.
lab::EvalOptions eval_options(const TextFlags& flags);

/// A base that may be a cache or a file: --base, --save-base.
struct BaseFlags {
  std::string base = "f16";
  bool no_control = false;
};
void add_base_flags(CLI::App& app, BaseFlags& flags);
/// Reads --base into the options: a cache, or a file that then also gives the text. The control row, the base's own
/// cache, goes to the front of the candidates unless it is among them or unwanted.
/// `file` must outlive the options.
lab::Corpus read_base(const BaseFlags& flags, const std::string& text_file, const Model& model,
                      lab::EvalOptions& options, std::optional<io::KlBaseFile>& file);

/// Start-up lines on stderr.
void print_start(const lab::Corpus& corpus, const lab::Windows& windows, const lab::EvalOptions& options,
                 const Model& model);

/// What studies share: a row a cache of the list, which may be left out.
struct StudyFlags {
  TextFlags text;
  OutputFlags output;
  std::string list;
};
/// Runs run(model, corpus, options, hooks); rows go to --results as they come and to stdout in the end, as JSON or as
/// the table. `unit` is what progress counts. The exit code: 130 when rows are missing.
template <class Result, class Options, class Run>
int run_study(const StudyFlags& flags, std::string_view kind, std::string_view unit, Options options, const Run& run,
              std::string (*table)(std::span<const lab::Row> rows)) {
  options.device = flags.text.model.device;
  if (!flags.list.empty()) options.candidates = parse_kv_list(flags.list).or_throw();
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  const Model model = load_model(flags.text.model);
  const lab::Corpus corpus = lab::read_corpus(model, flags.text.file);
  const lab::Row subject = lab::subject(kind, model.info(), corpus, options.device);

  Progress progress("eval", !flags.output.quiet);
  std::vector<lab::Row> rows;
  lab::StudyHooks<Result> hooks;
  hooks.stop = interrupted;
  hooks.on_progress = [&](int64_t done, int64_t total) { progress.set(done, total, unit); };
  hooks.on_result = [&](const Result& result) {
    rows.push_back(to_row(subject, options, result));
    rows.back().update(lab::provenance(model.info().n_threads, 0));
    results.add(rows.back());
  };
  run(model, corpus, options, hooks);
  progress.clear();
  if (flags.output.json) fmt::print("{}\n", lab::json_text(lab::Row(rows), 2));
  else fmt::print("{}", table(rows));
  if (rows.size() == options.candidates.size()) return 0;
  fmt::print(stderr, "interrupted: {} of {} caches are done\n", rows.size(), options.candidates.size());
  return int(ErrorKind::interrupted);
}

}  // namespace ridge::cli
