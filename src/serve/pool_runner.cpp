#include "serve/pool_runner.h"

#include <algorithm>
#include <cmath>

#include "engine/finite.h"
#include "engine/kv_options.h"
#include "grammar/matcher.h"
#include "serve/logits.h"

namespace ridge::serve {
namespace {

/// Shorter prefixes are computed again sooner than they are looked after.
constexpr int kLeastPrefix = 64;
/// Tokens of prompts in a step with decoding sequences, before any such step was timed.
constexpr int kFirstChunk = 256, kLeastChunk = 64;
/// Tokens of prompts in a step that scores a prompt's tokens: all tokens of such a step have logits.
constexpr int kScoredChunk = 64;

/// Whether the listener wants more; one that is gone ends its job.
bool goes_on(Job& job, Wish wish) {
  job.cancelled = job.cancelled || wish == Wish::gone;
  return wish == Wish::more;
}

TokenStream::OnText hand_on(Job& job) {
  return [&job](std::string_view text) {
    const Wish wish = job.listener->on_text(text, job.logprobs);
    job.logprobs.clear();
    return goes_on(job, wish);
  };
}

/// Hands marks on, where the request wants any.
TokenStream::OnText hand_marks_on(Job& job) {
  if (job.request.marks.empty()) return {};
  return [&job](std::string_view mark) { return goes_on(job, job.listener->on_mark(mark)); };
}

/// The vocabulary, with the marks of a request.
TokenStream::Vocabulary with_marks(TokenStream::Vocabulary vocabulary, const GenerationRequest& request) {
  vocabulary.mark = [spelling = std::move(vocabulary.mark), &request](int32_t token) {
    return std::ranges::find(request.marks, token) == request.marks.end() ? std::string() : spelling(token);
  };
  return vocabulary;
}

/// Finish reason of a text that its listener did not leave. A listener that had enough interrupted it, which is a stop.
FinishReason finish_reason(StopReason reason) {
  return reason == StopReason::max_tokens || reason == StopReason::context_full ? FinishReason::length
                                                                                : FinishReason::stop;
}

/// Pages that the budget holds beside slots and proposers, and no more than serve all slots. Sliding layers get what
/// sequences of n_ctx tokens need beside their full layers' pages; shorter sequences need more of them, up to a half of
/// the bytes. Fewer full pages than one sequence needs: the budget is too small.
PageNumbers pages_that_fit(const KvMemory& one_page, std::span<const KvLayerConfig> layers, const PoolOptions& options,
                           SlotNumbers slots) {
  const int64_t bytes = options.kv_bytes - slots.n * one_page.slot_bytes() -
                        slots.n_histories * one_page.history_bytes() - options.proposer_bytes();
  const int64_t of_full = one_page.page_bytes(PageClass::full), of_sliding = one_page.page_bytes(PageClass::sliding);
  const PageNumbers one = pool_pages(layers, options.n_ctx, 1, options.batch_tokens),
                    all = pool_pages(layers, options.n_ctx, slots.n, options.batch_tokens);
  const int64_t each = std::min(one.full, most_sliding_pages(layers)), in_step = one.sliding - each;
  int64_t sliding = 0;
  if (of_sliding > 0) {
    const int64_t whole = (bytes - in_step * of_sliding) / (one.full * of_full + each * of_sliding);
    const int64_t wanted = std::min(options.max_seqs * each, bytes / 2 / of_sliding);
    sliding = std::min<int64_t>(in_step + std::max(whole * each, wanted), all.sliding);
    sliding = std::min(sliding, (bytes - one.full * of_full) / of_sliding);
    if (sliding < one.sliding) return {0, 0};
  }
  // Without full layers their number is only the length of lists.
  const int64_t full = of_full > 0 ? (bytes - sliding * of_sliding) / of_full : one.full;
  return {int(std::clamp<int64_t>(full, 0, std::min(all.full, 1 << 24))), int(std::max<int64_t>(sliding, 1))};
}

/// Sizes of a pool that follow from its bytes.
struct PoolSizes {
  PoolSizes(Engine& engine, const PoolOptions& options)
      : layers(layer_configs(session_options(options.kv, options.n_ctx, 0), engine.plan())),
        one_page(engine.open_host_memory(layers, 1, 1)),
        one(pool_pages(layers, options.n_ctx, 1, options.batch_tokens)) {
    const auto keeps_state = [](const LayerPlan& layer) { return layer.keeps_state(); };
    const bool takes_back = options.proposers && std::ranges::any_of(engine.plan().layers, keeps_state);
    slots = {options.max_seqs + options.n_checkpoints, takes_back ? options.max_seqs : 0};
    n_pages = pages_that_fit(*one_page, layers, options, slots);
  }
  bool holds_one() const { return n_pages.full >= one.full; }

  const std::vector<KvLayerConfig> layers;
  const std::unique_ptr<HostKvMemory> one_page;
  const PageNumbers one;  // of a sequence of n_ctx tokens
  SlotNumbers slots = 0;
  PageNumbers n_pages = 0;
};

}  // namespace

int longest_context(Engine& engine, PoolOptions options) {
  int fitting = 0, too_long = options.n_ctx / kPagePositions + 1;  // pages
  const auto fits = [&](int n) {
    options.n_ctx = n;
    return PoolSizes(engine, options).holds_one();
  };
  if (fits(options.n_ctx)) return options.n_ctx;
  while (too_long - fitting > 1) {
    const int middle = fitting + (too_long - fitting) / 2;
    (fits(middle * kPagePositions) ? fitting : too_long) = middle;
  }
  return fitting * kPagePositions;
}

std::string_view phase_name(Phase phase) {
  constexpr std::string_view kNames[] = {"prompt", "decode", "parked"};
  return kNames[size_t(phase)];
}

Job::Job(uint64_t number, GenerationRequest what, std::shared_ptr<Listener> who, TokenStream::Vocabulary vocabulary,
         const PoolOptions& options)
    : id(number),
      request([&] {
        const int room = options.n_ctx - int(what.prompt.size()), wanted = what.options.max_tokens;
        what.options.max_tokens = wanted < 0 ? room : std::min(wanted, room);
        return std::move(what);
      }()),
      listener(std::move(who)),
      hashes(prefix_hashes(request.prompt, options.prefix_secret)),
      on_text(hand_on(*this)),
      stream(with_marks(std::move(vocabulary), request), request.options, on_text, result, hand_marks_on(*this)) {
  usage.n_prompt = n_prompt();
  text = {.tokens = request.prompt, .sampler = request.options.sampler, .n_left = request.options.max_tokens};
  text.sampler.n_sampled = 0;
}

void Job::mask(std::span<float> logits, int tokens_left) {
  apply_penalties(request, result.tokens, logits);
  if (int(result.tokens.size()) < request.min_tokens)
    for (const int32_t end : ends) logits[size_t(end)] = -INFINITY;
  if (request.constraint) request.constraint->mask(logits, tokens_left);
}

PoolRunner::PoolRunner(Engine& engine, const PoolOptions& options, Totals& totals)
    : engine_(engine),
      options_(options),
      totals_(totals),
      pool_([&] {
        const PoolSizes sizes(engine, options);
        const auto gib = [](int64_t bytes) { return double(bytes) / (1 << 30); };
        if (!sizes.holds_one())
          throw_error(
              ErrorKind::no_memory,
              "a {} cache of {:.2f} GiB is too small: pages of one sequence of {} tokens need {:.2f} GiB beside "
              "{:.2f} GiB of {} slots{} (a larger --kv-gib, fewer --parallel or a smaller --ctx-size)",
              kv_text(options.kv), gib(options.kv_bytes), options.n_ctx,
              gib(sizes.one.full * sizes.one_page->page_bytes(PageClass::full) +
                  sizes.one.sliding * sizes.one_page->page_bytes(PageClass::sliding)),
              gib(sizes.slots.n * sizes.one_page->slot_bytes() +
                  sizes.slots.n_histories * sizes.one_page->history_bytes()),
              sizes.slots.n,
              options.proposer_bytes() > 0 ? fmt::format(" and {:.2f} GiB of proposers", gib(options.proposer_bytes()))
                                           : "");
        return engine.open_pool(sizes.layers, sizes.n_pages, sizes.slots, options.n_ctx);
      }()),
      prefixes_(*pool_),
      decoder_(engine.backend(), *pool_, engine.plan().n_ids) {
  for (int32_t token = 0; engine.has_tokenizer() && token < engine.plan().n_ids; ++token)
    if (engine.tokenizer().is_end(token)) ends_.push_back(token);
  RIDGE_CHECK(options_.max_seqs > 0 && options_.checkpoint_every > 0, "{} sequences, checkpoints every {} tokens",
              options_.max_seqs, options_.checkpoint_every);
}

Admission PoolRunner::admit(const Job& job) {
  if (int(jobs_.size()) >= options_.max_seqs) return Admission::no_room;
  if (jobs_.empty()) return Admission::now;
  if (std::ranges::any_of(jobs_, [](const auto& other) { return other->parked; })) return Admission::no_room;
  // Pages and swap together hold everybody, however long the texts become: whoever starts can end.
  int64_t swapped = 0;
  const KvMemory& memory = pool_->memory();
  for (const PageClass of : memory.page_classes()) {
    int64_t most = pool_->pages_for(job.most_tokens())[of];
    for (const auto& other : jobs_) most += pool_->pages_for(other->most_tokens())[of];
    swapped += std::max<int64_t>(0, most - memory.n_pages(of)) * memory.page_bytes(of);
  }
  if (swapped > options_.swap_bytes) return Admission::no_room;
  for (const auto& other : jobs_) {
    if (other->decodes() || other->ended) continue;
    const auto& a = other->request.prompt;
    const auto& b = job.request.prompt;
    const int common = job.request.reads_whole_prompt() ? 0 : int(std::ranges::mismatch(a, b).in1 - a.begin());
    if (common < kLeastPrefix || common <= other->n_done) continue;
    if (const auto at = std::ranges::lower_bound(other->stops, common); at == other->stops.end() || *at != common)
      other->stops.insert(at, common);
    return Admission::after_prefix;
  }
  // Share the pages of the cached prefix; the last page and the pages behind it are the job's own.
  int cached = 0;
  for (int n = job.request.reads_whole_prompt() ? 0 : job.n_prompt(); n > 0 && cached == 0; --n)
    if (pool_->find(job.hashes[size_t(n)])) cached = n;
  PageNumbers needed = pool_->pages_for(job.n_prompt() + 1);
  needed.full += 1 - std::max(0, pool_->pages_for(cached).full - 1);
  needed.sliding += 1;
  while (!pool_->has_free(needed))
    if (!pool_->evict()) return Admission::no_room;
  return Admission::now;
}

void PoolRunner::start(std::unique_ptr<Job>&& job) {
  if (options_.proposers && job->request.speculative.value_or(true)) try {
      job->speculation =
          std::make_unique<Speculation>(options_.proposers(), options_.spec_depth, options_.spec_adaptive);
      if (options_.spec_rejects) job->speculation->reject();
      job->text.speculation = job->speculation.get();
    } catch (const Error& error) {
      // Without memory for a draft's cache the text is the same, and slower.
      if (error.kind() != ErrorKind::no_memory) throw;
    }
  // Logits and hidden states of what is cached are not: a prompt whose are wanted is computed whole.
  const size_t n_known = job->request.reads_whole_prompt() ? 1 : job->hashes.size();
  const PrefixCache::Hit hit = prefixes_.open(std::span(job->hashes).first(n_known)).or_throw();
  job->text.seq = hit.seq;
  job->ends = ends_;
  job->text.on_token = [this, &of = *job](int32_t token) { return take(of, token); };
  if (job->request.needs_logits())
    job->text.pick = [this, &of = *job](std::span<const float> logits) { return sample(of, logits); };
  job->n_done = job->usage.n_cached = hit.n;
  job->started = Clock::now();
  job->usage.queue_seconds = seconds_since(job->arrived);
  job->stops = job->request.message_ends;
  for (int n = options_.checkpoint_every; n < job->n_prompt(); n += options_.checkpoint_every) job->stops.push_back(n);
  job->stops.push_back(job->n_prompt());
  std::erase_if(job->stops, [&](int n) { return n < kLeastPrefix || n <= hit.n || n > job->n_prompt(); });
  std::ranges::sort(job->stops);
  job->stops.erase(std::ranges::unique(job->stops).begin(), job->stops.end());
  jobs_.push_back(std::move(job));
}

void PoolRunner::unpark() {
  for (const auto& job : jobs_) {
    if (!job->parked) continue;
    const int n_running = int(std::ranges::count_if(jobs_, [](const auto& other) { return !other->parked; }));
    // Room for everybody's next page too: a job that comes back and goes at once helps nobody.
    PageNumbers needed = pool_->pages_for(pool_->length(job->text.seq));
    needed.full += 1 + n_running, needed.sliding += 1 + n_running;
    while (!pool_->has_free(needed) && pool_->evict()) {
    }
    if (!pool_->has_free(needed) && n_running > 0) return;
    while (!pool_->unpark(job->text.seq))
      if (!pool_->evict()) return;
    job->parked = false;
  }
}

bool PoolRunner::reserve_or_evict(Job& job, int n) {
  while (!pool_->reserve(job.text.seq, n)) {
    if (pool_->evict()) continue;
    const auto youngest = std::ranges::find_if(jobs_.rbegin(), jobs_.rend(),
                                               [](const auto& other) { return !other->parked && !other->ended; });
    pool_->park((*youngest)->text.seq);
    (*youngest)->parked = true;
    ++totals_.parked;
    if (youngest->get() == &job) return false;
  }
  return true;
}

std::vector<PoolRunner::Row> PoolRunner::plan_step() {
  std::vector<Row> rows;
  for (const auto& job : jobs_)
    if (!job->parked && job->decodes()) rows.push_back({job.get(), 1});
  int left = std::min(options_.batch_tokens, engine_.backend().max_tokens()) - int(rows.size());
  if (!rows.empty()) {
    const double most =
        seconds_a_prompt_token_ > 0 ? options_.max_stall_seconds / seconds_a_prompt_token_ : kFirstChunk;
    left = std::min(left, std::max(kLeastChunk, int(std::min(most, 1e6))));
  }
  const auto is_scored = [](const auto& job) { return !job->parked && job->scores(); };
  if (std::ranges::any_of(jobs_, is_scored)) left = std::min(left, kScoredChunk);
  for (const auto& job : jobs_) {
    if (job->parked || job->decodes() || left <= 0) continue;
    const auto stop = std::ranges::upper_bound(job->stops, job->n_done);
    const int end = stop == job->stops.end() ? job->n_prompt() : *stop;
    rows.push_back({job.get(), std::min(left, end - job->n_done)});
    left -= rows.back().n_tokens;
  }
  // The oldest get their pages first; whoever is parked for them takes no part.
  std::ranges::sort(rows, {}, [](const Row& row) { return row.job->id; });
  for (const Row& row : rows)
    if (!row.job->parked) reserve_or_evict(*row.job, row.n_tokens);
  std::erase_if(rows, [](const Row& row) { return row.job->parked; });
  return rows;
}

DecodeRow PoolRunner::decode_row(const Row& row) const {
  Job& job = *row.job;
  if (job.decodes()) return next_row(job.text);
  return {.text = &job.text,
          .tokens = std::span(job.request.prompt).subspan(size_t(job.n_done), size_t(row.n_tokens)),
          .is_prompt = true,
          .samples = job.n_done + row.n_tokens == job.n_prompt() && job.text.n_left > 0,
          .all_logits = job.scores(),
          .hidden = job.embeds()};
}

struct PoolRunner::Hooks final : StepHooks {
  Hooks(PoolRunner& of, std::span<const Row> step, const PartClock& started,
        const std::function<bool()>& device_goes_on)
      : runner(of), rows(step), goes_on(device_goes_on) {
    clock = started;
  }
  void ran() override { runner.ran(rows); }
  bool go_on() override { return goes_on(); }
  void done(const StepRecord& record) override { runner.count_step(record); }

  PoolRunner& runner;
  const std::span<const Row> rows;
  const std::function<bool()>& goes_on;
};

void PoolRunner::step(const PartClock& clock, const std::function<bool()>& go_on) {
  unpark();
  last_step_ = Clock::now();
  const std::vector<Row> rows = plan_step();
  if (rows.empty()) return;
  std::vector<DecodeRow> step;
  for (const Row& row : rows) step.push_back(decode_row(row));
  Hooks hooks(*this, rows, clock, go_on);
  decoder_.step(step, options_.batch_tokens, hooks);
  for (const Row& row : rows)
    if (row.job->text.failure) end_failed(*row.job);
  sweep();
}

void PoolRunner::ran(std::span<const Row> rows) {
  if (std::ranges::any_of(rows, [](const Row& row) { return row.job->scores(); })) score(rows);
  if (std::ranges::any_of(rows, [](const Row& row) { return row.job->embeds(); })) embed(rows);
  for (const Row& row : rows) {
    Job& job = *row.job;
    if (job.decodes()) continue;
    job.n_done += row.n_tokens;
    if (std::ranges::binary_search(job.stops, job.n_done)) prefixes_.keep(job.text.seq, job.hashes[size_t(job.n_done)]);
    if (!job.decodes()) continue;
    job.usage.prompt_seconds = seconds_since(job.started);
    job.decoding = Clock::now();
    if (job.request.options.max_tokens > 0) continue;
    if (!job.logprobs.empty()) job.on_text({});
    if (!job.embedding.empty()) job.listener->on_embedding(job.embedding);
    end(job, FinishReason::length);
  }
}

void PoolRunner::score(std::span<const Row> rows) {
  const View2<const float> logits = decoder_.outputs().logits();
  int64_t first = 0;
  for (const Row& row : rows) {
    Job& job = *row.job;
    const int n = std::min(row.n_tokens, job.n_prompt() - 1 - job.n_done);
    for (int i = 0; job.scores() && i < n; ++i)
      job.logprobs.push_back(token_logprob(logits.row(first + i), job.request.prompt[size_t(job.n_done + i + 1)],
                                           job.request.n_top_logprobs));
    first += row.n_tokens;
  }
}

void PoolRunner::embed(std::span<const Row> rows) {
  const View2<const float> hidden = decoder_.outputs().hidden();
  std::vector<float> states;
  int64_t first = 0;
  for (const Row& row : rows) {
    Job& job = *row.job;
    const View2<const float> own = {hidden.data + first * hidden.cols, row.n_tokens, hidden.cols};
    first += row.n_tokens;
    if (!job.embeds()) continue;
    states.resize(size_t(own.rows * own.cols));
    engine_.norm_hidden(own, {states.data(), own.rows, own.cols});
    job.embedding.resize(size_t(own.cols));
    for (int64_t i = 0; i < own.rows; ++i)
      for (int64_t at = 0; at < own.cols; ++at) {
        float& sum = job.embedding[size_t(at)];
        sum = states[size_t(i * own.cols + at)] + (job.request.pooling == Pooling::mean ? sum : 0);
      }
  }
}

void PoolRunner::count_step(const StepRecord& record) {
  totals_.count_step(record);
  if (totals_.ops) totals_.ops->take(*engine_.context().trace, record.seconds);
  if (record.n_decode == 0) return;
  const auto mix = [](double& average, double value) { average = average == 0 ? value : 0.8 * average + 0.2 * value; };
  if (record.n_prompt_tokens == 0) return mix(decode_seconds_, record.seconds);
  // Count for the prompts only the time beyond a step without them: else slow decoding would shrink pieces of prompts
  // to nothing.
  const double of_prompts = std::max(record.seconds - decode_seconds_, 0.1 * record.seconds);
  mix(seconds_a_prompt_token_, of_prompts / record.n_prompt_tokens);
}

int32_t PoolRunner::sample(Job& job, std::span<const float> logits) {
  const int32_t token = sample_by_rule(job, job.text, engine_.plan().n_ids, logits, logits_);
  const int n_top = job.request.n_top_logprobs;
  if (n_top >= 0) job.logprobs.push_back(token_logprob(logits, token, n_top));
  return token;
}

bool PoolRunner::take(Job& job, int32_t token) {
  const Clock::time_point now = Clock::now();
  const auto seconds = [&](Clock::time_point since) { return std::chrono::duration<double>(now - since).count(); };
  if (job.result.tokens.empty()) totals_.first_token.observe(seconds(job.arrived));
  else totals_.between_tokens.observe(seconds(job.last_token));
  job.last_token = now;
  const bool more = job.stream.push(token);
  if (more && !job.complete() && !job.cancelled) return true;
  job.stream.finish();
  if (!job.logprobs.empty()) job.on_text({});
  end(job, job.cancelled ? FinishReason::cancelled : more ? FinishReason::stop : finish_reason(job.result.reason));
  return false;
}

void PoolRunner::end_failed(Job& job) {
  try {
    std::rethrow_exception(job.text.failure);
  } catch (const NotFiniteError&) {
    fail(job, {NotFiniteError(engine_.why_not_finite()).what(), RequestError::Code::not_finite});
  } catch (const grammar::TooAmbiguous& error) {
    fail(job, {error.what(), RequestError::Code::too_ambiguous});
  } catch (const Error& error) {
    fail(job, {error.what()});
  }
}

void PoolRunner::end(Job& job, FinishReason reason, const RequestError& error) {
  if (job.ended) return;
  job.ended = job.text.ended = true;
  job.failed = reason == FinishReason::failed;
  job.usage.n_generated = int(job.result.tokens.size());
  if (job.speculation) {
    job.usage.n_proposed = int(job.speculation->report().n_proposed);
    job.usage.n_accepted = int(job.speculation->report().n_accepted);
  }
  if (job.decodes()) job.usage.decode_seconds = seconds_since(job.decoding);
  totals_.count_end(reason, job.usage, seconds_since(job.arrived));
  job.listener->on_end(reason, job.usage, error);
}

void PoolRunner::sweep() {
  for (const auto& job : jobs_) {
    if (!job->ended) continue;
    // Keep the text as a prefix: the next message of a conversation follows it.
    if (!job->failed && !job->parked && job->length() >= kLeastPrefix && job->decodes() &&
        pool_->length(job->text.seq) == job->length()) {
      uint64_t hash = job->hashes.back();
      for (int i = 0; i < job->length() - job->n_prompt(); ++i) hash = extend_hash(hash, job->result.tokens[size_t(i)]);
      prefixes_.keep(job->text.seq, hash);
    }
    pool_->close(job->text.seq);
  }
  std::erase_if(jobs_, [](const auto& job) { return job->ended; });
}

void PoolRunner::drop_cancelled() {
  for (const auto& job : jobs_)
    if (job->cancelled) end(*job, FinishReason::cancelled);
  sweep();
}

void PoolRunner::end_all(const std::string& error) {
  for (const auto& job : jobs_) fail(*job, {error});
  jobs_.clear();
}

}  // namespace ridge::serve
