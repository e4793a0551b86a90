// GEMVs of one token to four with their experts on a device, weights of int_formats.h times
// integers: gate and up with the norm in front, which choose the experts from the scores, and the sum over the experts
// that they chose. Activations are rounded as op/gemv/int_gemv_cuda.h has it, in two planes.
#pragma once

#include "op/experts/experts_cuda.h"

namespace ridge {

/// More tokens share experts, whose weights packs read once.
inline constexpr int64_t kMostIntTokens = 4;

/// Pointers are device memory.
struct IntExpertsCall {
  /// Choice of up to kMostIntTokens tokens, without packs. Gate and up read the scores and write experts and weights,
  /// which the sum reads.
  ExpertChoice choice;
  ExpertRouter router;  ///< how to choose from them
  /// Gate and up: [n_tokens, n_in]. The sum: [n_tokens, n_chosen, n_in], in order of the experts' number. Aligned to
  /// 16 bytes.
  const float* x = nullptr;
  const float* norm_weight = nullptr;  ///< of gate and up: [n_in], x is RMS-normalised first. May be null
  float norm_eps = 0;
  BrickGlu glu = BrickGlu::silu;
  bool add = false;    ///< of the sum: to y, or in its place
  float* y = nullptr;  ///< gate and up: [n_tokens, n_chosen, n_out]; the sum: [n_tokens, n_out]
  /// Programmatic dependent launch. The sum reads the experts before it waits: they come from the grid of gate and up
  /// right before it, or an earlier one.
  bool overlap = false;
};

/// Whether these kernels serve a matrix of experts, of gate and up in pairs or of down, on this device.
bool has_int_experts(const BrickMatrix& w, const ExpertChoice& choice, const ExpertRule& rule);

/// Computes y. With pairs y of every expert is glu(gate, up); otherwise y is the sum of the experts' matmuls, each
/// times its weight. `w` says what one expert is, its data holds all of them one after another. Without biases.
void device_int_experts(gpu::StreamHandle stream, const BrickMatrix& w, const IntExpertsCall& call);

}  // namespace ridge
