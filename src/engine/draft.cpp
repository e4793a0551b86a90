// The proposer that is a second, smaller model.
#include <algorithm>

#include "engine/engine.h"
#include "engine/finite.h"
#include "engine/speculate.h"

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

class DraftProposer final : public Proposer {
 public:
  DraftProposer(const Model& target, const Model& draft, const SessionOptions& options, double p_min)
      : vocab_size_(target.info().vocab_size),
        p_min_(p_min),
        on_device_(draft.engine().on_device()),
        session_(draft, options) {}

  std::vector<int32_t> propose(std::span<const int32_t> text, int n) override {
    if (p_min_ == 0 && on_device_) return guess(text, n, nullptr);
    return guess(text, n, [&](std::span<const float> logits, std::span<const int32_t>) -> std::optional<int32_t> {
      if (p_min_ > 0 && best_probability(logits) < p_min_) return {};
      return int32_t(std::ranges::max_element(logits) - logits.begin());
    });
  }
  std::vector<int32_t> draw(std::span<const int32_t> text, int n, const SamplerOptions& options, Rng& rng,
                            std::vector<Distribution>& probabilities) override {
    probabilities.clear();
    return guess(text, n, drawn_pick(text, options, p_min_, rng, probabilities));
  }
  int64_t bytes() const override {
    const KvReport report = session_.kv_report();
    return report.k.allocated_bytes + report.v.allocated_bytes;
  }
  void fill(std::span<const int32_t> text, uint64_t seed) override {
    session_.fill(int(text.size()), seed);
    held_.assign(text.begin(), text.end());
  }

 private:
  std::vector<int32_t> guess(std::span<const int32_t> text, int n, const PickToken& pick) {
    const int n_text = int(text.size());
    n = std::min(n, session_.n_ctx() - n_text + 1);
    // Centres and scales of the draft's cache must not be set by proposals, which are taken back.
    if (n_text < kCalibration) n = std::min(n, kCalibration - n_text);
    std::vector<int32_t> proposals;
    if (n <= 0) return proposals;
    const auto known = std::ranges::mismatch(held_, text.first(text.size() - 1)).in1 - held_.begin();
    if (known < kCalibration && ssize(held_) >= kCalibration) forget(0);
    else forget(size_t(known));
    std::span<const float> logits = session_.prefill(text.subspan(held_.size()));
    held_.assign(text.begin(), text.end());
    if (!pick) {  // the likeliest tokens of a device, whose logits stay there
      try {
        session_.draw({.temperature = 0}, {}, n, [&](int32_t token) {
          if (token < vocab_size_) proposals.push_back(token);
          return token < vocab_size_;
        });
      } catch (const NotFiniteError&) {  // a text of the target needs no proposals; the session is empty now
        held_.clear();
        return {};
      }
      // All but the last one that was drawn are in the cache.
      held_.insert(held_.end(), proposals.begin(), proposals.begin() + (session_.n_past() - n_text));
      return proposals;
    }
    for (;;) {
      const std::optional<int32_t> token = pick(logits, proposals);
      if (!token || *token >= vocab_size_) break;
      proposals.push_back(*token);
      if (ssize(proposals) == n) break;
      logits = session_.decode(*token);
      held_.push_back(*token);
    }
    return proposals;
  }

  void forget(size_t n) {
    if (n == held_.size()) return;
    try {
      session_.truncate(int(n));
    } catch (const Error&) {  // sliding layers gave back what n tokens see
      session_.reset();
      n = 0;
    }
    held_.resize(n);
  }

  int vocab_size_;
  double p_min_;
  bool on_device_;
  Session session_;
  std::vector<int32_t> held_;  // tokens of the session
};

}  // namespace

PickToken drawn_pick(std::span<const int32_t> text, const SamplerOptions& options, double p_min, Rng& rng,
                     std::vector<Distribution>& probabilities) {
  return [=, &rng, &probabilities](std::span<const float> logits,
                                   std::span<const int32_t> proposals) -> std::optional<int32_t> {
    if (!std::ranges::all_of(logits, [](float x) { return x < INFINITY; })) return {};  // no distribution
    if (p_min > 0 && best_probability(logits) < p_min) return {};
    std::vector<int32_t> recent(text.begin(), text.end());
    recent.insert(recent.end(), proposals.begin(), proposals.end());
    probabilities.push_back(distribution_of(options, logits, recent));
    return draw_from(probabilities.back(), rng);
  };
}

ProposerMaker draft_proposers(const Model& target, const Model& draft, const SessionOptions& options, double p_min) {
  check_vocabularies(target.engine(), draft.engine());
  const auto keeps_state = [](const LayerPlan& layer) { return layer.mixer == MixerKind::delta; };
  if (std::ranges::any_of(draft.engine().plan().layers, keeps_state))
    throw Error(ErrorKind::usage, four_parts("a draft model must take its guesses back", draft.info().path,
                                             "its layers keep a state", "use another draft, or --spec-type lookup"));
  ProposerMaker make = [&target, &draft, options, p_min] {
    return std::make_unique<DraftProposer>(target, draft, options, p_min);
  };
  const auto layers = layer_configs(options, draft.engine().plan());
  const int n_ctx = options.n_ctx > 0 ? options.n_ctx : draft.info().n_ctx_train;
  const int n_ubatch = options.n_ubatch > 0 ? options.n_ubatch : draft.engine().default_ubatch();
  make.bytes = draft.engine()
                   .open_pool(layers, 1, 1)
                   ->memory()
                   .bytes_with_pages(pool_pages(layers, n_ctx, 1, std::min(n_ctx, n_ubatch)));
  return make;
}
std::unique_ptr<Proposer> make_draft_proposer(const Model& target, const Model& draft, const SessionOptions& options,
                                              double p_min) {
  return draft_proposers(target, draft, options, p_min)();
}

}  // namespace ridge
