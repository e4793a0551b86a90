// ridge results export, import: rows of a results store as JSON lines, and back.
#include <memory>

#include "cli/options.h"
#include "lab/store/store.h"

namespace ridge::cli {
namespace {

struct ResultsFlags {
  OutputFlags output;
  std::string store, kind, in;
};

int export_rows(const ResultsFlags& flags) {
  const lab::Store store = lab::Store::open(flags.store, false).or_throw();
  lab::Row chosen = lab::Row::array();
  for (lab::Row& row : store.rows().or_throw())
    if (flags.kind.empty() || lab::row_kind(row) == flags.kind) chosen.push_back(std::move(row));
  if (flags.output.json) fmt::print("{}\n", lab::json_text(chosen, 2));
  else
    for (const lab::Row& row : chosen) fmt::print("{}\n", lab::json_text(row));
  if (!flags.output.quiet) fmt::print(stderr, "{} rows of {}\n", chosen.size(), flags.store);
  return 0;
}

int import_rows(const ResultsFlags& flags) {
  if (!std::filesystem::exists(flags.in))
    bad_flag("IN", fmt::format("no such file '{}'", flags.in), "name a file of JSON lines");
  const std::vector<lab::Row> rows = lab::read_rows(flags.in).or_throw();
  lab::Store store = lab::Store::open(flags.store, true).or_throw();
  const auto states = store.states().or_throw();
  int n_added = 0, n_known = 0;
  for (const lab::Row& row : rows) {
    const auto known = states.find(lab::cell_key(row));
    if (known != states.end() && known->second == "done") {
      ++n_known;
      continue;
    }
    store.add(row);
    ++n_added;
  }
  if (flags.output.json) fmt::print("{}\n", lab::json_text({{"added", n_added}, {"already_there", n_known}}, 2));
  else fmt::print("{} rows added to {}, {} were there already\n", n_added, flags.store, n_known);
  return 0;
}

void add_store_flag(CLI::App& app, ResultsFlags& flags) {
  add_text(app, "--store", flags.store, "FILE", "the results store, a SQLite file")->required();
}

}  // namespace

Action declare_results_export(CLI::App& app) {
  const auto flags = std::make_shared<ResultsFlags>();
  add_store_flag(app, *flags);
  add_text(app, "--kind", flags->kind, "NAME", "only rows of this kind: op, decode, bandwidth, ...");
  add_output_flags(app, flags->output, false);
  return [flags] { return export_rows(*flags); };
}

Action declare_results_import(CLI::App& app) {
  const auto flags = std::make_shared<ResultsFlags>();
  add_text(app, "IN", flags->in, "FILE", "file of JSON lines, as --results and `ridge results export` write them")
      ->required();
  add_store_flag(app, *flags);
  add_output_flags(app, flags->output, false);
  return [flags] { return import_rows(*flags); };
}

}  // namespace ridge::cli
