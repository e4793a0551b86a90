// What experts make of rows on the CPU: for the CPU's forward pass, and for a device that leaves experts to the host.
#pragma once

#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "model/plan.h"
#include "model/weights.h"
#include "op/experts/route.h"

namespace ridge {

/// gate = activation(gate) * up
void activate(CpuContext& context, Activation activation, View2<float> gate, View2<const float> up);

/// The chosen experts of n tokens.
struct ExpertsCall {
  const ExpertsPlan& plan;
  std::span<const ExpertWeights> experts;
  int first = 0;                  ///< number of experts[0]; routes to experts that are not here add nothing
  View2<const float> x;           ///< [n, d_model]
  std::span<const Route> routes;  ///< [n, n_used]
  View2<float> sum;               ///< [n, d_model]: sum of weight * expert(x), written
};
/// Rows that the experts of n tokens work in at most: of few tokens all their choices, else those of a group of
/// experts.
int64_t expert_rows(const ExpertsPlan& plan, int64_t n);
/// Floats of work.
inline int64_t expert_floats(const ExpertsPlan& plan, int64_t d_model, int64_t n) {
  return 2 * expert_rows(plan, n) * (d_model + plan.d_ff);
}
/// `work`: [expert_floats()]. Experts of few rows are multiplied together, a group in two parallel regions; an expert
/// has all its rows in one group. Experts add to a row in order of their number: a sum does not depend on the other
/// rows.
void run_experts(CpuContext& context, const ExpertsCall& call, float* work);

/// Experts of a model on a device that are in host memory. One call at a time, from any thread.
class HostExperts {
 public:
  /// All three must outlive it. No one else uses the context.
  HostExperts(CpuContext& context, const ModelPlan& plan, const Weights& weights)
      : context_(context), plan_(plan), weights_(weights) {}

  /// What a device's router chose for n tokens, in host memory.
  struct Call {
    int64_t n_tokens = 0;
    const float* x = nullptr;          ///< [n, d_model]
    const int32_t* experts = nullptr;  ///< [n, n_used]
    const float* weights = nullptr;    ///< [n, n_used]
    float* sum = nullptr;              ///< [n, d_model], written
  };
  /// run_experts() of a layer. What goes wrong is kept for rethrow(), and the sums are NaN.
  void run(int layer, const Call& call) noexcept;
  /// Throws what went wrong since the last call.
  void rethrow();

 private:
  CpuContext& context_;
  const ModelPlan& plan_;
  const Weights& weights_;
  AlignedBuffer buffer_;
  std::vector<Route> routes_;
  std::mutex mutex_;  // of the error, which another thread asks for
  std::exception_ptr error_;
};

}  // namespace ridge
