// The quality matrix: many caches over one base, stored row by row so that an interrupted run keeps what it has.
#pragma once

#include "lab/quality/quality_report.h"

namespace ridge::lab {

/// What is compared when no list is given: every format of the shelf on both sides, on K beside f16 and q8_0 V's, on V
/// beside f16 and q8_0 K's, and rotor-3 with each part of its policy changed. Formats that head_dim does not fit are
/// left out.
std::vector<KvChoice> default_matrix(int head_dim);

/// `kv` in one layer at a time, the others in f16: which layers a cache hurts.
std::vector<KvChoice> each_layer(const KvChoice& kv, int n_layers);

struct MatrixHooks {
  EvalHooks eval;
  std::function<void(int n_stored, int n_left)> on_start;  ///< caches found in the store, caches to run
  std::function<void(const EvalResult& group, int n_left)> on_group;
};

/// Evaluates the candidates of `options`, `group` caches at a time beside one base run, and adds a row per cache to
/// `store` when its group is done. A cache whose finished row of the same identity() is among `stored` is not run
/// again. Returns the rows in the order of the candidates: all of them, or fewer when stopped. Caches of the group that
/// was stopped come with the chunks they finished, and are run again by the next call.
std::vector<Row> run_matrix(const Model& model, const Corpus& corpus, const EvalOptions& options, int group,
                            std::span<const Row> stored, ResultsFile& store, const MatrixHooks& hooks);

/// Perplexity may rise by this much (absolute) before a cache fails the gate for being a default.
inline constexpr double kPplGate = 0.25;
/// Markdown, one line per row of run_matrix().
std::string matrix_table(std::span<const Row> rows);

}  // namespace ridge::lab
