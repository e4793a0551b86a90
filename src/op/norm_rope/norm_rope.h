// The element-wise ops between the matmuls: RMSNorm, RoPE, gated activations, residual and bias additions.
#pragma once

#include <span>
#include <vector>

#include "base/view.h"
#include "op/cpu.h"

namespace ridge {

/// How the two halves of a RoPE pair lie in a head: (2i, 2i+1), or (i, i + rope_dim/2).
enum class RopePairs : uint8_t { interleaved, halves };

/// Angles of one model: position p turns pair i by p * frequency[i]; cos and sin are multiplied by `magnitude`.
struct Rope {
  RopePairs pairs = RopePairs::halves;
  std::vector<double> frequency;  // [rope_dim / 2]
  float magnitude = 1;            // YaRN's attention factor, else 1
};

/// y[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight, row by row; y may be x.
void rms_norm(CpuContext& context, View2<const float> x, const float* weight, float eps, View2<float> y);

/// y[t] = x[t] - mean(x[t]); y may be x.
void take_mean_off(CpuContext& context, View2<const float> x, View2<float> y);
/// rms_norm() of rows less their mean: LayerNorm without a bias.
void layer_norm(CpuContext& context, View2<const float> x, const float* weight, float eps, View2<float> y);

/// Cosines and sines of positions under one Rope, made once for all layers of a step.
struct RopeAngles {
  RopePairs pairs = RopePairs::halves;
  int n_pairs = 0;
  std::vector<float> cosines, sines;  // [n_tokens, n_pairs], times the magnitude

  RopeAngles() = default;
  RopeAngles(CpuContext& context, const Rope& rope, std::span<const int32_t> positions);
};

/// Rotates every head of x [n_tokens, n_heads * head_dim] by the angles of its token.
void apply_rope(CpuContext& context, const RopeAngles& angles, int head_dim, View2<float> x);

/// gate = silu(gate) * up
void swiglu(CpuContext& context, View2<float> gate, View2<const float> up);

/// gate = max(gate, 0)^2 * up. The results leave the range of fp16 (a gate of 300 does, with up at 1), so they must
/// stay in f32 until they are normalised.
void relu2_glu(CpuContext& context, View2<float> gate, View2<const float> up);

/// x = max(x, 0)^2: relu2_glu without a gate.
void relu2(CpuContext& context, View2<float> x);

/// gate = gelu(gate) * up, gelu by its tanh form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
void gelu_glu(CpuContext& context, View2<float> gate, View2<const float> up);

/// gate = g sigmoid(1.702 g) (u + 1), of gates at most 7 and ups between -7 and 7: gpt-oss.
void clamped_swiglu(CpuContext& context, View2<float> gate, View2<const float> up);

/// x *= factor
void scale(CpuContext& context, View2<float> x, float factor);

/// x = cap tanh(x / cap)
void soft_cap(CpuContext& context, View2<float> x, float cap);

/// x += factor y
void add(CpuContext& context, View2<float> x, View2<const float> y, float factor = 1);

/// x[t] += bias for every row
void add_bias(CpuContext& context, View2<float> x, const float* bias);

/// The row kernels, one set per ISA.
struct NormRopeVariant {
  std::string_view name;
  Isa isa;
  Support (*supports)();
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
  void (*swiglu)(float* gate, const float* up, int64_t n);
  void (*gelu_glu)(float* gate, const float* up, int64_t n);
};
std::span<const NormRopeVariant> norm_rope_variants();

}  // namespace ridge
