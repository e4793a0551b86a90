// What a quality run prints and stores: llama-perplexity's lines, a table over configurations, JSON rows.
#pragma once

#include "lab/quality/quality.h"

namespace ridge::lab {

/// The running line after each chunk, without a line end. Perplexity runs of one candidate continue one line.
std::string chunk_text(const EvalResult& so_far);
/// The heading above the running lines; empty when they need none.
std::string chunk_heading(const EvalResult& result);

/// "Final estimate: PPL = ..." of one candidate.
std::string ppl_text(const EvalResult& result, const CandidateResult& candidate);
/// The three blocks of statistics of one candidate, labelled as llama-perplexity labels them.
std::string kld_text(const CandidateResult& candidate);

/// One line per candidate: format, rotation, bits, bytes, perplexity, divergence.
std::string markdown_table(const EvalResult& result);

/// Mean divergence over the parts of the window, one line per part and one column per candidate.
std::string curve_text(const EvalResult& result);

/// One side of a cache as rows hold it.
Row to_row(const KvSideReport& side);
Row to_row(const Estimate& estimate);

/// What makes two evaluations of a cache the same cell: model, text, windows, path, caches, device, build.
Row identity(const EvalResult& plan, const KvChoice& kv);
/// Everything about one candidate, its identity first.
Row to_row(const EvalResult& result, const CandidateResult& candidate);

}  // namespace ridge::lab
