// What the eval commands share: model, text, windows.
#pragma once

#include "base/progress.h"
#include "cli/options.h"
#include "lab/quality/quality_report.h"

namespace ridge::cli {

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

/// Completes a study's row with where it comes from and stores it.
void store_row(lab::Row& row, const Model& model, lab::ResultsFile& results);
/// A study's rows on stdout, as JSON or as the table.
void print_study(const std::vector<lab::Row>& rows, const std::string& table, const OutputFlags& output);
/// 0, or 130 with a line on stderr when rows are missing.
int end_of_study(size_t n_rows, size_t n_wanted);

}  // namespace ridge::cli
