// ridge decide: which cache format pays for a model on this machine, with the evidence.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <memory>

#include "base/interrupt.h"
#include "base/progress.h"
#include "cli/bench.h"
#include "cli/kv_auto.h"
#include "cli/options.h"
#include "cli/report.h"
#include "lab/decide/measure.h"
#include "lab/decide/plan.h"
#include "lab/sweep/doctor.h"

namespace ridge::cli {
namespace {

struct DecideFlags {
  ModelFlags model;
  OutputFlags output;
  lab::DecisionParams params;
  std::string candidates = "q8_0,rotor-4,rotor-4/rotor-3,rotor-3", show, page;
  std::vector<std::string> depths, target_depths, prompts;
  std::string search_sides = "rotor-3s,rotor-3,rotor-4,q8_0", bits = "3.25,3.5,3.75,4,4.25";
  double memory_gib = 0;
  bool no_check = false, quick = false, again = false, with_rows = false;

  lab::PageRows page_rows() const { return with_rows ? lab::PageRows::shown : lab::PageRows::hidden; }
};

/// The record as a page, or as its file has it.
int show(const lab::DecisionRecord& record, const DecideFlags& flags) {
  fmt::print("{}", flags.output.json ? lab::record_text(record) : lab::record_page(record, flags.page_rows()));
  return 0;
}

/// Sizes of --quick, where flags do not say otherwise: two minutes for a model of 135 M parameters on two processors.
void make_quick(const Model& model, lab::DecisionParams& params) {
  constexpr int kContext = 8192;
  if (params.n_ctx == 0) params.n_ctx = std::min(kContext, model.info().n_ctx_train);
  if (params.depths.empty()) params.depths = {params.n_ctx};
  if (params.target_depths.empty()) params.target_depths = {kContext};
  if (params.prompts.empty()) params.prompts = {std::max(1, std::min(512, params.n_ctx / 2))};
  if (params.n_gen == 0) params.n_gen = std::min(32, params.n_ctx / 4);
  if (params.eval_ctx == 0) params.eval_ctx = std::min(512, model.info().n_ctx_train);
  params.samples = std::min(params.samples, 10), params.max_seconds = std::min(params.max_seconds, 0.3);
  params.check = false;
}

/// Warns, before anything is measured, that a busy machine changes the figures.
void warn_if_busy() {
  for (const lab::Check& check : lab::examine(lab::look_around({})))
    if (check.name.ends_with("load") && check.finding != lab::Finding::ok)
      fmt::print(stderr, "busy     {}: {}, or measure only quality and memory (--only-quality)\n", check.what,
                 check.advice);
}

/// Prints the cells that will be measured, and how long that takes.
void print_steps(const std::vector<lab::DecisionStep>& steps, const std::string& file) {
  double seconds = 0;
  for (const lab::DecisionStep& step : steps) seconds += step.seconds;
  if (steps.empty()) return fmt::print(stderr, "decide   all rows are in {}\n", file);
  for (const lab::DecisionStep& step : steps)
    fmt::print(stderr, "to do    {}, about {}\n", step.what, short_duration(step.seconds));
  fmt::print(stderr, "decide   about {} in all; rows go to {}, Ctrl-C keeps them\n", short_duration(seconds), file);
}

/// A line a step: rewritten in place on a terminal, printed where stderr is a file or a pipe.
class StepLines {
 public:
  explicit StepLines(bool enabled) : enabled_(enabled), progress_("decide", enabled) {}
  void step(const std::string& what) {
    what_ = what;
    if (progress_.shown()) {
      progress_.restart();
      progress_.set(0, 0, what);
    } else if (enabled_) {
      fmt::print(stderr, "{:>8.0f} s  {}\n", seconds(), what);
    }
  }
  void tokens(int64_t done, int64_t total) {
    if (progress_.shown()) return progress_.set(done, total, what_);
    const int tenth = int(10 * done / std::max<int64_t>(1, total));
    if (enabled_ && tenth != tenth_) fmt::print(stderr, "{:>8.0f} s  {} % of the tokens\n", seconds(), 10 * tenth);
    tenth_ = tenth;
  }
  void clear() { progress_.clear(); }

 private:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  const bool enabled_;
  Progress progress_;
  std::string what_;
  int tenth_ = 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The file of rows: --results, or the user's own.
std::string results_file(const std::string& named) {
  if (!named.empty()) return named;
  const std::filesystem::path folder = user_records();
  if (folder.empty())
    bad_flag("--results", "is required: there is no HOME", "name a file for the rows; the record comes beside it");
  std::filesystem::create_directories(folder);
  return (folder / "lab.jsonl").native();
}

std::vector<double> bit_limits(const std::string& text) {
  std::vector<double> limits;
  for (const std::string& part : split(text, ',')) {
    double value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (part.empty()) continue;
    if (error != std::errc() || end != part.data() + part.size() || !(value > 0 && value <= 64))
      bad_flag("--bits", fmt::format("expects numbers of bits from 0 to 64, found '{}'", part));
    limits.push_back(value);
  }
  return limits;
}

/// Reads --search and its refinements.
void read_search(const DecideFlags& flags, lab::DecisionParams& params) {
  if (params.search_text.empty()) return;
  if (params.text.empty()) bad_flag("--search", "is verified on a text that it does not see", "name that text with -f");
  for (const std::string& text : split(flags.search_sides, ',')) {
    const std::string side = kv_side_text(parse_kv_side(text).or_throw());
    if (side == lab::kFloorSide) bad_flag("--search-sides", "f32 is what the floor is measured with", "name others");
    if (side != "f16" && std::ranges::find(params.search_sides, side) == params.search_sides.end())
      params.search_sides.push_back(side);
  }
  if (params.search_sides.empty()) bad_flag("--search-sides", "f16 is always among them", "name another");
  params.search_bits = bit_limits(flags.bits);
  if (params.search_bits.empty() && params.kld_budget == 0)
    bad_flag("--bits", "a search needs a limit", "give --bits or --kld-budget");
}

lab::DecisionParams params_of(const DecideFlags& flags) {
  constexpr double kGib = double(1 << 30);
  lab::DecisionParams params = flags.params;
  params.model = flags.model.model;
  params.place = flags.model.load_options();
  for (const KvChoice& kv : parse_kv_list(flags.candidates).or_throw())
    if (const std::string text = kv_text(kv); text != "f16") params.candidates.push_back(text);
  if (params.candidates.empty()) bad_flag("--candidates", "f16 is what candidates are compared with", "name another");
  read_numbers("--depths", flags.depths, 1, 1 << 24, params.depths);
  read_numbers("--target-depths", flags.target_depths, 1, 1 << 24, params.target_depths);
  read_numbers("--prompts", flags.prompts, 1, 1 << 24, params.prompts);
  params.memory_bytes = int64_t(flags.memory_gib * kGib);
  params.available_bytes = lab::usable_memory(params.place);
  params.check = !flags.no_check;
  read_search(flags, params);
  return params;
}

int decide(const DecideFlags& flags) {
  if (flags.show.empty() && !flags.page.empty()) bad_flag("--page", "is of a record", "add --show RECORD");
  if (!flags.show.empty()) {
    const lab::DecisionRecord record = lab::read_record(flags.show).or_throw();
    return flags.page.empty() ? show(record, flags) : draw_decision(flags.show, flags.page, flags.output);
  }
  if (flags.model.model.empty()) bad_flag("--model", "is required", "or --show RECORD");
  check_device(flags.model.device);
  lab::DecisionParams params = params_of(flags);
  const std::string file = results_file(flags.output.results);
  if (!flags.output.quiet && !params.only_quality) warn_if_busy();
  const Model model = load_model(flags.model);
  if (flags.quick) make_quick(model, params);
  const lab::DecisionQuestion question = lab::ask(model, params);
  std::optional<lab::SearchQuestion> searched;
  if (!params.search_text.empty()) searched = lab::ask_search(model, params, question);
  lab::Store store = lab::Store::open(file).or_throw();
  if (flags.again) params.again = lab::noisy_rows(lab::decide(store.rows(), question, params.candidates, {}));
  if (!flags.output.quiet) {
    const lab::SearchQuestion* const search = searched ? &*searched : nullptr;
    print_steps(lab::steps_left(model, params, question, search, store), file);
  }
  StepLines lines(!flags.output.quiet);
  int n_new = 0;
  lab::DecisionHooks hooks;
  hooks.stop = interrupted;
  hooks.on_status = [&](const std::string& what) { lines.step(what); };
  hooks.on_tokens = [&](int64_t done, int64_t total) { lines.tokens(done, total); };
  hooks.on_row = [&](const lab::Row&) { ++n_new; };
  if (searched) {
    lab::measure_sensitivity(model, params, question, *searched, store, hooks);
    // Measure the caches that the search finds with the candidates; the allocation of the budget is one of them.
    const lab::SearchRecord found = lab::search(store.rows(), question, *searched);
    params.quality_caches = lab::searched_caches(found);
    const std::string of_budget = lab::budget_cache(found);
    if (!of_budget.empty() && of_budget != "f16" &&
        std::ranges::find(params.candidates, of_budget) == params.candidates.end())
      params.candidates.push_back(of_budget);
  }
  lab::measure_missing(model, params, question, store, hooks);
  lines.clear();
  if (!flags.output.quiet) fmt::print(stderr, "decide   {} rows measured, in {}\n", n_new, file);
  if (interrupted()) {
    fmt::print(stderr, "interrupted: the same command goes on from here\n");
    return int(ErrorKind::interrupted);
  }
  const std::vector<lab::Row> rows = store.rows();
  lab::DecisionRecord record = lab::decide(rows, question, params.candidates, {});
  if (searched) {
    lab::add_search(record, lab::search(rows, question, *searched));
    for (lab::Row& row : lab::search_rows(question, *record.search)) {
      row.update(lab::provenance(question.subject.n_threads, params.seed));
      store.add(row);
    }
  }
  const std::filesystem::path path =
      lab::record_path(std::filesystem::path(file).parent_path(), question.subject.model_hash);
  lab::write_record(record, path);
  if (!flags.output.quiet) fmt::print(stderr, "record   {}\n", path.native());
  return show(record, flags);
}

}  // namespace

static Action declare_decide(CLI::App& app) {
  const auto flags = std::make_shared<DecideFlags>();
  DecideFlags& f = *flags;
  lab::DecisionParams& p = f.params;
  say_needed(add_model_flag(app, f.model, false), "required, or --show");
  add_device_flags(app, f.model);
  in_group(app, "Decision");
  add_whole(app, "-c,--ctx-size", p.n_ctx, 0, 1 << 24, "tokens of a session; 0: what the model was trained for");
  add_whole(app, "--sessions", p.n_sessions, 1, 65536, "sequences in memory at once (gate 6)");
  add_text(app, "--candidates", f.candidates, "LIST", "comma list of caches that are compared with f16");
  add_text(app, "--results", f.output.results, "FILE",
           "rows, a JSON line each; the record comes beside it; left out: ~/.local/share/ridge/lab.jsonl")
      ->default_str("");
  app.add_flag("--quick", f.quick, "small sizes: an answer in two minutes for a model of 135 M parameters");
  app.add_flag("--again", f.again, "measure times again from which a gate has no verdict");
  add_text(app, "-f,--file", p.text, "FILE", "text that quality is measured on; left out: gate 4 has no verdict");
  add_real(app, "--memory-gib", f.memory_gib, 0, 1e6, "GiB that may be used (gate 6); 0: what is available here");
  add_text(app, "--show", f.show, "RECORD", "only print this record");
  app.add_flag("--rows", f.with_rows, "print the ids of the rows of every gate");
  add_text(app, "--page", f.page, "DIR", "of --show: draw the record as a page of the report, decision.html in DIR");
  app.add_flag("--only-quality", p.only_quality, "measure nothing that other processes disturb: no times");
  in_group(app, "Search");
  add_text(app, "--search", p.search_text, "FILE",
           "search formats of layers and sides on this text, and verify them on that of -f");
  add_text(app, "--search-sides", f.search_sides, "LIST", "formats that a side of a layer may have, beside f16");
  add_whole(app, "--search-chunks", p.search_chunks, 1, 1 << 20, "windows of the searched text, at most");
  add_real(app, "--kld-budget", p.kld_budget, 0, 100,
           "nats of mean KL divergence: the fewest bits within them become a candidate; 0: no budget");
  add_text(app, "--bits", f.bits, "LIST", "bits a value: the least divergence within each of them is found");
  in_group(app, "Size");
  add_list(app, "--depths", f.depths, "", "cached tokens of gate 1; left out: up to the context");
  add_list(app, "--target-depths", f.target_depths, "", "cached tokens of gate 2; left out: 4096 to 32768");
  add_list(app, "--prompts", f.prompts, "", "tokens of prompts of gate 3; left out: 4096, or what the context holds");
  add_whole(app, "-n,--n-gen", p.n_gen, 0, 1 << 20, "tokens generated behind them; 0: 256, at most a quarter of -c");
  add_whole(app, "-r,--repetitions", p.repeats, 1, 1000, "requests of each format; fewer than 5 give no verdict");
  add_whole(app, "--samples", p.samples, 5, 100000, "samples of an attention cell");
  add_real(app, "--max-seconds", p.max_seconds, 0.01, 3600, "seconds of an attention cell's samples");
  add_whole(app, "--roof-mib", p.roof_mib, 0, 1 << 20,
            "MiB of the buffer that attention's read bandwidth is measured with; 0: as bench bandwidth");
  add_whole(app, "--eval-ctx", p.eval_ctx, 0, 1 << 24, "tokens of a window of the text; 0: 1024");
  add_whole(app, "--chunks", p.eval_chunks, 1, 1 << 20, "windows, at most");
  app.add_flag("--no-check", f.no_check, "do not compare with the reference kernels before requests are timed");
  add_output_flags(app, f.output, false);
  return [flags] { return decide(*flags); };
}

extern const Command decide_command = {
    "decide", "which cache format pays here, with the evidence",
    R"(Measures what the file of rows does not have yet: attention of the model's heads up to the context and of
64/8/128, whole requests (prompt and generated tokens) in turns with f16, perplexity and KL divergence token
by token, the plan. It says first what is to do and how long that takes, and warns on a busy machine. Then six
gates judge every candidate (PASS, FAIL or NO VERDICT), and a record beside the file says which format to use
from how many tokens on, for run --kv-quant auto, and in words which is the smallest cache within the quality
limit. The same command again measures what is missing, with --again also times that were too noisy. --quick
takes small sizes, --only-quality leaves out all times, --search looks for formats by layer and side.
docs/deciding.md has the gates.)",
    R"(ridge decide -m model.gguf -f wiki.test.raw --quick
ridge decide -m model.gguf -c 16384 -f wiki.test.raw --results lab.jsonl
ridge decide -m model.gguf -c 32768 --sessions 8 --candidates rotor-3,q8_0/rotor-3 -f text.txt --results lab.jsonl
ridge decide -m model.gguf -f wiki.test.raw --search wiki.valid.raw --kld-budget 0.002 --results lab.jsonl
ridge decide --show decision-0123456789abcdef.json)",
    declare_decide};

}  // namespace ridge::cli
