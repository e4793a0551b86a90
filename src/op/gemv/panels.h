// Panels: the CPU's packed layout of q8_0, q4_0 and int4_g128 matrices, made once at load time.
//
// A panel is 16 rows; its unit is one block of each: 16 fp16 scales, then, for every 32 columns, the codes of 4 columns
// x 16 rows at a time, so that one 64-byte load meets one 4-byte broadcast of activations in a 4-way dot product and 16
// sums appear side by side, with no horizontal adds. Same bytes as the rows they come from (plus padding of the last
// panel).
//   q8_0: 8 vectors of 64 bytes; byte 4 r + j of vector k is q[row r][4 k + j] + 128 (unsigned)
//   q4_0: 4 vectors of 64 bytes; low nibble of byte 4 r + j of vector k is column 4 k + j, high nibble 16 + 4 k + j
//   int4_g128: as q4_0, four times behind one set of scales
// Activations are quantised to int8 per token and group of 32: x ~ q * scale, scale = max|x| / 127.
#pragma once

#include "op/linear.h"

namespace ridge {

inline constexpr int kPanelRows = 16;
inline constexpr int kPanelGroup = 32;  ///< columns that share a scale of the activations

/// The unit of a format's panels.
template <class F>
struct PanelUnit {
  static constexpr int kGroups = F::kGroup / kPanelGroup;
  static constexpr int kBytes = kPanelRows * int(sizeof(typename F::Block));
  static constexpr int kGroupBytes = (kBytes - 2 * kPanelRows) / kGroups;  ///< codes of 32 columns
};

/// Whether the format has a panel layout.
bool has_panels(const WeightFormat& format);
/// Bytes of the packed matrix.
int64_t panel_bytes(const WeightFormat& format, int64_t n_out, int64_t n_in);
/// Packs row-major blocks; rows past n_out in the last panel are zero.
/// Returns the first row with a scale that is not finite, -1 where all are.
int64_t pack_panels(CpuContext& context, const WeightFormat& format, int64_t n_out, int64_t n_in, const std::byte* rows,
                    std::byte* panels);

/// Activations as the panel kernels read them.
struct QuantizedTokens {
  const int8_t* q;     // [n_tokens, n_in]
  const float* scale;  // [n_tokens, n_in / 32]
  const int32_t* sum;  // [n_tokens, n_in / 32]   sum of q over the group, for the weights' zero point
  int64_t n_in;
};

/// What a group whose largest magnitude is `largest` is multiplied by: 127 / largest, or 0 when that is no finite float
/// (such a group counts as zeros).
inline float group_inverse(float largest) { return largest > 4e-37f ? 127.0f / largest : 0.0f; }

/// The scalar definition every ISA must equal bit for bit. A group with a NaN or infinity gets a NaN scale.
void quantize_group_ref(const float* x, int8_t* q, float& scale, int32_t& sum);

}  // namespace ridge
