#include "lab/decide/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <map>

#include "engine/device_name.h"
#include "engine/kv_state.h"
#include "gpu/device_query.h"
#include "lab/decide/plan.h"
#include "lab/model/bench.h"
#include "lab/quality/quality_report.h"
#include "lab/sweep/sweep.h"

namespace ridge::lab {
namespace {

constexpr const char* kReferenceFormat = "f16";
constexpr size_t kQualityGroup = 8;                 // caches beside one base: a stop loses these
constexpr int kProbePrompt = 64, kProbeTokens = 8;  // a short request: what times are expected by
constexpr double kCheckSteps = 200;                 // decode steps that a check by the reference kernels takes, about

/// The cells of a question, with what is stored.
class Measurer {
 public:
  Measurer(const Model& model, const DecisionParams& params, const DecisionQuestion& question, Store& store,
           const DecisionHooks& hooks)
      : model_(model), params_(params), q_(question), store_(store), hooks_(hooks) {
    formats_ = {kReferenceFormat};
    formats_.insert(formats_.end(), params.candidates.begin(), params.candidates.end());
  }

  void plans() {
    std::optional<PlannedModel> planned;
    for (const std::string& kv : formats_) {
      const Row cell = plan_cell(q_, kv);
      if (is_stored(cell)) continue;
      if (!planned) planned = plan_model(params_.model, params_.place);
      Row row = to_row(*planned, plan_memory(*planned, parse_kv_choice(kv).or_throw(), q_.n_ctx, q_.n_sessions, 0));
      row["memory_bytes"] = q_.memory_bytes > 0 ? q_.memory_bytes : params_.available_bytes;
      add(cell, std::move(row));
    }
  }

  void attention() {
    const SweepSpec spec = attention_spec();
    SweepHooks hooks{.stop = hooks_.stop, .on_status = hooks_.on_status};
    hooks.on_row = [&](const PlannedCell&, const Row& row) { say(row); };
    run_sweep(spec, attention_plan(spec), op_kernels(), store_, hooks);
  }

  SweepSpec attention_spec() const {
    // A cache whose layers differ is measured layer by layer.
    std::vector<std::string> kinds;
    for (const std::string& kv : formats_)
      for (const auto& [kind, _] : layer_caches(q_, kv))
        if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
    SweepSpec spec{.name = "decide",
                   .samples = params_.samples,
                   .max_seconds = params_.max_seconds,
                   .roof_mib = params_.roof_mib,
                   .seed = params_.seed};
    const auto add_shape = [&](const HeadShape& shape, const std::vector<int>& depths) {
      for (const int depth : depths) {
        const SweepCell cell{.bench = "attention",
                             .shape = {shape.n_heads, shape.n_kv_heads},
                             .head_dim = shape.head_dim,
                             .depth = depth,
                             .kernel = "best"};
        for (size_t i = 0; i <= kinds.size(); ++i) {
          spec.cells.push_back(cell);
          spec.cells.back().format = kinds[i % kinds.size()];
          spec.cells.back().control = i == kinds.size();
        }
      }
    };
    add_shape(q_.shape, q_.depths);
    add_shape(q_.target, q_.target_depths);
    return spec;
  }
  SweepPlan attention_plan(const SweepSpec& spec) const {
    return plan_sweep(
        spec, {.device = params_.place.device, .n_threads = q_.subject.n_threads, .isa = params_.place.isa}, rows());
  }

  void requests() {
    std::optional<BenchReference> reference;
    for (const int n_prompt : q_.prompts) {
      if (has_requests(n_prompt) || stopped()) continue;
      if (params_.check && !reference) {
        status("the reference of " + params_.model);
        reference.emplace(params_.model);
      }
      requests_of(n_prompt, reference ? &*reference : nullptr);
    }
  }

  void quality() {
    const std::vector<std::string> missing = missing_quality();
    if (missing.empty()) return;
    evaluate_groups(params_.text, eval_options(), missing, "quality, token by token",
                    [&](const EvalResult& result, const CandidateResult& candidate) {
                      add(quality_cell(q_, kv_text(candidate.kv)), to_row(result, candidate));
                    });
  }

  void sensitivity(const SearchQuestion& s) {
    const std::vector<std::string> missing = missing_sides(s);
    if (missing.empty()) return;
    const EvalOptions options{
        .n_ctx = s.n_ctx, .max_chunks = s.chunks, .device = params_.place.device, .against_base = true};
    evaluate_groups(params_.search_text, options, missing, "sides alone",
                    [&](const EvalResult& result, const CandidateResult& candidate) {
                      const Estimate kld = candidate.scores.pair.means().kld;
                      Row row = identity(result, candidate.kv);
                      row["kind"] = "sensitivity";
                      row["kld_mean"] = number(kld.value);
                      row["kld_error"] = number(kld.error);
                      row["tokens_scored"] = candidate.scores.pair.count();
                      add(sensitivity_cell(q_, s, kv_text(candidate.kv)), std::move(row));
                    });
  }

  /// Lists the missing cells, with times estimated from the speed of a short request.
  std::vector<DecisionStep> steps(const SearchQuestion* search) {
    std::vector<DecisionStep> steps;
    const auto add_step = [&](size_t n, const char* what, double seconds) {
      if (n > 0) steps.push_back({fmt::format("{} {}", n, what), seconds});
    };
    const size_t n_rows = formats_.size() + 1;  // f16 comes twice
    size_t n_requests = 0;
    double prompt_tokens = 0, checked = 0;
    for (const int n_prompt : q_.prompts) {
      if (params_.only_quality || has_requests(n_prompt)) continue;
      n_requests += n_rows * size_t(params_.repeats + 1);
      prompt_tokens += double(n_rows) * (params_.repeats + 1) * n_prompt;
      if (params_.check) checked += double(formats_.size());
    }
    const std::vector<std::string> missing = missing_quality(),
                                   sides = search ? missing_sides(*search) : std::vector<std::string>();
    const double n_bases = std::ceil(double(missing.size()) / double(kQualityGroup));
    const double scored = (double(missing.size()) + n_bases) * q_.eval_ctx * q_.eval_chunks;
    const bool any = n_requests > 0 || !missing.empty() || !sides.empty();
    const Request probe = any ? short_request() : Request();
    const double prompt_s = probe.prompt / kProbePrompt, decode_s = probe.decode / kProbeTokens;
    if (search) add_step(sides.size(), "sides alone", double(sides.size()) * search->n_ctx * search->chunks * prompt_s);
    if (!params_.only_quality) {
      const SweepPlan plan = attention_plan(attention_spec());
      add_step(size_t(plan.n_left()), "measurements of attention", plan.seconds_left());
    }
    const double generated =
        n_requests > 0 ? double(n_requests) * q_.n_gen * params_.repeats / (params_.repeats + 1) : 0;
    add_step(n_requests, "requests",
             prompt_tokens * prompt_s + generated * decode_s + checked * kCheckSteps * decode_s);
    add_step(missing.size(), "caches on the text", scored * decode_s * (q_.eval_chunks >= 8 ? 0.5 : 1));
    return steps;
  }

  EvalOptions eval_options() const {
    return {.n_ctx = q_.eval_ctx,
            .max_chunks = params_.eval_chunks,
            .device = params_.place.device,
            .path = EvalPath::decode,
            .against_base = true};
  }

 private:
  bool stopped() const { return hooks_.stop && hooks_.stop(); }
  void status(const std::string& what) const {
    if (hooks_.on_status) hooks_.on_status(what);
  }
  void say(const Row& row) const {
    if (hooks_.on_row) hooks_.on_row(row);
  }
  /// Stored rows but those that are measured again. Only leaving some out takes a copy: a user's file may be long, and
  /// every cell that is asked for comes here.
  const std::vector<Row>& rows() const {
    if (params_.again.empty()) return store_.rows();
    const auto is_again = [&](const Row& row) {
      return std::ranges::find(params_.again, row_id(row)) != params_.again.end();
    };
    rows_.clear();
    std::ranges::remove_copy_if(store_.rows(), std::back_inserter(rows_), is_again);
    return rows_;
  }
  bool is_stored(const Row& cell) const { return find_evidence(rows(), cell).row != nullptr; }
  /// Formats of a prompt are compared: they are measured in one run, or all again.
  bool has_requests(int n_prompt) const {
    return is_stored(service_cell(q_, n_prompt, kReferenceFormat, true)) &&
           std::ranges::all_of(formats_,
                               [&](const std::string& kv) { return is_stored(service_cell(q_, n_prompt, kv, false)); });
  }
  std::vector<std::string> missing_sides(const SearchQuestion& s) const {
    std::vector<std::string> missing;
    for (const SearchItem& item : s.items)
      for (const std::string& side : sides_alone(s))
        if (const std::string kv = side_alone(item.layer, item.side, side); !is_stored(sensitivity_cell(q_, s, kv)))
          missing.push_back(kv);
    return missing;
  }
  std::vector<std::string> missing_quality() const {
    std::vector<std::string> missing;
    if (params_.text.empty() || q_.subject.synthetic) return missing;
    for (const auto* list : {&params_.candidates, &params_.quality_caches})
      for (const std::string& kv : *list)
        if (!is_stored(quality_cell(q_, kv)) && std::ranges::find(missing, kv) == missing.end()) missing.push_back(kv);
    return missing;
  }
  /// Some caches at a time beside f16; take(result, candidate) of groups that are complete.
  template <class Take>
  void evaluate_groups(const std::string& text, EvalOptions options, const std::vector<std::string>& caches,
                       const char* what, const Take& take) {
    const Corpus corpus = read_corpus(model_, text);
    for (size_t begin = 0; begin < caches.size() && !stopped(); begin += kQualityGroup) {
      const size_t end = std::min(caches.size(), begin + kQualityGroup);
      options.candidates.clear();
      for (size_t i = begin; i < end; ++i) options.candidates.push_back(parse_kv_choice(caches[i]).or_throw());
      status(fmt::format("{}: {} of {} caches, {} windows of {} tokens", what, end, caches.size(), options.max_chunks,
                         options.n_ctx));
      int64_t done = 0;
      const auto on_progress = [&](int64_t steps, int64_t total) {
        if (hooks_.on_tokens) hooks_.on_tokens(done += steps, total);
      };
      const EvalResult result = evaluate(model_, corpus, options, {.stop = hooks_.stop, .on_progress = on_progress});
      if (!result.complete()) return;
      for (const CandidateResult& candidate : result.candidates) take(result, candidate);
    }
  }
  void add(const Row& cell, Row row) {
    const Row from = provenance(q_.subject.n_threads, params_.seed);
    for (const auto& [field, value] : from.items())
      if (!row.contains(field)) row[field] = value;
    row["cell"] = cell;
    store_.add(row);
    say(row);
  }

  struct Request {
    double prompt = 0, decode = 0;  ///< seconds
  };
  /// One request: the prompt, then n_gen tokens, in a new session.
  Request request(const BenchTest& test, std::span<const int32_t> prompt, int n_gen) const {
    Session session(model_, session_options(test.kv, test.n_ctx(), test.n_ubatch));
    SamplerOptions greedy;
    greedy.temperature = 0;
    const auto start = std::chrono::steady_clock::now();
    session.prefill(prompt);
    const auto prompt_end = std::chrono::steady_clock::now();
    session.generate(greedy, prompt, n_gen, [&](int32_t) { return !stopped(); });
    const auto seconds = [](auto from, auto to) { return std::chrono::duration<double>(to - from).count(); };
    return {seconds(start, prompt_end), seconds(prompt_end, std::chrono::steady_clock::now())};
  }

  Request short_request() const {
    BenchTest test;
    test.kv = parse_kv_choice(kReferenceFormat).or_throw();
    test.n_prompt = kProbePrompt, test.n_gen = kProbeTokens;
    Rng rng(params_.seed);
    return request(test, random_tokens(model_, kProbePrompt, rng), kProbeTokens);
  }

  void requests_of(int n_prompt, BenchReference* reference) {
    std::vector<BenchRow> rows;  // f16, the candidates, f16 again
    for (size_t i = 0; i <= formats_.size(); ++i) {
      BenchRow& row = rows.emplace_back();
      row.model = model_.info();
      row.seed = params_.seed;
      row.real_prefill = true;
      row.test.kv = parse_kv_choice(formats_[i % formats_.size()]).or_throw();
      row.test.n_prompt = n_prompt;
      row.test.n_gen = q_.n_gen;
      Session session(model_, session_options(row.test.kv, row.test.n_ctx(), 0));
      row.cache = session.kv_report();
      row.kernels = session.kernels();
      if (!reference) continue;
      status("check of " + row.test.text());
      row.check = i < formats_.size()
                      ? reference->compare(model_, {.kv = row.test.kv, .depth = n_prompt}, params_.seed, {})
                      : rows[0].check;
    }
    std::vector<std::vector<Request>> requests(rows.size());
    Rng rng(params_.seed);
    for (int repeat = -1; repeat < params_.repeats; ++repeat) {  // the first is to warm up
      const std::vector<int32_t> prompt = random_tokens(model_, n_prompt, rng);
      for (size_t i = 0; i < rows.size(); ++i) {
        BenchRow& row = rows[i];
        if (row.check.done && !row.check.passed) continue;
        status(repeat < 0 ? "warming up " + row.test.text() : fmt::format("{}, {}", row.test.text(), repeat + 1));
        const Request took = request(row.test, prompt, repeat < 0 ? 1 : q_.n_gen);
        if (stopped()) return;
        if (repeat < 0) continue;
        row.seconds.push_back(took.prompt + took.decode);
        requests[i].push_back(took);
      }
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].date = utc_now();
      Row row = bench_columns().fields(rows[i]);
      row["kind"] = "service";
      for (const Request& of : requests[i]) {
        row["prompt_seconds"].push_back(number(of.prompt));
        row["decode_seconds"].push_back(number(of.decode));
      }
      if (rows[i].check.done && !rows[i].check.passed) {
        row["state"] = "failed";
        row["reason"] =
            fmt::format("NMSE {:.3g} over {:.3g} ({})", rows[i].check.nmse, rows[i].check.bound, rows[i].check.what);
      }
      add(service_cell(q_, n_prompt, formats_[i % formats_.size()], i == formats_.size()), std::move(row));
    }
  }

  const Model& model_;
  const DecisionParams& params_;
  const DecisionQuestion& q_;
  Store& store_;
  const DecisionHooks& hooks_;
  mutable std::vector<Row> rows_;  // of rows(), where some are left out
  std::vector<std::string> formats_;
};

}  // namespace

RecordSubject subject_of(const Model& model) {
  const ModelInfo& info = model.info();
  Engine& engine = model.engine();
  RecordSubject subject{.model_path = info.path,
                        .model_hash = fmt::format("{:016x}", engine.hash(0)),
                        .synthetic = info.path.starts_with("synth:"),
                        .device = std::string(engine.on_device() ? gpu::kDeviceWord : "cpu"),
                        .isa = info.isa,
                        .build = build_identity()};
  if (engine.on_device()) {
    subject.device_name = info.device.substr(info.device.find(' ') + 1);
  } else {
    subject.device_name = machine_info().cpu_model;
    subject.n_threads = info.n_threads;
  }
  return subject;
}

DecisionQuestion ask(const Model& model, const DecisionParams& params) {
  const ModelPlan& plan = model.engine().plan();
  const LayerPlan& layer = plan.layers[size_t(plan.first_attention())];
  if (layer.mixer == MixerKind::latent)
    throw Error(ErrorKind::usage, "latent attention has no bench yet: nothing can be decided for this model");
  const AttentionPlan& a = layer.attention;
  DecisionQuestion q{.subject = subject_of(model),
                     .n_ctx = params.n_ctx > 0 ? params.n_ctx : model.info().n_ctx_train,
                     .n_sessions = params.n_sessions,
                     .shape = {a.n_heads, a.n_kv_heads, a.head_dim},
                     .depths = params.depths,
                     .target_depths = params.target_depths,
                     .prompts = params.prompts,
                     .n_gen = params.n_gen,
                     .memory_bytes = params.memory_bytes};
  for (size_t i = 0; i < plan.layers.size(); ++i)
    if (plan.layers[i].attention.n_kv_heads > 0 && plan.layers[i].attention.kv_layer < 0)
      q.attention_layers.push_back(int(i));
  if (q.depths.empty()) q.depths = sweep_depths(q.n_ctx);
  if (q.target_depths.empty()) q.target_depths = {4096, 8192, 16384, 32768};
  if (q.n_gen == 0) q.n_gen = std::clamp(q.n_ctx / 4, 1, 256);
  if (q.prompts.empty()) q.prompts = {std::min(4096, q.n_ctx - q.n_gen)};
  for (std::vector<int>* list : {&q.depths, &q.target_depths, &q.prompts}) std::ranges::sort(*list);
  if (q.prompts.front() < 1 || q.prompts.back() > q.n_ctx - q.n_gen)
    throw_error(ErrorKind::usage, "prompts of {} and {} generated tokens do not fit into a context of {}",
                q.prompts.back(), q.n_gen, q.n_ctx);
  for (const std::string& kv : params.candidates)
    layer_configs(session_options(parse_kv_choice(kv).or_throw(), q.n_ctx, 0), plan);
  q.eval_ctx = params.eval_ctx > 0 ? params.eval_ctx : std::min(1024, model.info().n_ctx_train);
  if (params.text.empty() || q.subject.synthetic) return q;
  const Corpus corpus = read_corpus(model, params.text);
  EvalOptions options{.n_ctx = q.eval_ctx, .max_chunks = params.eval_chunks, .path = EvalPath::decode};
  q.eval_chunks = plan_evaluation(model, corpus, options).windows.n_chunks;
  q.corpus = fmt::format("{:016x}", corpus.xxh64);
  return q;
}

SearchQuestion ask_search(const Model& model, const DecisionParams& params, const DecisionQuestion& q) {
  if (q.subject.synthetic)
    throw Error(ErrorKind::usage, "random weights say nothing about quality: a search needs a trained model");
  if (params.text.empty())
    throw Error(ErrorKind::usage, "a search is verified on a text that it does not see (-f names it)");
  const ModelPlan& plan = model.engine().plan();
  const Corpus searched = read_corpus(model, params.search_text), held_out = read_corpus(model, params.text);
  const EvalOptions options{.n_ctx = q.eval_ctx, .max_chunks = params.search_chunks};
  SearchQuestion s{.path = params.search_text,
                   .corpus = fmt::format("{:016x}", searched.xxh64),
                   .n_ctx = q.eval_ctx,
                   .chunks = plan_evaluation(model, searched, options).windows.n_chunks,
                   .sides = params.search_sides,
                   .kld_budget = params.kld_budget,
                   .bits = params.search_bits};
  const auto part = [](const Corpus& of, int n_ctx, int chunks) {
    return std::span(of.tokens).first(size_t(n_ctx) * size_t(chunks));
  };
  if (const auto at =
          shared_run(part(searched, s.n_ctx, s.chunks), part(held_out, q.eval_ctx, q.eval_chunks), kSharedRun))
    throw_error(ErrorKind::usage,
                "{} has {} tokens from token {} on that {} has too: a search is verified on a text that it did not "
                "see (name another for -f or --search, or fewer windows)",
                params.text, kSharedRun, *at, params.search_text);
  // Bytes of every side in every format, f16 last.
  std::vector<std::string> formats = s.sides;
  formats.emplace_back(kReferenceFormat);
  for (const int layer : q.attention_layers)
    for (const KvSide side : kKvSides) s.items.push_back({.layer = layer, .side = side, .bytes = {}});
  for (const std::string& format : formats) {
    const auto layers = layer_configs(session_options(parse_kv_choice(format).or_throw(), q.n_ctx, 0), plan);
    for (SearchItem& item : s.items) {
      const KvLayout layout(layers[size_t(item.layer)], item.side, false);
      item.bytes.push_back(
          double(kv_read_bytes(layout.tiles, q.n_ctx) + layout.centre_bytes() + layout.head_scale_bytes()));
    }
  }
  for (const SearchItem& item : s.items) s.values += item.bytes.back() / sizeof(uint16_t);
  std::ranges::sort(s.bits);
  return s;
}

void measure_sensitivity(const Model& model, const DecisionParams& params, const DecisionQuestion& question,
                         const SearchQuestion& asked, Store& store, const DecisionHooks& hooks) {
  Measurer(model, params, question, store, hooks).sensitivity(asked);
}

std::vector<DecisionStep> steps_left(const Model& model, const DecisionParams& params, const DecisionQuestion& question,
                                     const SearchQuestion* search, Store& store) {
  const DecisionHooks none;
  return Measurer(model, params, question, store, none).steps(search);
}

void measure_missing(const Model& model, const DecisionParams& params, const DecisionQuestion& question, Store& store,
                     const DecisionHooks& hooks) {
  Measurer measurer(model, params, question, store, hooks);
  measurer.plans();
  if (!params.only_quality) measurer.attention();
  if (!params.only_quality) measurer.requests();
  measurer.quality();
}

}  // namespace ridge::lab
