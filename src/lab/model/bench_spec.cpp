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
        session_(model, session_options(row.kv, row.n_prompt + row.n_gen, params.n_ubatch)),
        make_(params.open(model, row.n_prompt + row.n_gen)) {
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
    row_.same_text = row_.same_text && plain == spec;
    row_.repeated.push_back(repeated_share(plain));
  }

 private:
  double generate(std::span<const int32_t> prompt, int repeat, bool speculates, std::vector<int32_t>& tokens) {
    std::optional<Speculation> speculation;
    if (speculates) speculation.emplace(make_(), params_.depth);
    session_.speculate(speculates ? &*speculation : nullptr);
    session_.reset();
    session_.prefill(prompt);
    SamplerOptions sampler;
    sampler.temperature = params_.temperature;
    sampler.seed = params_.seed + uint64_t(repeat);
    const auto start = std::chrono::steady_clock::now();
    session_.draw(sampler, prompt, row_.n_gen, [&](int32_t token) {
      tokens.push_back(token);
      return true;
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    session_.speculate(nullptr);
    if (speculates) {
      row_.spec.n_steps += speculation->report().n_steps;
      row_.spec.n_proposed += speculation->report().n_proposed;
      row_.spec.n_accepted += speculation->report().n_accepted;
    }
    return seconds.count();
  }

  const SpecBenchParams& params_;
  std::span<const int32_t> text_;
  SpecBenchRow& row_;
  Session session_;
  ProposerMaker make_;
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

std::string SpecBenchRow::name() const { return fmt::format("pp{}+tg{}", n_prompt, n_gen); }
MeanDeviation SpecBenchRow::rate(const std::vector<double>& of) const {
  std::vector<double> samples;
  for (const double s : of) samples.push_back((n_gen - 1) / s);
  return mean_deviation(samples);
}
double SpecBenchRow::mean_repeated() const {
  return repeated.empty() ? 0 : std::accumulate(repeated.begin(), repeated.end(), 0.0) / double(repeated.size());
}

int run_spec_bench(const SpecBenchParams& params, const SpecBenchHooks& hooks) {
  int n_failed = 0, done = 0;
  const int total = int(params.models.size() * params.kv.size() * params.n_prompt.size() * params.n_gen.size());
  const auto stopped = [&] { return hooks.stop && hooks.stop(); };
  for (const std::string& path : params.models) {
    if (hooks.on_status) hooks.on_status("loading " + path, done, total);
    std::optional<BenchReference> reference;
    if (params.check) reference.emplace(path);
    const Model model = Model::load(path, params.load);
    if (!model.info().has_tokenizer)
      throw_error(ErrorKind::usage, "{} has no tokenizer: proposals need a real text (use a trained model)", path);
    const std::vector<int32_t> text = model.tokenize(params.text, false);
    for (const KvChoice& kv : params.kv)
      for (const int n_prompt : params.n_prompt)
        for (const int n_gen : params.n_gen) {
          if (ssize(text) < n_prompt)
            throw_error(ErrorKind::usage, "{} has {} tokens, a prompt of {} was asked for (a longer text)",
                        params.text_name, text.size(), n_prompt);
          SpecBenchRow row;
          row.model = model.info();
          row.kv = kv;
          row.n_prompt = n_prompt;
          row.n_gen = n_gen;
          if (hooks.on_status) hooks.on_status(kv_text(kv) + " " + row.name(), done, total);
          ++done;
          if (reference) row.check = reference->compare(model, {kv, n_prompt}, params.seed, params.check_bound);
          if (stopped()) return n_failed;
          if (!params.check || row.check.passed) {
            SpecRunner runner(model, params, text, row);
            if (params.warm_up) {
              runner.run(0);
              row.seconds.clear(), row.plain_seconds.clear(), row.repeated.clear();
              row.spec = {};
            }
            for (int i = 0; i < params.repeats; ++i) {
              runner.run(i);
              if (stopped()) return n_failed;
            }
            row.date = utc_now();
          }
          const bool failed = (params.check && !row.check.passed) || !row.same_text;
          n_failed += failed;
          const auto& tell = failed ? hooks.on_failed : hooks.on_row;
          if (tell) tell(row);
        }
  }
  return n_failed;
}

Row spec_fields(const SpecBenchRow& row, const SpecBenchParams& params) {
  const BenchTest test{.n_ubatch = params.n_ubatch, .kv = row.kv, .n_gen = row.n_gen};
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
           "model_size", "model_n_params", "n_ubatch", "n_threads", "type_k", "type_v", "test_time"});
  f["test"] = row.name();
  f["n_prompt"] = row.n_prompt;
  f["n_gen"] = row.n_gen;
  f["text"] = params.text_name;
  f["temperature"] = params.temperature;
  f["spec_type"] = params.type;
  f["spec_depth"] = params.depth;
  f["draft_model"] = params.draft_model;
  f["draft_kv"] = params.draft_kv;
  f["spec_steps"] = row.spec.n_steps;
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
  f["same_text"] = row.same_text;
  copy(f, {"kv_k", "kv_v", "kv_bytes_per_token", "checked", "check_error", "check_bound", "check_what", "kernels",
           "device", "isa", "compiler", "seed", "command"});
  return f;
}

std::string spec_markdown_head() {
  return "| kv | proposer | test | t/s without | t/s with | ratio | accepted a step | proposed | accepted | text that "
         "repeats | checked (NMSE) |\n"
         "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";
}

std::string spec_markdown_line(const SpecBenchRow& row, const SpecBenchParams& params) {
  return fmt::format("| {} | {} | {} | {} | {} | {:.2f} | {:.2f} | {} | {} | {:.0f} % | {} |", kv_text(row.kv),
                     params.type, row.name(), rate_text(row.rate(row.plain_seconds)), rate_text(row.rate(row.seconds)),
                     row.speedup(), row.spec.tokens_per_step() - 1, row.spec.n_proposed, row.spec.n_accepted,
                     100 * row.mean_repeated(), row.check.done ? fmt::format("ok {:.1e}", row.check.nmse) : "off");
}

}  // namespace ridge::lab
