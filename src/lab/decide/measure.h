// Measures what the gates want and the store does not have: attention sweeps, whole requests, quality on the decode
// path, plans. Rows are stored as they come, so that a second call goes on where the first one ended.
#pragma once

#include <functional>

#include "lab/decide/search.h"
#include "lab/rows/results.h"
#include "ridge/engine.h"

namespace ridge::lab {

/// The model as records have it.
RecordSubject subject_of(const Model& model);

struct DecisionParams {
  std::string model;
  LoadOptions place;
  std::vector<std::string> candidates;              ///< as kv_text() writes them, without f16
  int n_ctx = 0, n_sessions = 1;                    ///< n_ctx 0: what the model was trained for
  std::vector<int> depths, target_depths, prompts;  ///< empty: chosen by the context
  int n_gen = 0;                                    ///< 0: 256, at most a quarter of the context
  int repeats = 5;                                  ///< of requests, of each format
  int samples = 40;                                 ///< of an attention cell
  double max_seconds = 2;                           ///< that an attention cell's samples take
  int roof_mib = 0;                       ///< buffer of the read bandwidth of attention; 0: as bench bandwidth chooses
  std::string text;                       ///< what quality is measured on; empty: it is not
  int eval_ctx = 0, eval_chunks = 8;      ///< windows of the text; 0: 1024, at most the trained context
  int64_t memory_bytes = 0;               ///< of gate 6; 0: what is available
  int64_t available_bytes = 0;            ///< before the model was loaded
  bool only_quality = false;              ///< measure nothing that other processes disturb: plans and quality only
  std::string search_text;                ///< what formats of layers and sides are searched on; empty: they are not
  std::vector<std::string> search_sides;  ///< as kv_side_text() writes them
  int search_chunks = 16;                 ///< windows of the searched text
  double kld_budget = 0;                  ///< of the search; 0: none
  std::vector<double> search_bits;        ///< limits of the search
  std::vector<std::string> again;         ///< ids of stored rows of times that are measured again
  std::vector<std::string> quality_caches;  ///< whose quality is measured beside the candidates'
  bool check = true;                        ///< against the reference kernels, before requests are timed
  uint64_t seed = 42;
};

struct DecisionHooks {
  std::function<bool()> stop;
  std::function<void(const std::string& what)> on_status;
  std::function<void(const Row& row)> on_row;                  ///< after it was stored
  std::function<void(int64_t done, int64_t total)> on_tokens;  ///< of a quality run: tokens of all its caches
};

/// A part of what is not stored yet.
struct DecisionStep {
  std::string what;    ///< "48 measurements of attention"
  double seconds = 0;  ///< expected, on a quiet machine
};

/// Builds the question for this model and chooses everything that was left open. Throws usage for requests that the
/// model cannot serve.
DecisionQuestion ask(const Model& model, const DecisionParams& params);

/// Builds the question of a search. Throws usage where its text is that of the quality run, or shares a part with it.
SearchQuestion ask_search(const Model& model, const DecisionParams& params, const DecisionQuestion& question);
/// Measures each side of each layer alone, where no row has it. After a `stop` unfinished cells have no rows.
void measure_sensitivity(const Model& model, const DecisionParams& params, const DecisionQuestion& question,
                         const SearchQuestion& asked, Store& store, const DecisionHooks& hooks);

/// Lists the steps of measure_sensitivity(), if there is a search, and of measure_missing(). Their times follow from a
/// few tokens run now: expect half to twice of them.
std::vector<DecisionStep> steps_left(const Model& model, const DecisionParams& params, const DecisionQuestion& question,
                                     const SearchQuestion* search, Store& store);
/// Measures missing cells. After a `stop` unfinished cells have no rows.
void measure_missing(const Model& model, const DecisionParams& params, const DecisionQuestion& question, Store& store,
                     const DecisionHooks& hooks);

}  // namespace ridge::lab
