#include "serve/scheduler.h"

#include <algorithm>

#include "engine/kv_options.h"

namespace ridge::serve {
namespace {

/// A request that has waited so long goes before those of keys with fewer running sequences.
constexpr double kAgeSeconds = 10;

std::vector<Job*> by_turn(std::span<const std::unique_ptr<Job>> waiting, const std::map<int, int>& running) {
  std::vector<std::pair<int, Job*>> order;
  for (const auto& job : waiting) {
    const auto found = running.find(job->request.key);
    const bool old = seconds_since(job->arrived) > kAgeSeconds;
    order.emplace_back(old || found == running.end() ? 0 : found->second, job.get());
  }
  std::ranges::stable_sort(order, {}, [](const auto& entry) { return entry.first; });
  std::vector<Job*> jobs;
  for (const auto& [turn, job] : order) jobs.push_back(job);
  return jobs;
}

}  // namespace

Scheduler::Scheduler(Engine& engine, const SchedulerOptions& options)
    : engine_(engine), options_(options), default_kv_(kv_text(options.pool.kv)) {
  RIDGE_CHECK(!options.trace_ops || !engine.on_device(), "ops of a device have no trace");
  if (options.trace_ops) {
    engine.context().trace = &trace_;
    totals_.ops.emplace();
  }
  known_kv_.push_back(default_kv_);
  runner(default_kv_);
  totals_.on_end = [this](const Totals& totals) {
    const std::lock_guard lock(board_mutex_);
    board_.totals = totals;
  };
  write_board();
  thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() {
  stop(0);
  thread_.join();
  if (options_.trace_ops) engine_.context().trace = nullptr;
}

/// The formats as kv_text() writes them; a failure for formats that cannot work with this model.
Result<std::string> Scheduler::checked_kv(const std::string& kv) const {
  try {
    const KvChoice choice = parse_kv_choice(kv).or_throw();
    layer_configs(session_options(choice, options_.pool.n_ctx, 0), engine_.plan());
    return kv_text(choice);
  } catch (const Error& error) {
    return Failure{error.kind(), error.what(), "kv_quant"};
  }
}

Status Scheduler::know_kv(const std::string& kv) {
  if (std::ranges::find(known_kv_, kv) != known_kv_.end()) return {};
  if (int(known_kv_.size()) >= options_.max_pools)
    return wrong_field("kv_quant", "a cache of {} needs a pool of its own, and this server's {} are of {} (--kv-pools)",
                       kv, known_kv_.size(), fmt::join(known_kv_, ", "));
  known_kv_.push_back(kv);
  return {};
}

Result<std::vector<uint64_t>> Scheduler::submit(std::vector<Submission> submissions,
                                                const std::function<void()>& on_queued) {
  for (auto& [request, listener] : submissions) {
    if (request.speculative.value_or(false) && !options_.pool.proposers)
      return wrong_field("speculative", "this server has no proposer (start it with --spec-type lookup, draft or mtp)");
    if (request.kv.empty()) continue;
    RIDGE_TRY(request.kv, checked_kv(request.kv));
  }
  TokenStream::Vocabulary vocabulary{[](int32_t token) { return fmt::format("{} ", token); },
                                     [](int32_t) { return false; }};
  if (engine_.has_tokenizer())
    vocabulary = {.piece = [&](int32_t token) { return engine_.tokenizer().piece(token); },
                  .is_end = [&](int32_t token) { return engine_.tokenizer().is_end(token); },
                  .mark = [&](int32_t token) { return engine_.tokenizer().piece(token, true); }};

  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return fail(ErrorKind::failure, "the engine failed: {} (restart the server)", failure_);
  if (stopping_) return fail(ErrorKind::failure, "the server is stopping");
  if (n_queued_ + submissions.size() > size_t(options_.max_queue))
    return fail(ErrorKind::no_memory, "{} requests are waiting, the queue is full (try again later)", n_queued_);
  for (auto& [request, listener] : submissions) {
    if (request.kv.empty()) request.kv = default_kv_;
    RIDGE_TRY_STATUS(know_kv(request.kv));
  }
  on_queued();
  std::vector<uint64_t> ids;
  for (auto& [request, listener] : submissions) {
    ids.push_back(++last_id_);
    incoming_.push_back(
        std::make_unique<Job>(last_id_, std::move(request), std::move(listener), vocabulary, options_.pool));
  }
  n_queued_ += submissions.size();
  news_ = true;
  wake_.notify_one();
  return ids;
}

Result<uint64_t> Scheduler::submit(GenerationRequest request, std::shared_ptr<Listener> listener) {
  std::vector<Submission> one;
  one.push_back({std::move(request), std::move(listener)});
  RIDGE_TRY(const auto ids, submit(std::move(one)));
  return ids[0];
}

std::string Scheduler::default_kv() const {
  const std::lock_guard lock(mutex_);
  return default_kv_;
}

Status Scheduler::set_default_kv(const std::string& kv) {
  RIDGE_TRY(const std::string checked, checked_kv(kv));
  const std::lock_guard lock(mutex_);
  RIDGE_TRY_STATUS(know_kv(checked));
  default_kv_ = checked;
  return {};
}

void Scheduler::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(id);
  news_ = true;
  wake_.notify_one();
}

bool Scheduler::inspect(const std::function<void(Scheduler&)>& look) {
  std::unique_lock lock(mutex_);
  if (stopped_) return false;
  bool done = false;
  std::exception_ptr error;
  looks_.push_back([&] {
    try {
      look(*this);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard inner(mutex_);
    done = true;
    looked_.notify_all();
  });
  news_ = true;
  wake_.notify_one();
  looked_.wait(lock, [&] { return done; });
  if (error) std::rethrow_exception(error);
  return true;
}

void Scheduler::stop(double patience_seconds) {
  std::unique_lock lock(mutex_);
  stopping_ = news_ = true;
  wake_.notify_one();
  const auto patience = std::chrono::duration<double>(patience_seconds);
  if (looked_.wait_for(lock, patience, [&] { return stopped_; })) return;
  cancel_all_ = news_ = true;
  wake_.notify_one();
  looked_.wait(lock, [&] { return stopped_; });
}

Board Scheduler::board() const {
  const std::lock_guard lock(board_mutex_);
  return board_;
}

/// While requests run now and then only: pages are counted one by one.
void Scheduler::write_board() {
  const bool idle =
      waiting_.empty() && std::ranges::all_of(runners_, [](const auto& l) { return l.second->jobs().empty(); });
  if (!idle && seconds_since(board_written_) < kBoardSeconds) return;
  board_written_ = Clock::now();
  Board board{.totals = totals_, .n_waiting = waiting_.size()};
  for (const auto& [kv, runner] : runners_) {
    for (const auto& job : runner->jobs()) ++(job->parked ? board.n_parked : board.n_running);
    board.pools.emplace_back(kv, runner->pool().report());
  }
  const std::lock_guard lock(board_mutex_);
  board_ = std::move(board);
}

std::string Scheduler::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

PoolRunner& Scheduler::runner(const std::string& kv) {
  const auto found = runners_.find(kv);
  if (found != runners_.end()) return *found->second;
  PoolOptions options = options_.pool;
  options.kv = parse_kv_choice(kv).or_throw();
  options.kv_bytes /= options_.max_pools;
  options.swap_bytes /= options_.max_pools;
  PoolRunner& made = *runners_.emplace(kv, std::make_unique<PoolRunner>(engine_, options, totals_)).first->second;
  options_.on_open(made);
  return made;
}

/// False when there is nothing left to do and nothing more will come.
bool Scheduler::take_commands() {
  write_board();
  std::unique_lock lock(mutex_);
  const auto busy = [&] {
    return !waiting_.empty() || std::ranges::any_of(runners_, [](const auto& l) { return !l.second->jobs().empty(); });
  };
  wake_.wait(lock, [&] { return news_ || stopping_ || busy(); });
  news_ = false;
  for (auto& job : incoming_) {
    ++totals_.requests;
    waiting_.push_back(std::move(job));
  }
  incoming_.clear();
  const std::vector<uint64_t> cancelled = std::exchange(cancelled_, {});
  const bool all = cancel_all_;
  std::deque<std::function<void()>> looks = std::exchange(looks_, {});
  lock.unlock();

  for (const auto& look : looks) look();
  const auto is_cancelled = [&](const Job& job) {
    return all || std::ranges::find(cancelled, job.id) != cancelled.end();
  };
  for (const auto& job : waiting_)
    if (is_cancelled(*job)) job->cancelled = true;
  for (const auto& [kv, runner] : runners_) {
    for (const auto& job : runner->jobs())
      if (is_cancelled(*job)) job->cancelled = true;
    runner->drop_cancelled();
  }
  std::erase_if(waiting_, [&](const auto& job) {
    if (job->cancelled) job->listener->on_end(FinishReason::cancelled, job->usage, {});
    return job->cancelled;
  });

  lock.lock();
  n_queued_ = waiting_.size() + incoming_.size();
  if (!stopping_ || busy() || !incoming_.empty()) return true;
  stopped_ = true;
  // Those who ask from now on get no answer; those who asked already do.
  looks = std::exchange(looks_, {});
  lock.unlock();
  for (const auto& look : looks) look();
  if (failure().empty())
    for (const auto& [kv, runner] : runners_) options_.on_close(*runner);
  looked_.notify_all();
  return false;
}

/// Starts waiting jobs in turn, until each pool has no room for its next one: nobody is passed by a smaller request.
void Scheduler::admit() {
  std::map<int, int> running;
  for (const auto& [kv, runner] : runners_)
    for (const auto& job : runner->jobs()) ++running[job->request.key];
  std::vector<const PoolRunner*> full;
  for (Job* next : by_turn(waiting_, running)) {
    const auto place = std::ranges::find(waiting_, next, [](const auto& job) { return job.get(); });
    try {
      PoolRunner& to = runner(next->request.kv);
      if (std::ranges::find(full, &to) != full.end()) continue;
      switch (to.admit(*next)) {
        case Admission::after_prefix: continue;
        case Admission::no_room: full.push_back(&to); continue;
        case Admission::now: to.start(std::move(*place)); break;
      }
    } catch (const Error& error) {
      // The pool could not be opened. What is open goes on.
      (*place)->listener->on_end(FinishReason::failed, (*place)->usage, {error.what()});
      ++totals_.failed;
    }
    waiting_.erase(place);
  }
  const std::lock_guard lock(mutex_);
  n_queued_ = waiting_.size() + incoming_.size();
}

void Scheduler::step() {
  PartClock clock;
  admit();
  PoolRunner* next = nullptr;
  int n_busy = 0;
  for (const auto& [kv, runner] : runners_) {
    if (runner->jobs().empty()) continue;
    ++n_busy;
    if (!next || runner->last_step() < next->last_step()) next = runner.get();
  }
  if (!next) return;
  next->step(clock, [&] { return n_busy == 1 && !news_; });
}

void Scheduler::run() {
  for (bool more = true; more;) {
    try {
      more = take_commands();
      if (more) step();
    } catch (const std::exception& error) {
      {
        const std::lock_guard lock(mutex_);
        failure_ = error.what();
      }
      for (const auto& [kv, runner] : runners_) runner->end_all(error.what());
      for (const auto& job : waiting_) job->listener->on_end(FinishReason::failed, job->usage, {error.what()});
      waiting_.clear();
    }
  }
}

}  // namespace ridge::serve
