// Ternary times int8: the matmul of BitNet b1.58, whose sums are exact integers on every processor.
//
// Per token, a = max(max|x|, 1e-5) and q_j = round(x_j * (127 / a)), ties to even;
//   y_r = (float(sum_j q_j * code_rj) * (a / 127)) * scale,   code in {-1, 0, 1}, `scale` of the matrix
//   (Linear::scale).
// Every kernel computes exactly this in this order, so all agree bit for bit. A token with a NaN or infinity gives NaN.
//
// The vector kernels read panels of 16 rows, made once from i2_s rows: unit u holds columns 16 u .. 16 u + 15, and bits
// 2k..2k+1 of its byte 4 r + j are code + 1 of row r, column 16 u + 4 k + j. One 64-byte load thus meets four 4-byte
// broadcasts of activations, and 16 sums appear side by side.
#pragma once

#include "op/linear.h"

namespace ridge {

inline constexpr int kTernaryRows = 16;
inline constexpr int kTernaryColumns = 16;
/// Shortest rows the panels are made of: what an i2_s group holds.
inline constexpr int kTernaryGroup = 128;

/// Whether panels would serve the matrix on this ISA.
bool wants_ternary_panels(const Linear& w, Isa isa);
/// Bytes of the panels of an i2_s matrix.
int64_t ternary_panel_bytes(int64_t n_out, int64_t n_in);
/// Packs i2_s rows without code 3; rows past n_out in the last panel are zero.
void pack_ternary_panels(CpuContext& context, int64_t n_out, int64_t n_in, const std::byte* rows, std::byte* panels);

/// Activations of a batch.
struct Int8Tokens {
  const int8_t* q;     // [n_tokens, n_in]
  const float* scale;  // [n_tokens] a / 127, NaN for a token with a NaN or infinity
  const int32_t* sum;  // [n_tokens] sum of q, for the codes' offset of 1
};

inline float token_top(float largest) { return largest > 1e-5f ? largest : 1e-5f; }

/// The scalar definition: one token of n values.
void quantize_token_ref(const float* x, int64_t n, int8_t* q, float& scale, int32_t& sum);

}  // namespace ridge
