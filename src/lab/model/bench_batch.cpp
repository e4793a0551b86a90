#include "lab/model/bench_batch.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <numeric>

#include "engine/decode/decoder.h"
#include "engine/engine.h"
#include "lab/model/bench_params.h"
#include "lab/op/machine_ceilings.h"
#include "lab/rows/int_list.h"
#include "lab/rows/machine.h"

namespace ridge::lab {
namespace {

constexpr int kMostChecked = 3;  // sequences of a batch that the check runs

using BatchClock = std::chrono::steady_clock;
double seconds_after(BatchClock::time_point start) {
  return std::chrono::duration<double>(BatchClock::now() - start).count();
}

std::vector<KvLayerConfig> batch_layers(const Engine& engine, const BatchTest& test) {
  return layer_configs(session_options(test.kv, test.longest(), 1), engine.plan());
}
/// Steps bring n_step tokens in all.
PageNumbers batch_pages(std::span<const KvLayerConfig> layers, const BatchTest& test, int n_step) {
  PageNumbers pages = pool_pages(layers, test.longest(), test.n_seq(), n_step);
  pages.full = 0;
  for (const int n : test.n_prompt) pages.full += std::max(1, pages_for(layers, n + test.n_gen + test.n_spare));
  pages.sliding = std::min(pages.full, pages.sliding);
  return pages;
}

/// Refuses a test whose caches do not fit.
void check_memory(Engine& engine, const BatchTest& test, bool fill, int n_ubatch) {
  const auto layers = batch_layers(engine, test);
  const PageNumbers n_pages = batch_pages(layers, test, n_ubatch);
  const int64_t needed = cache_bytes(layers, engine.on_device(), n_pages, test.n_seq()) +
                         4 * int64_t(test.n_seq()) * engine.plan().vocab_size;
  const int64_t free = engine.backend().free_bytes();
  if (needed > free)
    throw_error(ErrorKind::no_memory,
                "{}: {} sequences need {}, {} are free (a smaller -npl, shorter prompts or a cache of fewer bits)",
                test.text(fill), test.n_seq(), bytes_text(double(needed)), bytes_text(double(free)));
}

/// One test: its pool, and as many runs as asked.
class BatchRunner {
 public:
  BatchRunner(const Model& model, const BatchTest& test, const BatchParams& params, int n_ubatch,
              const std::function<bool()>& stop)
      : model_(model),
        engine_(model.engine()),
        test_(test),
        params_(params),
        n_ubatch_(n_ubatch),
        stop_(stop),
        rng_(params.seed) {
    const auto layers = batch_layers(engine_, test);
    kernels = engine_.backend().kernels(layers[size_t(engine_.plan().first_attention())]);
    const int n = test.n_seq(), n_ctx = params.spec ? test.longest() : 0;
    const SlotNumbers slots{n, params.spec ? n : 0};
    pool_ = engine_.open_pool(layers, batch_pages(layers, test, n_ubatch), slots, n_ctx);
    decoder_.emplace(engine_.backend(), *pool_, engine_.plan().n_ids);
    for (int i = 0; i < n; ++i) seqs_.push_back(pool_->open().or_throw());
    if (!params.spec) return;
    make_ = params.spec->open(model, n_ctx, n);
    for (int i = 0; i < n; ++i)
      speculations_.push_back(std::make_unique<Speculation>(make_(), params.spec->draft.depth));
  }

  /// Small steps of the same kinds: buffers grow, and a device records its graphs. With draft tokens as many as are
  /// timed, since their number follows what steps take.
  bool warm_up() {
    const int most = std::max(1, n_ubatch_ / test_.n_seq());
    std::vector<int> lengths = test_.n_prompt;
    for (int& n : lengths) n = std::min(n, most);
    BatchRow ignored;
    return run(lengths, params_.spec ? test_.n_gen : std::min(test_.n_gen, kWarmUpTokens), false, ignored);
  }
  /// Adds a sample to the row. False when asked to stop.
  bool run_once(BatchRow& row) { return run(test_.n_prompt, test_.n_gen, params_.fill, row); }

  KvReport cache() { return kv_report(pool_->memory(), test_.longest()); }
  /// Bytes that the mean step of a generation reads: reading grows by a row a step.
  double mean_step_bytes() const {
    double bytes = double(engine_.backend().step_weight_bytes());
    for (const int n : test_.n_prompt)
      bytes += double(kv_read_bytes(pool_->memory(), n + 1) + kv_read_bytes(pool_->memory(), n + test_.n_gen)) / 2;
    return bytes;
  }

  std::vector<std::string> kernels;

 private:
  /// Until all that is queued has run: there are no scores to take.
  void wait() { decoder_->outputs().take_scores(); }

  bool run(const std::vector<int>& lengths, int n_gen, bool fill, BatchRow& row) {
    if (!prepare(lengths, fill, &row)) return false;
    if (n_gen == 0) return !stop_();
    const std::vector<int32_t> first = random_tokens(model_, test_.n_seq(), rng_);
    row.gen_seconds.push_back(generate(first, n_gen));
    if (!params_.spec || stop_()) return !stop_();
    if (!prepare(lengths, fill, nullptr)) return false;
    speculate(lengths, first, n_gen, row);
    return !stop_();
  }

  /// Fills the sequences with the rows in front of the generation. The row, if there is one, gets the time of the
  /// prompts.
  bool prepare(const std::vector<int>& lengths, bool fill, BatchRow* row) {
    for (const SeqId seq : seqs_) pool_->reset(seq);
    if (fill) {
      for (size_t i = 0; i < seqs_.size(); ++i) pool_->fill(seqs_[i], lengths[i], params_.seed + i).or_throw();
    } else {
      const int64_t n_tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t(0));
      const std::vector<int32_t> tokens = random_tokens(model_, int(n_tokens), rng_);
      const auto start = BatchClock::now();
      if (!run_prompts(lengths, tokens)) return false;
      if (row) row->prompt_seconds.push_back(seconds_after(start));
    }
    wait();
    return true;
  }

  /// Steps of n_ubatch tokens, sequence after sequence; logits of a step only where a prompt ends in it.
  bool run_prompts(const std::vector<int>& lengths, std::span<const int32_t> tokens) {
    size_t seq = 0, begin = 0;
    for (int done = 0; begin < tokens.size();) {
      std::vector<SeqTokens> step;
      int n_tokens = 0;
      bool ends = false;
      while (seq < seqs_.size() && n_tokens < n_ubatch_) {
        const int n = std::min(lengths[seq] - done, n_ubatch_ - n_tokens);
        step.push_back({seqs_[seq], n});
        pool_->reserve(seqs_[seq], n).or_throw();
        n_tokens += n;
        done += n;
        if (done < lengths[seq]) continue;
        ends = true;
        done = 0;
        ++seq;
      }
      engine_.backend().run({.tokens = tokens.subspan(begin, size_t(n_tokens)),
                             .seqs = step,
                             .logits = ends ? LogitRows::last : LogitRows::none},
                            *pool_, decoder_->outputs());
      begin += size_t(n_tokens);
      if (stop_()) return false;
    }
    wait();
    return true;
  }

  std::vector<Text> texts_of(std::span<const int32_t> first, int n_gen) {
    std::vector<Text> texts;
    for (size_t i = 0; i < seqs_.size(); ++i)
      texts.push_back({.seq = seqs_[i], .tokens = {first[i]}, .sampler = {.temperature = 0}, .n_left = n_gen});
    return texts;
  }

  /// Seconds of n_gen steps of one token a sequence: given ones first, then those sampled.
  double generate(std::span<const int32_t> first, int n_gen) {
    std::vector<Text> texts = texts_of(first, n_gen);
    for (Text& text : texts) text.on_token = [this](int32_t) { return !stop_(); };
    const auto start = BatchClock::now();
    write(texts);
    return seconds_after(start);
  }

  /// Until all sequences have n_gen tokens on average. Proposers pretend to have read the prompts.
  void speculate(const std::vector<int>& lengths, std::span<const int32_t> first, int n_gen, BatchRow& row) {
    std::vector<Text> texts = texts_of(first, n_gen + test_.n_spare);
    int64_t n_left = int64_t(n_gen) * ssize(texts);
    const uint64_t run = n_speculated_++;
    for (size_t i = 0; i < texts.size(); ++i) {
      Speculation& speculation = *speculations_[i];
      const std::vector<int32_t> held = random_tokens(model_, lengths[i], rng_);
      texts[i].tokens.insert(texts[i].tokens.begin(), held.begin(), held.end());
      texts[i].speculation = &speculation;
      speculation.force(params_.spec->forced_accept, params_.seed + run * texts.size() + i);
      speculation.fill(held, params_.seed + i);
    }
    const auto count = [&](int64_t sign) {
      for (const auto& speculation : speculations_) {
        const SpecReport& of = speculation->report();
        row.report.n_steps += sign * of.n_steps, row.report.n_ahead += sign * of.n_ahead;
        row.report.n_proposed += sign * of.n_proposed, row.report.n_accepted += sign * of.n_accepted;
      }
    };
    count(-1);
    const auto start = BatchClock::now();
    for (Text& text : texts)
      text.on_token = [&](int32_t) {
        if (--n_left == 0) row.spec_seconds.push_back(seconds_after(start)), count(1);
        return n_left > 0 && !stop_();
      };
    write(texts);
  }

  void write(std::span<Text> texts) {
    StepHooks hooks;
    for (;;) {
      std::vector<DecodeRow> rows;
      for (Text& text : texts)
        if (!text.ended) rows.push_back(next_row(text));
      if (rows.empty()) break;
      decoder_->step(rows, INT_MAX, hooks);
    }
    for (const Text& text : texts)
      if (text.failure) std::rethrow_exception(text.failure);
  }

  const Model& model_;
  Engine& engine_;
  const BatchTest& test_;
  const BatchParams& params_;
  const int n_ubatch_;
  const std::function<bool()>& stop_;
  Rng rng_;
  std::unique_ptr<SequencePool> pool_;
  std::optional<Decoder> decoder_;
  std::vector<SeqId> seqs_;
  ProposerMaker make_;
  std::vector<std::unique_ptr<Speculation>> speculations_;  // of each sequence, in all runs: what was learned stays
  uint64_t n_speculated_ = 0;                               // runs
};

bool time_batch(const Model& model, const BatchParams& params, const BatchHooks& hooks, BatchRow& row) {
  BatchRunner runner(model, row.test, params, row.n_ubatch, hooks.stop);
  row.cache = runner.cache();
  row.kernels = runner.kernels;
  if (params.warm_up && !runner.warm_up()) return false;
  for (int i = 0; i < params.repeats; ++i)
    if (!runner.run_once(row)) return false;
  row.read_bytes = row.test.n_gen > 0 ? runner.mean_step_bytes() : 0;
  row.date = utc_now();
  return true;
}

}  // namespace

std::vector<int> PromptLengths::of(int n) const {
  std::vector<int> lengths;
  for (int i = 0; i < n; ++i) {
    const int64_t span = is_range ? list[1] - list[0] : 0;
    if (!is_range) lengths.push_back(list[size_t(i) % list.size()]);
    else lengths.push_back(list[0] + int(n > 1 ? span * i / (n - 1) : span / 2));
  }
  return lengths;
}

std::string PromptLengths::text() const { return fmt::format("{}", fmt::join(list, is_range ? "-" : ",")); }

Result<PromptLengths> parse_prompt_lengths(std::string_view flag, std::string_view text, int max) {
  const std::vector<std::string> ends = split(text, '-');
  const bool is_range = ends.size() == 2 && text.find(',') == std::string_view::npos;
  const auto list = parse_int_list(flag, is_range ? fmt::format("{},{}", ends[0], ends[1]) : std::string(text), 1, max);
  if (!list) return list.error();
  if (is_range && (*list)[1] < (*list)[0])
    return fail(ErrorKind::usage, "{}: '{}' ends below its beginning", flag, text);
  return PromptLengths{*list, is_range};
}

int64_t BatchTest::prompt_tokens() const { return std::accumulate(n_prompt.begin(), n_prompt.end(), int64_t(0)); }
int BatchTest::longest() const { return *std::ranges::max_element(n_prompt) + n_gen + n_spare; }
std::string BatchTest::name(bool fill) const {
  return fmt::format("{}{}+tg{} b{}", fill ? "fill" : "pp", prompt_text, n_gen, n_seq());
}

std::vector<BatchTest> batch_tests(const BatchParams& params) {
  std::vector<BatchTest> tests;
  const auto add = [&](const KvChoice& kv, bool by_record) {
    for (const PromptLengths& lengths : params.n_prompt)
      for (const int n_gen : params.n_gen)
        for (const int n_seq : params.n_parallel)
          tests.push_back({kv, lengths.text(), lengths.of(n_seq), n_gen, params.spec ? n_gen : 0, by_record});
  };
  for (const KvChoice& kv : params.kv) add(kv, false);
  if (params.by_record) add({}, true);
  return tests;
}

int run_batch_bench(const BatchParams& params, const BatchHooks& hooks) {
  std::vector<BatchTest> tests = batch_tests(params);
  const int total = int(tests.size()) + (params.check ? 1 : 0);
  int n_failed = 0, done = 0;
  const auto status = [&](const std::string& what) { hooks.on_status(what, done, total); };
  const auto step = [&](const std::string& what) { hooks.on_status(what, done++, total); };
  check_layers_are_distinct(params.model, params.load.device);
  status("loading " + params.model);
  std::optional<BenchReference> reference;
  if (params.check) {
    step("the reference of " + params.model);
    reference.emplace(params.model);
  }
  status("read bandwidth");
  if (hooks.stop()) return n_failed;
  const MachineCeilings machine = measure_machine_ceilings({.device = params.load.device,
                                                            .n_stages = params.load.n_stages,
                                                            .n_threads = params.load.n_threads,
                                                            .isa = params.load.isa,
                                                            .stop = hooks.stop});
  if (hooks.stop()) return n_failed;
  const Model model = Model::load(params.model, params.load);
  Engine& engine = model.engine();
  const int n_ubatch =
      std::min(params.n_ubatch > 0 ? params.n_ubatch : engine.default_ubatch(), engine.backend().max_tokens());
  for (BatchTest& test : tests)
    if (test.by_record) test.kv = params.by_record(model, test.longest());
  for (const BatchTest& test : tests) check_memory(engine, test, params.fill, n_ubatch);
  for (const BatchTest& test : tests) {
    step(test.text(params.fill));
    BatchRow row;
    row.model = model.info();
    row.test = test;
    row.fill = params.fill;
    row.n_ubatch = n_ubatch;
    row.roof_gb_s = machine.read_gb_s;
    row.llc_bytes = machine.llc_bytes;
    row.seed = params.seed;
    if (params.spec) row.spec = &*params.spec;
    if (reference)
      row.check = reference->compare(
          model, {.kv = test.kv, .depth = test.longest(), .n_seq = std::min(test.n_seq(), kMostChecked)}, params.seed,
          params.check_bound);
    if (params.check && !row.check.passed) {
      if (hooks.stop()) return n_failed;
      ++n_failed;
      hooks.on_failed(row);
      continue;
    }
    if (!time_batch(model, params, hooks, row)) return n_failed;
    hooks.on_row(row);
  }
  return n_failed;
}

Columns<BatchRow> batch_columns() {
  const auto known = [](const BatchRow& r) {
    return BenchRow{r, {.n_ubatch = r.n_ubatch, .kv = r.test.kv, .n_gen = r.test.n_gen}};
  };
  return {
      {"kind", "-", "batch", [](auto&) { return "batch"; }},
      part_of<BatchRow>(bench_run_columns(), known),
      {"", "-", "cache format", [](auto& r) { return kv_text(r.test.kv); }, "kv"},
      {"test", "-", "prompt (pp), generation (tg), sequences (b)", [](auto& r) { return r.test.name(r.fill); }},
      {"", "tokens", "of each prompt", [](auto& r) { return r.test.prompt_text + (r.fill ? " (fill)" : ""); }, ">PP"},
      {"n_prompt", "tokens", "of each prompt", [](auto& r) { return r.test.n_prompt; }},
      {"n_gen", "tokens", "generated of each sequence", [](auto& r) { return r.test.n_gen; }, ">TG"},
      {"n_seq", "sequences", "at a time", [](auto& r) { return r.test.n_seq(); }, ">B"},
      {"n_kv", "tokens", "of all sequences", [](auto& r) { return r.test.n_kv(); }, ">N_KV"},
      {"prompts", "-", "run, or random rows in their place", [](auto& r) { return r.fill ? "random rows" : "run"; }},
      {"t_pp", "s", "all prompts", &BatchRow::t_prompt, ">T_PP s", "{:.3f}"},
      {"speed_pp", "tokens/s", "of all prompts", &BatchRow::prompt_rate, ">S_PP t/s", "{:.2f}"},
      {"t_tg", "s", "all generation", &BatchRow::t_gen, ">T_TG s", "{:.3f}"},
      {"speed_tg", "tokens/s", "generated, of all sequences", &BatchRow::gen_rate, ">S_TG t/s", "{:.2f}"},
      {"", "s", "prompts and generation", &BatchRow::t_all, ">T s", "{:.3f}"},
      {"", "tokens/s", "of both", [](auto& r) { return double(r.test.n_kv()) / r.t_all(); }, ">S t/s", "{:.2f}"},
      {"samples_t_pp", "s", "every repetition", &BatchRow::prompt_seconds},
      {"samples_t_tg", "s", "every repetition", &BatchRow::gen_seconds},
      {"read_bytes", "bytes", "that a decode step must read", [](auto& r) { return int64_t(r.read_bytes); }},
      {"read_gb_s", "GB/s", "those bytes in the step's time", &BatchRow::read_gb_s, ">read GB/s", "{:.1f}"},
      {"roof_gb_s", "GB/s", "memory bandwidth, measured in the same run", &BatchRow::roof_gb_s},
      {"pct_of_roof", "%", "of memory bandwidth", [](auto& r) { return r.pct_of_roof(); }, ">% of bandwidth", "{:.1f}"},
      {"", "-", "error of a block against the reference kernels", &BatchRow::checked_text, ">checked (NMSE)"},
      part_of<BatchRow>(bench_cache_columns(), known),
      part_of<BatchRow>(bench_columns().picked({"in_cache", "n_ranks", "pp"}), known),
  };
}

Columns<BatchRow> batch_spec_columns() {
  return batch_columns().with({
      part_of<BatchRow>(
          draft_columns(), [](const BatchRow& r) -> auto& { return r.spec->draft; }),
      {"forced_accept", "-", "chance of a draft token", [](auto& r) { return r.spec->forced_accept; }},
      {"speed_tg_spec", "tokens/s", "generated with draft tokens, of all sequences", &BatchRow::spec_rate,
       ">S_TG spec t/s", "{:.2f}"},
      {"speedup", "-", "tokens/s with draft tokens over without", &BatchRow::speedup, ">ratio", "{:.2f}"},
      {"spec_steps", "steps", "with draft tokens, of every sequence", [](auto& r) { return r.report.n_steps; }},
      {"spec_steps_ahead", "steps", "of these, queued ahead", [](auto& r) { return r.report.n_ahead; }},
      {"accepted_per_step", "tokens", "accepted draft tokens of a sequence",
       [](auto& r) { return when(r.report.n_steps > 0, r.report.tokens_per_step() - 1); }, ">accepted a step",
       "{:.2f}"},
      {"spec_proposed", "tokens", "draft tokens", [](auto& r) { return r.report.n_proposed; }},
      {"spec_accepted", "tokens", "accepted draft tokens", [](auto& r) { return r.report.n_accepted; }},
      {"samples_t_spec", "s", "every repetition", &BatchRow::spec_seconds},
  });
}

}  // namespace ridge::lab
