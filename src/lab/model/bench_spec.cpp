#include "lab/model/bench_spec.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include "gpu/memory_use.h"

namespace ridge::lab {
namespace {

constexpr int kRepeat = 8;  // tokens that are no chance

/// One test: a session for each way of generating, and the places of the text.
class SpecRunner {
 public:
  SpecRunner(const Model& model, const SpecBenchParams& params, std::span<const int32_t> text, SpecBenchRow& row)
      : params_(params),
        text_(text),
        row_(row),
        session_(model, session_options(row.kv, row.n_depth + row.n_prompt + row.n_gen, params.n_ubatch)),
        open_([&model, &params, n_ctx = row.n_depth + row.n_prompt + row.n_gen] { return params.open(model, n_ctx); }) {
    Rng rng(params.seed);
    held_ = random_tokens(model, row.n_depth, rng);
    row.cache = session_.kv_report();
    row.kernels = session_.kernels();
  }

  void run(int repeat) {
    const size_t n_places = text_.size() - size_t(row_.n_prompt) + 1;
    const auto prompt = text_.subspan(n_places * size_t(repeat) / size_t(params_.repeats), size_t(row_.n_prompt));
    std::vector<int32_t> plain, spec;
    for (const bool speculates : {repeat % 2 == 1, repeat % 2 == 0}) {
      if (speculates && !speculation_) open();
      generate(prompt, repeat, speculates, speculates ? spec : plain);
      if (speculates) row_.device_bytes = gpu::sum_of(gpu::memory_use()).driver_bytes();
    }
    if (row_.texts_differ) *row_.texts_differ += plain != spec;
    row_.repeated.push_back(repeated_share(plain));
  }

 private:
  /// Behind the first text without: what is allocated then knows no proposer.
  void open() {
    row_.plain_device_bytes = gpu::sum_of(gpu::memory_use()).driver_bytes();
    make_ = open_();
    speculation_.emplace(make_(), params_.draft.depth);
    if (params_.sampling == "reject") speculation_->reject();
  }
  void generate(std::span<const int32_t> prompt, int repeat, bool speculates, std::vector<int32_t>& tokens) {
    if (speculates && params_.forced_accept)
      speculation_->force(*params_.forced_accept, params_.seed + uint64_t(repeat));
    session_.speculate(speculates ? &*speculation_ : nullptr);
    const SpecReport before = speculates ? speculation_->report() : SpecReport();
    session_.reset();
    if (row_.n_depth > 0) {
      session_.fill(row_.n_depth, params_.seed);
      if (speculates) speculation_->fill(held_, params_.seed);
    }
    const auto now = [] { return std::chrono::steady_clock::now(); };
    const auto since = [&](auto start) { return std::chrono::duration<double>(now() - start).count(); };
    const auto prompt_start = now();
    session_.prefill(prompt);
    (speculates ? row_.prompt_seconds : row_.plain_prompt_seconds).push_back(since(prompt_start));
    std::vector<int32_t> known = held_;
    known.insert(known.end(), prompt.begin(), prompt.end());
    SamplerOptions sampler;
    sampler.temperature = params_.temperature;
    sampler.seed = params_.seed + uint64_t(repeat);
    const auto start = now();
    session_.generate(sampler, known, row_.n_gen, [&](int32_t token) {
      tokens.push_back(token);
      return true;
    });
    (speculates ? row_.seconds : row_.plain_seconds).push_back(since(start));
    session_.speculate(nullptr);
    if (!speculates) return;
    const SpecReport& after = speculation_->report();
    row_.spec.n_steps += after.n_steps - before.n_steps;
    row_.spec.n_ahead += after.n_ahead - before.n_ahead;
    row_.spec.n_proposed += after.n_proposed - before.n_proposed;
    row_.spec.n_accepted += after.n_accepted - before.n_accepted;
  }

  const SpecBenchParams& params_;
  std::span<const int32_t> text_;
  SpecBenchRow& row_;
  std::vector<int32_t> held_;  // what the cache is said to hold in front of the prompt
  Session session_;
  std::function<ProposerMaker()> open_;
  ProposerMaker make_;
  // Shared by all texts, as in a chat: costs of steps and the share of proposals that hold are known from the second
  // text on.
  std::optional<Speculation> speculation_;
};

std::string rate_text(const MeanDeviation& rate) {
  return std::isfinite(rate.mean) ? fmt::format("{:.2f} ± {:.2f}", rate.mean, rate.deviation) : "no verdict";
}

}  // namespace

double repeated_share(std::span<const int32_t> tokens) {
  std::set<std::vector<int32_t>> seen;
  int64_t n = 0;
  for (size_t end = kRepeat; end <= tokens.size(); ++end) {
    const auto last = tokens.subspan(end - kRepeat, kRepeat);
    n += !seen.emplace(last.begin(), last.end()).second;
  }
  return tokens.empty() ? 0 : double(n) / double(tokens.size());
}

std::string SpecBenchRow::name() const {
  return fmt::format("pp{}+tg{}{}", n_prompt, n_gen, n_depth > 0 ? fmt::format(" @ d{}", n_depth) : "");
}
MeanDeviation SpecBenchRow::rate(const std::vector<double>& of) const {
  std::vector<double> samples;
  for (const double s : of) samples.push_back((n_gen - 1) / s);
  return mean_deviation(samples);
}
MeanDeviation SpecBenchRow::prompt_rate(const std::vector<double>& of) const {
  std::vector<double> samples;
  for (const double s : of) samples.push_back(n_prompt / s);
  return mean_deviation(samples);
}
double SpecBenchRow::mean_repeated() const {
  return repeated.empty() ? 0 : std::accumulate(repeated.begin(), repeated.end(), 0.0) / double(repeated.size());
}

namespace {

/// Times one row. False when asked to stop.
bool time_row(const Model& model, const SpecBenchParams& params, std::span<const int32_t> text, SpecBenchRow& row,
              const std::function<bool()>& stop) {
  if (params.forced_accept || params.sampling == "reject") row.texts_differ.reset();
  SpecRunner runner(model, params, text, row);
  if (params.warm_up) {
    runner.run(0);
    for (auto* of : {&row.seconds, &row.plain_seconds, &row.prompt_seconds, &row.plain_prompt_seconds, &row.repeated})
      of->clear();
    row.spec = {};
    if (row.texts_differ) row.texts_differ = 0;
  }
  for (int i = 0; i < params.repeats; ++i) {
    runner.run(i);
    if (stop()) return false;
  }
  row.date = utc_now();
  return true;
}

/// Text that prompts are cut from.
std::vector<int32_t> text_of(const Model& model, const SpecBenchParams& params) {
  const int n_longest = *std::ranges::max_element(params.n_prompt);
  if (params.forced_accept && params.text.empty()) {
    Rng rng(params.seed);
    return random_tokens(model, 2 * n_longest, rng);
  }
  if (!model.info().has_tokenizer)
    throw_error(ErrorKind::usage,
                "{} has no tokenizer: proposals need a real text (use a trained model, or force acceptance)",
                model.info().path);
  std::vector<int32_t> text = model.tokenize(params.text, false);
  if (ssize(text) < n_longest)
    throw_error(ErrorKind::usage, "{} has {} tokens, a prompt of {} was asked for (a longer text)", params.text_name,
                text.size(), n_longest);
  return text;
}

Row or_null(const auto& optional) { return optional ? Row(*optional) : Row(); }

std::string differ_text(const SpecBenchRow& row) {
  return row.texts_differ ? fmt::format("{} of {}", *row.texts_differ, row.seconds.size()) : "not compared";
}

std::string proposer_text(const SpecBenchRow& row) {
  const SpecBenchParams& run = *row.run;
  return run.forced_accept ? fmt::format("{}, forced {:.4g}", run.draft.type, *run.forced_accept) : run.draft.type;
}

}  // namespace

int run_spec_bench(const SpecBenchParams& params, const SpecBenchHooks& hooks) {
  int n_failed = 0, done = 0;
  const int total = int(params.models.size() * params.kv.size() * params.n_prompt.size() * params.n_gen.size() *
                        params.n_depth.size());
  for (const std::string& path : params.models) {
    hooks.on_status("loading " + path, done, total);
    check_layers_are_distinct(path, params.load.device);
    std::optional<BenchReference> reference;
    if (params.check) reference.emplace(path);
    const Model model = Model::load(path, params.load);
    const bool on_device = model.engine().on_device();
    const std::vector<int32_t> text = text_of(model, params);
    std::vector<SpecBenchRow> rows;
    for (const int n_depth : params.n_depth)
      for (const KvChoice& kv : params.kv)
        for (const int n_prompt : params.n_prompt)
          for (const int n_gen : params.n_gen) {
            SpecBenchRow& row = rows.emplace_back();
            row.run = &params;
            row.seed = params.seed;
            row.model = model.info();
            row.kv = kv;
            row.n_prompt = n_prompt, row.n_gen = n_gen, row.n_depth = n_depth;
          }
    for (SpecBenchRow& row : rows) {
      hooks.on_status(kv_text(row.kv) + " " + row.name(), done++, total);
      if (reference)
        row.check = reference->compare(model, {row.kv, row.n_depth + row.n_prompt}, params.seed, params.check_bound);
      if (hooks.stop()) return n_failed;
      row.failed = params.check && !row.check.passed;
      if (!row.failed && !time_row(model, params, text, row, hooks.stop)) return n_failed;
      row.failed = row.failed || (!on_device && row.texts_differ.value_or(0) > 0);
      n_failed += row.failed;
      (row.failed ? hooks.on_failed : hooks.on_row)(row);
    }
  }
  return n_failed;
}

Columns<SpecBenchRow> spec_columns() {
  const auto known = [](const SpecBenchRow& r) {
    return BenchRow{r, {.n_ubatch = r.run->n_ubatch, .kv = r.kv, .n_depth = r.n_depth, .n_gen = r.n_gen}};
  };
  const auto rates = [](const SpecBenchRow& row, const std::vector<double>& seconds) {
    return list_of(seconds, [&](double s) { return (row.n_gen - 1) / s; });
  };
  return {
      {"kind", "-", "spec", [](auto&) { return "spec"; }},
      part_of<SpecBenchRow>(bench_run_columns(), known),
      {"", "-", "cache format", [](auto& r) { return kv_text(r.kv); }, "kv"},
      {"", "-", "of draft tokens", &proposer_text, "proposer"},
      {"test", "-", "prompt (pp) and generation (tg), depth (d)", &SpecBenchRow::name, ">test"},
      {"n_prompt", "tokens", "of the prompt", &SpecBenchRow::n_prompt},
      {"n_gen", "tokens", "generated", &SpecBenchRow::n_gen},
      {"n_depth", "tokens", "in the cache before", &SpecBenchRow::n_depth},
      {"text", "-", "where prompts come from", [](auto& r) { return r.run->text_name; }},
      {"temperature", "-", "of sampling; 0: greedy", [](auto& r) { return r.run->temperature; }},
      part_of<SpecBenchRow>(
          draft_columns(), [](const SpecBenchRow& r) -> auto& { return r.run->draft; }),
      {"spec_sampling", "-", "exact or reject", [](auto& r) { return r.run->sampling; }},
      {"spec_steps", "steps", "of generation", [](auto& r) { return r.spec.n_steps; }},
      {"spec_steps_ahead", "steps", "without draft tokens, queued ahead", [](auto& r) { return r.spec.n_ahead; }},
      {"plain_avg_ts", "tokens/s", "without speculation", [](auto& r) { return r.rate(r.plain_seconds).mean; }},
      {"plain_stddev_ts", "tokens/s", "its deviation", [](auto& r) { return r.rate(r.plain_seconds).deviation; }},
      {"", "tokens/s", "without speculation", [](auto& r) { return rate_text(r.rate(r.plain_seconds)); },
       ">t/s without"},
      {"avg_ts", "tokens/s", "with speculation", [](auto& r) { return r.rate(r.seconds).mean; }},
      {"stddev_ts", "tokens/s", "its standard deviation", [](auto& r) { return r.rate(r.seconds).deviation; }},
      {"", "tokens/s", "with speculation", [](auto& r) { return rate_text(r.rate(r.seconds)); }, ">t/s with"},
      {"speedup", "-", "tokens/s with over without", &SpecBenchRow::speedup, ">ratio", "{:.2f}"},
      {"plain_prompt_ts", "tokens/s", "of the prompt, without speculation",
       [](auto& r) { return r.prompt_rate(r.plain_prompt_seconds).mean; }},
      {"prompt_ts", "tokens/s", "of the prompt, which the proposer reads too",
       [](auto& r) { return r.prompt_rate(r.prompt_seconds).mean; }},
      {"plain_device_bytes", "bytes", "of a GPU's memory, before there was a proposer",
       &SpecBenchRow::plain_device_bytes},
      {"device_bytes", "bytes", "with it", &SpecBenchRow::device_bytes},
      {"accepted_per_step", "tokens", "accepted draft tokens",
       [](auto& r) { return when(r.spec.n_steps > 0, r.spec.tokens_per_step() - 1); }, ">accepted a step", "{:.2f}"},
      {"spec_proposed", "tokens", "draft tokens", [](auto& r) { return r.spec.n_proposed; }, ">proposed"},
      {"spec_accepted", "tokens", "accepted draft tokens", [](auto& r) { return r.spec.n_accepted; }, ">accepted"},
      {"accepted_share", "-", "of draft tokens",
       [](auto& r) { return double(r.spec.n_accepted) / double(r.spec.n_proposed); }},
      {"repeated_share", "-", "tokens that end eight known ones", &SpecBenchRow::mean_repeated},
      {"", "%", "tokens that end eight known ones", [](auto& r) { return 100 * r.mean_repeated(); },
       ">text that repeats", "{:.0f} %"},
      {"samples_ts", "tokens/s", "every repetition", [=](auto& r) { return rates(r, r.seconds); }},
      {"plain_samples_ts", "tokens/s", "every repetition", [=](auto& r) { return rates(r, r.plain_seconds); }},
      {"samples_repeated_share", "-", "every repetition", &SpecBenchRow::repeated},
      {"texts_differ", "repetitions", "with other texts", [](auto& r) { return or_null(r.texts_differ); }},
      {"", "repetitions", "whose texts differ from those without speculation", &differ_text, ">texts that differ"},
      {"", "-", "error of a block against the reference kernels", &SpecBenchRow::checked_text, ">checked (NMSE)"},
      {"forced_accept", "-", "chance of a draft token", [](auto& r) { return or_null(r.run->forced_accept); }},
      part_of<SpecBenchRow>(bench_cache_columns(), known),
  };
}

}  // namespace ridge::lab
