#include "serve/lane.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <numeric>
#include <thread>

#include "engine/finite.h"
#include "engine/kv_options.h"
#include "op/sample/rule.h"
#include "serve/logits.h"

namespace ridge::serve {
namespace {

/// Shorter prefixes are computed again sooner than they are looked after.
constexpr int kLeastPrefix = 64;
/// Tokens of prompts in a step with decoding sequences, before any such step was timed.
constexpr int kFirstChunk = 256, kLeastChunk = 64;
/// The same where a prompt's tokens are scored: all tokens of such a step have logits.
constexpr int kScoredChunk = 64;

TokenStream::OnText hand_on(Job& job) {
  return [&job](std::string_view text) {
    const bool heard = job.listener->on_text(text, job.logprobs);
    job.logprobs.clear();
    job.cancelled = job.cancelled || !heard;
    return heard;
  };
}

/// Hands marks on, where the request wants any.
TokenStream::OnText hand_marks_on(Job& job) {
  if (job.request.marks.empty()) return {};
  return [&job](std::string_view mark) {
    const bool heard = job.listener->on_mark(mark);
    job.cancelled = job.cancelled || !heard;
    return heard;
  };
}

/// The vocabulary, with the marks of a request.
TokenStream::Vocabulary with_marks(TokenStream::Vocabulary vocabulary, const GenerationRequest& request) {
  vocabulary.mark = [spelling = std::move(vocabulary.mark), &request](int32_t token) {
    return std::ranges::find(request.marks, token) == request.marks.end() ? std::string() : spelling(token);
  };
  return vocabulary;
}

FinishReason finish_reason(StopReason reason) {
  if (reason == StopReason::interrupted) return FinishReason::cancelled;
  return reason == StopReason::max_tokens || reason == StopReason::context_full ? FinishReason::length
                                                                                : FinishReason::stop;
}

/// Pages that the budget holds beside slots and proposers, and no more than serve all slots. Sliding layers get what
/// sequences of n_ctx tokens need beside their full layers' pages; shorter sequences need more of them, up to a half of
/// the bytes. Fewer full pages than one sequence needs: the budget is too small.
PageNumbers pages_that_fit(const KvMemory& one_page, std::span<const KvLayerConfig> layers, const LaneOptions& options,
                           int n_slots) {
  const int64_t bytes = options.kv_bytes - n_slots * one_page.slot_bytes() - options.proposer_bytes();
  const int64_t of_full = one_page.page_bytes(PageClass::full), of_sliding = one_page.page_bytes(PageClass::sliding);
  const PageNumbers one = pool_pages(layers, options.n_ctx, 1, options.batch_tokens),
                    all = pool_pages(layers, options.n_ctx, n_slots, options.batch_tokens);
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

/// What the bytes of a lane hold.
struct LaneRoom {
  LaneRoom(Engine& engine, const LaneOptions& options)
      : layers(layer_configs(session_options(options.kv, options.n_ctx, 0), engine.plan())),
        one_page(engine.open_host_memory(layers, 1, 1)),
        one(pool_pages(layers, options.n_ctx, 1, options.batch_tokens)) {
    const auto keeps_state = [](const LayerPlan& layer) { return layer.mixer == MixerKind::delta; };
    const bool takes_back = options.proposers && std::ranges::any_of(engine.plan().layers, keeps_state);
    n_slots = options.max_seqs * (takes_back ? 2 : 1) + options.n_checkpoints;
    n_pages = pages_that_fit(*one_page, layers, options, n_slots);
  }
  bool holds_one() const { return n_pages.full >= one.full; }

  const std::vector<KvLayerConfig> layers;
  const std::unique_ptr<HostKvMemory> one_page;
  const PageNumbers one;  // of a sequence of n_ctx tokens
  int n_slots = 0;
  PageNumbers n_pages = 0;
};

}  // namespace

int longest_context(Engine& engine, LaneOptions options) {
  int fitting = 0, too_long = options.n_ctx / kPagePositions + 1;  // pages
  const auto fits = [&](int n) {
    options.n_ctx = n;
    return LaneRoom(engine, options).holds_one();
  };
  if (fits(options.n_ctx)) return options.n_ctx;
  while (too_long - fitting > 1) {
    const int middle = fitting + (too_long - fitting) / 2;
    (fits(middle * kPagePositions) ? fitting : too_long) = middle;
  }
  return fitting * kPagePositions;
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string_view phase_name(Phase phase) {
  constexpr std::string_view kNames[] = {"prompt", "decode", "parked"};
  return kNames[size_t(phase)];
}

Job::Job(uint64_t number, GenerationRequest what, std::shared_ptr<Listener> who, TokenStream::Vocabulary vocabulary,
         const LaneOptions& options)
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
}

SamplerOptions Job::next_sampler() const {
  SamplerOptions options = request.options.sampler;
  options.first_draw = result.tokens.size();
  return options;
}

std::vector<int32_t> Job::recent() const {
  const SamplerOptions& options = request.options.sampler;
  if (options.repeat_penalty == 1) return {};
  std::vector<int32_t> tokens = text();
  tokens.erase(tokens.begin(), tokens.end() - std::min<ptrdiff_t>(ssize(tokens), options.repeat_last_n));
  return tokens;
}

std::vector<int32_t> Job::text() const {
  std::vector<int32_t> tokens = request.prompt;
  tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
  return tokens;
}

Lane::Lane(Engine& engine, const LaneOptions& options, Totals& totals)
    : engine_(engine),
      options_(options),
      totals_(totals),
      pool_([&] {
        const LaneRoom room(engine, options);
        const auto gib = [](int64_t bytes) { return double(bytes) / (1 << 30); };
        if (!room.holds_one())
          throw_error(
              ErrorKind::no_memory,
              "a {} cache of {:.2f} GiB is too small: pages of one sequence of {} tokens need {:.2f} GiB beside "
              "{:.2f} GiB of {} slots{} (a larger --kv-gib, fewer --parallel or a smaller --ctx-size)",
              kv_text(options.kv), gib(options.kv_bytes), options.n_ctx,
              gib(room.one.full * room.one_page->page_bytes(PageClass::full) +
                  room.one.sliding * room.one_page->page_bytes(PageClass::sliding)),
              gib(room.n_slots * room.one_page->slot_bytes()), room.n_slots,
              options.proposer_bytes() > 0 ? fmt::format(" and {:.2f} GiB of proposers", gib(options.proposer_bytes()))
                                           : "");
        return engine.open_pool(room.layers, room.n_pages, room.n_slots, options.n_ctx);
      }()),
      prefixes_(*pool_),
      outputs_(engine.backend().make_outputs()) {
  RIDGE_CHECK(options_.max_seqs > 0 && options_.checkpoint_every > 0, "{} sequences, checkpoints every {} tokens",
              options_.max_seqs, options_.checkpoint_every);
}

Admission Lane::admit(const Job& job) {
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
    const int common = job.request.prompt_logprobs ? 0 : int(std::ranges::mismatch(a, b).in1 - a.begin());
    if (common < kLeastPrefix || common <= other->n_done) continue;
    if (const auto at = std::ranges::lower_bound(other->stops, common); at == other->stops.end() || *at != common)
      other->stops.insert(at, common);
    return Admission::after_prefix;
  }
  // What stands in the cache is shared; the last page and the pages behind it are the job's own.
  int cached = 0;
  for (int n = job.request.prompt_logprobs ? 0 : job.n_prompt(); n > 0 && cached == 0; --n)
    if (pool_->find(job.hashes[size_t(n)])) cached = n;
  PageNumbers needed = pool_->pages_for(job.n_prompt() + 1);
  needed.full += 1 - std::max(0, pool_->pages_for(cached).full - 1);
  needed.sliding += 1;
  while (!pool_->has_free(needed))
    if (!pool_->evict()) return Admission::no_room;
  return Admission::now;
}

void Lane::start(std::unique_ptr<Job>&& job) {
  if (options_.proposers && job->request.speculative.value_or(true)) try {
      job->proposer = options_.proposers();
    } catch (const Error& error) {
      // Without memory for a draft's cache the text is the same, and slower.
      if (error.kind() != ErrorKind::no_memory) throw;
    }
  // Logits of what is cached are not: a prompt whose log probabilities are wanted is computed whole.
  const size_t n_known = job->request.prompt_logprobs ? 1 : job->hashes.size();
  const PrefixCache::Hit hit = prefixes_.open(std::span(job->hashes).first(n_known)).or_throw();
  job->seq = hit.seq;
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

void Lane::unpark() {
  for (const auto& job : jobs_) {
    if (!job->parked) continue;
    const int n_running = int(std::ranges::count_if(jobs_, [](const auto& other) { return !other->parked; }));
    // Room for everybody's next page too: a job that comes back and goes at once helps nobody.
    PageNumbers needed = pool_->pages_for(pool_->length(job->seq));
    needed.full += 1 + n_running, needed.sliding += 1 + n_running;
    while (!pool_->has_free(needed) && pool_->evict()) {
    }
    if (!pool_->has_free(needed) && n_running > 0) return;
    while (!pool_->unpark(job->seq))
      if (!pool_->evict()) return;
    job->parked = false;
  }
}

bool Lane::make_room(Job& job, int n) {
  while (!pool_->reserve(job.seq, n)) {
    if (pool_->evict()) continue;
    const auto youngest = std::ranges::find_if(jobs_.rbegin(), jobs_.rend(),
                                               [](const auto& other) { return !other->parked && !other->ended; });
    pool_->park((*youngest)->seq);
    (*youngest)->parked = true;
    ++totals_.parked;
    if (youngest->get() == &job) return false;
  }
  return true;
}

std::vector<Lane::Row> Lane::plan_step() {
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
    if (!row.job->parked) make_room(*row.job, row.n_tokens);
  std::erase_if(rows, [](const Row& row) { return row.job->parked; });
  return rows;
}

bool Lane::listens(const Job& job) const { return job.proposer && job.proposer->wants_hidden() && alone(job) == 0; }

int Lane::alone(std::span<const Row> rows) const {
  int n = INT_MAX;
  for (const Row& row : rows)
    if (!row.job->decodes()) n = 0;
    else if (row.job->proposer) n = std::min(n, alone(*row.job));
  return n == INT_MAX ? 0 : n;
}

void Lane::rest(std::span<const Row> rows, std::optional<double> seconds) {
  if (seconds) costs_[rows.size()].add_resting(*seconds);
  for (const Row& row : rows) row.job->depth.rested(1);
}

bool Lane::propose(std::span<Row> rows) {
  std::vector<const SpecDepth*> depths;
  std::vector<Row*> guessed;
  bool prompts = false;
  for (Row& row : rows) {
    row.job->proposals.clear();
    prompts = prompts || !row.job->decodes();
    if (row.job->proposer) guessed.push_back(&row), depths.push_back(&row.job->depth);
  }
  // Beside the tokens of prompts every row takes its full time.
  if (guessed.empty() || prompts || alone(rows) > 0) return false;
  std::vector<int> wanted(guessed.size(), options_.spec_depth);
  if (options_.spec_adaptive) wanted = spec_depths(costs_[rows.size()], int(rows.size()), depths, options_.spec_depth);
  int left = options_.batch_tokens - int(rows.size());
  for (size_t i = 0; i < guessed.size(); ++i) {
    Job& job = *guessed[i]->job;
    const int room = job.request.options.max_tokens - int(job.result.tokens.size()) - 1;
    const int n = most_proposals(*pool_, job.seq, std::min({wanted[i], left, room}));
    if (n <= 0) continue;
    const Clock::time_point start = Clock::now();
    job.proposals = job.proposer->propose(job.text(), n);
    guessed[i]->proposing = seconds_since(start);
    guessed[i]->n_asked = n;
    if (job.proposals.empty()) continue;
    if (pool_->has_states())
      if (const auto before = pool_->checkpoint(job.seq)) guessed[i]->before = *before;
    // Nobody is parked for a guess.
    if ((pool_->has_states() && !guessed[i]->before) || !pool_->reserve(job.seq, 1 + int(job.proposals.size())))
      job.proposals.clear();
    guessed[i]->n_tokens += int(job.proposals.size());
    left -= int(job.proposals.size());
  }
  return true;
}

void Lane::learn(std::span<const Row> rows, double seconds) {
  SpecCost& cost = costs_[rows.size()];
  std::vector<int> paid;
  bool late = false;
  for (const Row& row : rows) {
    paid.push_back(cost.paid(int(row.job->proposals.size()), row.proposing));
    late = late || (paid.back() > 0 && row.job->depth.late());
  }
  const int n_paid = std::accumulate(paid.begin(), paid.end(), 0);
  const bool timed = !engine_.on_device() || cost.recorded(n_paid);
  if (timed && !late) cost.add(n_paid, seconds);
  // Each text answers for its part of what proposals took.
  const double plain = cost.plain();
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].job->proposer)
      rows[i].job->depth.add(rows[i].n_asked, paid[i], rows[i].n_accepted, cost, int(rows.size()),
                             timed && paid[i] > 0 ? plain + (seconds - plain) * paid[i] / n_paid : 0);
}

void Lane::observe(std::span<const Row> rows, std::span<const int32_t> tokens) {
  const View2<const float> hidden = outputs_->hidden();
  size_t first = 0;
  for (const Row& row : rows) {
    const auto n = size_t(row.n_tokens);
    if (listens(*row.job))
      row.job->listening.observe(
          *row.job->proposer, tokens.subspan(first, n), pool_->length(row.job->seq) - row.n_tokens,
          View2<const float>(hidden.data + int64_t(first) * hidden.cols, row.n_tokens, hidden.cols));
    first += n;
  }
}

void Lane::step(PartClock& clock, const std::function<bool()>& go_on) {
  unpark();
  const Clock::time_point start = last_step_ = Clock::now();
  std::vector<Row> rows = plan_step();
  if (rows.empty()) return;
  const bool speculates = propose(rows), rests = alone(rows) > 0;
  std::vector<SeqTokens> seqs;
  std::vector<int32_t> tokens;
  StepRecord record;
  bool draws = false, all_logits = false, hidden = false;
  for (Row& row : rows) {
    Job* const job = row.job;
    const int n = row.n_tokens;
    seqs.push_back({job->seq, n});
    if (listens(*job)) hidden = true;
    else job->listening.miss();
    if (job->decodes()) {
      tokens.push_back(row.last = job->result.tokens.back());
      tokens.insert(tokens.end(), job->proposals.begin(), job->proposals.end());
      all_logits = all_logits || n > 1;
      record.n_proposed += n - 1;
      ++record.n_decode;
    } else {
      tokens.insert(tokens.end(), job->request.prompt.begin() + job->n_done,
                    job->request.prompt.begin() + job->n_done + n);
      record.n_prompt_tokens += n;
    }
    all_logits = all_logits || job->scores();
    draws = draws || job->n_done + n >= job->n_prompt();
  }
  clock.charge(record, StepPart::planning);
  engine_.backend().run({.tokens = tokens,
                         .seqs = seqs,
                         .logits = all_logits ? LogitRows::all
                                   : draws    ? LogitRows::last
                                              : LogitRows::none,
                         .hidden = hidden},
                        *pool_, *outputs_);
  if (hidden) observe(rows, tokens);
  clock.charge(record, StepPart::model);
  if (std::ranges::any_of(rows, [](const Row& row) { return row.job->scores(); })) score(rows);
  for (const Row& row : rows) {
    Job* const job = row.job;
    if (job->decodes()) continue;
    const int n = row.n_tokens;
    job->n_done += n;
    if (std::ranges::binary_search(job->stops, job->n_done)) prefixes_.keep(job->seq, job->hashes[size_t(job->n_done)]);
    if (!job->decodes()) continue;
    job->usage.prompt_seconds = seconds_since(job->started);
    job->decoding = Clock::now();
  }
  clock.charge(record, StepPart::planning);
  const bool on_host =
      !engine_.on_device() || std::ranges::any_of(rows, [](const Row& row) { return row.job->request.needs_logits(); });
  if (draws && !on_host && !speculates) {
    draw_on_device(rows, go_on, record, start, clock);
  } else {
    if (draws) take_rows(rows, all_logits, on_host ? std::vector<int32_t>() : draw_all(rows), record, clock);
    record.seconds = seconds_since(start);
    if (speculates) learn(rows, record.seconds);
    if (rests) rest(rows, record.seconds);
    count_step(record);
  }
  sweep();
}

void Lane::score(std::span<const Row> rows) {
  const View2<const float> logits = outputs_->logits();
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

void Lane::count_step(const StepRecord& record) {
  totals_.count_step(record);
  if (record.n_decode == 0) return;
  const auto mix = [](double& average, double value) { average = average == 0 ? value : 0.8 * average + 0.2 * value; };
  if (record.n_prompt_tokens == 0) return mix(decode_seconds_, record.seconds);
  // What the step would have taken without the prompts is not theirs: else slow decoding would shrink pieces of prompts
  // to nothing.
  const double of_prompts = std::max(record.seconds - decode_seconds_, 0.1 * record.seconds);
  mix(seconds_a_prompt_token_, of_prompts / record.n_prompt_tokens);
}

std::vector<int32_t> Lane::draw_all(std::span<const Row> rows) {
  std::vector<SamplerOptions> samplers;
  std::vector<std::vector<int32_t>> recent;
  for (const Row& row : rows) {
    const Job& job = *row.job;
    for (size_t i = 0; i <= job.proposals.size(); ++i) {
      samplers.push_back(job.next_sampler());
      samplers.back().first_draw += i;
      recent.push_back(job.recent());
      // The device looks at the newest of them.
      if (samplers.back().repeat_penalty != 1)
        recent.back().insert(recent.back().end(), job.proposals.begin(), job.proposals.begin() + ptrdiff_t(i));
    }
  }
  return engine_.backend().draw(*outputs_, samplers, recent);
}

void Lane::take_rows(std::span<Row> rows, bool all_logits, std::span<const int32_t> drawn, StepRecord& record,
                     PartClock& clock) {
  const View2<const float> logits = drawn.empty() ? outputs_->logits() : View2<const float>();
  clock.charge(record, StepPart::model);  // a device is waited for here
  int64_t next = 0;                       // row of the logits
  for (Row& row : rows) {
    Job& job = *row.job;
    const auto n_proposed = int(job.proposals.size());
    // Rows of all tokens, or the last one's of each sequence.
    const int64_t n_rows = all_logits ? row.n_tokens : 1;
    int64_t at = std::exchange(next, next + n_rows) + n_rows - 1 - n_proposed;
    if (!job.decodes()) continue;
    if (job.request.options.max_tokens == 0) {
      if (!job.logprobs.empty()) job.on_text({});
      end(job, FinishReason::length, {});
      continue;
    }
    job.usage.n_proposed += n_proposed;
    try {
      // A guess holds if it is what would have been drawn; behind the first wrong one, and behind the end, nothing counts.
      for (;; ++row.n_accepted, ++job.usage.n_accepted, ++at) {
        const int32_t token = drawn.empty() ? sample(job, logits.row(at)) : checked_token(drawn[size_t(at)]);
        clock.charge(record, StepPart::sampling);
        take(job, token);
        if (job.ended || row.n_accepted == n_proposed || token != job.proposals[size_t(row.n_accepted)]) break;
      }
    } catch (const NotFiniteError&) {
      end(job, FinishReason::failed, NotFiniteError(engine_.why_not_finite()).what());
    } catch (const Error& error) {
      // A grammar that became too ambiguous ends its own text only.
      end(job, FinishReason::failed, error.what());
    }
    record.n_accepted += row.n_accepted;
    clock.charge(record, StepPart::events);
  }
  take_back(rows);
  clock.charge(record, StepPart::model);
}

void Lane::take_back(std::span<Row> rows) {
  std::vector<SeqTokens> seqs;
  std::vector<int32_t> tokens;
  for (Row& row : rows) {
    const Job& job = *row.job;
    const int n_wrong = int(job.proposals.size()) - row.n_accepted, n_kept = 1 + row.n_accepted;
    if (!row.before) {
      if (n_wrong > 0) pool_->trim(job.seq, pool_->length(job.seq) - n_wrong, TrimMode::exact).or_throw();
      continue;
    }
    if (n_wrong > 0) {
      pool_->restore(job.seq, *row.before);
      seqs.push_back({job.seq, n_kept});
      // The last token of the text in front of the step, and the proposals that held.
      tokens.push_back(row.last);
      tokens.insert(tokens.end(), job.proposals.begin(), job.proposals.begin() + row.n_accepted);
    }
    pool_->release(*row.before);
  }
  if (seqs.empty()) return;
  for (const SeqTokens& again : seqs) pool_->reserve(again.seq, again.n_tokens).or_throw();
  engine_.backend().run({.tokens = tokens, .seqs = seqs, .logits = LogitRows::none}, *pool_, *outputs_);
  outputs_->logits();  // waits for a device: the time is this step's
}

/// Draws where the logits are. While all sequences decode, the device goes on with the tokens it drew, a few steps ahead
/// of the host; when something changes the steps under way are waited for, and their tokens count.
void Lane::draw_on_device(std::span<const Row> rows, const std::function<bool()>& go_on, StepRecord record,
                          Clock::time_point start, PartClock& clock) {
  std::vector<SeqId> seqs;
  std::vector<SamplerOptions> samplers;
  std::vector<std::vector<int32_t>> recent;
  bool steady = true;
  const int n_alone = alone(rows);
  for (const Row& row : rows) {
    seqs.push_back(row.job->seq);
    samplers.push_back(row.job->next_sampler());
    recent.push_back(row.job->recent());
    steady = steady && row.job->decodes() && (!row.job->proposer || n_alone > 0);
  }
  const std::unique_ptr<Drawing> drawing = engine_.backend().start_drawing(seqs, *pool_, *outputs_, samplers, recent);
  const int ahead = std::min(kStepsAhead, drawing->most_ahead());
  std::vector<int32_t> tokens(rows.size());
  clock.charge(record, StepPart::sampling);
  int64_t n_launched = 0, n_read = 0;
  drawing->launch(n_launched++);
  for (; n_read < n_launched; ++n_read) {
    steady = steady && go_on();
    while (steady && n_launched - n_read < ahead && (n_alone == 0 || n_launched < n_alone) &&
           pool_->has_free(int(rows.size())))
      drawing->launch(n_launched++);
    while (!drawing->read(n_read, tokens)) {
      if (drawing->idle() && !drawing->read(n_read, tokens))
        throw Error(ErrorKind::failure, "the device ended a step without its tokens");
      std::this_thread::yield();
    }
    clock.charge(record, StepPart::model);
    for (size_t i = 0; i < rows.size(); ++i) {
      Job& job = *rows[i].job;
      if (!job.decodes() || job.ended) continue;
      if ((tokens[i] & kNotFiniteToken) == 0) take(job, tokens[i]);
      else end(job, FinishReason::failed, NotFiniteError(engine_.why_not_finite()).what());
      steady = steady && !job.ended;
    }
    clock.charge(record, StepPart::events);
    record.seconds = seconds_since(start);
    // The first steps are queued and recorded, which takes longer.
    if (n_alone > 0) rest(rows, n_read < 2 ? std::optional<double>() : record.seconds);
    count_step(record);
    start = Clock::now();
    record = {.n_decode = int(rows.size())};
  }
}

int32_t Lane::sample(Job& job, std::span<const float> logits) {
  const GenerationRequest& request = job.request;
  const auto n_ids = size_t(engine_.plan().n_ids);
  Sampler sampler(job.next_sampler(), int(n_ids));
  sampler.accept(job.recent());
  if (!request.needs_logits()) return sampler.sample(logits.first(n_ids));
  check_logits(logits.first(n_ids));
  logits_.assign(logits.begin(), logits.end());
  apply_penalties(request, job.result.tokens, logits_);
  if (request.constraint) request.constraint->mask(logits_, request.options.max_tokens - int(job.result.tokens.size()));
  const std::span<const float> drawn_from = std::span(logits_).first(n_ids);
  if (std::ranges::none_of(drawn_from, [](float x) { return x > -INFINITY; }))
    throw Error(ErrorKind::failure, "no token that may come next has a logit above -infinity");
  int32_t token = sampler.sample(drawn_from);
  if (request.constraint) token = request.constraint->accept(token);
  if (request.n_top_logprobs >= 0) job.logprobs.push_back(token_logprob(logits, token, request.n_top_logprobs));
  return token;
}

void Lane::take(Job& job, int32_t token) {
  const Clock::time_point now = Clock::now();
  const auto seconds = [&](Clock::time_point since) { return std::chrono::duration<double>(now - since).count(); };
  if (job.result.tokens.empty()) totals_.first_token.observe(seconds(job.arrived));
  else totals_.between_tokens.observe(seconds(job.last_token));
  job.last_token = now;
  const bool more = job.stream.push(token);
  const bool complete = job.request.constraint && job.request.constraint->complete();
  if (more && !complete && !job.cancelled) return;
  job.stream.finish();
  if (!job.logprobs.empty()) job.on_text({});
  end(job, job.cancelled ? FinishReason::cancelled : more ? FinishReason::stop : finish_reason(job.result.reason), {});
}

void Lane::end(Job& job, FinishReason reason, const std::string& error) {
  if (job.ended) return;
  job.ended = true;
  job.failed = reason == FinishReason::failed;
  job.usage.n_generated = int(job.result.tokens.size());
  if (job.decodes()) job.usage.decode_seconds = seconds_since(job.decoding);
  totals_.count_end(reason, job.usage, seconds_since(job.arrived));
  job.listener->on_end(reason, job.usage, error);
}

void Lane::sweep() {
  for (const auto& job : jobs_) {
    if (!job->ended) continue;
    // What a person says next follows this text.
    if (!job->failed && !job->parked && job->length() >= kLeastPrefix && job->decodes() &&
        (pool_->length(job->seq) == job->length() || pool_->trim(job->seq, job->length(), TrimMode::exact))) {
      uint64_t hash = job->hashes.back();
      for (int i = 0; i < job->length() - job->n_prompt(); ++i) hash = extend_hash(hash, job->result.tokens[size_t(i)]);
      prefixes_.keep(job->seq, hash);
    }
    pool_->close(job->seq);
  }
  std::erase_if(jobs_, [](const auto& job) { return job->ended; });
}

void Lane::drop_cancelled() {
  for (const auto& job : jobs_)
    if (job->cancelled) end(*job, FinishReason::cancelled, {});
  sweep();
}

void Lane::end_all(FinishReason reason, const std::string& error) {
  for (const auto& job : jobs_) end(*job, reason, error);
  jobs_.clear();
}

}  // namespace ridge::serve
