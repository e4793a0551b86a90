// Evaluations of many caches, stored row by row so that an interrupted run keeps what it has.
#pragma once

#include "lab/quality/quality_report.h"

namespace ridge::lab {

/// Every format of the shelf on both sides, on K beside f16 and q8_0 V's, on V beside f16 and q8_0 K's, and rotor-3
/// with each part of its policy changed. Formats that head_dim does not fit are left out.
std::vector<KvChoice> shelf_caches(int head_dim);

/// `kv` in one layer at a time, the others in f16: which layers a cache hurts.
std::vector<KvChoice> each_layer(const KvChoice& kv, int n_layers);

struct EvalRowHooks {
  EvalHooks eval;
  std::function<void(int n_stored, int n_left)> on_start;  ///< caches whose rows were found, caches to run
  std::function<void(const EvalResult& group, int n_left)> on_group;
};

/// Evaluates the candidates of `options`, so many at a time as its `group` says, and adds a row per cache to `file`
/// when its group is done. A cache whose finished row of the same identity() is among `stored` is not run again.
/// Returns the rows in the order of the candidates: all of them, or fewer when stopped. Caches of the group that was
/// stopped come with the chunks they finished, and are run again by the next call.
std::vector<Row> evaluate_rows(const Model& model, const Corpus& corpus, const EvalOptions& options,
                               std::span<const Row> stored, ResultsFile& file, const EvalRowHooks& hooks);

}  // namespace ridge::lab
