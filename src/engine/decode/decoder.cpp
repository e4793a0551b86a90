#include <climits>
#include <cmath>
#include <numeric>

#include "engine/decode/decoder_row.h"
#include "engine/decode/run_ahead.h"
#include "engine/finite.h"
#include "op/sample/rule.h"

namespace ridge {
namespace {

/// Steps at the beginning of a pause whose time says nothing: a device queues and records them first.
constexpr int kUnsteady = 2;

double seconds_of(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

/// A text's next token, sampled on the host.
int32_t sample(const Text& text, int n_ids, std::span<const float> logits) {
  Sampler sampler(text.sampler, n_ids);
  sampler.accept(text.recent());
  return sampler.sample(logits);
}

}  // namespace

Speculation::Speculation(std::unique_ptr<Proposer> proposer, int most, bool adaptive)
    : proposer_(std::move(proposer)), most_(most), adaptive_(adaptive) {
  if (most < 1 || most > kMaxSpecDepth)
    throw_wrong_field("spec_depth", "spec_depth is {}, expected 1 to {}", most, kMaxSpecDepth);
}

void Speculation::fill(std::span<const int32_t> text, uint64_t seed) {
  missed_ = false;
  proposer_->fill(text, seed);
}

void Speculation::fill_forced(std::vector<int32_t>& tokens, int n, int n_ids) const {
  for (Rng rng(forced_seed_ + n_forced_); forced_ && ssize(tokens) < n;)
    tokens.push_back(int32_t(rng.next() % uint64_t(n_ids)));
}

int32_t sample_by_rule(TokenRule& rule, const Text& text, int n_ids, std::span<const float> logits,
                       std::vector<float>& left) {
  check_logits(logits.first(size_t(n_ids)));
  left.assign(logits.begin(), logits.end());
  rule.mask(left, text.n_left);
  const std::span<const float> sampled_from = std::span(left).first(size_t(n_ids));
  if (std::ranges::none_of(sampled_from, [](float x) { return x > -INFINITY; }))
    throw Error(ErrorKind::failure, "no token that may come next has a logit above -infinity");
  return rule.accept(sample(text, n_ids, sampled_from));
}

int most_proposals(const SequencePool& pool, SeqId seq, int n) {
  const int n_past = pool.length(seq);
  n = std::min({n, pool.n_ctx() - n_past - 1, pool.most_taken_back(seq) - 1});
  // Going back behind the position that sets centres is not exact.
  return std::max(0, pool.calibrates(seq) ? std::min(n, kCalibration - n_past - 2) : n);
}

/// A row of logits after another: what the tokens of rows are sampled from on the host, and what a device sampled where
/// it did.
struct Decoder::Sampled {
  View2<const float> logits = {};
  std::vector<int32_t> tokens = {};
};

Decoder::Decoder(Backend& backend, SequencePool& pool, int n_ids)
    : backend_(backend), pool_(&pool), n_ids_(n_ids), outputs_(backend.make_outputs()) {}

int Decoder::paused_steps(std::span<const DecodeRow> rows) {
  int n = INT_MAX;
  for (const DecodeRow& row : rows)
    if (row.text->speculation) n = std::min(n, row.text->speculation->paused_steps());
  return n == INT_MAX ? 0 : n;
}

bool Decoder::take(Text& text, int32_t token) {
  text.tokens.push_back(token);
  --text.n_left;
  const bool more = text.on_token(token);
  text.ended = text.ended || !more || text.n_left == 0;
  return !text.ended;
}

bool Decoder::take_sampled(Text& text, int32_t token) {
  ++text.sampler.n_sampled;
  try {
    take(text, checked_token(token));
  } catch (const Error&) {
    fail(text);
  }
  return (token & kNotFiniteToken) == 0;
}

void Decoder::fail(Text& text) {
  text.failure = std::current_exception();
  text.ended = true;
}

void Decoder::finish(Text& text) {
  StepHooks hooks;
  while (!text.ended) {
    const DecodeRow row = next_row(text);
    step({&row, 1}, INT_MAX, hooks);
  }
}

void Decoder::run(std::span<const DecodeRow> rows, LogitRows logits) {
  std::vector<Row> all(rows.begin(), rows.end());
  run_rows(all, logits);
}

void Decoder::step(std::span<const DecodeRow> rows, int most_tokens, StepHooks& hooks) {
  const Clock::time_point start = Clock::now();
  const bool goes_on = std::ranges::none_of(rows, [](const DecodeRow& r) { return r.is_prompt || r.tokens.empty(); });
  if (goes_on && propose_ahead(rows, hooks)) return;
  const int n_paused = goes_on ? paused_steps(rows) : 0;
  std::vector<Row> all(rows.begin(), rows.end());
  const bool proposes = goes_on && n_paused == 0 && propose(all, most_tokens);
  StepRecord record;
  bool all_logits = false, on_host = !backend_.on_device();
  int n_on_host = 0;
  for (const Row& row : all) {
    (row.is_prompt ? record.n_prompt_tokens : record.n_decode) += row.is_prompt ? row.n_tokens() : 1;
    record.n_proposed += int(row.proposals.size());
    all_logits = all_logits || row.all_logits || !row.proposals.empty();
    on_host = on_host || row.all_logits;
    n_on_host += row.on_host();
  }
  on_host = on_host || n_on_host == ssize(all);
  const auto samples = [&] {
    return std::ranges::any_of(all, [](const Row& r) { return r.samples && !r.text->ended; });
  };
  const LogitRows logits = all_logits ? LogitRows::all : samples() ? LogitRows::last : LogitRows::none;
  hooks.clock.charge(record, StepPart::planning);
  if (std::ranges::any_of(all, [](const Row& row) { return !row.tokens.empty(); })) run_rows(all, logits);
  hooks.clock.charge(record, StepPart::model);
  hooks.ran();
  hooks.clock.charge(record, StepPart::planning);
  if (samples()) {
    if (!on_host && n_on_host == 0 && !proposes && sample_ahead(all, n_paused, record, hooks, start)) return;
    Sampled sampled;
    if (on_host || n_on_host > 0) sampled.logits = outputs_->logits();  // a penalty on the device changes them there
    if (!on_host) sampled.tokens = sample_on_device(all);
    take_rows(all, sampled, record, hooks);
  }
  record.seconds = seconds_of(Clock::now() - start);
  const double seconds = record.seconds - record.parts[size_t(StepPart::events)];
  if (proposes) learn(all, seconds);
  if (n_paused > 0) {
    costs_[all.size()].add_paused(seconds);
    count_paused(all, 1, 0);
  }
  hooks.done(record);
}

bool Decoder::propose(std::span<Row> rows, int most_tokens) {
  std::vector<Row*> asked;
  std::vector<const SpecDepth*> depths;
  int most = 0;
  for (Row& row : rows)
    if (Speculation* const s = row.speculation()) {
      asked.push_back(&row), depths.push_back(&s->depth_);
      most = std::max(most, s->most_);
    }
  if (asked.empty()) return false;
  const std::vector<int> paying = spec_depths(costs_[rows.size()], int(rows.size()), depths, most);
  int left = most_tokens - int(rows.size());
  std::vector<Draft> drafts;
  std::vector<Row*> drafted;
  for (size_t i = 0; i < asked.size(); ++i) {
    Row& row = *asked[i];
    Text& text = *row.text;
    const Speculation& s = *text.speculation;
    const int wanted = s.adaptive_ ? std::min(paying[i], s.most_) : s.most_;
    row.n_asked = std::max(
        0, most_proposals(*pool_, text.seq, std::min({wanted, left, text.n_left - 1, backend_.most_verified() - 1})));
    if (row.n_asked == 0) continue;
    left -= row.n_asked;
    row.rejects = s.rejects_ && text.sampler.temperature > 0 && !text.pick;
    if (!text.rng) text.rng.emplace(splitmix64(text.sampler.seed));
    drafted.push_back(&row);
    drafts.push_back({.proposer = s.proposer_.get(), .text = text.tokens, .n = row.n_asked});
    if (row.rejects) drafts.back().sampler = &text.sampler, drafts.back().rng = &*text.rng;
  }
  if (drafts.empty()) return true;
  const Clock::time_point start = Clock::now();
  drafts[0].proposer->propose_all(drafts);
  const double each = seconds_of(Clock::now() - start) / double(drafts.size());
  for (size_t i = 0; i < drafts.size(); ++i) {
    drafted[i]->proposing = each;
    drafted[i]->proposals = std::move(drafts[i].tokens);
    drafted[i]->probabilities = std::move(drafts[i].probabilities);
    if (!drafted[i]->rejects) drafted[i]->text->speculation->fill_forced(drafted[i]->proposals, drafts[i].n, n_ids_);
    reserve_proposals(*drafted[i]);
  }
  return true;
}

/// No sequence is parked for draft tokens: without room there are none.
void Decoder::reserve_proposals(Row& row) {
  if (!row.proposals.empty() && !pool_->reserve(row.text->seq, row.n_tokens())) row.proposals.clear();
}

void Decoder::run_rows(std::span<Row> rows, LogitRows logits) {
  std::vector<SeqTokens> seqs;
  tokens_.clear();
  bool hidden = false;
  for (Row& row : rows) {
    row.at = tokens_.size();
    tokens_.insert(tokens_.end(), row.tokens.begin(), row.tokens.end());
    tokens_.insert(tokens_.end(), row.proposals.begin(), row.proposals.end());
    seqs.push_back({row.text->seq, row.n_tokens()});
    pool_->reserve(row.text->seq, row.n_tokens()).or_throw();
    Speculation* const s = row.speculation();
    hidden = hidden || row.hidden || (s && s->listens());
    if (s && !s->listens()) s->missed_ = true;
  }
  backend_.run({.tokens = tokens_, .seqs = seqs, .logits = logits, .hidden = hidden}, *pool_, *outputs_);
  if (!hidden) return;
  const View2<const float> states = outputs_->hidden();
  for (const Row& row : rows) {
    Speculation* const s = row.speculation();
    if (!s || !s->listens()) continue;
    if (s->missed_) s->proposer_->lose_track();
    s->missed_ = false;
    const int n = row.n_tokens();
    s->proposer_->observe(std::span(tokens_).subspan(row.at, size_t(n)), pool_->length(row.text->seq) - n,
                          {states.data + int64_t(row.at) * states.cols, n, states.cols});
  }
}

std::vector<int32_t> Decoder::sample_on_device(std::span<const Row> rows) {
  std::vector<SamplerOptions> samplers;
  std::vector<std::vector<int32_t>> recent;
  for (const Row& row : rows)
    for (size_t i = 0; i <= row.proposals.size(); ++i) {
      if (row.on_host()) {  // nobody asks for these
        samplers.push_back({.temperature = 0});
        recent.emplace_back();
        continue;
      }
      samplers.push_back(row.text->sampler);
      samplers.back().n_sampled += i;
      recent.push_back(known_to_penalty(*row.text));
      if (samplers.back().repeat_penalty != 1)  // the device looks at the newest of them
        recent.back().insert(recent.back().end(), row.proposals.begin(), row.proposals.begin() + ptrdiff_t(i));
    }
  return backend_.sample(*outputs_, samplers, recent);
}

void Decoder::take_rows(std::span<Row> rows, const Sampled& sampled, StepRecord& record, StepHooks& hooks) {
  hooks.clock.charge(record, StepPart::model);  // a device was waited for
  const int64_t n_logits = sampled.tokens.empty() ? sampled.logits.rows : ssize(sampled.tokens);
  const bool all_logits = n_logits > ssize(rows);
  int64_t next = 0;  // row of the logits
  for (Row& row : rows) {
    const int n_proposed = int(row.proposals.size());
    // Rows of all tokens, or the last one's of each sequence.
    const int64_t n_rows = rows.size() == 1 ? n_logits : all_logits ? row.n_tokens() : 1;
    const int64_t at = std::exchange(next, next + n_rows) + n_rows - 1 - n_proposed;
    if (!row.samples || row.text->ended) continue;
    try {
      take_row(row, at, sampled, record, hooks);
    } catch (const Error&) {  // of a sampler, a structure or whoever hears of the text: the text's own
      fail(*row.text);
    }
    record.n_accepted += row.n_accepted();
    hooks.clock.charge(record, StepPart::events);
  }
  take_back(rows);
  hooks.clock.charge(record, StepPart::model);
}

/// A draft token holds if it is what is sampled in front of it; behind the first wrong one, and behind the end, nothing
/// counts.
void Decoder::take_row(Row& row, int64_t at, const Sampled& sampled, StepRecord& record, StepHooks& hooks) {
  Text& text = *row.text;
  if (text.speculation) text.speculation->report_.n_proposed += ssize(row.proposals);
  bool holds = true;
  for (; holds && !text.ended; ++at) {
    const std::optional<int32_t> token = sample_row(row, at, sampled, holds);
    hooks.clock.charge(record, StepPart::sampling);
    row.n_right += holds;
    if (!token) {
      text.ended = true;
      return;
    }
    if (text.speculation && row.n_taken > 0) ++text.speculation->report_.n_accepted;
    ++row.n_taken;
    take(text, *token);
    hooks.clock.charge(record, StepPart::events);
  }
  // A device decides on all draft tokens of a step before the host sees where the text ends: forced luck goes on alike.
  for (int i = row.n_taken; holds && i < ssize(row.proposals); ++i)
    holds = text.speculation->forced_ && text.speculation->next_forced_holds();
}

std::optional<int32_t> Decoder::sample_row(Row& row, int64_t at, const Sampled& sampled, bool& holds) {
  Text& text = *row.text;
  const auto i = size_t(row.n_taken);
  const bool is_last = i == row.proposals.size();
  const bool on_host = sampled.tokens.empty() || row.on_host();
  const std::span<const float> logits = on_host ? sampled.logits.row(at) : std::span<const float>();
  if (row.rejects && !is_last) return keep_or_replace(row, logits.first(size_t(n_ids_)), holds);
  std::optional<int32_t> token;
  if (!on_host) {
    token = checked_token(sampled.tokens[size_t(at)]);
  } else if (text.pick) {
    token = text.pick(logits);
  } else {
    token = sample(text, n_ids_, logits.first(size_t(n_ids_)));
  }
  ++text.sampler.n_sampled;
  holds = false;
  if (!token || is_last) return token;
  Speculation& s = *text.speculation;
  holds = s.forced_ ? s.next_forced_holds() : *token == row.proposals[i];
  return holds ? row.proposals[i] : token;
}

/// Rejection sampling: the draft token, or in its place a token of what is left of the model's probabilities.
int32_t Decoder::keep_or_replace(Row& row, std::span<const float> logits, bool& holds) {
  Text& text = *row.text;
  const auto i = size_t(row.n_taken);
  const int32_t token = row.proposals[i];
  const Distribution p = distribution_of(text.sampler, logits, text.recent()), &q = row.probabilities[i];
  holds = text.rng->uniform() < probability_of(p, token) / probability_of(q, token);
  return holds ? token : sample_from(residual(p, q), *text.rng);
}

void Decoder::take_back(std::span<const Row> rows) {
  for (const Row& row : rows) {
    const int n_wrong = int(row.proposals.size()) - row.n_accepted();
    if (n_wrong > 0) pool_->trim(row.text->seq, pool_->length(row.text->seq) - n_wrong, TrimMode::exact).or_throw();
  }
}

void Decoder::learn(std::span<const Row> rows, double seconds) {
  SpecCost& cost = costs_[rows.size()];
  std::vector<int> paid;
  bool catches_up = false;
  for (const Row& row : rows) {
    const Speculation* const s = row.speculation();
    paid.push_back(s ? cost.paid(int(row.proposals.size()), row.proposing) : 0);
    catches_up = catches_up || (paid.back() > 0 && s->depth_.must_catch_up());
  }
  const int n_paid = std::accumulate(paid.begin(), paid.end(), 0);
  const bool timed = !backend_.on_device() || cost.recorded(n_paid);
  if (timed && !catches_up) cost.add(n_paid, seconds);
  const double plain = cost.plain(), more = seconds - plain;
  for (size_t i = 0; i < rows.size(); ++i) {
    Speculation* const s = rows[i].speculation();
    if (!s) continue;
    // Each text answers for its part of what draft tokens took.
    const double part = n_paid > 0 ? double(paid[i]) / n_paid : 1 / double(rows.size());
    s->depth_.add(rows[i].n_asked, paid[i], rows[i].n_right,
                  {.cost = cost,
                   .n_texts = int(rows.size()),
                   .n_others = n_paid - paid[i],
                   .seconds = timed && part > 0 ? plain + more * part : 0});
    if (backend_.on_device() && cost.wants_pause()) s->depth_.pause();
    ++s->report_.n_steps;
  }
}

void Decoder::count_paused(std::span<const Row> rows, int n_steps, double lost) {
  for (const Row& row : rows)
    if (Speculation* const s = row.speculation()) {
      s->depth_.on_paused_steps(n_steps, lost);
      s->report_.n_steps += n_steps;
      s->missed_ = true;
    }
}

std::vector<int32_t> Decoder::known_to_penalty(const Text& text) {
  if (text.sampler.repeat_penalty == 1) return {};
  return {text.recent().begin(), text.recent().end()};
}

bool Decoder::sample_ahead(std::span<Row> rows, int n_paused, StepRecord record, StepHooks& hooks,
                           Clock::time_point start) {
  std::vector<SeqId> seqs;
  std::vector<SamplerOptions> samplers;
  std::vector<std::vector<int32_t>> recent;
  bool steady = true;
  int64_t most = n_paused > 0 ? n_paused : INT_MAX;
  for (const Row& row : rows) {
    seqs.push_back(row.text->seq);
    samplers.push_back(row.text->sampler);
    recent.push_back(known_to_penalty(*row.text));
    steady = steady && row.samples && !row.text->ended && (!row.speculation() || n_paused > 0);
    most = std::min<int64_t>(most, row.text->n_left);
  }
  const std::unique_ptr<DeviceSampling> sampling = backend_.start_sampling(seqs, *pool_, *outputs_, samplers, recent);
  if (!sampling) return false;
  hooks.clock.charge(record, StepPart::sampling);
  RunAhead ahead(*sampling, int(rows.size()), std::min(kStepsAhead, sampling->most_ahead()));
  // The next step's pages are there, and it does not set a centre that an end of the text would have to take back.
  const auto fits = [&](const Row& row) {
    const SeqId seq = row.text->seq;
    const bool sets = pool_->calibrates(seq) && pool_->length(seq) + 1 >= kCalibration;
    return !(sets && ahead.n_queued() > 0) && pool_->reserve(seq, 1);
  };
  const auto may_launch = [&] {
    if (ahead.n_launched() == 0) return true;  // samples what is there
    steady = steady && hooks.go_on();
    return steady && ahead.n_launched() < most && std::ranges::all_of(rows, fits);
  };
  const Clock::time_point begin = start;
  double lost = 0;
  ahead.run(may_launch, [&](std::span<const int32_t> tokens) {
    const Clock::time_point now = Clock::now();
    hooks.clock.charge(record, StepPart::model);
    for (size_t i = 0; i < rows.size(); ++i) {
      Text& text = *rows[i].text;
      if (!rows[i].samples || text.ended) continue;
      rows[i].n_taken += take_sampled(text, tokens[i]);
      steady = steady && !text.ended;
    }
    hooks.clock.charge(record, StepPart::events);
    record.seconds = seconds_of(Clock::now() - start);
    if (SpecCost& cost = costs_[rows.size()]; n_paused > 0 && ahead.n_taken() > kUnsteady) {
      cost.add_paused(seconds_of(now - start));
    } else if (n_paused > 0 && ahead.n_taken() == kUnsteady && cost.plain() > 0) {
      lost = seconds_of(now - begin) / cost.plain() - kUnsteady;
    }
    hooks.done(record);
    start = now;
    record = {.n_decode = int(rows.size()), .ahead = true};
    return true;
  });
  for (const Row& row : rows) {
    const int n_surplus = int(ahead.n_launched()) - std::max(1, row.n_taken);
    if (row.samples && n_surplus > 0)
      pool_->trim(row.text->seq, pool_->length(row.text->seq) - n_surplus, TrimMode::exact).or_throw();
  }
  if (n_paused > 0) {
    count_paused(rows, int(ahead.n_taken()), lost);
    for (const Row& row : rows)
      if (row.speculation()) row.speculation()->report_.n_ahead += ahead.n_taken();
  }
  return true;
}

}  // namespace ridge
