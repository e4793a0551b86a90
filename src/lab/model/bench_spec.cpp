#include "lab/model/bench_spec.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

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
        make_(params.open(model, row.n_depth + row.n_prompt + row.n_gen)),
        speculation_(make_(), params.depth) {
    if (params.sampling == "reject") speculation_.reject();
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
      std::vector<int32_t>& tokens = speculates ? spec : plain;
      (speculates ? row_.seconds : row_.plain_seconds).push_back(generate(prompt, repeat, speculates, tokens));
    }
    if (row_.texts_differ) *row_.texts_differ += plain != spec;
    row_.repeated.push_back(repeated_share(plain));
  }

 private:
  double generate(std::span<const int32_t> prompt, int repeat, bool speculates, std::vector<int32_t>& tokens) {
    if (params_.forced_accept) speculation_.force(*params_.forced_accept, params_.seed + uint64_t(repeat));
    session_.speculate(speculates ? &speculation_ : nullptr);
    const SpecReport before = speculation_.report();
    session_.reset();
    if (row_.n_depth > 0) {
      session_.fill(row_.n_depth, params_.seed);
      if (speculates) speculation_.fill(held_, params_.seed);
    }
    session_.prefill(prompt);
    std::vector<int32_t> known = held_;
    known.insert(known.end(), prompt.begin(), prompt.end());
    SamplerOptions sampler;
    sampler.temperature = params_.temperature;
    sampler.seed = params_.seed + uint64_t(repeat);
    const auto start = std::chrono::steady_clock::now();
    session_.generate(sampler, known, row_.n_gen, [&](int32_t token) {
      tokens.push_back(token);
      return true;
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    session_.speculate(nullptr);
    const SpecReport& after = speculation_.report();
    row_.spec.n_steps += after.n_steps - before.n_steps;
    row_.spec.n_ahead += after.n_ahead - before.n_ahead;
    row_.spec.n_proposed += after.n_proposed - before.n_proposed;
    row_.spec.n_accepted += after.n_accepted - before.n_accepted;
    return seconds.count();
  }

  const SpecBenchParams& params_;
  std::span<const int32_t> text_;
  SpecBenchRow& row_;
  std::vector<int32_t> held_;  // what the cache is said to hold in front of the prompt
  Session session_;
  ProposerMaker make_;
  Speculation
      speculation_;  // of all texts, as a chat's: what steps cost and how many proposals hold is known from the second one on
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
double SpecBenchRow::mean_repeated() const {
  return repeated.empty() ? 0 : std::accumulate(repeated.begin(), repeated.end(), 0.0) / double(repeated.size());
}

namespace {

/// Times one row. False when asked to stop.
bool time_row(const Model& model, const SpecBenchParams& params, std::span<const int32_t> text, SpecBenchRow& row,
              const std::function<bool()>& stopped) {
  if (params.forced_accept || params.sampling == "reject") row.texts_differ.reset();
  SpecRunner runner(model, params, text, row);
  if (params.warm_up) {
    runner.run(0);
    row.seconds.clear(), row.plain_seconds.clear(), row.repeated.clear();
    row.spec = {};
    if (row.texts_differ) row.texts_differ = 0;
  }
  for (int i = 0; i < params.repeats; ++i) {
    runner.run(i);
    if (stopped()) return false;
  }
  row.date = utc_now();
  return true;
}

/// What prompts are cut from.
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

}  // namespace

int run_spec_bench(const SpecBenchParams& params, const SpecBenchHooks& hooks) {
  int n_failed = 0, done = 0;
  const int total = int(params.models.size() * params.kv.size() * params.n_prompt.size() * params.n_gen.size() *
                        params.n_depth.size());
  const auto stopped = [&] { return hooks.stop && hooks.stop(); };
  for (const std::string& path : params.models) {
    if (hooks.on_status) hooks.on_status("loading " + path, done, total);
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
            row.model = model.info();
            row.kv = kv;
            row.n_prompt = n_prompt, row.n_gen = n_gen, row.n_depth = n_depth;
          }
    for (SpecBenchRow& row : rows) {
      if (hooks.on_status) hooks.on_status(kv_text(row.kv) + " " + row.name(), done, total);
      ++done;
      if (reference)
        row.check = reference->compare(model, {row.kv, row.n_depth + row.n_prompt}, params.seed, params.check_bound);
      if (stopped()) return n_failed;
      row.failed = params.check && !row.check.passed;
      if (!row.failed && !time_row(model, params, text, row, stopped)) return n_failed;
      row.failed = row.failed || (!on_device && row.texts_differ.value_or(0) > 0);
      n_failed += row.failed;
      const auto& tell = row.failed ? hooks.on_failed : hooks.on_row;
      if (tell) tell(row);
    }
  }
  return n_failed;
}

Row spec_fields(const SpecBenchRow& row, const SpecBenchParams& params) {
  const BenchTest test{.n_ubatch = params.n_ubatch, .kv = row.kv, .n_depth = row.n_depth, .n_gen = row.n_gen};
  const Row known = bench_fields({row, test, {}}, {.seed = params.seed});
  const auto copy = [&](Row& f, std::initializer_list<const char*> names) {
    for (const char* name : names) f[name] = known.at(name);
  };
  const auto samples = [&](const std::vector<double>& seconds) {
    Row list = Row::array();
    for (const double s : seconds) list.push_back(number((row.n_gen - 1) / s));
    return list;
  };
  const MeanDeviation with = row.rate(row.seconds), plain = row.rate(row.plain_seconds);
  Row f;
  f["kind"] = "spec";
  copy(f, {"build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename", "model_type",
           "model_size", "model_n_params", "n_ubatch", "n_threads", "type_k", "type_v", "test_time", "load_1min"});
  f["test"] = row.name();
  f["n_prompt"] = row.n_prompt;
  f["n_gen"] = row.n_gen;
  f["n_depth"] = row.n_depth;
  f["text"] = params.text_name;
  f["temperature"] = params.temperature;
  f["spec_type"] = params.type;
  f["spec_depth"] = params.depth;
  f["spec_sampling"] = params.sampling;
  f["draft_model"] = params.draft_model;
  f["draft_kv"] = params.draft_kv;
  f["spec_steps"] = row.spec.n_steps;
  f["spec_steps_ahead"] = row.spec.n_ahead;
  f["spec_proposed"] = row.spec.n_proposed;
  f["spec_accepted"] = row.spec.n_accepted;
  f["accepted_per_step"] = row.spec.n_steps > 0 ? number(row.spec.tokens_per_step() - 1) : Row(nullptr);
  f["accepted_share"] =
      row.spec.n_proposed > 0 ? number(double(row.spec.n_accepted) / double(row.spec.n_proposed)) : Row(nullptr);
  f["avg_ts"] = number(with.mean);
  f["stddev_ts"] = number(with.deviation);
  f["plain_avg_ts"] = number(plain.mean);
  f["plain_stddev_ts"] = number(plain.deviation);
  f["speedup"] = number(row.speedup());
  f["repeated_share"] = number(row.mean_repeated());
  f["samples_ts"] = samples(row.seconds);
  f["plain_samples_ts"] = samples(row.plain_seconds);
  f["samples_repeated_share"] = row.repeated;
  f["texts_differ"] = row.texts_differ ? Row(*row.texts_differ) : Row(nullptr);
  f["forced_accept"] = params.forced_accept ? number(*params.forced_accept) : Row(nullptr);
  copy(f, {"kv_k", "kv_v", "kv_bytes_per_token", "checked", "check_error", "check_bound", "check_what", "kernels",
           "device", "isa", "compiler", "seed", "command"});
  return f;
}

std::string spec_markdown_head() {
  return "| kv | proposer | test | t/s without | t/s with | ratio | accepted a step | proposed | accepted | text that "
         "repeats | texts that differ | checked (NMSE) |\n"
         "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";
}

std::string spec_markdown_line(const SpecBenchRow& row, const SpecBenchParams& params) {
  const std::string type =
      params.forced_accept ? fmt::format("{}, forced {:.4g}", params.type, *params.forced_accept) : params.type;
  return fmt::format("| {} | {} | {} | {} | {} | {:.2f} | {:.2f} | {} | {} | {:.0f} % | {} | {} |", kv_text(row.kv),
                     type, row.name(), rate_text(row.rate(row.plain_seconds)), rate_text(row.rate(row.seconds)),
                     row.speedup(), row.spec.tokens_per_step() - 1, row.spec.n_proposed, row.spec.n_accepted,
                     100 * row.mean_repeated(),
                     row.texts_differ ? fmt::format("{} of {}", *row.texts_differ, row.seconds.size()) : "not compared",
                     row.check.done ? fmt::format("ok {:.1e}", row.check.nmse) : "off");
}

}  // namespace ridge::lab
