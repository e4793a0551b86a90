// Several sequences in one forward pass, in the C API.
#include <algorithm>

#include "capi/handles.h"
#include "engine/engine.h"
#include "engine/kv_choice.h"

struct ridge_batch {
  ridge_batch(std::shared_ptr<ridge::capi::SharedModel> of, const ridge::SessionOptions& options, int n_sequences)
      : shared(std::move(of)),
        n_ctx(options.n_ctx),
        n_step(options.n_ubatch),
        layers(ridge::layer_configs(options, engine().plan())),
        pool(engine().open_checked_pool(layers, ridge::pool_pages(layers, n_ctx, n_sequences, n_step), n_sequences,
                                        n_ctx, n_step)),
        outputs(engine().backend().make_outputs()) {
    for (int i = 0; i < n_sequences; ++i) sequences.push_back(pool->open().or_throw());
  }
  ridge::Engine& engine() const { return shared->model.engine(); }
  ridge::SeqId at(int32_t sequence) const {
    if (sequence < 0 || size_t(sequence) >= sequences.size())
      ridge::throw_error(ridge::ErrorKind::usage, "sequence {} is out of range (0 to {})", sequence,
                         sequences.size() - 1);
    return sequences[size_t(sequence)];
  }

  const std::shared_ptr<ridge::capi::SharedModel> shared;
  const int n_ctx, n_step;
  const std::vector<ridge::KvLayerConfig> layers;
  const std::unique_ptr<ridge::SequencePool> pool;
  const std::unique_ptr<ridge::Outputs> outputs;
  std::vector<ridge::SeqId> sequences;
};

namespace ridge::capi {
namespace {

constexpr int kMostSequences = 4096;

std::unique_ptr<ridge_batch> make_batch(const ridge_model* model, const ridge_session_options& read, int n_sequences) {
  const std::shared_ptr<SharedModel>& shared = given(model, "model").shared;
  const KvChoice kv = parse_kv_choice(text_or(read.kv, "f16")).or_throw();
  const Engine& engine = shared->model.engine();
  SessionOptions options = session_options(kv, read.n_ctx, read.n_ubatch);
  if (options.n_ctx == 0) options.n_ctx = engine.config().n_ctx_train;
  if (options.n_ubatch == 0) options.n_ubatch = engine.default_ubatch();
  const auto check = [](std::string_view field, int value, int most) {
    if (value < 1 || value > most) throw_error(ErrorKind::usage, "{} {} is out of range (1 to {})", field, value, most);
  };
  check("n_sequences", n_sequences, kMostSequences);
  check("n_ctx", options.n_ctx, 1 << 26);
  check("n_ubatch", options.n_ubatch, shared->model.engine().backend().max_tokens());
  return std::make_unique<ridge_batch>(shared, options, n_sequences);
}

/// Refuses rows that do not fit or have no tokens, before anything is changed.
void check_row(const ridge_batch& batch, const ridge_batch_row& row) {
  const std::span<const int32_t> tokens = values(row.tokens, row.n, "tokens");
  if (tokens.empty()) throw_error(ErrorKind::usage, "sequence {} gets no tokens", row.sequence);
  check_tokens(tokens, batch.engine().plan().vocab_size);
  const int n_past = batch.pool->length(batch.at(row.sequence));
  if (row.n > size_t(batch.n_ctx - n_past))
    throw_error(ErrorKind::usage, "context full: {} tokens do not fit after {} of {}", row.n, n_past, batch.n_ctx);
}

const float* step(ridge_batch& batch, std::span<const ridge_batch_row> rows) {
  if (rows.empty()) throw Error(ErrorKind::usage, "a step without rows");
  std::vector<int32_t> tokens;
  std::vector<SeqTokens> seqs;
  for (const ridge_batch_row& row : rows) {
    check_row(batch, row);
    const SeqId seq = batch.at(row.sequence);
    if (std::ranges::find(seqs, seq, &SeqTokens::seq) != seqs.end())
      throw_error(ErrorKind::usage, "sequence {} has two rows", row.sequence);
    tokens.insert(tokens.end(), row.tokens, row.tokens + row.n);
    seqs.push_back({seq, int(row.n)});
  }
  if (tokens.size() > size_t(batch.n_step))
    throw_error(ErrorKind::usage, "{} tokens in a step of at most {} (n_ubatch)", tokens.size(), batch.n_step);
  for (const SeqTokens& of : seqs) batch.pool->reserve(of.seq, of.n_tokens).or_throw();
  batch.engine().backend().run({.tokens = tokens, .seqs = seqs}, *batch.pool, *batch.outputs);
  return batch.outputs->logits().data;
}

}  // namespace
}  // namespace ridge::capi

using namespace ridge::capi;

ridge_status ridge_batch_create(const ridge_model* model, const ridge_session_options* options, int32_t n_sequences,
                                ridge_batch** batch) {
  return guarded([&] {
    given(batch, "batch") = nullptr;
    *batch = make_batch(model, read_struct(options, {}), n_sequences).release();
  });
}
void ridge_batch_free(ridge_batch* batch) { delete batch; }

ridge_status ridge_batch_step(ridge_batch* batch, const ridge_batch_row* rows, size_t n_rows, const float** logits) {
  return guarded([&] {
    const float* const found = step(given(batch, "batch"), values(rows, n_rows, "rows"));
    if (logits) *logits = found;
  });
}

ridge_status ridge_batch_truncate(ridge_batch* batch, int32_t sequence, int32_t n) {
  return guarded([&] {
    ridge_batch& b = given(batch, "batch");
    const ridge::SeqId seq = b.at(sequence);
    if (n < 0 || n > b.pool->length(seq))
      ridge::throw_error(ridge::ErrorKind::usage, "cannot go back to {} tokens: sequence {} holds {}", n, sequence,
                         b.pool->length(seq));
    b.pool->trim(seq, n, ridge::TrimMode::coded_window).or_throw();
  });
}

int32_t ridge_batch_n_past(const ridge_batch* batch, int32_t sequence) {
  if (!batch || sequence < 0 || size_t(sequence) >= batch->sequences.size()) return 0;
  return batch->pool->length(batch->sequences[size_t(sequence)]);
}
