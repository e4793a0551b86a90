// The public Session: one sequence of a pool of its own.
#include <algorithm>

#include "engine/decode/decoder.h"
#include "engine/engine.h"
#include "engine/finite.h"
#include "engine/kv_state.h"
#include "io/mapped_file.h"

namespace ridge {
namespace {

int checked(std::string_view field, int value, int most) {
  if (value < 1 || value > most) throw_error(ErrorKind::usage, "{} {} is out of range (1 to {})", field, value, most);
  return value;
}

}  // namespace

struct Session::Impl {
  Impl(Engine& of, const SessionOptions& options)
      : engine(of),
        n_ctx(checked("n_ctx", options.n_ctx == 0 ? of.config().n_ctx_train : options.n_ctx, 1 << 26)),
        n_ubatch(std::min(n_ctx, checked("n_ubatch", options.n_ubatch != 0 ? options.n_ubatch : of.default_ubatch(),
                                         of.backend().max_tokens()))),
        layers(layer_configs(options, of.plan())),
        pool(of.open_checked_pool(layers, pool_pages(layers, n_ctx, 1, n_ubatch), 1, n_ctx, n_ubatch)),
        decoder(of.backend(), *pool, of.plan().n_ids) {
    text.seq = pool->open().or_throw();
  }

  int n_past() const { return pool->length(text.seq); }
  void run(DecodeRow row, LogitRows rows) {
    row.text = &text, row.is_prompt = true;
    decoder.run({&row, 1}, rows);
  }
  std::span<const float> last_logits() {
    const View2<const float> logits = decoder.outputs().logits();
    return logits.row(logits.rows - 1);
  }
  /// Refuses what does not fit or is not a token, before anything is changed.
  void check(std::span<const int32_t> tokens) const {
    if (tokens.empty())
      throw Error(ErrorKind::usage, "no tokens to run (the prompt is empty; give at least one token)");
    check_tokens(tokens, engine.plan().vocab_size);
    if (int64_t(tokens.size()) > n_ctx - n_past())
      throw_error(ErrorKind::usage,
                  "context full: {} tokens do not fit after {} of {} (a larger n_ctx or a shorter prompt)",
                  tokens.size(), n_past(), n_ctx);
  }
  /// The prompt in steps of n_ubatch: step(first, tokens, is_last).
  template <class Step>
  void prefill(std::span<const int32_t> tokens, const Step& step) {
    check(tokens);
    for (size_t first = 0; first < tokens.size();) {
      const size_t n = std::min(tokens.size() - first, size_t(n_ubatch));
      step(int(first), tokens.subspan(first, n), first + n == tokens.size());
      first += n;
    }
  }
  /// Steps with draft tokens go back, which states do by a history.
  void open_pool_with_history() {
    if (!pool->has_states() || pool->memory().slots().n_histories > 0) return;
    const SequenceImage image = pool->save(text.seq);
    pool.reset();
    pool = engine.open_pool(layers, pool_pages(layers, n_ctx, 1, n_ubatch), {1, 1}, n_ctx);
    decoder.change_pool(*pool);
    text.seq = pool->load(image).or_throw();
  }
  /// The sequence becomes the image, which check_image() accepts.
  void replace(const SequenceImage& image) {
    pool->close(text.seq);
    text.seq = pool->load(image).or_throw();
  }

  Engine& engine;
  int n_ctx, n_ubatch;
  std::vector<KvLayerConfig> layers;
  std::unique_ptr<SequencePool> pool;
  Decoder decoder;
  Text text;
};

Session::Session(const Model& model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(model.engine(), options)) {}
Session::Session(Session&&) noexcept = default;
Session::~Session() = default;

std::span<const float> Session::prefill(std::span<const int32_t> tokens) {
  impl_->prefill(tokens, [&](int, std::span<const int32_t> part, bool is_last) {
    impl_->run({.tokens = part}, is_last ? LogitRows::last : LogitRows::none);
  });
  return impl_->last_logits();
}

void Session::prefill(std::span<const int32_t> tokens, const LogitsCallback& callback) {
  impl_->prefill(tokens, [&](int first, std::span<const int32_t> part, bool) {
    impl_->run({.tokens = part}, LogitRows::all);
    callback(first, int(part.size()), impl_->decoder.outputs().logits().data);
  });
}

void Session::embed(std::span<const int32_t> tokens, const HiddenCallback& callback) {
  Impl& s = *impl_;
  std::vector<float> states;
  s.prefill(tokens, [&](int first, std::span<const int32_t> part, bool is_last) {
    s.run({.tokens = part, .hidden = true}, is_last ? LogitRows::last : LogitRows::none);
    const View2<const float> rows = s.decoder.outputs().hidden();
    states.resize(size_t(rows.rows * rows.cols));
    s.engine.norm_hidden(rows, {states.data(), rows.rows, rows.cols});
    callback(first, int(part.size()), states.data());
  });
}

std::span<const float> Session::decode(int32_t token) {
  const std::span<const int32_t> one(&token, 1);
  impl_->check(one);
  impl_->run({.tokens = one}, LogitRows::last);
  return impl_->last_logits();
}

int Session::generate(const SamplerOptions& options, std::span<const int32_t> recent, int n_max,
                      const std::function<bool(int32_t)>& on_token, TokenRule* rule) {
  if (n_max <= 0) return 0;
  Impl& s = *impl_;
  Text& text = s.text;
  const int n_ids = s.engine.plan().n_ids, n_most = std::min(n_max, n_ctx() - n_past() + 1);
  std::vector<float> left;  // what a rule leaves of logits
  text = {.seq = text.seq,
          .tokens = {recent.begin(), recent.end()},
          .sampler = options,
          .n_left = n_most,
          .on_token = on_token,
          .speculation = text.speculation};
  if (rule) text.pick = [&](std::span<const float> logits) { return sample_by_rule(*rule, text, n_ids, logits, left); };
  StepHooks hooks;
  const DecodeRow first{.text = &text};
  try {
    s.decoder.step({&first, 1}, 1, hooks);
    s.decoder.finish(text);
    if (text.failure) std::rethrow_exception(text.failure);
  } catch (const NotFiniteError&) {
    s.pool->reset(text.seq);
    throw NotFiniteError(s.engine.why_not_finite());
  }
  return n_most - text.n_left;
}

void Session::speculate(Speculation* speculation) {
  if (speculation) impl_->open_pool_with_history();
  impl_->text.speculation = speculation;
}

void Session::reset() { impl_->pool->reset(impl_->text.seq); }

void Session::save(const std::string& path) const {
  Impl& s = *impl_;
  const SequenceImage image = s.pool->save(s.text.seq);
  if (image.lost_from < image.n)
    throw_error(ErrorKind::bad_file, "{} is not written: K or V of position {} is not finite", path, image.lost_from);
  save_kv_state(s.pool->memory().layouts(), image, s.engine.hash(s.n_ctx), path).or_throw();
}

void Session::restore(const std::string& path) {
  Impl& s = *impl_;
  const io::MappedFile file = io::MappedFile::open(path).or_throw();
  s.replace(read_kv_state(*s.pool, s.n_ctx, s.engine.hash(s.n_ctx), file.bytes(), path).or_throw());
}

void Session::copy_from(const Session& other) {
  if (&other == this) return;
  Impl &s = *impl_, &from = *other.impl_;
  if (&from.engine != &s.engine)
    throw Error(ErrorKind::usage, "a cache can be copied between sessions of one model only");
  if (from.n_past() > s.n_ctx)
    throw_error(ErrorKind::usage, "{} positions do not fit in a context of {} (a larger n_ctx)", from.n_past(),
                s.n_ctx);
  for (size_t layer = 0; layer < s.layers.size(); ++layer)
    for (const KvSide side : kKvSides)
      if (const std::string difference = kv_side_difference(from.layers[layer].side(side), s.layers[layer].side(side));
          !difference.empty())
        throw_error(ErrorKind::usage, "{} of layer {}: {} (open both sessions with the same cache options)",
                    side == KvSide::k ? "K" : "V", layer, difference);
  s.replace(from.pool->save(from.text.seq));
}

void Session::truncate(int n) {
  if (n < 0 || n > n_past())
    throw_error(ErrorKind::usage, "cannot go back to {} tokens: the cache holds {}", n, n_past());
  impl_->pool->trim(impl_->text.seq, n, TrimMode::coded_window).or_throw();
}

void Session::shift(int n_keep, int n_discard) {
  if (n_keep < 0 || n_discard < 0 || n_keep > n_past() || n_discard > n_past() - n_keep)
    throw_error(ErrorKind::usage, "cannot discard {} tokens after the first {}: the cache holds {}", n_discard, n_keep,
                n_past());
  impl_->pool
      ->shift(
          impl_->text.seq, n_keep, n_discard,
          [&](int layer, KvSide side, float* row) { impl_->engine.turn_row(layer, side, n_ctx(), -n_discard, row); })
      .or_throw();
}

void Session::fill(int n, uint64_t seed) {
  if (n < 0 || n > n_ctx())
    throw_error(ErrorKind::usage, "depth {} does not fit in a context of {} (a larger n_ctx)", n, n_ctx());
  impl_->pool->fill(impl_->text.seq, n, seed).or_throw();
}

int Session::n_past() const { return impl_->n_past(); }
int Session::n_ctx() const { return impl_->n_ctx; }
KvReport Session::kv_report() const { return ridge::kv_report(impl_->pool->memory(), impl_->n_ctx); }

int64_t Session::decode_read_bytes() const {
  return impl_->engine.backend().step_weight_bytes() +
         kv_read_bytes(impl_->pool->memory(), std::min(n_past() + 1, n_ctx()));
}

std::vector<std::string> Session::kernels() const {
  return impl_->engine.backend().kernels(impl_->layers[size_t(impl_->engine.plan().first_attention())]);
}

}  // namespace ridge
