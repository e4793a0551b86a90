// The six gates of a compressed cache format, the rule that turns it on, and the promotion gate beside them: pure
// functions from stored rows.
//
// A gate takes evidence from rows of this machine, build and, where it matters, model only. Evidence that is missing,
// of others, or noisier than the effect gives NO VERDICT, with the reason; never PASS, and never FAIL.
#pragma once

#include <cstdint>
#include <span>

#include "lab/decide/record.h"

namespace ridge::lab {

/// The 70B shape that gate 2 looks at.
struct HeadShape {
  int n_heads = 64, n_kv_heads = 8, head_dim = 128;
};

/// Question of a decision. The cells to measure follow from it.
struct DecisionQuestion {
  RecordSubject subject;
  int n_ctx = 0, n_sessions = 1;
  HeadShape shape, target;                 ///< the model's own; gate 2's
  std::vector<int> depths, target_depths;  ///< cached positions, rising
  std::vector<int> prompts;                ///< tokens in front of n_gen generated ones, rising
  int n_gen = 0;
  int eval_ctx = 0, eval_chunks = 0;  ///< windows of the quality run
  std::string corpus;                 ///< xxh64 of its text
  int64_t memory_bytes = 0;           ///< that may be used; 0: what was available when the plan was stored
  std::vector<int> attention_layers;  ///< of the model, for caches whose layers differ
};

/// Depths of an attention sweep up to n_ctx: 8k and 16k where they are within, n_ctx and halves of it.
std::vector<int> sweep_depths(int n_ctx);

/// The cells that the gates look for, in the field `cell` of rows: attention is as a sweep stores it.
Row attention_cell(const DecisionQuestion& q, const HeadShape& shape, int depth, std::string_view kv, bool control);
Row service_cell(const DecisionQuestion& q, int n_prompt, std::string_view kv, bool control);
Row quality_cell(const DecisionQuestion& q, std::string_view kv);
Row plan_cell(const DecisionQuestion& q, std::string_view kv);
/// The fields of a cell that say where and by which build it was measured.
Row place_of(const RecordSubject& subject);

/// The caches of all layers that a cache is made of, and the share of layers of each: one with share 1 where no layer
/// differs. Attention is measured of each, as a layer runs by itself.
std::vector<std::pair<std::string, double>> layer_caches(const DecisionQuestion& q, const std::string& kv);

/// A row of a cell, or why there is none that counts.
struct Evidence {
  const Row* row = nullptr;
  std::string why;
};
Evidence find_evidence(std::span<const Row> rows, const Row& cell);

GateResult attention_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                          const GateThresholds& limits);
GateResult target_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                       const GateThresholds& limits);
GateResult service_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                        const GateThresholds& limits);
GateResult quality_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                        const GateThresholds& limits);
GateResult bound_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                      const GateThresholds& limits);
GateResult memory_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv);
/// Gate 7, of the packed-K seed: prompts of 4096 tokens and decode behind them against f16. The flip rule ignores it.
inline constexpr int kPromotionPrompt = 4096;
GateResult promotion_gate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                          const GateThresholds& limits);

/// All gates and the flip rule, by the first six: on if 1, 2, 3 and 4 pass; or if 4 and 6 pass and f16 does not fit.
CandidateRecord judge_candidate(std::span<const Row> rows, const DecisionQuestion& q, const std::string& kv,
                                const GateThresholds& limits);
/// Ids of the rows of times from which a gate has no verdict, and of those that they are compared with.
std::vector<std::string> noisy_rows(const DecisionRecord& record);
/// All candidates, and the choice among those that are on: the fastest in gate 3.
DecisionRecord decide(std::span<const Row> rows, const DecisionQuestion& q, const std::vector<std::string>& candidates,
                      const GateThresholds& limits);

}  // namespace ridge::lab
