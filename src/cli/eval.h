// Flags common to the eval commands: model, text, windows.
#pragma once

#include "base/interrupt.h"
#include "base/progress.h"
#include "cli/options.h"
#include "lab/quality/quality_report.h"

namespace ridge::cli {

/// The value of --path: prefill or decode. Throws usage for others.
lab::EvalPath parse_eval_path(const std::string& name);

/// -m, --device, -f, --chat, -c, -b, -ub, --chunks, --path.
struct TextFlags {
  ModelFlags model;
  ContextFlags context;
  std::string file, path = "prefill";
  bool chat = false;  ///< the file has conversations
  int chunks = -1;
};
void add_text_flags(CLI::App& app, TextFlags& flags);
/// Only -m, --device, -f (required), --chat: for studies that have windows of their own.
void add_corpus_flags(CLI::App& app, TextFlags& flags);
/// The text of --file; with --chat the conversations of its lines, as the model's template shows them.
lab::Corpus read_text(const TextFlags& flags, const Model& model);
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
lab::Corpus read_base(const BaseFlags& flags, const TextFlags& text, const Model& model, lab::EvalOptions& options,
                      std::optional<io::KlBaseFile>& file);

/// Start-up lines on stderr.
void print_start(const lab::Corpus& corpus, const lab::Windows& windows, const lab::EvalOptions& options,
                 const Model& model);

/// Flags common to studies: a row for each cache of the list, which may be left out.
struct StudyFlags {
  TextFlags text;
  OutputFlags output;
  std::string list;
  KvFlags policy;
};
/// --kv LIST and the flags that give its caches one policy.
void add_list_flags(CLI::App& app, StudyFlags& flags);
/// Throws usage where flags beside --kv LIST name another cache.
void refuse_caches_beside_list(const KvFlags& flags);

/// The rows of a result, where it has one: the subject's fields, then its columns'.
template <class Options, class Result>
std::vector<lab::Row> to_rows(const lab::Row& subject, const Options&, const Result& result) {
  lab::Row row = subject;
  row.update(columns_of(result).fields(result));
  return {row};
}

/// Runs run(model, corpus, options, hooks); rows go to --results as they come and to stdout in the end, as JSON or as
/// the table. `unit` is what progress counts. The exit code: 130 when rows are missing.
template <class Result, class Options, class Run>
int run_study(const StudyFlags& flags, std::string_view kind, std::string_view unit, Options options, const Run& run,
              std::string (*table)(std::span<const lab::Row> rows)) {
  options.device = flags.text.model.device;
  if (!flags.list.empty()) {
    refuse_caches_beside_list(flags.policy);
    options.candidates = parse_kv_list(flags.list).or_throw();
    flags.policy.refine(options.candidates);
  }
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  const Model model = load_model(flags.text.model);
  const lab::Corpus corpus = read_text(flags.text, model);
  const lab::Row subject = lab::subject(kind, model.info(), corpus, options.device);

  Progress progress("eval", !flags.output.quiet);
  std::vector<lab::Row> rows;
  size_t n_done = 0;
  lab::StudyHooks<Result> hooks;
  hooks.stop = interrupted;
  hooks.on_progress = [&](int64_t done, int64_t total) { progress.set(done, total, unit); };
  hooks.on_result = [&](const Result& result) {
    ++n_done;
    for (lab::Row& row : to_rows(subject, options, result)) {
      row.update(lab::provenance(model.info().n_threads, 0));
      results.add(row);
      rows.push_back(std::move(row));
    }
  };
  run(model, corpus, options, hooks);
  progress.clear();
  if (flags.output.json) fmt::print("{}\n", lab::json_text(lab::Row(rows), 2));
  else fmt::print("{}", table(rows));
  if (n_done == options.candidates.size()) return 0;
  fmt::print(stderr, "interrupted: {} of {} caches are done\n", n_done, options.candidates.size());
  return int(ErrorKind::interrupted);
}

}  // namespace ridge::cli
