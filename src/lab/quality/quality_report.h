// Reports of a quality run, printed and stored: llama-perplexity's lines, a table over configurations, JSON rows.
#pragma once

#include "lab/quality/quality.h"

namespace ridge::lab {

/// The running line after each chunk, without a line end. Perplexity runs of one candidate continue one line.
std::string chunk_text(const EvalResult& so_far);
/// The heading above the running lines; empty when they need none.
std::string chunk_heading(const EvalResult& result);

// Printed rows of an evaluation, measured now or stored before:
/// "Final estimate: PPL = ..."
std::string ppl_text(const Row& row);
/// Three blocks of statistics, labelled as llama-perplexity labels them.
std::string kld_text(const Row& row);
/// A line a row: format, rotation, bits, bytes, perplexity; against a base the divergence and whether the cache keeps
/// QualityLimits.
std::string eval_table(std::span<const Row> rows);
/// Mean divergence over the parts of the window, a line a part and a column a row.
std::string curve_text(std::span<const Row> rows);

/// Columns of one side of a cache.
Columns<KvSideReport> kv_side_columns();
Row to_row(const Estimate& estimate);

/// Identity of a cell, equal for evaluations that measure the same: model, text, windows, path, caches, device, build.
Row identity(const EvalResult& plan, const KvChoice& kv);
/// Everything about one candidate, its identity first.
Row to_row(const EvalResult& result, const CandidateResult& candidate);

}  // namespace ridge::lab
