// Quality of cache formats in the C API.
#include "lab/quality/quality.h"
#include "capi/handles.h"

namespace ridge::capi {
namespace {

/// Counts token steps for the caller, who may stop the run.
struct KldProgress {
  ridge_progress_callback callback;
  void* user;
  int64_t done = 0;
  bool stopped = false;

  void add(int64_t steps, int64_t total) {
    done += steps;
    if (callback && callback(user, done, total) == 0) stopped = true;
  }
};

lab::EvalOptions eval_options(const ridge_kld_options& read, const char* formats) {
  lab::EvalOptions options{.against_base = true,
                           .base = parse_kv_choice("f16").or_throw(),
                           .candidates = parse_kv_list(&given(formats, "formats")).or_throw()};
  if (read.n_ctx != 0) options.n_ctx = read.n_ctx;
  if (read.max_chunks != 0) options.max_chunks = read.max_chunks;
  return options;
}

ridge_kld kld_of(const lab::EvalResult& result, const lab::CandidateResult& candidate) {
  const lab::PairMeans means = candidate.scores.pair.means();
  return {.bits = result.effective_bits_4k(candidate),
          .kld = means.kld.value,
          .kld_error = means.kld.error,
          .ppl = means.ppl.value,
          .ppl_base = means.ppl_base.value,
          .same_top = means.same_top.value,
          .n_scored = means.count};
}

void measure(const Model& model, std::string_view text, const lab::EvalOptions& options, KldProgress progress,
             std::span<ridge_kld> results) {
  if (results.size() != options.candidates.size())
    throw_error(ErrorKind::usage, "formats names {} caches, there is room for {} results", options.candidates.size(),
                results.size());
  const lab::Corpus corpus{.path = "text", .bytes = int64_t(text.size()), .tokens = model.tokenize(text, true, false)};
  lab::EvalHooks hooks;
  hooks.stop = [&] { return progress.stopped; };
  hooks.on_progress = [&](int64_t steps, int64_t total) { progress.add(steps, total); };
  const lab::EvalResult result = lab::evaluate(model, corpus, options, hooks);
  if (progress.stopped) throw Error(ErrorKind::interrupted, "the callback asked to stop");
  for (size_t i = 0; i < results.size(); ++i) results[i] = kld_of(result, result.candidates[i]);
}

}  // namespace
}  // namespace ridge::capi

using namespace ridge::capi;

void ridge_kld_options_init(ridge_kld_options* options, size_t size) { init_struct(options, size, {}); }

ridge_status ridge_measure_kld(const ridge_model* model, const char* text, const char* formats,
                               const ridge_kld_options* options, ridge_kld* results, size_t n_results) {
  return guarded([&] {
    const ridge_kld_options read = read_struct(options, {});
    measure(given(model, "model").shared->model, &given(text, "text"), eval_options(read, formats),
            {.callback = read.on_progress, .user = read.user}, values(results, n_results, "results"));
  });
}
