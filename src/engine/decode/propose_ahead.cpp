// Steps with draft tokens that a device queues ahead of the host. All texts of a step take part: those whose head
// proposes, each with draft tokens of its own number, and others with a token each.
#include <algorithm>
#include <climits>
#include <deque>

#include "engine/decode/decoder_row.h"
#include "engine/decode/run_ahead.h"

namespace ridge {
namespace {

constexpr int kTextNumbers = kMostDeviceProposals + 2;  // of a text and a step

}  // namespace

class Decoder::Ahead {
 public:
  Ahead(Decoder& decoder, StepHooks& hooks) : decoder_(decoder), pool_(*decoder.pool_), hooks_(hooks) {}

  /// False, and nothing happened, where the device cannot go on with these texts by itself.
  bool begin(std::span<const DecodeRow> rows);
  /// Until a text ends, pauses or is to be tried again, or the hooks say so.
  void run();

 private:
  struct One {
    bool rests() const { return text->speculation && text->speculation->paused_steps() > 0; }

    Text* text = nullptr;
    Speculation* head = nullptr;  // null: single tokens
    bool rested = false;          // when the steps began
    int n_back = 0;               // tokens of queued steps that can be taken back
    int most = 0, limit = 0;      // draft tokens of a step, and of them those that have room
    int usual = 0;                // of the newest step that was no measurement
    int n_kept = 0;               // tokens of the step that was read last
  };
  struct Queued {
    std::vector<int> n_proposed;  // of each text
    Clock::time_point at;
  };

  bool add(Text& text, int n_texts);
  SpecCost& cost() const { return decoder_.costs_[texts_.size()]; }
  /// Tokens that the text may still get.
  int room(const One& one) const { return std::min(one.text->n_left, pool_.n_ctx() - pool_.length(one.text->seq)); }
  int steps_with_room();
  std::vector<int> next_depths();
  bool may_launch(bool is_first);
  bool take(std::span<const int32_t> numbers);
  void learn(std::span<const int> n_proposed, std::span<const int32_t> numbers, double seconds);
  bool goes_on();
  void end(DeviceSpeculation& steps);

  Decoder& decoder_;
  SequencePool& pool_;
  StepHooks& hooks_;
  std::vector<One> texts_;  // those with a head first
  std::optional<DeviceDraft> draft_;
  std::vector<int> next_;  // draft tokens of the next step, for each text
  std::deque<Queued> queued_;
  bool has_pages_ = true;
  bool more_ = true;  // goes_on(), as it was when a step was read last
  StepRecord record_;
  Clock::time_point last_ = Clock::now();  // when a step was read
};

bool Decoder::Ahead::add(Text& text, int n_texts) {
  Speculation* const s = text.speculation;
  if (text.pick || (s && s->rejects_ && text.sampler.temperature > 0) || pool_.calibrates(text.seq)) return false;
  One& one = texts_.emplace_back(One{.text = &text, .n_back = pool_.most_taken_back(text.seq)});
  one.rested = one.rests();
  if (s && !one.rested)
    one.most = std::min({s->most_, kMostDeviceProposals, one.n_back - 1, kMostDeviceRows / n_texts - 1,
                         decoder_.backend_.most_verified() - 1});
  if (one.most > 0) one.head = s;
  return !one.head || !s->missed_;  // a step through the host gives a head its first hidden state
}

bool Decoder::Ahead::begin(std::span<const DecodeRow> rows) {
  if (!decoder_.backend_.on_device() || ssize(rows) > kMostDeviceTexts) return false;
  if (!std::ranges::all_of(rows, [&](const DecodeRow& row) { return add(*row.text, int(rows.size())); })) return false;
  std::ranges::stable_partition(texts_, [](const One& one) { return one.head != nullptr; });
  if (!texts_[0].head || !hooks_.go_on()) return false;
  std::vector<Draft> drafts;
  for (const One& one : texts_) {
    if (!pool_.reserve(one.text->seq, std::min(one.most + 1, room(one)))) return false;
    if (one.head) drafts.push_back({.proposer = one.head->proposer_.get(), .text = one.text->tokens, .n = one.most});
  }
  if (const std::optional<DeviceDraft> draft = drafts[0].proposer->on_device(drafts)) draft_.emplace(*draft);
  return draft_.has_value();
}

void Decoder::Ahead::run() {
  std::vector<SpeculatedText> texts;
  for (const One& one : texts_) {
    SpeculatedText& text = texts.emplace_back(SpeculatedText{.seq = one.text->seq,
                                                             .last = one.text->tokens.back(),
                                                             .sampler = one.text->sampler,
                                                             .recent = one.text->tokens});
    if (!one.head) continue;
    text.forced_share = one.head->forced_.value_or(-1);
    text.forced_seed = one.head->forced_seed_;
    text.n_forced = one.head->n_forced_;
  }
  const auto depths = [&] {
    queued_.push_back({next_, Clock::now()});
    return queued_.back().n_proposed;
  };
  const std::unique_ptr<DeviceSpeculation> steps = decoder_.backend_.start_speculation(
      {.pool = pool_, .outputs = *decoder_.outputs_, .texts = texts, .depths = depths}, *draft_);
  RIDGE_CHECK(steps, "the model's device does not run its head");
  RunAhead ahead(*steps, int(texts_.size()) * kTextNumbers, kStepsAhead);
  hooks_.clock.charge(record_, StepPart::planning);
  const auto is_full = [&](const One& one) { return pool_.length(one.text->seq) >= pool_.n_ctx(); };
  do {
    const int64_t end = ahead.n_launched() + steps_with_room();
    ahead.run([&] { return ahead.n_launched() < end && may_launch(ahead.n_queued() == 0); },
              [&](std::span<const int32_t> numbers) { return take(numbers); });
  } while (more_ && has_pages_ && std::ranges::none_of(texts_, is_full));
  end(*steps);
}

/// As many as have room if all draft tokens hold. Those of a try come one by one: each decides on the next.
int Decoder::Ahead::steps_with_room() {
  int n_steps = INT_MAX;
  for (One& one : texts_) {
    one.limit = std::min(one.most, room(one) - 1);
    n_steps = std::min(n_steps, std::max(1, room(one) / (one.most + 1)));
    const Speculation* const s = one.text->speculation;
    if (!s || !s->adaptive_ || !s->depth_.paused()) continue;
    n_steps = std::min(n_steps, std::max(1, one.head ? s->depth_.paused_steps(false) : s->paused_steps()));
  }
  return n_steps;
}

/// Draft tokens of the next step, for each text.
std::vector<int> Decoder::Ahead::next_depths() {
  std::vector<const SpecDepth*> heads;
  int most = 0;
  for (const One& one : texts_) {
    if (one.head) heads.push_back(&one.head->depth_);
    most = std::max(most, one.most);
  }
  const std::vector<int> paying = spec_depths(cost(), int(texts_.size()), heads, most);
  // One step to measure is enough.
  const bool measures = std::ranges::any_of(
      queued_, [](const Queued& step) { return std::ranges::all_of(step.n_proposed, [](int n) { return n == 0; }); });
  std::vector<int> depths;
  for (size_t i = 0; i < texts_.size(); ++i) {
    One& one = texts_[i];
    int n = one.most;
    if (one.head && one.head->adaptive_) {
      n = cost().stale() && measures ? one.usual : std::min(paying[i], one.most);
      if (!cost().stale()) one.usual = n;
    }
    depths.push_back(std::min(n, one.limit));
  }
  return depths;
}

bool Decoder::Ahead::may_launch(bool is_first) {
  if (!is_first && !hooks_.go_on()) return false;
  next_ = next_depths();
  for (size_t i = 0; i < texts_.size(); ++i) {
    int n_tokens = 0;  // of steps that were not read
    for (const Queued& step : queued_) n_tokens += 1 + step.n_proposed[i];
    // When a text ends, all but the first of them may have to be taken back exactly.
    if (!is_first && n_tokens + 1 + next_[i] > texts_[i].n_back) return false;
    has_pages_ = has_pages_ && pool_.reserve(texts_[i].text->seq, n_tokens + 1 + texts_[i].limit);
  }
  return has_pages_;
}

bool Decoder::Ahead::take(std::span<const int32_t> numbers) {
  hooks_.clock.charge(record_, StepPart::model);
  const Clock::time_point now = Clock::now(), begin = std::max(last_, queued_.front().at);
  const std::chrono::duration<double> seconds = now - begin;
  const std::vector<int> n_proposed = std::move(queued_.front().n_proposed);
  queued_.pop_front();
  last_ = now;
  learn(n_proposed, numbers, seconds.count());
  for (size_t i = 0; i < texts_.size(); ++i) {
    One& one = texts_[i];
    Text& text = *one.text;
    const std::span<const int32_t> tokens = numbers.subspan(i * kTextNumbers + 1, size_t(numbers[i * kTextNumbers]));
    one.n_kept = 0;
    while (!text.ended && one.n_kept < ssize(tokens)) {
      if (one.n_kept > 0) ++one.head->report_.n_accepted;
      one.n_kept += take_sampled(text, tokens[size_t(one.n_kept)]);
    }
    one.n_kept = std::max(1, one.n_kept);
    record_.n_proposed += n_proposed[i];
    record_.n_accepted += one.n_kept - 1;
  }
  hooks_.clock.charge(record_, StepPart::events);
  record_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  record_.n_decode = int(texts_.size());
  record_.ahead = true;
  hooks_.done(record_);
  record_ = {};
  return more_ = goes_on();
}

void Decoder::Ahead::learn(std::span<const int> n_proposed, std::span<const int32_t> numbers, double seconds) {
  std::vector<Row> rows;
  for (size_t i = 0; i < texts_.size(); ++i) {
    Row& row = rows.emplace_back(next_row(*texts_[i].text));
    row.n_asked = n_proposed[i];
    row.proposals.resize(size_t(n_proposed[i]));
    row.n_right = numbers[i * kTextNumbers] - 1;
    Speculation* const s = row.speculation();
    if (!s) continue;
    s->n_forced_ += uint64_t(std::min(n_proposed[i], row.n_right + 1));
    s->report_.n_proposed += n_proposed[i];
    ++s->report_.n_ahead;
  }
  decoder_.learn(rows, seconds);
}

bool Decoder::Ahead::goes_on() {
  const auto stays = [](const One& one) { return !one.text->ended && one.rests() == one.rested; };
  return has_pages_ && std::ranges::all_of(texts_, stays) && hooks_.go_on();
}

void Decoder::Ahead::end(DeviceSpeculation& steps) {
  std::vector<int> n_kept;
  for (const One& one : texts_) n_kept.push_back(one.n_kept);
  const std::vector<std::vector<float>> hidden = steps.leave(n_kept);
  for (size_t i = 0; i < texts_.size(); ++i) {
    const One& one = texts_[i];
    const std::span<const int32_t> tokens = one.text->tokens;
    if (!one.head) {
      if (one.text->speculation) one.text->speculation->missed_ = true;
      continue;
    }
    // The step's tokens are those in front of what it sampled.
    const auto n_before = size_t(pool_.length(one.text->seq) - one.n_kept);
    one.head->proposer_->leave_device(tokens.first(n_before + 1));
    one.head->proposer_->observe(tokens.subspan(n_before, size_t(one.n_kept)), int(n_before),
                                 {hidden[i].data(), one.n_kept, ssize(hidden[i]) / one.n_kept});
  }
}

bool Decoder::propose_ahead(std::span<const DecodeRow> rows, StepHooks& hooks) {
  Ahead ahead(*this, hooks);
  if (!ahead.begin(rows)) return false;
  ahead.run();
  return true;
}

}  // namespace ridge
