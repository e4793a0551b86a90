#include "lab/quality/quality.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <chrono>
#include <cmath>
#include <memory>

#include "base/build_info.h"
#include "base/rng.h"
#include "engine/kv_choice.h"
#include "engine/kv_options.h"
#include "io/mapped_file.h"
#include "lab/model/bench_check.h"
#include "lab/quality/engine_timelines.h"

namespace ridge::lab {
namespace {

constexpr uint64_t kMaxCorpusBytes = uint64_t(1) << 30;

/// Rows of logits held at a time: a micro-batch, unless the vocabulary makes that more than 128 MiB.
int block_rows(const EvalOptions& options, int vocab_size) {
  const int64_t fitting = (int64_t(128) << 20) / (4 * int64_t(vocab_size));
  return int(std::clamp<int64_t>(fitting, 1, options.n_ubatch));
}

/// Codes the base's rows and writes them.
class KlBaseSink {
 public:
  KlBaseSink(const std::string& path, const EvalResult& plan, const Corpus& corpus, ThreadPool& pool)
      : writer_(path), pool_(pool) {
    const io::KlBaseShape shape{plan.windows.n_ctx, plan.model.vocab_size, plan.windows.n_chunks};
    const size_t n_tokens = size_t(shape.n_ctx) * size_t(shape.n_chunks);
    writer_.create(shape, std::span(corpus.tokens).first(n_tokens)).or_throw();
  }
  void add(const float* rows, int n_rows) {
    const auto n_vocab = size_t(writer_.shape().n_vocab), row_bytes = size_t(writer_.shape().row_bytes());
    coded_.resize(size_t(n_rows) * row_bytes);
    pool_.for_each(n_rows, [&](int64_t i, int) {
      io::encode_kl_row({rows + size_t(i) * n_vocab, n_vocab},
                        std::span(coded_).subspan(size_t(i) * row_bytes, row_bytes));
    });
    writer_.add(coded_).or_throw();
  }
  void commit() { writer_.commit().or_throw(); }

 private:
  io::KlBaseWriter writer_;
  ThreadPool& pool_;
  std::vector<std::byte> coded_;
};

/// The base and the candidates of an evaluation.
struct Caches {
  std::unique_ptr<EngineTimelines> base;
  std::vector<std::unique_ptr<EngineTimelines>> candidates;
};

/// All caches with n_seq sequences each; nothing where memory does not suffice.
std::optional<Caches> try_open(const Model& model, const EvalOptions& options, int n_seq) {
  Caches caches;
  const auto open = [&](const KvChoice& kv) {
    return std::make_unique<EngineTimelines>(model, session_options(kv, options.n_ctx, options.n_ubatch), n_seq);
  };
  try {
    if (options.against_base && !options.base_file) caches.base = open(options.base);
    for (const KvChoice& kv : options.candidates) caches.candidates.push_back(open(kv));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::no_memory) throw;
    return std::nullopt;
  }
  // Still to come: logits of every cache, and on a device activations and what the driver wants.
  const int64_t reserve = model.engine().on_device() ? int64_t(1) << 30 : 0;
  const int64_t logits = 4 * int64_t(n_seq) * model.info().vocab_size * ssize(options.candidates) * 2;
  if (logits + reserve > model.engine().backend().free_bytes()) return std::nullopt;
  return caches;
}

/// Sequences side by side share the reading of weights: on a GPU as many as it needs to be busy, on a CPU some for the
/// decode path.
int wanted_sequences(const Model& model, const EvalOptions& options, int n_chunks, int step_tokens) {
  constexpr int kDeviceTokens = 8192, kHostSequences = 8, kMaxSequences = 256;
  if (!options.save_base.empty()) return 1;  // rows of the file come in the order of the text
  const int on_device = options.path == EvalPath::decode ? kMaxSequences : kDeviceTokens / step_tokens;
  const int on_host = options.path == EvalPath::decode ? kHostSequences : 1;
  return std::clamp(model.engine().on_device() ? on_device : on_host, 1, std::min(n_chunks, kMaxSequences));
}

Caches open_caches(const Model& model, const EvalOptions& options, int n_chunks, int step_tokens) {
  for (int n_seq = wanted_sequences(model, options, n_chunks, step_tokens);; n_seq /= 2) {
    if (auto caches = try_open(model, options, n_seq)) return std::move(*caches);
    if (n_seq == 1)
      throw_error(ErrorKind::no_memory,
                  "{}: not enough memory for {} caches of {} tokens (a smaller n_ctx, or fewer caches at a time)",
                  model.info().device, options.candidates.size() + (options.against_base ? 1 : 0), options.n_ctx);
  }
}

/// Bytes of text that the scored tokens of the first n chunks stand for.
int64_t scored_text_bytes(const Model& model, const Corpus& corpus, const Windows& windows, int n_chunks) {
  int64_t bytes = 0;
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    const size_t first = size_t(chunk) * size_t(windows.n_ctx) + size_t(windows.first_scored()) + 1;
    for (int i = 0; i < windows.scored_per_chunk(); ++i)
      bytes += int64_t(model.piece(corpus.tokens[first + size_t(i)]).size());
  }
  return bytes;
}

}  // namespace

Corpus read_corpus(const Model& model, const std::string& path,
                   const std::function<std::vector<int32_t>(std::string_view text)>& tokenize) {
  Corpus corpus{.path = path};
  const std::string text = io::read_text_file(path, kMaxCorpusBytes).or_throw();
  corpus.bytes = int64_t(text.size());
  corpus.xxh64 = XXH64(text.data(), text.size(), 0);
  corpus.tokens = tokenize ? tokenize(text) : model.tokenize(text, true, false);
  return corpus;
}

Corpus random_corpus(const Model& model, int n_tokens) {
  Rng rng(42);
  Corpus corpus{.path = "random tokens", .tokens = random_tokens(model, n_tokens, rng)};
  corpus.xxh64 = XXH64(corpus.tokens.data(), corpus.tokens.size() * sizeof(int32_t), 0);
  return corpus;
}

Corpus base_corpus(const Model& model, const io::KlBaseFile& file) {
  const io::KlBaseShape& shape = file.base().shape;
  if (shape.n_vocab != model.info().vocab_size)
    throw Error(ErrorKind::bad_file, four_parts("the base does not belong to this model", file.path().native(),
                                                fmt::format("it has a vocabulary of {}, the model {}", shape.n_vocab,
                                                            model.info().vocab_size),
                                                "write one from this model"));
  Corpus corpus{.path = file.path().filename().native(), .tokens = file.base().tokens()};
  for (const int32_t token : corpus.tokens) corpus.bytes += int64_t(model.piece(token).size());
  corpus.xxh64 = XXH64(file.base().token_bytes.data(), file.base().token_bytes.size(), 0);
  return corpus;
}

Row subject(std::string_view kind, const ModelInfo& model, const Corpus& corpus, const std::string& device) {
  Row row;
  row["kind"] = kind;
  row["model"] = model.path;
  row["model_name"] = model.name;
  row["arch"] = model.arch;
  row["weight_format"] = model.weight_format;
  row["device"] = device;
  row["device_name"] = model.device;
  put_ranks(row, model.n_ranks, model.n_stages);
  row["build_commit"] = build_info().commit;
  row["corpus"] = corpus.path;
  row["corpus_bytes"] = corpus.bytes;
  row["corpus_xxh64"] = fmt::format("{:016x}", corpus.xxh64);
  row["corpus_tokens"] = int64_t(corpus.tokens.size());
  return row;
}

int64_t CandidateResult::bytes_at(int n) const {
  return cache.bytes_per_token() * n + cache.k.fixed_bytes + cache.v.fixed_bytes;
}

double EvalResult::bits_per_byte(const CandidateResult& candidate) const {
  const double nats = options.against_base ? candidate.scores.pair.sum_nll() : candidate.scores.ppl.sum_nll();
  return scored_bytes > 0 ? nats / std::log(2.0) / double(scored_bytes) : 0;
}

double EvalResult::effective_bits_4k(const CandidateResult& candidate) const {
  const double bytes = double(candidate.cache.k.held_bytes_4k + candidate.cache.v.held_bytes_4k);
  return values_4k > 0 ? 8 * bytes / values_4k : 0;
}

std::string EvalResult::base_name() const {
  if (options.base_file) return "file " + options.base_file->path().filename().native();
  return kv_text(options.base);
}

EvalResult plan_evaluation(const Model& model, const Corpus& corpus, const EvalOptions& options) {
  EvalResult result{
      .options = options,
      .model = model.info(),
      .subject = subject(options.against_base ? "eval_kld" : "eval_ppl", model.info(), corpus, options.device)};
  const SessionOptions f16 = session_options(parse_kv_choice("f16").or_throw(), 4096, 1);
  result.values_4k = double(kv_row_bytes(f16, model.engine().plan(), 4096)) / sizeof(uint16_t);
  const auto bos = result.model.add_bos ? model.bos() : std::nullopt;
  result.windows = plan_windows(int64_t(corpus.tokens.size()), options.n_ctx, options.max_chunks, bos).or_throw();
  return result;
}

EvalResult evaluate(const Model& model, const Corpus& corpus, const EvalOptions& options, const EvalHooks& hooks) {
  const auto start = std::chrono::steady_clock::now();
  EvalResult result = plan_evaluation(model, corpus, options);
  RIDGE_CHECK(
      !options.base_file || (options.n_ctx == options.base_file->base().shape.n_ctx && options.save_base.empty()),
      "a base file has its own windows, {} and {}", options.n_ctx, options.base_file->base().shape.n_ctx);

  ThreadPool pool(result.model.n_threads);
  const int step_tokens = block_rows(options, result.model.vocab_size);
  const Caches caches = open_caches(model, options, result.windows.n_chunks, step_tokens);
  for (size_t c = 0; c < options.candidates.size(); ++c)
    result.candidates.push_back({.kv = options.candidates[c], .cache = caches.candidates[c]->cache()});

  std::vector<Scores> scores;
  const auto refresh = [&](int chunks_done) {
    result.chunks_done = chunks_done;
    result.scored_bytes = scored_text_bytes(model, corpus, result.windows, chunks_done);
    for (size_t c = 0; c < result.candidates.size(); ++c) {
      result.candidates[c].scores = scores[c];
      result.candidates[c].cache = caches.candidates[c]->cache();
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto n_timelines = int64_t(options.candidates.size()) + (options.against_base ? 1 : 0);
  const int64_t total = n_timelines * result.windows.n_chunks * (result.windows.n_ctx - 1);
  PassOptions pass{
      .path = options.path, .step_tokens = step_tokens, .whole_curve = options.whole_curve, .stop = hooks.stop};
  std::optional<KlBaseSink> sink;
  if (!options.save_base.empty()) {
    sink.emplace(options.save_base, result, corpus, pool);
    pass.on_base_rows = [&](View2<const float> rows) { sink->add(rows.data, int(rows.rows)); };
  }
  if (options.base_file)
    pass.base_log_probs = [&](int64_t row, std::span<float> log_probs) {
      if (const Status status = options.base_file->base().read_row(row, log_probs); !status)
        throw_error(ErrorKind::bad_file, "{}: {}", options.base_file->path().native(), status.error().message);
    };
  if (hooks.on_progress) pass.on_progress = [&](int64_t steps) { hooks.on_progress(steps, total); };
  if (hooks.on_chunk)
    pass.on_chunk = [&](int chunks_done) {
      refresh(chunks_done);
      hooks.on_chunk(result);
    };
  std::vector<Timelines*> candidates;
  for (const auto& cache : caches.candidates) candidates.push_back(cache.get());
  refresh(run_windows(result.windows, corpus.tokens, caches.base.get(), candidates, pass, scores));
  if (sink && result.complete()) sink->commit();
  return result;
}

}  // namespace ridge::lab
