// ridge eval matrix: many caches over one base, resumable.
#include "base/build_info.h"
#include "cli/eval.h"
#include "cli/interrupt.h"
#include "lab/quality/matrix.h"
#include "rank/mpi.h"

namespace ridge::cli {
namespace {

struct MatrixFlags {
  TextFlags text;
  OutputFlags output;
  std::string list, each_layer, base = "f16", format = "md";
  int group = 8;
};

/// Rows of earlier runs, for as long as the build can be told apart from another.
std::vector<lab::Row> stored_rows(const MatrixFlags& flags) {
  std::vector<lab::Row> rows = lab::read_rows(flags.output.results).or_throw();
  const std::string_view commit = build_info().commit;
  if (rows.empty() || (!commit.ends_with("-dirty") && commit != "unknown")) return rows;
  if (!flags.output.quiet)
    fmt::print(stderr, "stored rows are not reused: build {} may differ from the one that wrote them\n", commit);
  return {};
}

/// Of several ranks only the first one has a file of results; all go on from its rows.
std::vector<lab::Row> rows_for_all(std::vector<lab::Row> rows) {
  Ranks* const ranks = joined_ranks();
  if (!ranks) return rows;
  return lab::Row::parse(ranks->from_first(lab::json_text(lab::Row(rows), -1))).get<std::vector<lab::Row>>();
}

void print_rows(const std::vector<lab::Row>& rows, const std::string& format) {
  const auto dump = [](const lab::Row& row, int indent) { return lab::json_text(row, indent); };
  if (format == "md") fmt::print("{}", lab::matrix_table(rows));
  if (format == "json") fmt::print("{}\n", dump(rows, 2));
  if (format == "jsonl")
    for (const lab::Row& row : rows) fmt::print("{}\n", dump(row, -1));
}

int matrix(const MatrixFlags& flags) {
  const std::string format = flags.output.json ? "json" : flags.format;
  if (format != "md" && format != "json" && format != "jsonl")
    bad_flag("--output", fmt::format("expects md, json or jsonl, found '{}'", format));
  lab::EvalOptions options = eval_options(flags.text);
  if (!flags.list.empty()) options.candidates = parse_kv_list(flags.list).or_throw();
  options.base = parse_kv_choice(flags.base).or_throw();
  // Opened first: a row that was cut off moves aside, and the rows before it are read.
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  const std::vector<lab::Row> stored = rows_for_all(stored_rows(flags));
  const Model model = load_model(flags.text.model);
  if (flags.list.empty() && flags.each_layer.empty()) options.candidates = lab::default_matrix(model.info().head_dim);
  if (!flags.each_layer.empty())
    for (const KvChoice& kv : lab::each_layer(parse_kv_choice(flags.each_layer).or_throw(), model.info().n_layers))
      options.candidates.push_back(kv);
  std::optional<io::KlBaseFile> no_file;
  const lab::Corpus corpus = read_base({.base = flags.base}, flags.text.file, model, options, no_file);

  const bool quiet = flags.output.quiet;
  if (!quiet) print_start(corpus, lab::plan_evaluation(model, corpus, options).windows, options, model);
  Progress progress("eval", !quiet);
  lab::MatrixHooks hooks;
  hooks.eval.stop = interrupted;
  hooks.eval.on_progress = [&](int64_t steps, int64_t total) { progress.add(steps, total, "tokens"); };
  hooks.on_start = [&](int n_stored, int n_left) {
    if (quiet) return;
    fmt::print(stderr, "caches   {} to run, {} at a time beside {}", n_left, std::min(flags.group, n_left), flags.base);
    fmt::print(stderr, "{}\n", n_stored > 0 ? fmt::format("; {} are in {}", n_stored, flags.output.results) : "");
  };
  bool complete = true;
  hooks.on_group = [&](const lab::EvalResult& group, int n_left) {
    progress.restart();
    complete = group.complete();
    if (quiet) return;
    fmt::print(stderr, "{} caches in {}, {} left\n", group.candidates.size(), short_duration(group.seconds), n_left);
  };
  const std::vector<lab::Row> rows = lab::run_matrix(model, corpus, options, flags.group, stored, results, hooks);
  progress.restart();
  complete = complete && rows.size() == options.candidates.size();
  if (!complete)
    fmt::print(stderr, "interrupted: {} of {} caches have rows{}\n", rows.size(), options.candidates.size(),
               flags.output.results.empty() ? "" : "; the same command with the same --results goes on from here");
  print_rows(rows, format);
  return complete ? 0 : int(ErrorKind::interrupted);
}

}  // namespace

Action declare_eval_matrix(CLI::App& app) {
  const auto flags = std::make_shared<MatrixFlags>();
  MatrixFlags& f = *flags;
  add_text_flags(app, f.text);
  add_rank_flags(app, &f.text.model.n_stages);
  app.get_option("--file")->required();
  in_group(app, "KV cache");
  add_text(app, "--kv", f.list, "LIST",
           "comma list of caches; left out: the whole shelf, both sides and each side alone");
  add_text(app, "--each-layer", f.each_layer, "KV", "this cache in one layer at a time, the others in f16");
  add_text(app, "--base", f.base, "KV", "the cache everything is compared with");
  add_whole(app, "--group", f.group, 1, 1000, "caches run side by side; rows are stored when a group is done");
  in_group(app, "Output");
  add_text(app, "-o,--output", f.format, "FORMAT", "md, json or jsonl, to stdout");
  add_output_flags(app, f.output, true);
  return [flags] { return matrix(*flags); };
}

}  // namespace ridge::cli
