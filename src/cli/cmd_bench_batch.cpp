// ridge bench batch: llama-batched-bench's work, checked and held against the roof.
#include <memory>

#include "base/progress.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/row_writer.h"
#include "lab/model/bench_batch.h"

namespace ridge::cli {
namespace {

constexpr int kMostTokens = 1 << 24, kMostSequences = 4096;

struct BatchFlags {
  ModelFlags model;
  OutputFlags output;
  std::vector<std::string> n_prompt, n_gen, n_parallel;
  std::string lengths, kv = "f16", format = "md";
  int n_ubatch = 0, repeats = 1;
  bool fill = false, no_warm_up = false, no_check = false;
  int64_t seed = 42;
};

std::vector<int> list_or(std::string_view flag, const std::vector<std::string>& texts, int min, int max,
                         std::vector<int> standard) {
  if (texts.empty()) return standard;
  return lab::parse_int_list(flag, fmt::format("{}", fmt::join(texts, ",")), min, max).or_throw();
}

lab::BatchParams read_batch_params(const BatchFlags& flags) {
  lab::BatchParams params{.model = flags.model.model};
  if (!flags.lengths.empty()) {
    if (!flags.n_prompt.empty()) bad_flag("--lengths", "does not go with -npp", "give one of them");
    params.n_prompt = {lab::parse_prompt_lengths("--lengths", flags.lengths, kMostTokens).or_throw()};
  } else if (!flags.n_prompt.empty()) {
    params.n_prompt.clear();
    for (const int n : list_or("-npp", flags.n_prompt, 1, kMostTokens, {})) params.n_prompt.push_back({{n}});
  }
  params.n_gen = list_or("-ntg", flags.n_gen, 0, kMostTokens, params.n_gen);
  params.n_parallel = list_or("-npl", flags.n_parallel, 1, kMostSequences, params.n_parallel);
  params.kv = parse_kv_list(flags.kv).or_throw();
  params.n_ubatch = flags.n_ubatch;
  params.fill = flags.fill;
  params.repeats = flags.repeats;
  params.warm_up = !flags.no_warm_up;
  params.check = !flags.no_check;
  params.seed = uint64_t(flags.seed);
  params.load = flags.model.load_options();
  if (flags.fill && std::ranges::count(params.n_gen, 0) > 0)
    bad_flag("-ntg", "0 leaves nothing to measure with --fill", "give -ntg 128");
  return params;
}

int bench_batch(const BatchFlags& flags) {
  const lab::BatchParams params = read_batch_params(flags);
  RowWriter writer(flags.format, flags.output.json, lab::batch_markdown_head());
  check_device(flags.model.device);
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  std::unique_ptr<Progress> progress;
  lab::BatchHooks hooks;
  hooks.stop = interrupted;
  hooks.on_status = [&](const std::string& what, int done, int total) {
    if (!progress) progress = std::make_unique<Progress>("bench", total, !flags.output.quiet);
    progress->clear();
    progress->set(done, what);
  };
  hooks.on_row = [&](const lab::BatchRow& row) {
    if (progress) progress->clear();
    const lab::Row fields = lab::batch_fields(row, params);
    writer.add(lab::batch_markdown_line(row), fields);
    results.add(fields);
  };
  hooks.on_failed = [&](const lab::BatchRow& row) {
    if (progress) progress->clear();
    fmt::print(stderr, "error: {} {}: check failed: NMSE {:.3g} over the bound {:.3g} ({}); no speed is given for it\n",
               kv_text(row.test.kv), row.test.name(row.fill), row.check.nmse, row.check.bound, row.check.what);
  };
  const int n_failed = lab::run_batch_bench(params, hooks);
  progress.reset();
  writer.finish();
  if (interrupted()) return int(ErrorKind::interrupted);
  return n_failed > 0 ? int(ErrorKind::gate) : 0;
}

}  // namespace

Action declare_bench_batch(CLI::App& app) {
  const auto flags = std::make_shared<BatchFlags>();
  BatchFlags& f = *flags;
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  in_group(app, "Tests");
  add_list(app, "--n-prompt", f.n_prompt, "512", "tokens of each sequence's prompt (-npp)");
  add_list(app, "--n-gen", f.n_gen, "128", "steps that append a token to each sequence (-ntg)");
  add_list(app, "--n-parallel", f.n_parallel, "1,4,16,64", "sequences at a time (-npl)");
  add_text(app, "--lengths", f.lengths, "A-B|LIST",
           "prompts of different lengths: A-B spreads them evenly over the sequences, a list is dealt in turn");
  add_text(app, "--kv", f.kv, "LIST", "cache formats, one test each: f16,q8_0/rotor-3,rotor-3;0-1+27:q8_0");
  app.add_flag("--fill", f.fill, "random cache rows instead of running the prompts; rows say so");
  add_whole(app, "--ubatch-size", f.n_ubatch, 0, 65536, "most tokens of a prompts' step (-ub); 0: 512, on a GPU 2048");
  add_whole(app, "-r,--repetitions", f.repeats, 1, 100000, "times each test runs");
  app.add_flag("--no-warmup", f.no_warm_up, "skip the small steps before the timed ones");
  app.add_flag("--no-check", f.no_check, "do not compare with the reference kernels; rows say so");
  add_whole(app, "--seed", f.seed, 0, INT64_MAX, "seed of tokens and cache rows");
  in_group(app, "Output");
  add_text(app, "-o,--output", f.format, "FORMAT", "md, json or jsonl, to stdout");
  add_output_flags(app, f.output, true);
  return [flags] { return bench_batch(*flags); };
}

}  // namespace ridge::cli
