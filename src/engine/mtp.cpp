// The proposer that runs a model's MTP head: a model of one layer on a backend of its own, where the model runs. Hidden
// states of the model come and go through the host.
#include <algorithm>

#include "engine/engine.h"
#include "engine/speculate.h"
#include "model/mtp.h"
#include "op/sample/rule.h"

namespace ridge {
namespace {

ModelPlan plan_of_head(const ModelPlan& target) {
  ModelPlan plan = target;
  plan.layers.assign(1, target.layers.back());
  return plan;
}

/// Nearest rounding: the weighted one would need a metric of the head.
std::vector<KvLayerConfig> layers_of_head(const SessionOptions& options, const ModelPlan& plan) {
  std::vector<KvLayerConfig> layers = layer_configs(options, plan);
  for (KvLayerConfig& layer : layers) layer.k.policy.rounding = layer.v.policy.rounding = KvRounding::nearest;
  return layers;
}

/// What the texts of a model share: the head, and the backend that runs it where the model runs.
struct MtpModel {
  MtpModel(Engine& of, MtpHead loaded) : target(of), head(std::move(loaded)), plan(plan_of_head(of.plan())) {
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

class MtpProposer final : public Proposer {
 public:
  MtpProposer(std::shared_ptr<MtpModel> model, const SessionOptions& options, double p_min)
      : model_(std::move(model)), plan_(model_->plan), n_ctx_(options.n_ctx), p_min_(p_min) {
    const std::vector<KvLayerConfig> layers = layers_of_head(options, plan_);
    pool_ = std::make_unique<SequencePool>(
        model_->backend->open_memory(layers, {}, std::max(1, pages_for(layers, n_ctx_)), 1), [layers](int n_pages) {
          return std::make_unique<HostKvMemory>(layers, std::span<const KvMetricView>(), nullptr, n_pages, 1);
        });
    pool_->set_n_ctx(n_ctx_);
    seq_ = pool_->open().or_throw();
    outputs_ = model_->backend->make_outputs();
  }

  bool wants_hidden() const override { return true; }
  int64_t bytes() const override { return pool_->memory().allocated_bytes(); }

  void fill(std::span<const int32_t> text, uint64_t seed) override {
    text_.assign(text.begin(), text.end());
    first_ = 0;
    const int n_read = int(text_.size()) - 1;
    pool_->fill(seq_, n_read, seed).or_throw();
    hidden_.assign(size_t(plan_.d_model), 1.0f);
  }

  void observe(std::span<const int32_t> tokens, int first, View2<const float> hidden) override {
    // What the head has read does not go back, and a gap cannot be read: it begins anew there. RoPE knows distances
    // only.
    if (first == 0 || first - first_ < pool_->length(seq_) || first - first_ > ssize(text_)) {
      forget(0);
      first_ = first;
    }
    forget(first - first_);
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    hidden_.insert(hidden_.end(), hidden.data, hidden.data + hidden.rows * hidden.cols);
    norm_rows(model_->target.weights().output_norm, std::span(hidden_).last(size_t(hidden.rows * hidden.cols)));
    // Prompts are read as they come; the rows of short steps may still turn out to be of wrong proposals.
    if (tokens.size() > size_t(kMaxSpecDepth) + 1) read(LogitRows::none);
  }

  void lose_track() override { forget(0); }

  std::vector<int32_t> propose(std::span<const int32_t> text, int n) override {
    return guess(text, n, [&](auto) { return likeliest(); });
  }
  std::optional<DeviceDraft> on_device(std::span<const int32_t> text) override {
    // Several devices have no head that all of them run. Models whose heads read normed states keep states themselves,
    // and go back by checkpoints.
    if (p_min_ > 0 || model_->target.devices().size() != 1 || model_->head.after_norm || !knows(text)) return {};
    const int n_text = int(text.size()) - first_;
    if (pool_->calibrates(seq_) && n_text <= kCalibration) return {};  // proposals set no centre
    read_up_to(text);
    text_.pop_back();
    return DeviceDraft{*model_->backend, *pool_, seq_, *outputs_, first_};
  }
  void leave_device(std::span<const int32_t> text) override {
    const auto read = text.subspan(size_t(first_), size_t(pool_->length(seq_)));
    text_.assign(read.begin(), read.end());
    hidden_.clear();
  }
  std::vector<int32_t> draw(std::span<const int32_t> text, int n, const SamplerOptions& options, Rng& rng,
                            std::vector<Distribution>& probabilities) override {
    probabilities.clear();
    const PickToken pick = drawn_pick(text, options, p_min_, rng, probabilities);
    return guess(text, n,
                 [&](std::span<const int32_t> proposals) { return pick(outputs_->logits().row(0), proposals); });
  }

 private:
  /// `pick` takes a token of the head's last step.
  std::vector<int32_t> guess(std::span<const int32_t> text, int n,
                             const std::function<std::optional<int32_t>(std::span<const int32_t>)>& pick) {
    const int n_text = int(text.size()) - first_;
    n = std::min(n, n_ctx_ - n_text + 2);
    if (pool_->calibrates(seq_) && n_text <= kCalibration)
      n = std::min(n, kCalibration + 1 - n_text);  // proposals set no centre
    std::vector<int32_t> proposals;
    if (n <= 0 || !knows(text)) return proposals;
    read_up_to(text);
    while (ssize(proposals) < n) {
      if (!proposals.empty()) {  // the head's own hidden state stands for the target's
        const View2<const float> last = outputs_->hidden();
        const std::span<const float> row = last.row(last.rows - 1);
        input_.assign(row.begin(), row.end());
        norm_rows(model_->head.weights.output_norm, input_);
        run({&proposals.back(), 1}, LogitRows::last);
      }
      const std::optional<int32_t> token = pick(proposals);
      if (!token) break;
      proposals.push_back(*token);
    }
    pool_->trim(seq_, n_text - 1, TrimMode::exact).or_throw();
    text_.pop_back();
    return proposals;
  }
  /// Whether the target has run what the head must read of the text, whose last token it has not run.
  bool knows(std::span<const int32_t> text) const {
    const int n_run = int(text.size()) - first_ - 1;
    return ssize(text_) >= n_run && n_run > pool_->length(seq_);
  }
  /// The head's last step is then that of the newest position whose next token is known.
  void read_up_to(std::span<const int32_t> text) {
    forget(int(text.size()) - first_ - 1);
    text_.push_back(text.back());
    read(LogitRows::last);
  }
  /// What the head takes of hidden states [n, d_model].
  void norm_rows(const std::vector<float>& weight, std::span<float> states) {
    if (!model_->head.after_norm) return;
    const View2<float> rows(states.data(), ssize(states) / plan_.d_model, plan_.d_model);
    rms_norm(model_->target.context(), rows, weight.data(), plan_.norm_eps, rows);
  }
  void run(std::span<const int32_t> tokens, LogitRows rows) {
    const SeqTokens of_seq{seq_, int(tokens.size())};
    pool_->reserve(seq_, of_seq.n_tokens).or_throw();
    model_->backend->run({.tokens = tokens,
                          .seqs = {&of_seq, 1},
                          .logits = rows,
                          .hidden = rows != LogitRows::none,
                          .joined = {input_.data(), of_seq.n_tokens, plan_.d_model}},
                         *pool_, *outputs_);
  }
  /// Of the last step; none where it is less probable than p_min.
  std::optional<int32_t> likeliest() {
    if (p_min_ == 0 && model_->target.on_device()) {  // logits stay there
      const SamplerOptions greedy{.temperature = 0};
      const std::vector<int32_t> none;
      const int32_t token = model_->backend->draw(*outputs_, {&greedy, 1}, {&none, 1})[0];
      return (token & kNotFiniteToken) == 0 ? std::optional(token) : std::nullopt;
    }
    const std::span<const float> logits = outputs_->logits().row(0);
    if (p_min_ > 0 && best_probability(logits) < p_min_) return {};
    return int32_t(std::ranges::max_element(logits) - logits.begin());
  }
  /// Reads the positions whose next token is known.
  void read(LogitRows rows) {
    const int done = pool_->length(seq_), n = int(text_.size()) - 1 - done;
    if (n <= 0) return;
    const auto n_values = ptrdiff_t(n) * plan_.d_model;
    input_.assign(hidden_.begin(), hidden_.begin() + n_values);
    hidden_.erase(hidden_.begin(), hidden_.begin() + n_values);
    run(std::span<const int32_t>(text_).subspan(size_t(done) + 1), rows);
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

  std::shared_ptr<MtpModel> model_;
  const ModelPlan& plan_;
  int n_ctx_;
  double p_min_;
  std::unique_ptr<SequencePool> pool_;
  SeqId seq_{};
  std::unique_ptr<Outputs> outputs_;
  int first_ = 0;              // position of the target where the head begins
  std::vector<int32_t> text_;  // tokens that the target ran from there on
  std::vector<float> hidden_;  // of the positions of text_ that the head did not read
  std::vector<float> input_;   // hidden states of the step that runs
};

}  // namespace

ProposerMaker mtp_proposers(const Model& target, const std::string& path, const SessionOptions& options, double p_min) {
  Engine& engine = target.engine();
  const auto model = std::make_shared<MtpModel>(
      engine, load_mtp_head(engine.context(), engine.config(), engine.weights(), path).or_throw());
  ProposerMaker make = [model, options, p_min] { return std::make_unique<MtpProposer>(model, options, p_min); };
  const std::vector<KvLayerConfig> layers = layers_of_head(options, model->plan);
  make.bytes =
      model->backend->open_memory(layers, {}, 1, 1)->bytes_with_pages(std::max(1, pages_for(layers, options.n_ctx)));
  return make;
}

std::unique_ptr<Proposer> make_mtp_proposer(const Model& target, const std::string& path, const SessionOptions& options,
                                            double p_min) {
  return mtp_proposers(target, path, options, p_min)();
}

}  // namespace ridge
