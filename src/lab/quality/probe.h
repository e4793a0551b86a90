// Probes for differences that a person would notice: whether a cache keeps the next token near and far, finds what was
// said long ago, goes on with JSON and code as f16 does, lets as many draft tokens hold as q8_0 does, says the same
// twice, and the same with and without a kept prefix.
//
// Bands and limits are data. What lies beyond a model's trained context is not applicable, never passed.
#pragma once

#include "engine/decode/text.h"
#include "lab/quality/engine_timelines.h"
#include "lab/quality/quality.h"

namespace ridge::lab {

/// Next tokens behind so many: the depths that are probed, and the limits there.
struct ProbeBand {
  std::string name;
  std::vector<int> depths;
  double top1 = 0;     ///< share of positions with the same likeliest token, at least
  double jaccard = 0;  ///< of the ten likeliest tokens, at least
  double mae = 0;      ///< mean |difference of ln p| over the ten likeliest tokens of the base, in nats, at most
  double jsd = 0;      ///< Jensen-Shannon divergence in nats, at most
};
struct ProbeLimits {
  std::vector<ProbeBand> bands{{"short", {128, 512}, 0.90, 0.70, 0.20, 0.05},
                               {"2-8k", {2048, 4096, 8192}, 0.85, 0.60, 0.30, 0.08},
                               {"16-56k", {16384, 32768, 57344}, 0.70, 0.45, 0.50, 0.15}};
  std::vector<int> needle_contexts{0, 8192, 16384, 32768, 57344};  ///< 0: the trained one
  double needle_loss = 0.05;  ///< share of a needle's tokens that f16 finds and the cache does not, at most
  double canary = 0.90;       ///< share of f16's tokens of JSON and code that the cache would write too, at least
  double draft_loss = 0.10;   ///< share of draft tokens that hold with q8_0 and not with the cache, at most
};

/// Draft tokens: steps of a fixed depth along greedy texts of `base` (lab/quality/acceptance.h).
struct ProbeDraft {
  std::string type;     ///< who proposes: "mtp", "lookup"
  std::string why_not;  ///< not applicable: nobody proposes
  /// Proposers of texts of at most n_ctx tokens; where `why_not` is empty.
  std::function<ProposerMaker(const Model& model, int n_ctx)> open;
  KvChoice base{.k = {.format = "q8_0"}, .v = {.format = "q8_0"}, .layers = {}};
  int depth = 4;        ///< proposals a step
  int n_texts = 32;     ///< texts, evenly spread prompts
  int n_prompt = 128;   ///< tokens in front of each
  int n_generate = 64;  ///< tokens of each
};

struct ProbeOptions {
  int n_prompts = 8;     ///< a depth
  int n_positions = 32;  ///< looked at, the last ones of each prompt
  int n_generate = 48;   ///< greedy tokens of a canary and of the equalities
  int needle_trials = 4, needle_depths = 3;
  uint64_t seed = 42;
  std::string device = "cpu";
  KvChoice base;
  ProbeDraft draft{.why_not = "nobody proposes tokens"};
  ProbeLimits limits;
  std::vector<KvChoice> candidates;
};

enum class ProbeVerdict : uint8_t { none, pass, fail, not_applicable };
std::string_view probe_verdict_name(ProbeVerdict verdict);  ///< "NO VERDICT", "PASS", "FAIL", "NOT APPLICABLE"

/// One probe of one cache.
struct ProbeLine {
  std::string name;
  ProbeVerdict verdict = ProbeVerdict::none;
  std::string says;  ///< numbers for a table, or why there are none
  Row numbers = Row::object();
};
struct ProbeResult {
  ProbeOptions options;
  KvChoice kv;
  KvReport cache;
  std::vector<ProbeLine> lines;  ///< the same names for all caches
};

/// How near two distributions over the next token are, from their logits.
struct Agreement {
  bool same_top = false;
  double jaccard = 0, mae = 0, jsd = 0;
};
Agreement agreement(std::span<const float> base, std::span<const float> candidate);

struct AgreementStat {
  MeanStat top1, jaccard, mae, jsd;
  void add(const Agreement& a);
};
/// PASS where all four keep their limits by two standard errors, FAIL where one breaks its limit by as much.
ProbeLine judge_agreement(const AgreementStat& stat, const ProbeBand& band, std::string name);
/// Judges a share: it must be at least `limit`, by two standard errors.
ProbeVerdict judge_share(const Estimate& share, double limit);

using ProbeHooks = StudyHooks<ProbeResult>;  // progress in prompts

/// Probes every candidate. Stopped early, finished candidates have been handed over.
void run_probe(const Model& model, const Corpus& corpus, const ProbeOptions& options, const ProbeHooks& hooks);

Columns<ProbeLine> probe_line_columns();
Columns<ProbeResult> columns_of(const ProbeResult& result);
/// Markdown, one line per probe and one column per row.
std::string probe_table(std::span<const Row> rows);

}  // namespace ridge::lab
