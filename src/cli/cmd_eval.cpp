// ridge eval ppl, ridge eval kld: quality of KV cache configurations on a text.
#include <algorithm>
#include <cstdio>

#include "base/build_info.h"
#include "base/interrupt.h"
#include "cli/eval.h"
#include "lab/quality/eval_rows.h"

namespace ridge::cli {
namespace {

constexpr const char* kShelf = "shelf";

struct EvalFlags {
  TextFlags text;
  BaseFlags base;
  KvFlags kv;
  OutputFlags output;
  std::string list, each_layer, save_base, format = "md";
  int group = 8;
  bool curve = false, against_base = false;
};

/// The caches that flags name; the shelf and single layers come when the model is known.
std::vector<KvChoice> listed_caches(const EvalFlags& flags) {
  if (flags.list.empty()) return flags.each_layer.empty() ? std::vector{flags.kv.choice()} : std::vector<KvChoice>();
  refuse_caches_beside_list(flags.kv);
  return flags.list == kShelf ? std::vector<KvChoice>() : parse_kv_list(flags.list).or_throw();
}

void add_caches_of_model(const EvalFlags& flags, const ModelInfo& info, std::vector<KvChoice>& caches) {
  const auto add = [&](const std::vector<KvChoice>& more) { caches.insert(caches.end(), more.begin(), more.end()); };
  if (flags.list == kShelf) add(lab::shelf_caches(info.head_dim));
  if (!flags.each_layer.empty()) add(lab::each_layer(parse_kv_choice(flags.each_layer).or_throw(), info.n_layers));
  if (!flags.list.empty()) flags.kv.refine(caches);
}

/// --save-base writes what running the base gives, so the base must be run.
void check_save_base(const EvalFlags& flags, const lab::EvalOptions& options) {
  if (flags.save_base.empty() || !options.base_file) return;
  bad_flag("--save-base", "does not go with a base that comes from a file", "name a cache for --base");
}

void use_windows_of_file(const TextFlags& flags, lab::EvalOptions& options) {
  const int n_ctx = options.base_file->base().shape.n_ctx;
  if (flags.context.n_ctx != 0 && flags.context.n_ctx != n_ctx)
    bad_flag("--ctx-size", fmt::format("{} is not the {} that the base file was made with", flags.context.n_ctx, n_ctx),
             "leave it out");
  options.n_ctx = n_ctx;
}

/// Rows of earlier runs that this one need not measure: of a clean build, which can be told apart from another, and
/// where nothing is asked for that rows do not hold.
std::vector<lab::Row> stored_rows(const EvalFlags& flags, lab::ResultsFile& results) {
  std::vector<lab::Row> rows;
  if (flags.against_base && flags.save_base.empty() && !flags.curve && parse_kv_choice(flags.base.base))
    rows = results.rows().or_throw();
  const std::string_view commit = build_info().commit;
  if (!rows.empty() && (commit.ends_with("-dirty") || commit == "unknown")) {
    if (!flags.output.quiet)
      fmt::print(stderr, "stored rows are not reused: build {} may differ from the one that wrote them\n", commit);
    rows.clear();
  }
  return rows;
}

void print_rows(const EvalFlags& flags, const std::vector<lab::Row>& rows) {
  if (flags.format == "json") return fmt::print("{}\n", lab::json_text(lab::Row(rows), 2));
  if (flags.format == "jsonl") {
    for (const lab::Row& row : rows) fmt::print("{}\n", lab::json_text(row));
    return;
  }
  if (!flags.against_base)
    for (const lab::Row& row : rows) fmt::print("{}", lab::ppl_text(row));
  // The blocks of many candidates would bury the table; --json has them all.
  if (flags.against_base && rows.size() <= 2) fmt::print("{}\n", lab::kld_text(rows.back()));
  if (flags.against_base || rows.size() > 1) fmt::print("{}", lab::eval_table(rows));
  if (flags.curve) fmt::print("\n{}", lab::curve_text(rows));
}

/// Progress of a run, on stderr.
class EvalProgress {
 public:
  EvalProgress(const EvalFlags& flags, size_t n_caches)
      : flags_(flags),
        // The perplexities of one candidate run on along one line, where no bar can be drawn.
        one_line_(!flags.against_base && n_caches == 1),
        says_chunks_(!flags.output.quiet && n_caches <= size_t(flags.group)),
        progress_("eval", !flags.output.quiet && !one_line_) {}

  lab::EvalRowHooks hooks() {
    lab::EvalRowHooks hooks;
    hooks.eval.stop = interrupted;
    hooks.eval.on_progress = [this](int64_t steps, int64_t total) { progress_.add(steps, total, "tokens"); };
    if (says_chunks_) hooks.eval.on_chunk = [this](const lab::EvalResult& so_far) { say_chunk(so_far); };
    hooks.on_start = [this](int n_stored, int n_left) { say_start(n_stored, n_left); };
    hooks.on_group = [this](const lab::EvalResult& group, int n_left) { say_group(group, n_left); };
    return hooks;
  }
  /// Whether the last group is complete.
  bool complete() const { return chunks_done_ == n_chunks_; }
  std::string chunks() const { return fmt::format("{} of {} chunks done", chunks_done_, n_chunks_); }

 private:
  void say_start(int n_stored, int n_left) const {
    if (flags_.output.quiet || (n_stored == 0 && says_chunks_)) return;
    const std::string stored = n_stored > 0 ? fmt::format("; {} are in {}", n_stored, flags_.output.results) : "";
    fmt::print(stderr, "caches   {} to run, {} at a time{}{}\n", n_left, std::min(flags_.group, n_left),
               flags_.against_base ? " beside " + flags_.base.base : "", stored);
  }
  void say_chunk(const lab::EvalResult& so_far) {
    progress_.clear();
    if (so_far.chunks_done == 1) {
      if (one_line_)
        fmt::print(stderr, "{:.2f} s per chunk, about {} in all\n", so_far.seconds,
                   short_duration(so_far.seconds * so_far.windows.n_chunks));
      if (const std::string heading = lab::chunk_heading(so_far); !heading.empty()) fmt::print(stderr, "{}\n", heading);
    }
    fmt::print(stderr, "{}{}", lab::chunk_text(so_far), one_line_ ? "" : "\n");
    std::fflush(stderr);
  }
  void say_group(const lab::EvalResult& group, int n_left) {
    progress_.restart();
    chunks_done_ = group.chunks_done, n_chunks_ = group.windows.n_chunks;
    if (flags_.output.quiet) return;
    if (one_line_) fmt::print(stderr, "\n");
    if (!says_chunks_)
      fmt::print(stderr, "{} caches in {}, {} left\n", group.candidates.size(), short_duration(group.seconds), n_left);
  }

  const EvalFlags& flags_;
  const bool one_line_, says_chunks_;
  Progress progress_;
  int chunks_done_ = 0, n_chunks_ = 0;
};

/// Says what is missing of a run that was stopped.
void tell_missing(const EvalFlags& flags, const EvalProgress& progress, size_t n_rows, size_t n_caches) {
  const std::string what =
      n_rows < n_caches ? fmt::format("{} of {} caches have rows", n_rows, n_caches) : progress.chunks();
  const char* const next = !flags.save_base.empty() ? ", no base file was written"
                           : !flags.output.results.empty() && flags.against_base
                               ? "; the same command with the same --results goes on from here"
                               : "";
  fmt::print(stderr, "interrupted: {}{}\n", what, next);
}

int eval(EvalFlags flags) {
  if (flags.output.json) flags.format = "json";
  if (flags.format != "md" && flags.format != "json" && flags.format != "jsonl")
    bad_flag("--output", fmt::format("expects md, json or jsonl, found '{}'", flags.format));
  lab::EvalOptions options = eval_options(flags.text);
  options.candidates = listed_caches(flags);
  options.whole_curve = flags.curve;
  options.save_base = flags.save_base;
  lab::ResultsFile results = lab::ResultsFile::open(flags.output.results).or_throw();
  const std::vector<lab::Row> stored = stored_rows(flags, results);
  const Model model = load_model(flags.text.model);
  add_caches_of_model(flags, model.info(), options.candidates);
  std::optional<io::KlBaseFile> base_file;
  const lab::Corpus corpus =
      flags.against_base ? read_base(flags.base, flags.text, model, options, base_file) : read_text(flags.text, model);
  check_save_base(flags, options);
  if (options.base_file) use_windows_of_file(flags.text, options);
  // A base file is written by one run of the base.
  options.group = flags.save_base.empty() ? flags.group : std::max(flags.group, int(options.candidates.size()));
  // Refused before anything is said about what will run.
  const lab::Windows windows = lab::plan_evaluation(model, corpus, options).windows;
  if (!flags.output.quiet) print_start(corpus, windows, options, model);

  const size_t n_caches = options.candidates.size();
  EvalProgress progress(flags, n_caches);
  const std::vector<lab::Row> rows = lab::evaluate_rows(model, corpus, options, stored, results, progress.hooks());
  const bool complete = progress.complete() && rows.size() == n_caches;
  if (!complete) tell_missing(flags, progress, rows.size(), n_caches);
  if (!rows.empty()) print_rows(flags, rows);
  return complete ? 0 : int(ErrorKind::interrupted);
}

Action declare(CLI::App& app, bool against_base) {
  const auto flags = std::make_shared<EvalFlags>();
  EvalFlags& f = *flags;
  f.against_base = against_base;
  add_text_flags(app, f.text);
  if (!against_base) app.get_option("--file")->required();
  add_rank_flags(app, &f.text.model.n_stages);
  in_group(app, "KV cache");
  add_text(app, "--kv", f.list, "LIST",
           "comma list of K or K/V[;LAYERS:K/V], options as rotor-3:planar:window=32; shelf: every format");
  add_text(app, "--each-layer", f.each_layer, "KV", "this cache in one layer at a time, the others in f16");
  add_whole(app, "--group", f.group, 1, 1000, "caches run side by side; rows are stored when a group is done");
  add_kv_flags(app, f.kv);
  if (against_base) {
    add_base_flags(app, f.base);
    in_group(app, "KV cache");
    add_text(app, "--save-base", f.save_base, "FILE",
             "write the base's distributions to a file for --base and llama-perplexity");
    in_group(app, "Output");
    app.add_flag("--curve", f.curve, "print the divergence by position, over the whole window");
  }
  in_group(app, "Output");
  add_text(app, "-o,--output", f.format, "FORMAT", "md, json or jsonl, to stdout");
  add_output_flags(app, f.output, true);
  return [flags] { return eval(*flags); };
}

}  // namespace

static Action declare_eval_ppl(CLI::App& app) { return declare(app, false); }

extern const Command eval_ppl_command = {
    "eval ppl", "perplexity",
    R"(Perplexity of a text with llama-perplexity's windows: chunks of --ctx-size tokens, the second half scored.
Give --kv LIST to compare cache formats in one run.)",
    R"(ridge eval ppl -m model.gguf -f wiki.test.raw
ridge eval ppl -m model.gguf -f wiki.test.raw --path decode --kv f16,q8_0,rotor-3)",
    declare_eval_ppl};

static Action declare_eval_kld(CLI::App& app) { return declare(app, true); }

extern const Command eval_kld_command = {
    "eval kld", "KL divergence of KV cache formats from f16",
    R"(Runs the same weights with the base cache and with every cache of --kv, in lockstep, and prints how far the
distributions differ, with llama-perplexity's statistics. Memory does not grow with the text. When the base is
not in the list it is added as the control row. Matmuls with quantised weights round activations to 15 bits, so
any change moves some roundings: an f32 row shows that floor. The table says bits a value as stored and at 4k
tokens with window and sinks, and whether perplexity stays within 0.25 of the base. With --results a cache
whose row is there is not run again, if model, text, windows, path and build are the same: the same command
goes on after Ctrl-C. --save-base writes the base's distributions in llama-perplexity's format, --base FILE
reads such a file (of either program) instead of running the base; its 16 bits have a floor, which the control
row shows. --kv-window, --kv-sinks and their kind give every cache of --kv one policy: formats are compared with
the same exact rows, or with 0 of them, as other programs store caches.)",
    R"(ridge eval kld -m model.gguf -f wiki.test.raw --path decode --kv f16,q8_0,rotor-3
ridge eval kld -m model.gguf -f wiki.test.raw --kv rotor-3:hadamard,rotor-3:planar,q8_0/rotor-3:window=32
ridge eval kld -m model.gguf -f wiki.test.raw --kv q4_0:hadamard,rotor-4,rotor-3 --kv-window 96 --kv-sinks 4
ridge eval kld -m model.gguf -f wiki.test.raw -c 1024 --kv shelf --results results/kv-matrix.jsonl)",
    declare_eval_kld};

}  // namespace ridge::cli
