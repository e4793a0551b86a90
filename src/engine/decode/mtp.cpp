// The proposer that runs a model's MTP head: a model of one layer on a backend of its own, where the model runs. Hidden
// states of the model come and go through the host.
#include <algorithm>

#include "engine/decode/proposer.h"
#include "engine/engine.h"
#include "model/mtp.h"
#include "op/sample/rule.h"

namespace ridge {
namespace {

/// Nearest rounding: the weighted one would need a metric of the head.
std::vector<KvLayerConfig> layers_of_head(const SessionOptions& options, const ModelPlan& plan) {
  std::vector<KvLayerConfig> layers = layer_configs(options, plan);
  for (KvLayerConfig& layer : layers) layer.k.policy.rounding = layer.v.policy.rounding = KvRounding::nearest;
  return layers;
}

/// Parts that the texts of a model share: the head, and the backend that runs it where the model runs.
struct MtpModel {
  /// vocab: MtpDrafts::vocab.
  MtpModel(Engine& of, MtpHead loaded, int vocab)
      : target(of), head(std::move(loaded)), plan(head_plan(of.config(), of.weights())) {
    if (vocab > 0 && vocab < plan.vocab_size) {
      plan.vocab_size = vocab;
      plan.n_ids = std::min(plan.n_ids, vocab);
      head.weights.output.n_out = vocab;
    }
    // A device holds the embedding and the output matrix once more for it; so does a rank that leads, in panels.
    if (!of.on_device()) pack_weights(of.context(), head.weights);
    backend = of.device() ? make_cuda_backend(*of.device(), plan, head.weights, {})
                          : make_cpu_backend(of.context(), plan, head.weights);
  }

  Engine& target;
  MtpHead head;
  ModelPlan plan;
  std::unique_ptr<Backend> backend;
};

/// The cache of some texts.
struct SharedMtp {
  SharedMtp(std::shared_ptr<MtpModel> of, const std::vector<KvLayerConfig>& layers, int ctx, int texts)
      : model(std::move(of)),
        n_ctx(ctx),
        n_texts(texts),
        pool(model->backend->open_memory(layers, {}, texts * std::max(1, pages_for(layers, ctx)), texts),
             [layers](int n_pages) {
               return std::make_unique<HostKvMemory>(layers, std::span<const KvMetricView>(), nullptr, n_pages, 1);
             }),
        outputs(model->backend->make_outputs()) {
    pool.set_n_ctx(ctx);
  }

  const std::shared_ptr<MtpModel> model;
  const int n_ctx, n_texts;
  SequencePool pool;
  const std::unique_ptr<Outputs> outputs;
};

class MtpProposer final : public BatchProposer {
 public:
  MtpProposer(std::shared_ptr<SharedMtp> shared, double p_min)
      : shared_(std::move(shared)),
        model_(shared_->model.get()),
        plan_(model_->plan),
        pool_(&shared_->pool),
        p_min_(p_min) {
    seq_ = open_text(*pool_, shared_->n_texts);
  }
  ~MtpProposer() override { pool_->close(seq_); }

  bool wants_hidden() const override { return true; }
  int64_t bytes() const override { return pool_->memory().allocated_bytes() / shared_->n_texts; }

  void fill(std::span<const int32_t> text, uint64_t seed) override {
    text_.assign(text.begin(), text.end());
    first_ = 0;
    const int n_read = int(text_.size()) - 1;
    pool_->fill(seq_, n_read, seed).or_throw();
    hidden_.assign(size_t(plan_.d_model), 1.0f);
  }

  void observe(std::span<const int32_t> tokens, int first, View2<const float> hidden) override {
    // Begin the head's cache anew at `first` where it would have to go back, or to skip tokens that it has not read.
    // RoPE knows distances only, so the cache may begin anywhere.
    if (first == 0 || first - first_ < pool_->length(seq_) || first - first_ > ssize(text_)) {
      forget(0);
      first_ = first;
    }
    forget(first - first_);
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    hidden_.insert(hidden_.end(), hidden.data, hidden.data + hidden.rows * hidden.cols);
    norm_rows(model_->target.weights().output_norm, std::span(hidden_).last(size_t(hidden.rows * hidden.cols)));
    // Prompts are read as they come; the rows of short steps may still turn out to be of wrong proposals.
    if (tokens.size() > size_t(kMaxSpecDepth) + 1 && !unread().empty()) run_alone(LogitRows::none);
  }

  void lose_track() override { forget(0); }

  /// The first forward pass reads what the heads have not seen, each later one a draft token of every text that goes
  /// on.
  void propose_all(std::span<Draft> drafts) override {
    std::vector<MtpProposer*> asked;
    for (Draft& draft : drafts) {
      auto& head = static_cast<MtpProposer&>(*draft.proposer);
      draft.n = std::min(draft.n, head.most(int(draft.text.size())));
      if (draft.n <= 0 || !head.knows(draft.text)) continue;
      head.begin(draft.text);
      head.draft_ = &draft;
      asked.push_back(&head);
    }
    for (std::vector<MtpProposer*> going = asked; !going.empty();) {
      run(going, LogitRows::last);
      const std::vector<std::optional<int32_t>> tokens = pick(going);
      const auto goes_on = [&](size_t i) {
        return tokens[i] && ssize(going[i]->draft_->tokens) + 1 < going[i]->draft_->n;
      };
      View2<const float> hidden;
      std::vector<MtpProposer*> next;
      int64_t last = -1;  // row of the text's newest position
      for (size_t i = 0; i < going.size(); ++i) {
        MtpProposer& head = *going[i];
        last += head.n_run_;
        if (goes_on(i)) {
          if (next.empty()) hidden = shared_->outputs->hidden();
          next.push_back(&head);
          head.read_own(*tokens[i], hidden.row(last));
        }
        if (tokens[i]) head.draft_->tokens.push_back(*tokens[i]);
      }
      going = std::move(next);
    }
    for (MtpProposer* head : asked) head->end();
  }
  std::optional<DeviceDraft> on_device(std::span<const Draft> drafts) override {
    // Several devices have no head that all of them run. A device's norm in front of logits has their divisor in it.
    const bool reads_divided = model_->head.after_norm && plan_.logit_divisor != 1;
    if (p_min_ > 0 || model_->target.devices().size() != 1 || reads_divided) return {};
    std::vector<MtpProposer*> heads;
    for (const Draft& draft : drafts) {
      auto& head = static_cast<MtpProposer&>(*draft.proposer);
      const int n_text = int(draft.text.size()) - head.first_;
      if (!head.knows(draft.text)) return {};
      if (pool_->calibrates(head.seq_) && n_text <= kCalibration) return {};  // proposals set no centre
      heads.push_back(&head);
    }
    DeviceDraft device{*model_->backend, *pool_, *shared_->outputs, model_->head.after_norm, {}};
    for (size_t i = 0; i < heads.size(); ++i) heads[i]->begin(drafts[i].text);
    run(heads, LogitRows::last);
    for (MtpProposer* head : heads) {
      head->text_.pop_back();
      device.texts.push_back({head->seq_, head->first_});
    }
    return device;
  }
  void leave_device(std::span<const int32_t> text) override {
    const auto read = text.subspan(size_t(first_), size_t(pool_->length(seq_)));
    text_.assign(read.begin(), read.end());
    hidden_.clear();
  }

 private:
  /// Tokens that the head reads next: position i of its cache reads token i + 1 of the text.
  std::span<const int32_t> unread() const { return std::span(text_).subspan(size_t(pool_->length(seq_)) + 1); }

  /// The head's own hidden state of a draft token's position stands for the target's.
  void read_own(int32_t token, std::span<const float> hidden) {
    text_.push_back(token);
    hidden_.assign(hidden.begin(), hidden.end());
    norm_rows(model_->head.weights.output_norm, hidden_);
  }
  /// Most draft tokens behind a text of so many tokens.
  int most(int n_text) const {
    n_text -= first_;
    const int n = shared_->n_ctx - n_text + 2;
    // Proposals set no centre.
    return pool_->calibrates(seq_) && n_text <= kCalibration ? std::min(n, kCalibration + 1 - n_text) : n;
  }
  /// The tokens behind the newest rows; none where they end the draft.
  std::vector<std::optional<int32_t>> pick(std::span<MtpProposer* const> heads) {
    std::vector<std::optional<int32_t>> tokens;
    const bool likeliest = std::ranges::none_of(heads, [](const MtpProposer* head) { return head->draft_->sampler; });
    if (p_min_ == 0 && likeliest && model_->target.on_device()) {  // logits stay there
      const std::vector<SamplerOptions> greedy(heads.size(), SamplerOptions{.temperature = 0});
      const std::vector<std::vector<int32_t>> none(heads.size());
      for (const int32_t token : model_->backend->sample(*shared_->outputs, greedy, none))
        tokens.push_back((token & kNotFiniteToken) == 0 ? std::optional(token) : std::nullopt);
      return tokens;
    }
    const View2<const float> logits = shared_->outputs->logits();
    for (size_t i = 0; i < heads.size(); ++i)
      tokens.push_back(next_draft_token(*heads[i]->draft_, logits.row(int64_t(i)), p_min_));
    return tokens;
  }
  /// Whether the target has run what the head must read of the text, whose last token it has not run.
  bool knows(std::span<const int32_t> text) const {
    const int n_run = int(text.size()) - first_ - 1;
    return ssize(text_) >= n_run && n_run > pool_->length(seq_);
  }
  /// The text is known up to its last token, and may be read up to there.
  void begin(std::span<const int32_t> text) {
    forget(int(text.size()) - first_ - 1);
    text_.push_back(text.back());
  }
  /// Takes draft tokens back.
  void end() {
    const int n_text = int(draft_->text.size()) - first_;
    pool_->trim(seq_, n_text - 1, TrimMode::exact).or_throw();
    text_.resize(size_t(n_text) - 1);
    hidden_.clear();
  }
  /// Norms hidden states [n, d_model] where the head takes them normed.
  void norm_rows(const std::vector<float>& weight, std::span<float> states) {
    if (!model_->head.after_norm) return;
    const View2<float> rows(states.data(), ssize(states) / plan_.d_model, plan_.d_model);
    rms_norm(model_->target.context(), rows, weight.data(), plan_.norm_eps, rows);
  }
  /// Runs what each head has not read of its text: positions whose next token is known.
  void run(std::span<MtpProposer* const> heads, LogitRows rows) {
    std::vector<SeqTokens> seqs;
    std::vector<int32_t> tokens;
    std::vector<float> input;  // hidden states
    for (MtpProposer* head : heads) {
      const std::span<const int32_t> unread = head->unread();
      head->n_run_ = int(unread.size());
      const auto n_values = ptrdiff_t(unread.size()) * head->plan_.d_model;
      tokens.insert(tokens.end(), unread.begin(), unread.end());
      input.insert(input.end(), head->hidden_.begin(), head->hidden_.begin() + n_values);
      head->hidden_.erase(head->hidden_.begin(), head->hidden_.begin() + n_values);
      pool_->reserve(head->seq_, head->n_run_).or_throw();
      seqs.push_back({head->seq_, head->n_run_});
    }
    model_->backend->run({.tokens = tokens,
                          .seqs = seqs,
                          .logits = rows,
                          .hidden = rows != LogitRows::none,
                          .joined = {input.data(), ssize(tokens), plan_.d_model}},
                         *pool_, *shared_->outputs);
  }
  void run_alone(LogitRows rows) {
    MtpProposer* const self = this;
    run({&self, 1}, rows);
  }
  /// Keeps what is known of n positions from first_ on; nothing, where the head has read more.
  void forget(int n) {
    if (n < pool_->length(seq_)) {
      pool_->reset(seq_);
      n = 0;
    }
    text_.resize(size_t(n));
    hidden_.resize(size_t(n - pool_->length(seq_)) * size_t(plan_.d_model));
  }

  std::shared_ptr<SharedMtp> shared_;
  MtpModel* model_;
  const ModelPlan& plan_;
  SequencePool* pool_;
  double p_min_;
  SeqId seq_{};
  int first_ = 0;              // position of the target where the head begins
  std::vector<int32_t> text_;  // tokens that the target ran from there on
  std::vector<float> hidden_;  // of the positions of text_ that the head did not read
  int n_run_ = 0;              // tokens of its newest forward pass
  Draft* draft_ = nullptr;     // that is being written
};

}  // namespace

ProposerMaker mtp_proposers(const Model& target, const std::string& path, const SessionOptions& cache,
                            const MtpDrafts& drafts, int n_texts) {
  Engine& engine = target.engine();
  const auto model = std::make_shared<MtpModel>(
      engine, load_mtp_head(engine.context(), engine.config(), engine.weights(), path).or_throw(), drafts.vocab);
  const std::vector<KvLayerConfig> layers = layers_of_head(cache, model->plan);
  ProposerMaker make = [shared = std::make_shared<std::shared_ptr<SharedMtp>>(), model, layers, n_ctx = cache.n_ctx,
                        p_min = drafts.p_min, n_texts] {
    if (!*shared) *shared = std::make_shared<SharedMtp>(model, layers, n_ctx, n_texts);
    return std::make_unique<MtpProposer>(*shared, p_min);
  };
  make.bytes = model->backend->open_memory(layers, {}, 1, n_texts)
                   ->bytes_with_pages(n_texts * std::max(1, pages_for(layers, cache.n_ctx))) /
               n_texts;
  return make;
}

}  // namespace ridge
