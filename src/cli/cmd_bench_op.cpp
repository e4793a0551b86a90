// ridge bench attention, gemv, append: single ops, checked and held against the read bandwidth of their device; or,
// with a model and a text, what caches do to the output of attention on the model's own rows.
#include <map>
#include <memory>

#include "cli/bench.h"
#include "cli/eval.h"
#include "engine/device_name.h"
#include "lab/op/coding.h"
#include "lab/quality/attention_study.h"

namespace ridge::cli {
namespace {

constexpr int kMaxKeys = 1 << 24;
constexpr const char* kStudyGroup = "Study of a model";

struct OpFlags {
  OutputFlags output;
  ModelFlags place;
  std::string kv, format = "md";
  std::vector<std::string> heads, seq, batch, n_new, shapes, weights, kernels;
  int roof_mib = 0;
  bool coding = false;
  lab::OpBenchParams params;  ///< but what the texts say
  std::string file;           ///< of the study, with place.model
  lab::AttentionOptions study;
};

void read_shapes(std::string_view flag, const std::vector<std::string>& texts, char separator,
                 std::vector<lab::OpShape>& values) {
  if (!texts.empty()) values = lab::parse_op_shapes(flag, joined(texts), separator).or_throw();
}

lab::OpBenchParams read_params(const OpFlags& flags) {
  lab::OpBenchParams params = flags.params;
  read_shapes("--heads", flags.heads, '/', params.heads);
  read_shapes("--shape", flags.shapes, 'x', params.shapes);
  read_numbers("--seq", flags.seq, 1, kMaxKeys, params.seq);
  read_numbers("--batch", flags.batch, 1, 65535, params.batch);
  read_numbers("--new", flags.n_new, 1, 65535, params.n_new);
  if (!flags.kv.empty()) params.kv = parse_kv_list(flags.kv).or_throw();
  if (!flags.weights.empty())
    for (const std::string& name : split(joined(flags.weights), ','))
      params.weights.push_back(find_weight_format(name).or_throw());
  if (!flags.kernels.empty()) params.kernels = split(joined(flags.kernels), ',');
  params.roof_bytes = int64_t(flags.roof_mib) << 20;
  if (flags.coding) {
    if (params.seq.empty()) params.seq = {8192};
    if (params.batch.empty()) params.batch = {1};
    if (params.kv.empty()) params.kv = parse_kv_list("p8/q8_0,p8/q4_0,rotor-3").or_throw();
    if (std::ranges::none_of(params.kv, [](const KvChoice& kv) { return kv_text(kv) == "f16"; }))
      params.kv.insert(params.kv.begin(), parse_kv_choice("f16").or_throw());
  }
  params.device = parse_device(flags.place.device).value_or(lab::OpDevice::kCpu);
  params.n_threads = flags.place.n_threads;
  params.isa = flags.place.isa;
  find_isa(flags.place.isa).or_throw();
  lab::op_problems(params);  // refuses impossible shapes before a device is looked for
  return params;
}

/// --coding: attention, then appends of one row to the same caches; a row for each coded cache has both.
int run_coding(lab::OpBenchParams params, lab::OpBenchHooks hooks, BenchOutput& output) {
  std::vector<lab::OpRow> attention, append;
  hooks.on_row = [&](const lab::OpRow& row) {
    (row.problem.op == lab::Op::append ? append : attention).push_back(row);
  };
  int n_failed = lab::run_op_bench(params, lab::op_kernels(), hooks);
  params.op = lab::Op::append;
  params.n_new = {1};
  n_failed += lab::run_op_bench(params, lab::op_kernels(), hooks);
  for (const lab::CodingCost& cost : lab::coding_costs(attention, append, params.seed))
    output.add(lab::coding_columns(), cost, n_failed == 0);
  return n_failed;
}

int bench_op(const OpFlags& flags) {
  const lab::OpBenchParams params = read_params(flags);
  check_device(flags.place.device);
  BenchOutput output(flags.output, flags.format,
                     flags.coding ? lab::coding_columns().head() : lab::op_columns().head());
  std::map<std::string, int> skipped;  // by reason
  lab::OpBenchHooks hooks;
  output.attach(hooks);
  hooks.on_predicted = [&](const lab::OpRow& row) {
    if (flags.output.quiet) return;
    output.clear();
    fmt::print(stderr, "{}\n", lab::op_prediction(row));
  };
  hooks.on_row = [&](const lab::OpRow& row) { output.add(lab::op_columns(), row, !row.failed()); };
  hooks.on_skipped = [&](const lab::OpProblem& problem, const std::string& why) {
    ++skipped[fmt::format("{} {}: {}", op_name(problem.op), problem.format_text(), why)];
  };
  const int n_failed =
      flags.coding ? run_coding(params, hooks, output) : lab::run_op_bench(params, lab::op_kernels(), hooks);
  const int code = output.finish(n_failed);
  if (!flags.output.quiet)
    for (const auto& [what, count] : skipped) fmt::print(stderr, "no kernel for {} of {}\n", count, what);
  if (n_failed > 0)
    fmt::print(stderr, "error: {} row{} failed the check and got no times\n", n_failed, n_failed == 1 ? "" : "s");
  return code;
}

int attention_study(const OpFlags& flags) {
  if (flags.file.empty() && !flags.place.model.starts_with("synth:"))
    bad_flag("--file", "is required with --model", "name a text");
  if (flags.place.device != "cpu")
    bad_flag("--device", "the study runs on the CPU: its reference is scalar, in double precision", "use --device cpu");
  const auto run = [](const Model& model, const lab::Corpus& corpus, lab::AttentionOptions& options,
                      const lab::AttentionHooks& hooks) {
    if (options.candidates.empty()) options.candidates = lab::default_attention_list(model.info().head_dim);
    lab::run_attention(model, corpus, options, hooks);
  };
  StudyFlags study{.text = {.model = flags.place, .file = flags.file}, .output = flags.output, .list = flags.kv};
  if (flags.format != "md" && flags.format != "json")
    bad_flag("--output", fmt::format("expects md or json for a study, found '{}'", flags.format));
  study.output.json |= flags.format == "json";
  return run_study<lab::AttentionResult>(study, "eval_attention", "caches", flags.study, run, lab::attention_table);
}

void add_study_flags(CLI::App& app, OpFlags& f) {
  in_group(app, kStudyGroup);
  add_text(app, "-m,--model", f.place.model, "MODEL",
           "instead of the bench: attention over this model's own rows, against the exact one");
  add_text(app, "-f,--file", f.file, "FILE",
           "the text that the rows are of; random tokens without it, for synth: models");
  add_whole(app, "-c,--ctx-size", f.study.n_ctx, 4, 1 << 20, "tokens per window");
  add_whole(app, "--windows", f.study.n_windows, 1, 1 << 20, "windows of the text");
  add_whole(app, "--queries", f.study.n_queries, 1, 1 << 20, "queries of each window, the last ones");
}

Action declare_bench_op(CLI::App& app, lab::Op op) {
  const auto flags = std::make_shared<OpFlags>();
  OpFlags& f = *flags;
  f.params.op = op;
  in_group(app, "Problems");
  if (op == lab::Op::gemv) {
    add_list(app, "--shape", f.shapes, "the seven of docs/benchmarks.md", "N_OUTxN_IN of the weights");
    add_list(app, "--weights", f.weights, "f32,f16,int4_g128,i2_s", "weight formats");
    add_list(app, "--batch", f.batch, "1,2,4,8,16,32,64", "tokens at a time");
  } else {
    add_list(app, "--heads", f.heads, "20/5,64/8,12/2", "HEADS/KV_HEADS");
    add_whole(app, "--head-dim", f.params.head_dim, 1, 256, "width of a head");
    in_group(app, "KV cache");
    add_text(app, "--kv", f.kv, "LIST", "cache formats, K/V where they differ: f16,q8_0/rotor-3")
        ->default_str(op == lab::Op::append ? "f32,f16,q8_0,p8/q4_0,rotor-3" : "f32,f16,p8/q8_0,p8/q4_0,rotor-3");
    in_group(app, "Problems");
    if (op == lab::Op::attention) {
      add_list(app, "--seq", f.seq, "512 to 131072", "cached positions; the default adds 8 x 8192 and 8 x 32768");
      add_list(app, "--new", f.n_new, "1", "of these the newest that are queries, of each sequence");
      add_list(app, "--batch", f.batch, "1", "equal sequences at a time");
    } else {
      add_list(app, "--new", f.n_new, "1", "tokens appended to each sequence");
      add_list(app, "--seq", f.seq, "8192", "positions already cached");
      add_list(app, "--batch", f.batch, "1,8", "equal sequences at a time");
    }
  }
  in_group(app, "Run");
  add_repeatable(app, "--kernel", f.kernels, "NAME", "kernels by name, timed in turns; all: every one that can",
                 "the best");
  if (op == lab::Op::attention)
    app.add_flag("--coding", f.coding, "a row for each coded cache: f16, coded, coding one row, and the codec's error");
  add_whole(app, "-r,--repeat", f.params.replays, 1, 100000,
            "samples of many calls; on a GPU replays of a graph of calls");
  add_whole(app, "--max-seconds", f.params.max_seconds, 1, 3600,
            "samples end after this long a problem, five at least");
  add_whole(app, "--sets", f.params.max_sets, 1, 4096,
            "sets of buffers that calls take turns over, at most; 1: a warm cache");
  add_whole(app, "--roof-size", f.roof_mib, 0, 1 << 20, "MiB read for memory bandwidth; 0: as bench bandwidth chooses");
  add_whole(app, "--seed", f.params.seed, 0, INT64_MAX, "seed of the data");
  in_group(app, "Machine");
  add_place_flags(app, f.place);
  if (op == lab::Op::attention) add_study_flags(app, f);
  in_group(app, "Output");
  add_text(app, "-o,--output", f.format, "FORMAT", "md, json or jsonl, to stdout");
  add_output_flags(app, f.output, true);
  app.footer(lab::columns_help(lab::op_columns().texts()));
  return [flags, &app] {
    if (flags->place.model.empty()) {
      refuse_group(app, kStudyGroup, "is of the study of a model (-m)");
      return bench_op(*flags);
    }
    for (const char* group : {"Problems", "Run"}) refuse_group(app, group, "is of the bench");
    return attention_study(*flags);
  };
}

}  // namespace

static Action declare_bench_attention(CLI::App& app) { return declare_bench_op(app, lab::Op::attention); }

extern const Command bench_attention_command = {
    "bench attention", "one layer's decode attention, by shape and cache format",
    R"(Times one layer's attention of the newest tokens (--new) of each sequence: samples of many calls (on a GPU
replays of a CUDA graph) over buffers that take turns, so that data comes from memory. Each result is held
against softmax in double first, and again after the timed calls: a wrong one is FAILED, gets no times, and
the command ends with 3. The percentage of memory bandwidth is the bytes of the formats over the read
bandwidth of the same run. With -m and -f nothing is timed: the model's own queries, keys and values go
through each cache, and the attention output and the scores are compared with the exact ones in double
precision, as they are and with an outlier channel (x20) planted in K. --json has every layer. --coding
answers whether a coded cache pays: attention over f16 and over the coded cache, coding one new row, the
sum, and the relative L2 error that the codec leaves in random normal rows.)",
    R"(ridge bench attention --heads 64/8 --seq 4096,32768 --kv f16,rotor-3
ridge bench attention --heads 64/8 --seq 8192,16384 --coding
ridge bench attention --heads 64/8 --batch 8 --seq 8192 --kv f32 --kernel all --device cuda -o jsonl
ridge bench attention -m model.gguf -f wiki.test.raw --windows 8 --kv rotor-3:planar:window=0:sinks=0)",
    declare_bench_attention};

static Action declare_bench_gemv(CLI::App& app) { return declare_bench_op(app, lab::Op::gemv); }

extern const Command bench_gemv_command = {
    "bench gemv", "matmul with weight matrices (GEMV, GEMM), by shape and batch",
    R"(Times y = x W for 1 to 64 tokens at a time, measured and checked like `bench attention`, against sums in
double. Bytes are the weights in their format, and the activations once as float32.)",
    R"(ridge bench gemv --shape 28672x4096,4096x14336 --weights int4_g128 --batch 1,8
ridge bench gemv --weights i2_s --batch 1 --device cuda -o jsonl --results gemv.jsonl)",
    declare_bench_gemv};

static Action declare_bench_append(CLI::App& app) { return declare_bench_op(app, lab::Op::append); }

extern const Command bench_append_command = {
    "bench append", "writing and coding new cache rows",
    R"(Times writing the K and V rows of new tokens into the cache, measured like `bench attention`. The check
compares the written bytes with the output of the formats' encoders.)",
    R"(ridge bench append --heads 64/8 --kv f16,rotor-3 --batch 1,8
ridge bench append --heads 64/8 --kv q8_0 --new 1,32)",
    declare_bench_append};

}  // namespace ridge::cli
