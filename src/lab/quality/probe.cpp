#include "lab/quality/probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/metrics.h"
#include "engine/engine.h"
#include "lab/quality/acceptance.h"
#include "lab/quality/greedy.h"
#include "lab/quality/needle.h"
#include "lab/quality/quality_report.h"

namespace ridge::lab {
namespace {

constexpr size_t kLikeliest = 10;

/// Beginnings that leave little doubt about what comes next. A base model only has to agree with itself.
constexpr std::string_view kJson[] = {
    "{\n  \"name\": \"Alice\",\n  \"age\": 30,\n  \"city\": \"London\"\n},\n{\n  \"name\": \"Bob\",\n  \"age\": 25,\n  "
    "\"city\": \"Paris\"\n},\n{\n  \"name\": \"Carol\",\n  \"age\":",
    "[{\"id\": 1, \"done\": true}, {\"id\": 2, \"done\": false}, {\"id\": 3, \"done\": true}, {\"id\": 4, \"done\":",
    "{\"type\": \"object\", \"properties\": {\"width\": {\"type\": \"number\"}, \"height\": {\"type\": \"number\"}, "
    "\"depth\": {\"type\":"};
constexpr std::string_view kCode[] = {
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return a - b\n\ndef multiply(a, b):\n    return",
    "for (int i = 0; i < n; i++) {\n  sum += values[i];\n}\nfor (int j = 0; j < n; j++) {\n  product *=",
    "#include <stdio.h>\n\nint main(void) {\n  printf(\"one\\n\");\n  printf(\"two\\n\");\n  printf("};

int32_t likeliest(std::span<const float> logits) { return int32_t(std::ranges::max_element(logits) - logits.begin()); }

void append(const std::vector<bool>& more, std::vector<bool>& to) { to.insert(to.end(), more.begin(), more.end()); }
Estimate mean_of(const std::vector<bool>& values) {
  MeanStat stat;
  for (const bool value : values) stat.add(value);
  return stat.mean();
}

/// The k likeliest tokens; of equal logits the lower ids.
std::vector<int32_t> top_tokens(std::span<const float> logits, size_t k) {
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i);
  k = std::min(k, ids.size());
  std::ranges::partial_sort(ids, ids.begin() + ptrdiff_t(k), [&](int32_t a, int32_t b) {
    const float x = logits[size_t(a)], y = logits[size_t(b)];
    return x != y ? x > y : a < b;
  });
  ids.resize(k);
  return ids;
}

/// Prompts of one depth, and what the base says behind each of their last tokens.
struct DepthProbe {
  const ProbeBand* band = nullptr;
  int depth = 0;
  std::string why_not;  ///< not applicable
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<float>> base;  // of a prompt, [position, vocab]
};

std::string probe_name(const DepthProbe& of) {
  return fmt::format("next token, {}, {} tokens", of.band->name, of.depth);
}

/// Needles at one length, and which answer tokens the base finds.
struct NeedleProbes {
  int n_ctx = 0;
  std::string why_not;
  std::vector<NeedleProbe> probes;
  std::vector<bool> base;
};

/// A text to go on with, and how the base goes on.
struct Canary {
  std::vector<int32_t> prompt, base;
};
struct CanaryGroup {
  std::string name, why_not;
  std::vector<Canary> canaries;
};

/// Texts along which draft tokens are proposed, and how many hold with the cache that others are compared with.
struct DraftTexts {
  std::string why_not;
  std::vector<std::vector<int32_t>> prompts, texts;
  std::vector<std::vector<AcceptanceStep>> base;
};

class Probes {
 public:
  Probes(const Model& model, const Corpus& corpus, const ProbeOptions& options, const ProbeHooks& hooks)
      : model_(model),
        corpus_(corpus),
        options_(options),
        hooks_(hooks),
        bos_(model.info().add_bos ? model.bos() : std::nullopt) {}

  void run() {
    plan();
    if (!read_base()) return;
    for (const KvChoice& kv : options_.candidates) {
      ProbeResult result{.options = options_, .kv = kv, .cache = {}, .lines = {}};
      if (!probe(kv, result)) return;
      if (hooks_.on_result) hooks_.on_result(result);
    }
  }

 private:
  int trained() const { return model_.info().n_ctx_train; }
  bool advance() {
    if (hooks_.on_progress) hooks_.on_progress(++done_, total_);
    return !(hooks_.stop && hooks_.stop());
  }
  /// Why nothing of this length can be probed; empty where it can.
  std::string why_not(int n) const {
    if (n > trained()) return fmt::format("the model was trained for {} tokens", trained());
    if (n > ssize(corpus_.tokens)) return fmt::format("the text has {} tokens", corpus_.tokens.size());
    return {};
  }

  void plan() {
    for (const ProbeBand& band : options_.limits.bands)
      for (const int depth : band.depths) {
        DepthProbe& of = depths_.emplace_back();
        of.band = &band;
        of.depth = depth;
        of.why_not = why_not(depth);
        if (of.why_not.empty()) of.prompts = pick_prompts(corpus_.tokens, options_.n_prompts, depth, bos_).or_throw();
      }
    std::set<int> contexts;
    for (const int n : options_.limits.needle_contexts) contexts.insert(n > 0 ? n : trained());
    for (const int n_ctx : contexts) {
      NeedleProbes& of = needles_.emplace_back();
      of.n_ctx = n_ctx;
      of.why_not = why_not(n_ctx);
      if (!of.why_not.empty()) continue;
      NeedleOptions needle{.n_ctx = n_ctx, .n_trials = options_.needle_trials, .seed = options_.seed};
      for (int i = 0; i < options_.needle_depths; ++i) {
        const double depth = options_.needle_depths == 1 ? 0.5 : 0.1 + 0.8 * i / (options_.needle_depths - 1);
        const auto probes = make_probes(model_, corpus_, needle, depth);
        of.probes.insert(of.probes.end(), probes.begin(), probes.end());
      }
    }
    const auto add_canaries = [&](const char* name, std::span<const std::string_view> texts) {
      CanaryGroup& group = canaries_.emplace_back();
      group.name = name;
      if (!model_.info().has_tokenizer) group.why_not = "the model has no tokenizer";
      else
        for (const std::string_view text : texts) group.canaries.push_back({model_.tokenize(text), {}});
      for (const Canary& canary : group.canaries)
        if (const int n = int(canary.prompt.size()) + options_.n_generate; group.why_not.empty())
          group.why_not = too_long(n);
    };
    add_canaries("JSON canary", kJson);
    add_canaries("code canary", kCode);
    plan_draft();
    const int n_prompt = std::min({512, trained() / 2, int(corpus_.tokens.size())});
    equality_prompt_ = pick_prompts(corpus_.tokens, 1, n_prompt, bos_).or_throw().front();
    int64_t of_a_cache = 2;
    for (const DepthProbe& of : depths_) of_a_cache += ssize(of.prompts);
    for (const NeedleProbes& of : needles_) of_a_cache += ssize(of.probes);
    for (const CanaryGroup& group : canaries_) of_a_cache += group.why_not.empty() ? ssize(group.canaries) : 0;
    of_a_cache += ssize(draft_.prompts);
    total_ = of_a_cache * (1 + ssize(options_.candidates)) - 2;
  }
  void plan_draft() {
    const ProbeDraft& asked = options_.draft;
    draft_.why_not = asked.why_not;
    if (draft_.why_not.empty()) draft_.why_not = too_long(draft_tokens() + asked.depth + 1);
    if (draft_.why_not.empty()) draft_.why_not = why_not(asked.n_prompt);
    if (!draft_.why_not.empty()) return;
    draft_.prompts = pick_prompts(corpus_.tokens, asked.n_texts, asked.n_prompt, bos_).or_throw();
    proposers_ = asked.open(model_, draft_tokens() + asked.depth + 1);
  }
  int draft_tokens() const { return options_.draft.n_prompt + options_.draft.n_generate; }
  std::string too_long(int n) const {
    return n > trained() ? fmt::format("{} tokens, the model was trained for {}", n, trained()) : std::string();
  }

  SessionTimeline open(const KvChoice& kv, int n_ctx) const {
    return SessionTimeline(model_, session_options(kv, n_ctx, kTimelineUbatch));
  }
  /// take(position, logits) behind each of the last tokens of a prompt, fed one by one.
  template <class Take>
  void last_rows(Timeline& timeline, std::span<const int32_t> prompt, const Take& take) const {
    const size_t n = std::min(size_t(options_.n_positions), prompt.size() - 1);
    timeline.reset();
    timeline.prefill(prompt.first(prompt.size() - n));
    for (size_t i = 0; i < n; ++i) take(i, timeline.decode(prompt[prompt.size() - n + i]));
  }

  bool read_base() {
    for (DepthProbe& of : depths_) {
      if (of.prompts.empty()) continue;
      SessionTimeline timeline = open(options_.base, of.depth);
      for (const auto& prompt : of.prompts) {
        std::vector<float>& rows = of.base.emplace_back();
        last_rows(timeline, prompt, [&](size_t, std::span<const float> logits) {
          rows.insert(rows.end(), logits.begin(), logits.end());
        });
        if (!advance()) return false;
      }
    }
    for (NeedleProbes& of : needles_) {
      if (of.probes.empty()) continue;
      SessionTimeline timeline = open(options_.base, of.n_ctx);
      for (const NeedleProbe& probe : of.probes) {
        append(found_tokens(timeline, probe), of.base);
        if (!advance()) return false;
      }
      // Without the needle: what guessing finds. A model that finds no more cannot lose it.
      std::vector<bool> absent;
      const NeedleOptions needle{.n_ctx = of.n_ctx, .n_trials = options_.needle_trials, .seed = options_.seed};
      for (const NeedleProbe& probe : make_probes(model_, corpus_, needle, std::nullopt))
        append(found_tokens(timeline, probe), absent);
      const Estimate found = mean_of(of.base), guessed = mean_of(absent);
      if (found.value - guessed.value <= 2 * std::hypot(found.error, guessed.error))
        of.why_not = fmt::format("with {} the model finds {:.0f} % of a needle's tokens, {:.0f} % without a needle",
                                 kv_text(options_.base), 100 * found.value, 100 * guessed.value);
    }
    for (CanaryGroup& group : canaries_)
      for (Canary& canary : group.canaries) {
        if (!group.why_not.empty()) break;
        SessionTimeline timeline = open(options_.base, int(canary.prompt.size()) + options_.n_generate);
        canary.base = greedy_tokens(timeline, canary.prompt, options_.n_generate);
        if (!advance()) return false;
      }
    return read_draft_base();
  }
  bool read_draft_base() {
    if (draft_.prompts.empty()) return true;
    const ProbeDraft& asked = options_.draft;
    SessionTimeline timeline = open(asked.base, draft_tokens());
    AcceptanceRun run(model_, asked.base, draft_tokens(), asked.depth);
    for (const std::vector<int32_t>& prompt : draft_.prompts) {
      draft_.texts.push_back(greedy_tokens(timeline, prompt, asked.n_generate));
      draft_.base.push_back(run.along(*proposers_(), prompt, draft_.texts.back()));
      if (!advance()) return false;
    }
    return true;
  }

  bool probe(const KvChoice& kv, ProbeResult& result) {
    result.cache = open(kv, std::min(trained(), 4096)).session.kv_report();
    for (const DepthProbe& of : depths_)
      if (!next_tokens(kv, of, result)) return false;
    for (const NeedleProbes& of : needles_)
      if (!needle(kv, of, result)) return false;
    for (const CanaryGroup& group : canaries_)
      if (!canary(kv, group, result)) return false;
    if (!draft(kv, result)) return false;
    result.lines.push_back(deterministic(kv));
    if (!advance()) return false;
    result.lines.push_back(kept_prefix(kv));
    return advance();
  }

  bool next_tokens(const KvChoice& kv, const DepthProbe& of, ProbeResult& result) {
    if (!of.why_not.empty()) {
      result.lines.push_back({probe_name(of), ProbeVerdict::not_applicable, of.why_not, Row::object()});
      return true;
    }
    SessionTimeline timeline = open(kv, of.depth);
    AgreementStat stat;
    for (size_t p = 0; p < of.prompts.size(); ++p) {
      last_rows(timeline, of.prompts[p], [&](size_t i, std::span<const float> logits) {
        stat.add(agreement(std::span(of.base[p]).subspan(i * logits.size(), logits.size()), logits));
      });
      if (!advance()) return false;
    }
    result.lines.push_back(judge_agreement(stat, *of.band, probe_name(of)));
    return true;
  }

  bool needle(const KvChoice& kv, const NeedleProbes& of, ProbeResult& result) {
    ProbeLine line{.name = fmt::format("needles, {} tokens", of.n_ctx), .says = {}};
    if (!of.why_not.empty()) {
      line.verdict = ProbeVerdict::not_applicable;
      line.says = of.why_not;
      done_ += ssize(of.probes);
    } else {
      SessionTimeline timeline = open(kv, of.n_ctx);
      std::vector<bool> found;
      for (const NeedleProbe& probe : of.probes) {
        append(found_tokens(timeline, probe), found);
        if (!advance()) return false;
      }
      MeanStat loss;  // tokens are the same ones: their differences are what counts
      for (size_t i = 0; i < found.size(); ++i) loss.add(double(of.base[i]) - double(found[i]));
      const Estimate here = mean_of(found), base = mean_of(of.base), lost = loss.mean();
      line.verdict = judge_share({1 - lost.value, lost.error}, 1 - options_.limits.needle_loss);
      line.says =
          fmt::format("{:.0f} % found, {} {:.0f} %", 100 * here.value, kv_text(options_.base), 100 * base.value);
      line.numbers = {{"found", to_row(here)}, {"found_base", to_row(base)}, {"lost", to_row(lost)}};
    }
    result.lines.push_back(std::move(line));
    return true;
  }

  bool canary(const KvChoice& kv, const CanaryGroup& group, ProbeResult& result) {
    ProbeLine line{.name = group.name, .says = {}};
    if (!group.why_not.empty()) {
      line.verdict = ProbeVerdict::not_applicable;
      line.says = group.why_not;
    } else {
      MeanStat same;
      int identical = 0;
      for (const Canary& of : group.canaries) {
        SessionTimeline timeline = open(kv, int(of.prompt.size() + of.base.size()));
        timeline.prefill(std::span(of.prompt).first(of.prompt.size() - 1));
        bool all = true;
        int32_t last = of.prompt.back();
        for (const int32_t token : of.base) {  // along the base's own text
          const bool agrees = likeliest(timeline.decode(last)) == token;
          same.add(agrees);
          all &= agrees;
          last = token;
        }
        identical += all;
        if (!advance()) return false;
      }
      line.verdict = judge_share(same.mean(), options_.limits.canary);
      line.says = fmt::format("{:.1f} % of {} tokens, {} of {} texts", 100 * same.mean().value, same.count(), identical,
                              group.canaries.size());
      line.numbers = {{"same", to_row(same.mean())}, {"identical_texts", identical}, {"texts", group.canaries.size()}};
    }
    result.lines.push_back(std::move(line));
    return true;
  }

  bool draft(const KvChoice& kv, ProbeResult& result) {
    const ProbeDraft& asked = options_.draft;
    ProbeLine line{.name = "draft acceptance", .says = {}};
    if (!draft_.why_not.empty()) {
      line.verdict = ProbeVerdict::not_applicable;
      line.says = draft_.why_not;
    } else {
      line.name += fmt::format(", {}, {} a step", asked.type, asked.depth);
      AcceptanceRun run(model_, kv, draft_tokens(), asked.depth);
      MeanStat here, base, loss;  // of steps, which are the same ones
      int64_t n_proposed = 0;
      for (size_t i = 0; i < draft_.texts.size(); ++i) {
        const auto steps = run.along(*proposers_(), draft_.prompts[i], draft_.texts[i]);
        const std::vector<AcceptanceStep>& of_base = draft_.base[i];
        RIDGE_CHECK(steps.size() == of_base.size(), "{} steps, {} with the base", steps.size(), of_base.size());
        for (size_t j = 0; j < steps.size(); ++j) {
          const double holds = double(steps[j].n_accepted) / steps[j].n_proposed,
                       holds_base = double(of_base[j].n_accepted) / of_base[j].n_proposed;
          n_proposed += steps[j].n_proposed;
          here.add(holds), base.add(holds_base), loss.add(holds_base - holds);
        }
        if (!advance()) return false;
      }
      judge_draft(line, here.mean(), base.mean(), loss);
      line.numbers["proposed"] = n_proposed;
    }
    result.lines.push_back(std::move(line));
    return true;
  }
  void judge_draft(ProbeLine& line, const Estimate& here, const Estimate& base, const MeanStat& loss) const {
    constexpr int kFewestSteps = 30;  // errors of fewer say little
    const Estimate lost = loss.mean();
    const std::string of_base = kv_text(options_.draft.base);
    line.numbers = {{"accepted", to_row(here)},
                    {"accepted_base", to_row(base)},
                    {"lost", to_row(lost)},
                    {"steps", loss.count()},
                    {"base", of_base},
                    {"depth", options_.draft.depth},
                    {"limit", options_.limits.draft_loss}};
    if (loss.count() == 0) {
      line.verdict = ProbeVerdict::not_applicable;
      line.says = "nothing was proposed";
      return;
    }
    if (loss.count() >= kFewestSteps)
      line.verdict = judge_share({1 - lost.value, lost.error}, 1 - options_.limits.draft_loss);
    line.says = fmt::format("{:.1f} % hold, {} {:.1f} %", 100 * here.value, of_base, 100 * base.value);
  }

  struct Greedy {
    std::vector<int32_t> tokens;
    std::vector<float> logits;  // of all steps
  };
  /// Greedy tokens behind a session's last logits.
  Greedy go_on(Session& session, std::span<const float> logits) const {
    Greedy text;
    for (int i = 0; i < options_.n_generate; ++i) {
      text.logits.insert(text.logits.end(), logits.begin(), logits.end());
      text.tokens.push_back(likeliest(logits));
      if (i + 1 < options_.n_generate) logits = session.decode(text.tokens.back());
    }
    return text;
  }
  /// Equal tokens; on the CPU equal bits (decision 0007).
  ProbeLine equality(std::string name, const Greedy& a, const Greedy& b) const {
    const bool bits = std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)) == 0;
    const bool same = a.tokens == b.tokens && (bits || model_.engine().on_device());
    const auto differs = std::ranges::mismatch(a.tokens, b.tokens).in1 - a.tokens.begin();
    return {std::move(name),
            same ? ProbeVerdict::pass : ProbeVerdict::fail,
            a.tokens != b.tokens ? fmt::format("other text from token {}", differs)
            : bits               ? fmt::format("{} tokens, equal bits", a.tokens.size())
                                 : fmt::format("{} tokens, other bits", a.tokens.size()),
            {{"same_tokens", a.tokens == b.tokens}, {"same_bits", bits}, {"tokens", a.tokens.size()}}};
  }
  SessionOptions equality_options(const KvChoice& kv) const {
    return session_options(kv, int(equality_prompt_.size()) + options_.n_generate, kTimelineUbatch);
  }
  Greedy whole(const KvChoice& kv) const {
    Session session(model_, equality_options(kv));
    const std::span<const float> logits = session.prefill(equality_prompt_);
    return go_on(session, logits);
  }
  ProbeLine deterministic(const KvChoice& kv) const { return equality("greedy text twice", whole(kv), whole(kv)); }
  /// The first half in a kept sequence, of which a copy goes on: what a server does with a prefix.
  ProbeLine kept_prefix(const KvChoice& kv) const {
    const std::span<const int32_t> prompt = equality_prompt_;
    Session kept(model_, equality_options(kv)), copy(model_, equality_options(kv));
    kept.prefill(prompt.first(prompt.size() / 2));
    copy.copy_from(kept);
    const std::span<const float> logits = copy.prefill(prompt.subspan(prompt.size() / 2));
    return equality("kept prefix or none", go_on(copy, logits), whole(kv));
  }

  const Model& model_;
  const Corpus& corpus_;
  const ProbeOptions& options_;
  const ProbeHooks& hooks_;
  std::optional<int32_t> bos_;
  std::vector<DepthProbe> depths_;
  std::vector<NeedleProbes> needles_;
  std::vector<CanaryGroup> canaries_;
  DraftTexts draft_;
  ProposerMaker proposers_;
  std::vector<int32_t> equality_prompt_;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace

std::string_view probe_verdict_name(ProbeVerdict verdict) {
  constexpr std::string_view kNames[] = {"NO VERDICT", "PASS", "FAIL", "NOT APPLICABLE"};
  return kNames[size_t(verdict)];
}

Agreement agreement(std::span<const float> base, std::span<const float> candidate) {
  RIDGE_CHECK(base.size() == candidate.size() && !base.empty(), "{} and {} logits", base.size(), candidate.size());
  const std::vector<int32_t> of_base = top_tokens(base, kLikeliest), of_candidate = top_tokens(candidate, kLikeliest);
  const double sum_base = log_sum_exp(base), sum_candidate = log_sum_exp(candidate);
  if (!std::isfinite(sum_base) || !std::isfinite(sum_candidate))
    throw Error(ErrorKind::bad_file, "logits are not finite (no statistics from such a model)");
  Agreement a{.same_top = of_base[0] == of_candidate[0]};
  size_t shared = 0;
  for (const int32_t id : of_base) {
    shared += std::ranges::find(of_candidate, id) != of_candidate.end();
    a.mae += std::abs((double(base[size_t(id)]) - sum_base) - (double(candidate[size_t(id)]) - sum_candidate));
  }
  a.jaccard = double(shared) / double(of_base.size() + of_candidate.size() - shared);
  a.mae /= double(of_base.size());
  for (size_t i = 0; i < base.size(); ++i) {
    const double p = std::exp(double(base[i]) - sum_base), q = std::exp(double(candidate[i]) - sum_candidate),
                 mean = (p + q) / 2;
    if (p > 0) a.jsd += p / 2 * std::log(p / mean);
    if (q > 0) a.jsd += q / 2 * std::log(q / mean);
  }
  a.jsd = std::max(a.jsd, 0.0);
  return a;
}

void AgreementStat::add(const Agreement& a) {
  top1.add(a.same_top);
  jaccard.add(a.jaccard);
  mae.add(a.mae);
  jsd.add(a.jsd);
}

ProbeVerdict judge_share(const Estimate& share, double limit) {
  if (share.value - 2 * share.error >= limit) return ProbeVerdict::pass;
  return share.value + 2 * share.error < limit ? ProbeVerdict::fail : ProbeVerdict::none;
}

ProbeLine judge_agreement(const AgreementStat& stat, const ProbeBand& band, std::string name) {
  const Estimate top1 = stat.top1.mean(), jaccard = stat.jaccard.mean(), mae = stat.mae.mean(), jsd = stat.jsd.mean();
  const auto at_most = [](const Estimate& e, double limit) { return judge_share({-e.value, e.error}, -limit); };
  const ProbeVerdict verdicts[] = {judge_share(top1, band.top1), judge_share(jaccard, band.jaccard),
                                   at_most(mae, band.mae), at_most(jsd, band.jsd)};
  const auto any = [&](ProbeVerdict v) { return std::ranges::find(verdicts, v) != std::end(verdicts); };
  return {std::move(name),
          any(ProbeVerdict::fail)   ? ProbeVerdict::fail
          : any(ProbeVerdict::none) ? ProbeVerdict::none
                                    : ProbeVerdict::pass,
          fmt::format("{:.1f} %, {:.3f}, {:.4f}, {:.5f}", 100 * top1.value, jaccard.value, mae.value, jsd.value),
          {{"top1", to_row(top1)},
           {"jaccard", to_row(jaccard)},
           {"mae", to_row(mae)},
           {"jsd", to_row(jsd)},
           {"positions", stat.top1.count()},
           {"limits", {{"top1", band.top1}, {"jaccard", band.jaccard}, {"mae", band.mae}, {"jsd", band.jsd}}}}};
}

void run_probe(const Model& model, const Corpus& corpus, const ProbeOptions& options, const ProbeHooks& hooks) {
  if (ssize(corpus.tokens) < 128)
    throw_error(ErrorKind::usage, "the text has {} tokens, probes want 128 at least (give a longer one)",
                corpus.tokens.size());
  Probes(model, corpus, options, hooks).run();
}

Columns<ProbeLine> probe_line_columns() {
  return {
      {"name", "-", "of the probe", &ProbeLine::name},
      {"verdict", "-", "PASS, FAIL, NO VERDICT or NOT APPLICABLE",
       [](auto& l) { return probe_verdict_name(l.verdict); }},
      {"says", "-", "why", &ProbeLine::says},
      {"numbers", "-", "that it is judged by", &ProbeLine::numbers},
  };
}

Columns<ProbeResult> columns_of(const ProbeResult&) {
  return {
      {"n_prompts", "prompts", "of a depth", [](auto& r) { return r.options.n_prompts; }},
      {"n_positions", "tokens", "of a prompt, the last ones", [](auto& r) { return r.options.n_positions; }},
      {"n_generate", "tokens", "of a greedy text", [](auto& r) { return r.options.n_generate; }},
      {"needle_trials", "needles", "of a depth", [](auto& r) { return r.options.needle_trials; }},
      {"needle_seed", "-", "of the needles", [](auto& r) { return r.options.seed; }},
      {"kv", "-", "cache formats", [](auto& r) { return kv_text(r.kv); }},
      {"base", "-", "cache formats that these are compared with", [](auto& r) { return kv_text(r.options.base); }},
      {"kv_k", "-", "cache of K, see below", [](auto& r) { return kv_side_columns().fields(r.cache.k); }},
      {"kv_v", "-", "cache of V", [](auto& r) { return kv_side_columns().fields(r.cache.v); }},
      {"bytes_per_token", "bytes", "of the cache", [](auto& r) { return r.cache.bytes_per_token(); }},
      {"probes", "-", "a list, see below", [](auto& r) { return list_of(r.lines, probe_line_columns()); }},
  };
}

std::string probe_table(std::span<const Row> rows) {
  if (rows.empty()) return "";
  std::string text = "| probe |", rule = "|---|";
  for (const Row& row : rows) text += fmt::format(" {} |", row["kv"].get<std::string>()), rule += "---|";
  text += "\n" + rule + "\n";
  for (size_t i = 0; i < rows[0]["probes"].size(); ++i) {
    text += fmt::format("| {} |", rows[0]["probes"][i]["name"].get<std::string>());
    for (const Row& row : rows) {
      const Row& line = row["probes"][i];
      text += fmt::format(" {}: {} |", line["verdict"].get<std::string>(), line["says"].get<std::string>());
    }
    text += "\n";
  }
  return text;
}

}  // namespace ridge::lab
