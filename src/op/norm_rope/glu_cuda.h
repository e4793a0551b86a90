// Gated activations of single values. For *.cu files only.
#pragma once

namespace ridge {

/// gelu(x), in the form with tanh.
__device__ inline float gelu_of(float x) {
  constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
  return 0.5f * x * (1 + tanhf(kRoot * (x + 0.044715f * x * x * x)));
}

/// Gated activation of gpt-oss: a clamped SwiGLU of gate and up.
__device__ inline float clamped_swiglu_of(float gate, float up) {
  constexpr float kLimit = 7, kGain = 1.702f;
  const float g = gate > kLimit ? kLimit : gate;  // keeps NaN
  const float u = up > kLimit ? kLimit : up < -kLimit ? -kLimit : up;
  return g / (1 + expf(-kGain * g)) * (u + 1);
}

}  // namespace ridge
