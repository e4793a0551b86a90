// The sequences of one pool: who runs, what the next step takes, and what becomes of its tokens.
#pragma once

#include <chrono>

#include "base/seconds.h"
#include "engine/decode/decoder.h"
#include "engine/decode/token_stream.h"
#include "engine/engine.h"
#include "engine/kv_choice.h"
#include "serve/metrics.h"
#include "serve/prefix_cache.h"
#include "serve/request.h"

namespace ridge::serve {

using Clock = std::chrono::steady_clock;

struct PoolOptions {
  KvChoice kv;
  int n_ctx = 0;                 ///< most tokens of a sequence
  int max_seqs = 0;              ///< sequences that run at a time
  int n_checkpoints = 0;         ///< slots beside those of the running sequences
  int checkpoint_every = 0;      ///< tokens of a prompt between checkpoints, 1 or more
  int64_t kv_bytes = 0;          ///< of pages and slots, and of the caches of proposers
  int64_t swap_bytes = 0;        ///< of host memory for parked sequences
  int batch_tokens = 0;          ///< most tokens of a step
  double max_stall_seconds = 0;  ///< time that a step's prompts may take while other sequences decode
  ProposerMaker proposers = {};  ///< one a request; null: no speculation
  int spec_depth = 0;            ///< most proposals of a sequence in a step
  bool spec_adaptive = true;     ///< fewer where fewer pay
  bool spec_rejects = false;     ///< sampled texts take draft tokens by rejection sampling
  uint64_t prefix_secret = 0;    ///< of the hashes of prefixes: nobody who lacks it finds two prompts with one hash

  /// Caches of the proposers of all sequences that run at a time.
  int64_t proposer_bytes() const { return max_seqs * proposers.bytes; }
};

/// State of a sequence.
enum class Phase : uint8_t { prompt, decode, parked };
std::string_view phase_name(Phase phase);

/// One request from its arrival to its end. As a rule it changes logits by what the request asks for.
struct Job final : TokenRule {
  /// max_tokens becomes what fits behind the prompt in the context.
  Job(uint64_t number, GenerationRequest what, std::shared_ptr<Listener> who, TokenStream::Vocabulary vocabulary,
      const PoolOptions& options);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int n_prompt() const { return int(request.prompt.size()); }
  int most_tokens() const { return n_prompt() + request.options.max_tokens; }
  bool decodes() const { return n_done == n_prompt(); }
  /// Whether the next step gives log probabilities of its prompt.
  bool scores() const { return request.prompt_logprobs && !decodes(); }
  /// Whether the next step gives hidden states of its prompt.
  bool embeds() const { return request.pooling != Pooling::none && !decodes(); }
  /// Tokens that belong in the cache: all but the last one sampled.
  int length() const {
    return decodes() && !result.tokens.empty() ? n_prompt() + int(result.tokens.size()) - 1 : n_done;
  }
  void mask(std::span<float> logits, int tokens_left) override;
  int32_t accept(int32_t token) override { return request.constraint ? request.constraint->accept(token) : token; }
  bool complete() const override { return request.constraint && request.constraint->complete(); }

  const uint64_t id;
  GenerationRequest request;
  std::shared_ptr<Listener> listener;
  const std::vector<uint64_t> hashes;  ///< of the prompt's prefixes
  std::vector<int> stops;              ///< lengths of the prompt where a checkpoint is made, ascending

  Text text;                      ///< the prompt, and what was generated
  std::span<const int32_t> ends;  ///< end tokens of the vocabulary
  bool parked = false, cancelled = false, ended = false, failed = false;
  int n_done = 0;  ///< tokens of the prompt that the cache holds

  GenerateResult result;  ///< its last token is sampled and not in the cache
  TokenStream::OnText on_text;
  TokenStream stream;
  std::vector<TokenLogprob> logprobs;  ///< not handed on yet

  std::vector<float> embedding;  ///< of the tokens so far: their sum, or the last one [d_model]

  std::unique_ptr<Speculation> speculation;  ///< null: no draft tokens

  Usage usage;
  const Clock::time_point arrived = Clock::now();
  Clock::time_point started = arrived, decoding = arrived, last_token = arrived;
};

/// Whether a job can start.
enum class Admission : uint8_t {
  now,
  after_prefix,  ///< another job is computing a prefix that this one has too
  no_room,
};

/// The longest context, at most options.n_ctx, of which options.kv_bytes hold a sequence; 0 where they hold none.
int longest_context(Engine& engine, PoolOptions options);

class PoolRunner {
 public:
  /// Throws Error when the bytes do not hold one sequence of n_ctx tokens.
  PoolRunner(Engine& engine, const PoolOptions& options, Totals& totals);

  const PoolOptions& options() const { return options_; }
  SequencePool& pool() { return *pool_; }
  const std::vector<std::unique_ptr<Job>>& jobs() const { return jobs_; }
  Clock::time_point last_step() const { return last_step_; }
  Phase phase(const Job& job) const {
    return job.parked ? Phase::parked : job.decodes() ? Phase::decode : Phase::prompt;
  }

  Admission admit(const Job& job);
  /// Takes the job. Where this throws the caller still has it, and the pool is as it was.
  void start(std::unique_ptr<Job>&& job);
  /// Runs one step, on a device several while nothing changes and go_on() says so, and hands on what was sampled. Jobs
  /// that end leave. `clock` started with the planning.
  void step(const PartClock& clock, const std::function<bool()>& go_on);
  /// Ends jobs that were cancelled.
  void drop_cancelled();
  /// Ends every job after a failure. The pool stays as the failure left it: nothing starts on it any more.
  void end_all(const std::string& error);

 private:
  /// Part of a job in a step: tokens of its prompt, or the last token of its text.
  struct Row {
    Job* job;
    int n_tokens;
  };
  struct Hooks;
  /// Brings parked jobs back, the oldest first, while there is room.
  void unpark();
  /// Pages for n more tokens of the job; gives up checkpoints, then parks the youngest jobs, until they are there.
  /// False when the job itself was parked.
  bool reserve_or_evict(Job& job, int n);
  std::vector<Row> plan_step();
  DecodeRow decode_row(const Row& row) const;
  /// The step's forward pass has run: prompts are longer.
  void ran(std::span<const Row> rows);
  void count_step(const StepRecord& record);
  /// Log probabilities of prompts whose tokens the step computed.
  void score(std::span<const Row> rows);
  /// Adds hidden states of the step's tokens to embeddings.
  void embed(std::span<const Row> rows);
  int32_t sample(Job& job, std::span<const float> logits);
  /// Hands a token on; false: it was the last one.
  bool take(Job& job, int32_t token);
  void end_failed(Job& job);
  void end(Job& job, FinishReason reason, const RequestError& error = {});
  void fail(Job& job, const RequestError& error) { end(job, FinishReason::failed, error); }
  /// Takes jobs that ended out of the pool; what they computed stays as a checkpoint.
  void sweep();

  Engine& engine_;
  const PoolOptions options_;
  Totals& totals_;
  std::unique_ptr<SequencePool> pool_;
  PrefixCache prefixes_;
  Decoder decoder_;
  std::vector<std::unique_ptr<Job>> jobs_;  // the oldest first
  std::vector<float> logits_;               // a row that penalties or a constraint change
  std::vector<int32_t> ends_;               // end tokens of the vocabulary
  // Seconds, averaged over the newest steps: of a step that only decodes, and of a prompt's token beside decoding.
  double decode_seconds_ = 0, seconds_a_prompt_token_ = 0;
  Clock::time_point last_step_ = Clock::now();
};

}  // namespace ridge::serve
