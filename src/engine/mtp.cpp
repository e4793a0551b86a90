// The proposer that runs a model's MTP head: a model of one layer on a backend of its own, whose input is joined from
// embeddings and the target's hidden states in front of the layer.
#include <algorithm>

#include "engine/engine.h"
#include "engine/speculate.h"
#include "model/mtp.h"

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

class MtpProposer final : public Proposer {
 public:
  MtpProposer(Engine& target, std::shared_ptr<const MtpHead> head, const SessionOptions& options, double p_min)
      : context_(target.context()),
        head_(std::move(head)),
        target_norm_(target.weights().output_norm),
        plan_(plan_of_head(target.plan())),
        n_ctx_(options.n_ctx),
        p_min_(p_min) {
    backend_ = make_cpu_backend(context_, plan_, head_->weights);
    backend_->watch({}, [this](int, Block block, View2<float> x) {
      if (block == Block::mixer) join(x);
    });
    const std::vector<KvLayerConfig> layers = layers_of_head(options, plan_);
    pool_ = std::make_unique<SequencePool>(
        backend_->open_memory(layers, {}, std::max(1, pages_for(layers, n_ctx_)), 1), [layers](int n_pages) {
          return std::make_unique<HostKvMemory>(layers, std::span<const KvMetricView>(), nullptr, n_pages, 1);
        });
    pool_->set_n_ctx(n_ctx_);
    seq_ = pool_->open().or_throw();
    outputs_ = backend_->make_outputs();
  }

  bool wants_hidden() const override { return true; }

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
    norm_rows(target_norm_, std::span(hidden_).last(size_t(hidden.rows * hidden.cols)));
    // Prompts are read as they come; the rows of short steps may still turn out to be of wrong proposals.
    if (tokens.size() > size_t(kMaxSpecDepth) + 1) read(LogitRows::none);
  }

  std::vector<int32_t> propose(std::span<const int32_t> text, int n) override {
    const int n_text = int(text.size()) - first_;
    n = std::min(n, n_ctx_ - n_text + 2);
    if (n_text <= kCalibration) n = std::min(n, kCalibration + 1 - n_text);  // proposals set no centre
    std::vector<int32_t> proposals;
    if (n <= 0 || ssize(text_) < n_text - 1 || n_text - 1 <= pool_->length(seq_)) return proposals;
    forget(n_text - 1);
    text_.push_back(text.back());
    read(LogitRows::last);
    while (ssize(proposals) < n) {
      if (!proposals.empty()) {  // the head's own hidden state stands for the target's
        const View2<const float> last = outputs_->hidden();
        const std::span<const float> row = last.row(last.rows - 1);
        input_.assign(row.begin(), row.end());
        norm_rows(head_->weights.output_norm, input_);
        run({&proposals.back(), 1}, LogitRows::last);
      }
      const std::span<const float> logits = outputs_->logits().row(0);
      if (p_min_ > 0 && best_probability(logits) < p_min_) break;
      proposals.push_back(int32_t(std::ranges::max_element(logits) - logits.begin()));
    }
    pool_->trim(seq_, n_text - 1, TrimMode::exact).or_throw();
    text_.pop_back();
    return proposals;
  }

 private:
  /// What the head takes of hidden states [n, d_model].
  void norm_rows(const std::vector<float>& weight, std::span<float> states) {
    if (!head_->after_norm) return;
    const View2<float> rows(states.data(), ssize(states) / plan_.d_model, plan_.d_model);
    rms_norm(context_, rows, weight.data(), plan_.norm_eps, rows);
  }
  /// x: embeddings of the tokens; becomes what the layer reads.
  void join(View2<float> x) {
    const int64_t n = x.rows, d = x.cols;
    const View2<float> both(joined_.ensure<float>(2 * n * d), n, 2 * d), states(normed_.ensure<float>(n * d), n, d);
    rms_norm(context_, View2<const float>(input_.data(), n, d), head_->hidden_norm.data(), plan_.norm_eps, states);
    rms_norm(context_, x, head_->embedding_norm.data(), plan_.norm_eps, x);
    for (int64_t t = 0; t < n; ++t) {
      std::ranges::copy(x.row(t), both.row(t).begin());
      std::ranges::copy(states.row(t), both.row(t).begin() + d);
    }
    linear(context_, head_->join, both, x);
  }
  void run(std::span<const int32_t> tokens, LogitRows rows) {
    const SeqTokens of_seq{seq_, int(tokens.size())};
    pool_->reserve(seq_, of_seq.n_tokens).or_throw();
    backend_->run({.tokens = tokens, .seqs = {&of_seq, 1}, .logits = rows, .hidden = rows != LogitRows::none}, *pool_,
                  *outputs_);
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

  CpuContext& context_;
  std::shared_ptr<const MtpHead> head_;
  const std::vector<float>& target_norm_;
  ModelPlan plan_;
  int n_ctx_;
  double p_min_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<SequencePool> pool_;
  SeqId seq_{};
  std::unique_ptr<Outputs> outputs_;
  AlignedBuffer joined_, normed_;
  int first_ = 0;              // position of the target where the head begins
  std::vector<int32_t> text_;  // tokens that the target ran from there on
  std::vector<float> hidden_;  // of the positions of text_ that the head did not read
  std::vector<float> input_;   // hidden states of the step that runs
};

}  // namespace

ProposerMaker mtp_proposers(const Model& target, const std::string& path, const SessionOptions& options, double p_min) {
  Engine& engine = target.engine();
  const auto head = std::make_shared<const MtpHead>(
      load_mtp_head(engine.context(), engine.config(), engine.weights(), path).or_throw());
  return [&engine, head, options, p_min] { return std::make_unique<MtpProposer>(engine, head, options, p_min); };
}

std::unique_ptr<Proposer> make_mtp_proposer(const Model& target, const std::string& path, const SessionOptions& options,
                                            double p_min) {
  return mtp_proposers(target, path, options, p_min)();
}

}  // namespace ridge
