// The proposer that is a second, smaller model.
#include <algorithm>
#include <climits>

#include "engine/decode/decoder.h"
#include "engine/engine.h"

namespace ridge {
namespace {

/// Throws usage unless a token id means the same in both models. Sizes may differ: embeddings are padded.
void check_vocabularies(Engine& target, Engine& draft) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::usage, four_parts("a draft model must have the target's vocabulary", draft.info().path, why,
                                             "use a smaller model of the same family"));
  };
  if (target.has_tokenizer() != draft.has_tokenizer())
    refuse(fmt::format("the {} model has no tokenizer", draft.has_tokenizer() ? "target" : "draft"));
  if (!target.has_tokenizer()) {
    if (target.plan().vocab_size != draft.plan().vocab_size)
      refuse(fmt::format("{} tokens, the target has {}", draft.plan().vocab_size, target.plan().vocab_size));
    return;
  }
  const std::vector<std::string>&of_target = target.tokenizer().spec().pieces,
        &of_draft = draft.tokenizer().spec().pieces;
  for (size_t i = 0; i < std::min(of_target.size(), of_draft.size()); ++i)
    if (target.tokenizer().piece(int32_t(i), true) != draft.tokenizer().piece(int32_t(i), true))
      refuse(fmt::format("token {} is '{}', the target's is '{}'", i, of_draft[i], of_target[i]));
}

/// Tokens of a text that the draft runs beside those of other texts; it reads longer pieces alone.
constexpr int kFewTokens = kMaxSpecDepth + 1;

/// How the cache of so many texts is laid out.
struct DraftShape {
  DraftShape(Engine& engine, const SessionOptions& options, int n)
      : layers(layer_configs(options, engine.plan())),
        n_ctx(options.n_ctx > 0 ? options.n_ctx : engine.info().n_ctx_train),
        n_ubatch(std::min(n_ctx, options.n_ubatch > 0 ? options.n_ubatch : engine.default_ubatch())),
        n_texts(n),
        pages(pool_pages(layers, n_ctx, n, std::max(n_ubatch, n > 1 ? n * kFewTokens : 0))) {}

  std::vector<KvLayerConfig> layers;
  int n_ctx, n_ubatch, n_texts;
  PageNumbers pages;
};

/// The cache of some texts, and the loop that writes them.
struct SharedDraft : DraftShape {
  SharedDraft(Engine& engine, const DraftShape& shape)
      : DraftShape(shape),
        pool(engine.open_checked_pool(layers, pages, n_texts, n_ctx, n_ubatch)),
        decoder(engine.backend(), *pool, engine.plan().n_ids) {}

  const std::unique_ptr<SequencePool> pool;
  Decoder decoder;
};

class DraftProposer final : public BatchProposer {
 public:
  DraftProposer(std::shared_ptr<SharedDraft> shared, int vocab_size, double p_min)
      : shared_(std::move(shared)), vocab_size_(vocab_size), p_min_(p_min) {
    text_.seq = open_text(*shared_->pool, shared_->n_texts);
  }
  ~DraftProposer() override { shared_->pool->close(text_.seq); }

  void propose_all(std::span<Draft> drafts) override {
    std::vector<DraftProposer*> writers;
    for (Draft& draft : drafts)
      if (auto& own = static_cast<DraftProposer&>(*draft.proposer); own.begin(draft, drafts.size() > 1))
        writers.push_back(&own);
    StepHooks hooks;
    for (;;) {
      std::vector<DecodeRow> rows;
      for (DraftProposer* writer : writers)
        if (!writer->text_.ended) rows.push_back({.text = &writer->text_, .tokens = writer->unread()});
      if (rows.empty()) break;
      shared_->decoder.step(rows, INT_MAX, hooks);
    }
    for (DraftProposer* writer : writers)
      if (writer->text_.failure) writer->forget(0);  // logits that are not finite: the target's text needs no proposals
  }
  int64_t bytes() const override { return shared_->pool->memory().allocated_bytes() / shared_->n_texts; }
  void fill(std::span<const int32_t> text, uint64_t seed) override {
    shared_->pool->fill(text_.seq, int(text.size()), seed).or_throw();
    text_.tokens.assign(text.begin(), text.end());
  }

 private:
  int n_held() const { return shared_->pool->length(text_.seq); }

  /// The cache has the draft's text but for a few tokens, with others for kFewTokens at most. False where nothing can
  /// be proposed.
  bool begin(Draft& draft, bool with_others) {
    const int n_text = int(draft.text.size());
    int n = std::min(draft.n, shared_->n_ctx - n_text + 1);
    // Centres and scales of the draft's cache must not be set by proposals, which are taken back.
    if (n_text < kCalibration) n = std::min(n, kCalibration - n_text);
    if (n <= 0) return false;
    text_.tokens.resize(size_t(n_held()));
    const auto known =
        int(std::ranges::mismatch(text_.tokens, draft.text.first(draft.text.size() - 1)).in1 - text_.tokens.begin());
    forget(known < kCalibration && n_held() >= kCalibration ? 0 : known);
    text_.tokens.insert(text_.tokens.end(), draft.text.begin() + ssize(text_.tokens), draft.text.end());
    const int most = with_others ? std::min(kFewTokens, shared_->n_ubatch) : shared_->n_ubatch;
    while (n_text - n_held() > most) {
      const int n_piece = std::min(shared_->n_ubatch, n_text - n_held() - (with_others ? most : 0));
      const DecodeRow piece{.text = &text_, .tokens = unread().first(size_t(n_piece)), .is_prompt = true};
      shared_->decoder.run({&piece, 1}, LogitRows::none);
    }
    text_.sampler = {.temperature = 0};
    text_.n_left = n;
    text_.ended = false;
    text_.failure = nullptr;
    text_.pick = nullptr;
    if (p_min_ > 0 || draft.sampler)
      text_.pick = [&draft, p_min = p_min_](auto logits) { return next_draft_token(draft, logits, p_min); };
    text_.on_token = [&draft, vocab_size = vocab_size_](int32_t token) {
      if (token < vocab_size) draft.tokens.push_back(token);
      return token < vocab_size;
    };
    return true;
  }
  std::span<const int32_t> unread() const { return std::span(text_.tokens).subspan(size_t(n_held())); }

  void forget(int n) {
    if (n < n_held() && !shared_->pool->trim(text_.seq, n, TrimMode::coded_window)) {
      shared_->pool->reset(text_.seq);  // sliding layers gave back what n tokens see
      n = 0;
    }
    text_.tokens.resize(size_t(n));
  }

  std::shared_ptr<SharedDraft> shared_;
  int vocab_size_;
  double p_min_;
  Text text_;  // its first tokens are in the cache
};

}  // namespace

ProposerMaker draft_proposers(const Model& target, const Model& draft, const SessionOptions& cache, double p_min,
                              int n_texts) {
  check_vocabularies(target.engine(), draft.engine());
  const auto keeps_state = [](const LayerPlan& layer) { return layer.keeps_state(); };
  if (std::ranges::any_of(draft.engine().plan().layers, keeps_state))
    throw Error(ErrorKind::usage, four_parts("a draft model must take its draft tokens back", draft.info().path,
                                             "its layers keep a state", "use another draft, or --spec-type lookup"));
  const DraftShape shape(draft.engine(), cache, n_texts);
  ProposerMaker make = [shared = std::make_shared<std::shared_ptr<SharedDraft>>(), &target, &draft, shape, p_min] {
    if (!*shared) *shared = std::make_shared<SharedDraft>(draft.engine(), shape);
    return std::make_unique<DraftProposer>(*shared, target.info().vocab_size, p_min);
  };
  make.bytes = draft.engine().open_pool(shape.layers, 1, n_texts)->memory().bytes_with_pages(shape.pages) / n_texts;
  return make;
}

}  // namespace ridge
