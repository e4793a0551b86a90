// ridge bench decode: llama-bench's work, checked and held against memory bandwidth.
#include <memory>

#include "cli/bench.h"
#include "cli/kv_auto.h"
#include "cli/spec_flags.h"
#include "io/mapped_file.h"
#include "lab/model/bench.h"
#include "lab/model/bench_spec.h"

namespace ridge::cli {
namespace {

constexpr int kMaxCount = 1 << 24;
constexpr uint64_t kMaxTextBytes = 64 << 20;

struct BenchFlags {
  ModelFlags device;
  OutputFlags output;
  std::vector<std::string> models, n_prompt, n_gen, prompt_gen, n_depth, n_batch, n_ubatch, n_threads, n_cpu_moe,
      type_k, type_v;
  std::string list, decision, format = "md", text;
  SpecFlags spec;
  double forced_accept = -1;
  lab::BenchParams params;  ///< but what the texts say

  bool forced() const { return forced_accept >= 0; }
};

std::vector<KvSideOptions> read_sides(const std::vector<std::string>& texts) {
  if (texts.empty()) return {KvSideOptions{}};
  std::vector<KvSideOptions> sides;
  for (const std::string& text : split(joined(texts), ',')) sides.push_back(parse_kv_side(text).or_throw());
  return sides;
}

KvListOrAuto read_kv(const BenchFlags& flags) {
  if (!flags.list.empty()) {
    if (!flags.type_k.empty() || !flags.type_v.empty())
      bad_flag("--kv", "does not go with -ctk and -ctv", "write K/V into the list");
    return read_kv_or_auto(flags.list, flags.decision, flags.output.quiet);
  }
  std::vector<KvChoice> choices;
  for (const KvSideOptions& k : read_sides(flags.type_k))
    for (const KvSideOptions& v : read_sides(flags.type_v)) choices.push_back({k, v});
  return {choices, {}};
}

lab::BenchParams read_params(const BenchFlags& flags) {
  lab::BenchParams params = flags.params;
  for (const std::string& models : flags.models)
    for (std::string& model : split(models, ',')) params.models.push_back(std::move(model));
  read_numbers("-p", flags.n_prompt, 0, kMaxCount, params.n_prompt);
  read_numbers("-n", flags.n_gen, 0, kMaxCount, params.n_gen);
  read_numbers("-d", flags.n_depth, 0, kMaxCount, params.n_depth);
  read_numbers("-b", flags.n_batch, 1, kMaxCount, params.n_batch);
  read_numbers("-ub", flags.n_ubatch, 1, 65536, params.n_ubatch);
  read_numbers("-t", flags.n_threads, 0, 1024, params.n_threads);
  read_numbers("--n-cpu-moe", flags.n_cpu_moe, 0, 1 << 20, params.n_cpu_moe);
  for (const std::string& pair : flags.prompt_gen) params.prompt_gen.push_back(lab::parse_prompt_gen(pair).or_throw());
  KvListOrAuto caches = read_kv(flags);
  params.kv = std::move(caches.kv);
  params.by_record = std::move(caches.by_record);
  params.load = flags.device.load_options();
  if (lab::bench_tests(params).empty())
    throw Error(ErrorKind::usage, "nothing to measure: -p and -n are 0 (give -p 512, -n 128 or -pg 512,128)");
  return params;
}

/// Generation with and without speculation, behind prompts of a text.
int bench_speculation(const BenchFlags& flags, const lab::BenchParams& decode) {
  if (decode.by_record) bad_flag("--kv", "auto does not go with --spec-type", "name the cache that the record chose");
  const bool forced = flags.forced();
  if (flags.text.empty() && !forced)
    bad_flag("--spec-type", "proposals need a real text", "add --text FILE, or --force-accept 0.7 for speed alone");
  if (!flags.prompt_gen.empty() || (!flags.n_depth.empty() && !forced) || decode.real_prefill)
    bad_flag("--spec-type", "the prompt is the depth", "leave out -pg, -d and --real-prefill, or add --force-accept");
  if (decode.n_ubatch.size() > 1 || decode.n_threads.size() > 1 || decode.n_cpu_moe.size() > 1 ||
      !flags.n_batch.empty())
    bad_flag("--spec-type", "one -ub, one -t and one --n-cpu-moe make the rows", "leave out the lists and -b");
  if (std::ranges::count(decode.n_prompt, 0) + std::ranges::count(decode.n_gen, 0) +
          std::ranges::count(decode.n_gen, 1) >
      0)
    bad_flag("--spec-type", "a test has a prompt and two tokens or more behind it", "give -p 512 -n 128");
  ModelFlags target = flags.device;
  target.n_threads = decode.n_threads[0];
  target.n_cpu_moe = decode.n_cpu_moe[0];
  lab::SpecBenchParams params{
      .models = decode.models,
      .text = flags.text.empty() ? "" : io::read_text_file(flags.text, kMaxTextBytes).or_throw(),
      .text_name = flags.text.empty() ? "random tokens" : flags.text,
      .n_prompt = decode.n_prompt,
      .n_gen = decode.n_gen,
      .n_depth = decode.n_depth,
      .kv = decode.kv,
      .n_ubatch = decode.n_ubatch[0],
      .repeats = decode.repeats,
      .warm_up = decode.warm_up,
      .check = decode.check,
      .temperature = decode.temperature,
      .forced_accept = forced ? std::optional(flags.forced_accept) : std::nullopt,
      .seed = decode.seed,
      .load = target.load_options(),
      .draft = bench_draft(flags.spec)};
  params.open = [&](const Model& model, int n_ctx) {
    return open_proposers(flags.spec, target, model, {n_ctx, params.n_ubatch});
  };
  BenchOutput output(flags.output, flags.format, lab::spec_columns().head(), true);
  lab::SpecBenchHooks hooks;
  output.attach(hooks);
  hooks.on_row = [&](const lab::SpecBenchRow& row) { output.add(lab::spec_columns(), row); };
  hooks.on_failed = [&](const lab::SpecBenchRow& row) {
    if (row.texts_differ.value_or(0) == 0) return output.failed(row.name(), row.check);
    output.clear();
    fmt::print(stderr, "error: {}: the text with {} differs from the one without; no speed is given for it\n",
               row.name(), params.draft.type);
  };
  return output.finish(lab::run_spec_bench(params, hooks));
}

int bench(const BenchFlags& flags) {
  const lab::BenchParams params = read_params(flags);
  check_bench_spec(flags.spec, flags.forced());
  if (flags.spec.on()) return bench_speculation(flags, params);
  if (!flags.text.empty()) bad_flag("--text", "tokens are random here", "add --spec-type lookup");
  check_device(flags.device.device);
  BenchOutput output(flags.output, flags.format, lab::bench_columns().head(), true);
  lab::BenchHooks hooks;
  output.attach(hooks);
  hooks.on_row = [&](const lab::BenchRow& row) { output.add(lab::bench_columns(), row); };
  hooks.on_failed = [&](const lab::BenchRow& row) { output.failed(row.test.text(), row.check); };
  return output.finish(lab::run_bench(params, hooks));
}

}  // namespace

static Action declare_bench_decode(CLI::App& app) {
  const auto flags = std::make_shared<BenchFlags>();
  BenchFlags& f = *flags;
  in_group(app, "Model");
  add_repeatable(app, "-m,--model", f.models, "MODEL", "GGUF file, directory or synth:SHAPE (comma list, repeatable)")
      ->required();
  add_text(app, "--device", f.device.device, "NAME", "cpu, cuda[:N], or cuda:N,M,... to share a model (-dev)");
  add_text(app, "--isa", f.device.isa, "NAME", "highest instruction set to use: " + isa_names());
  add_repeatable(app, "--kernel", f.device.kernels, "OP=NAME", "force a kernel, OP=NAME (repeatable)");
  add_exact_flag(app, f.device);
  add_rank_flags(app, &f.device.n_stages);
  in_group(app, "Tests");
  add_list(app, "-p,--n-prompt", f.n_prompt, "512", "prompt tokens; 0: no prompt test");
  add_list(app, "-n,--n-gen", f.n_gen, "128", "tokens to decode; 0: no decode test");
  add_repeatable(app, "--prompt-gen", f.prompt_gen, "PP,TG", "a prompt and a generation timed together (-pg)");
  add_list(app, "-d,--n-depth", f.n_depth, "0", "tokens already in the cache");
  add_list(app, "-b,--batch-size", f.n_batch, "2048", "tokens handed to the engine at a time");
  add_list(app, "--ubatch-size", f.n_ubatch, "512", "tokens per prefill step (-ub)");
  add_list(app, "-t,--threads", f.n_threads, "0", "threads; 0: one per processor");
  add_list(app, "--n-cpu-moe", f.n_cpu_moe, "0", "layers whose experts stay in host memory (-ncmoe)");
  add_moe_gib_flags(app, f.device);
  add_list(app, "--cache-type-k", f.type_k, "f16", "formats of K, FORMAT[:OPTION...] (-ctk)");
  add_list(app, "--cache-type-v", f.type_v, "f16", "formats of V (-ctv); crossed with K");
  add_text(app, "--kv", f.list, "LIST",
           "pairs instead of the cross product: f16,q8_0/rotor-3,rotor-3;0-1+27:q8_0,auto");
  add_decision_flag(app, f.decision);
  add_whole(app, "-r,--repetitions", f.params.repeats, 1, 100000, "times each test runs");
  add_off_flag(app, "--no-warmup", f.params.warm_up, "skip the run before the timed ones");
  app.add_flag("--real-prefill", f.params.real_prefill,
               "reach the depth by running a prompt, not with random cache rows");
  add_off_flag(app, "--no-check", f.params.check, "do not compare with the reference kernels; rows say so");
  add_whole(app, "--seed", f.params.seed, 0, INT64_MAX, "seed of tokens and cache rows");
  add_real(app, "--temp", f.params.temperature, 0, 100,
           "temperature; above 0 a row's time includes sampling, on the CPU too");
  add_spec_flags(app, f.spec);
  add_text(app, "--text", f.text, "FILE", "with --spec-type: the text that prompts are cut from");
  add_real(app, "--force-accept", f.forced_accept, 0, 1,
           "with --spec-type: how probably a proposal counts as right, for speed alone; -1: the model says");
  in_group(app, "Output");
  add_text(app, "-o,--output", f.format, "FORMAT", "md, csv, json, jsonl or sql, to stdout");
  add_output_flags(app, f.output, true);
  app.footer(lab::columns_help(lab::bench_columns().texts()) +
             "With --spec-type:" + lab::columns_help(lab::spec_columns().texts()));
  return [flags] { return bench(*flags); };
}

extern const Command bench_decode_command = {
    "bench decode", "prefill and decode speed of models, with percent of memory bandwidth",
    R"(Flags, tests and row fields are those of llama-bench, with Ridge's own appended. Every value may be a comma
list or a range (512-4096*2); tests are the cross product. Each cache format is compared with the reference
kernels before it is timed: a wrong one gets no speed and the command ends with 3.)",
    R"(ridge bench decode -m synth:qwen2.5-1.5b@weights=q4_0 -p 0 -n 32 -d 0,4096 --kv f16,q8_0,rotor-3
ridge bench decode -m model.gguf -ctk f16,q8_0 -ctv f16 -o jsonl --results results/decode.jsonl
ridge bench decode -m models/ridge-ref-q8_0.gguf --spec-type lookup --text models/wikitext-2-excerpt.txt -n 128)",
    declare_bench_decode};

}  // namespace ridge::cli
