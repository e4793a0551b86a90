// ridge bench batch: llama-batched-bench's work, checked and held against memory bandwidth.
#include <memory>

#include "cli/bench.h"
#include "cli/kv_auto.h"
#include "cli/spec_flags.h"
#include "lab/model/bench_batch.h"

namespace ridge::cli {
namespace {

constexpr int kMostTokens = 1 << 24, kMostSequences = 4096;

struct BatchFlags {
  ModelFlags model;
  OutputFlags output;
  std::vector<std::string> n_prompt, n_gen, n_parallel;
  std::string lengths, kv = "f16", decision, format = "md";
  SpecFlags spec;
  double forced_accept = -1;
  lab::BatchParams params;  ///< but what the texts say
};

lab::BatchParams read_batch_params(const BatchFlags& flags) {
  lab::BatchParams params = flags.params;
  params.model = flags.model.model;
  if (!flags.lengths.empty()) {
    if (!flags.n_prompt.empty()) bad_flag("--lengths", "does not go with -npp", "give one of them");
    params.n_prompt = {lab::parse_prompt_lengths("--lengths", flags.lengths, kMostTokens).or_throw()};
  } else if (!flags.n_prompt.empty()) {
    std::vector<int> lengths;
    read_numbers("-npp", flags.n_prompt, 1, kMostTokens, lengths);
    params.n_prompt.clear();
    for (const int n : lengths) params.n_prompt.push_back({{n}});
  }
  read_numbers("-ntg", flags.n_gen, 0, kMostTokens, params.n_gen);
  read_numbers("-npl", flags.n_parallel, 1, kMostSequences, params.n_parallel);
  KvListOrAuto caches = read_kv_or_auto(flags.kv, flags.decision, flags.output.quiet);
  params.kv = std::move(caches.kv);
  params.by_record = std::move(caches.by_record);
  params.load = flags.model.load_options();
  if (params.fill && std::ranges::count(params.n_gen, 0) > 0)
    bad_flag("-ntg", "0 leaves nothing to measure with --fill", "give -ntg 128");
  return params;
}

std::optional<lab::BatchSpec> read_spec(const BatchFlags& flags, const lab::BatchParams& params) {
  check_bench_spec(flags.spec, flags.forced_accept >= 0);
  if (!flags.spec.on()) return {};
  if (flags.forced_accept < 0)
    bad_flag("--spec-type", "prompts are random tokens", "add --force-accept 0.7 for speed alone");
  if (flags.spec.sampling != "exact") bad_flag("--spec-sampling", "texts are greedy here", "leave it out");
  if (std::ranges::count(params.n_gen, 0) > 0) bad_flag("-ntg", "0 leaves nothing to propose", "give -ntg 128");
  return lab::BatchSpec{.draft = bench_draft(flags.spec),
                        .forced_accept = flags.forced_accept,
                        .open = [&flags, n_ubatch = params.n_ubatch](const Model& model, int n_ctx, int n_texts) {
                          return open_proposers(flags.spec, flags.model, model, {n_ctx, n_ubatch, n_texts});
                        }};
}

int bench_batch(const BatchFlags& flags) {
  lab::BatchParams params = read_batch_params(flags);
  params.spec = read_spec(flags, params);
  check_device(flags.model.device);
  const auto columns = params.spec ? lab::batch_spec_columns() : lab::batch_columns();
  BenchOutput output(flags.output, flags.format, columns.head());
  lab::BatchHooks hooks;
  output.attach(hooks);
  hooks.on_row = [&](const lab::BatchRow& row) { output.add(columns, row); };
  hooks.on_failed = [&](const lab::BatchRow& row) { output.failed(row.test.text(row.fill), row.check); };
  return output.finish(lab::run_batch_bench(params, hooks));
}

}  // namespace

static Action declare_bench_batch(CLI::App& app) {
  const auto flags = std::make_shared<BatchFlags>();
  BatchFlags& f = *flags;
  add_model_flag(app, f.model, true);
  add_device_flags(app, f.model);
  add_rank_flags(app, &f.model.n_stages);
  in_group(app, "Tests");
  add_list(app, "--n-prompt", f.n_prompt, "512", "tokens of each sequence's prompt (-npp)");
  add_list(app, "--n-gen", f.n_gen, "128", "steps that append a token to each sequence (-ntg)");
  add_list(app, "--n-parallel", f.n_parallel, "1,4,16,64", "sequences at a time (-npl)");
  add_text(app, "--lengths", f.lengths, "A-B|LIST",
           "prompts of different lengths: A-B spreads them evenly over the sequences, a list is dealt in turn");
  add_text(app, "--kv", f.kv, "LIST", "cache formats, one test each: f16,q8_0/rotor-3,rotor-3;0-1+27:q8_0,auto");
  add_decision_flag(app, f.decision);
  app.add_flag("--fill", f.params.fill, "random cache rows instead of running the prompts; rows say so");
  add_whole(app, "--ubatch-size", f.params.n_ubatch, 0, 65536,
            "most tokens of a prompts' step (-ub); 0: 512, on a GPU 2048");
  add_whole(app, "-r,--repetitions", f.params.repeats, 1, 100000, "times each test runs");
  add_off_flag(app, "--no-warmup", f.params.warm_up, "skip the small steps before the timed ones");
  add_off_flag(app, "--no-check", f.params.check, "do not compare with the reference kernels; rows say so");
  add_whole(app, "--seed", f.params.seed, 0, INT64_MAX, "seed of tokens and cache rows");
  add_spec_flags(app, f.spec);
  add_real(app, "--force-accept", f.forced_accept, 0, 1,
           "with --spec-type: how probably a draft token counts as right; -1: no draft tokens");
  in_group(app, "Output");
  add_text(app, "-o,--output", f.format, "FORMAT", "md, json or jsonl, to stdout");
  add_output_flags(app, f.output, true);
  app.footer(lab::columns_help(lab::batch_spec_columns().texts()) +
             "The last three stand in tables with --spec-type.\n");
  return [flags] { return bench_batch(*flags); };
}

extern const Command bench_batch_command = {
    "bench batch", "prefill and decode speed of several sequences at once",
    R"(Flags and columns are llama-batched-bench's, ours appended. For every number of sequences (-npl) the prompts
run first; sequences share forward passes. Then every forward pass generates one token of each sequence,
greedily, and computes the logits of every sequence. The
percentage of memory bandwidth counts what a pass must read: the weights once and each sequence's cache.
--spec-type times the generation a second time, with draft tokens.
--lengths makes the sequences unequal. --fill puts random rows into the caches instead of running the prompts,
so that 64 x 8192 is measured in seconds. Caches that do not fit are refused before anything runs. Small
batches behind the same cache rows are first compared with the reference kernels: a wrong one gets no row and
the command ends with 3.)",
    R"(ridge bench batch -m synth:qwen2.5-1.5b@weights=int4_g128 -npp 512 -ntg 64 -npl 1,4,16,64 --device cuda
ridge bench batch -m model.gguf -npl 16 --lengths 128-8192 --kv f16,rotor-3
ridge bench batch -m model.gguf -npp 8192 -ntg 64 -npl 64 --fill -o jsonl --results results/batch.jsonl
ridge bench batch -m model.gguf -npl 1,4,16 -ntg 512 --spec-type mtp --force-accept 0.7 --device cuda)",
    declare_bench_batch};

}  // namespace ridge::cli
