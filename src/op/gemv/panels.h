// Panels: the CPU's packed layout of weight matrices for integer dot products, made once at load time.
//
// A panel is 16 rows; its unit is one block of each row: a head (scales and minima of all rows), then the codes of
// every 32 columns. A vector of codes holds 4 columns x 16 rows, byte 4 r + j for row r and column j, so that one
// 64-byte load meets one 4-byte broadcast of activations in a 4-way dot product and 16 sums appear side by side, with
// no horizontal adds. Panels take the bytes of the rows they come from (plus padding of the last panel). Rows of iq1,
// iq2 and iq3 name points of grids of 4 or 8 weights, and rows of tq1_0 have five weights in a byte: their panels name
// levels weight by weight, which takes 1.2 to 2 times the bytes; scales of nvfp4 become fp16, 5 bits a weight for 4.5.
//
// Column 4 k + j (k < 8) of 32, whose code has kLow low bits and kHigh high bits (PanelUnit):
//   kLow 8  vector k                            kHigh 1  bit k of the one vector behind the low bits
//   kLow 4  vector k % 4, low nibble (k < 4)    kHigh 2  vector k / 4 behind the low bits, bits 2 (k % 4) and
//           or high nibble                              2 (k % 4) + 1
//   kLow 2  vector k / 4, bits 2 (k % 4), 2 (k % 4) + 1
// Activations are rounded to integers per token and 32 columns (quantize_group_ref): to 15 bits in two planes, or to 8
// bits in one plane.
//
// Codes of fp8_g32 are no integers of few bits: their panels (FloatPanels) are multiplied with activations in float.
#pragma once

#include "format/fp8_g32.h"
#include "format/int4_g128.h"
#include "format/iq1.h"
#include "format/iq3.h"
#include "format/iq4.h"
#include "format/mxfp4.h"
#include "format/nvfp4.h"
#include "format/q2_k.h"
#include "format/q3_k.h"
#include "format/q4_0.h"
#include "format/q4_1.h"
#include "format/q4_k.h"
#include "format/q5_0.h"
#include "format/q5_1.h"
#include "format/q5_k.h"
#include "format/q6_k.h"
#include "format/q8_0.h"
#include "format/tq1_0.h"
#include "format/tq2_0.h"
#include "op/linear.h"

namespace ridge {

inline constexpr int kPanelRows = 16;
inline constexpr int kPanelGroup = 32;   ///< columns that share a scale of the activations
inline constexpr int kPanelChunk = 256;  ///< columns of a token's activations that lie together

/// Form of a row's scales in the head of a unit: one fp16; a power of two in a byte; an fp16 for kScaled columns; or an
/// fp16 d and an integer for kScaled columns. Integers are signed bytes, 6 bits (32 for 0 where there are no minima),
/// nibbles beside minima, or odd in nibbles, 2 n + 1 of parts of d.
enum class PanelScales : uint8_t { f16, power, halves, bytes, six_bits, nibbles, odd, odd_quarters, odd_eighths };
/// Where minima are: none; fp16 behind the scales; integers times the block's -dmin, or eighths of d with the scale's
/// sign.
enum class PanelMinima : uint8_t { none, f16, integers, eighths };

/// Levels of formats whose codes are no integers in steps of one, plus kZero. A table of 8 is there twice.
using PanelLevels = uint8_t[16];
alignas(16) inline constexpr PanelLevels kIq4PanelLevels = {1,   24,  45,  63,  79,  93,  106, 118,
                                                            129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) inline constexpr PanelLevels kFp4PanelLevels = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
/// Levels of points of grids, then those with the other sign.
alignas(16) inline constexpr PanelLevels kIq2PanelLevels = {51, 68, 86, 43, 35, 18, 0, 43,
                                                            51, 68, 86, 43, 35, 18, 0, 43};
alignas(16) inline constexpr PanelLevels kIq3XxsPanelLevels = {66, 74, 82, 90, 98, 106, 114, 124,
                                                               58, 50, 42, 34, 26, 18,  10,  0};
alignas(16) inline constexpr PanelLevels kIq3SPanelLevels = {16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0};
/// Eighths: -1, 0 and 1 with an eighth put on, then with an eighth taken off.
alignas(16) inline constexpr PanelLevels kIq1PanelLevels = {2, 10, 18, 9, 0, 8, 16, 9, 2, 10, 18, 9, 0, 8, 16, 9};

/// Layout of the unit of a format's panels. kScaled: columns under one scale. kRowHead: bytes of a row in the head, 0
/// where a unit has as many bytes as its blocks.
template <int kLow_, int kHigh_, int kScaled_, int kZero_, PanelScales kScales_ = PanelScales::f16,
          PanelMinima kMinima_ = PanelMinima::none, auto kLevels_ = nullptr, int kRowHead_ = 0>
struct PanelCodes {
  static constexpr int kLow = kLow_, kHigh = kHigh_, kScaled = kScaled_;
  static constexpr int kZero = kZero_;  ///< code of weight 0, before a minimum
  static constexpr PanelScales kScales = kScales_;
  static constexpr PanelMinima kMinima = kMinima_;
  static constexpr const uint8_t* kLevels = kLevels_;  ///< null: codes are weights
  /// By type: g++ compares no address with null at compile time when it looks for undefined behaviour.
  static constexpr bool kHasLevels = !std::is_null_pointer_v<decltype(kLevels_)>;
  static constexpr int kRowHead = kRowHead_;
  static constexpr int kGroupBytes = 4 * kPanelRows * (kLow + kHigh);  ///< codes of 32 columns
};

// clang-format off
template <class F> struct PanelUnitOf;
//                                                       low high scaled zero scales minima levels bytes of a row's head
template <> struct PanelUnitOf<Q8_0>     : PanelCodes<8, 0, 32, 128> {};
template <> struct PanelUnitOf<Q4_0>     : PanelCodes<4, 0, 32, 8> {};
template <> struct PanelUnitOf<Int4G128> : PanelCodes<4, 0, 32, 8> {};
template <> struct PanelUnitOf<Q4_1>     : PanelCodes<4, 0, 32, 0, PanelScales::f16, PanelMinima::f16> {};
template <> struct PanelUnitOf<Q5_0>     : PanelCodes<4, 1, 32, 16> {};
template <> struct PanelUnitOf<Q5_1>     : PanelCodes<4, 1, 32, 0, PanelScales::f16, PanelMinima::f16> {};
template <> struct PanelUnitOf<Q4_K>     : PanelCodes<4, 0, 32, 0, PanelScales::six_bits, PanelMinima::integers> {};
template <> struct PanelUnitOf<Q5_K>     : PanelCodes<4, 1, 32, 0, PanelScales::six_bits, PanelMinima::integers> {};
template <> struct PanelUnitOf<Q6_K>     : PanelCodes<4, 2, 16, 32, PanelScales::bytes> {};
template <> struct PanelUnitOf<Q3_K>     : PanelCodes<2, 1, 16, 4, PanelScales::six_bits> {};
template <> struct PanelUnitOf<Q2_K>     : PanelCodes<2, 0, 16, 0, PanelScales::nibbles, PanelMinima::integers> {};
template <> struct PanelUnitOf<IQ4_NL>   : PanelCodes<4, 0, 32, 128,
            PanelScales::f16, PanelMinima::none, kIq4PanelLevels> {};
template <> struct PanelUnitOf<IQ4_XS>   : PanelCodes<4, 0, 32, 128,
            PanelScales::six_bits, PanelMinima::none, kIq4PanelLevels> {};
template <> struct PanelUnitOf<MXFP4>    : PanelCodes<4, 0, 32, 12,
            PanelScales::power, PanelMinima::none, kFp4PanelLevels> {};
template <> struct PanelUnitOf<NVFP4>    : PanelCodes<4, 0, 16, 12,
            PanelScales::halves, PanelMinima::none, kFp4PanelLevels, 8> {};
template <> struct PanelUnitOf<TQ2_0>    : PanelCodes<2, 0, 32, 1> {};
template <> struct PanelUnitOf<TQ1_0>    : PanelCodes<2, 0, 32, 1, PanelScales::f16, PanelMinima::none, nullptr, 2> {};
template <> struct PanelUnitOf<IQ1_S>    : PanelCodes<2, 0, 32, 1,
            PanelScales::odd, PanelMinima::eighths, nullptr, 2 + 4> {};
template <> struct PanelUnitOf<IQ1_M>    : PanelCodes<2, 1, 16, 9,
            PanelScales::odd_eighths, PanelMinima::none, kIq1PanelLevels, 2 + 8> {};
template <> struct PanelUnitOf<IQ2_XXS>  : PanelCodes<2, 1, 32, 43,
            PanelScales::odd_eighths, PanelMinima::none, kIq2PanelLevels, 2 + 4> {};
template <> struct PanelUnitOf<IQ2_XS>   : PanelCodes<2, 1, 16, 43,
            PanelScales::odd_eighths, PanelMinima::none, kIq2PanelLevels, 2 + 8> {};
template <> struct PanelUnitOf<IQ2_S>    : PanelCodes<2, 1, 16, 43,
            PanelScales::odd_eighths, PanelMinima::none, kIq2PanelLevels, 2 + 8> {};
template <> struct PanelUnitOf<IQ3_XXS>  : PanelCodes<4, 0, 32, 62,
            PanelScales::odd_quarters, PanelMinima::none, kIq3XxsPanelLevels, 2 + 4> {};
template <> struct PanelUnitOf<IQ3_S>    : PanelCodes<4, 0, 32, 15,
            PanelScales::odd, PanelMinima::none, kIq3SPanelLevels, 2 + 4> {};
// clang-format on

template <class... Formats>
struct PanelFormatList {};
/// The formats that have panels.
using PanelFormats =
    PanelFormatList<Q8_0, Q4_0, Int4G128, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, Q3_K, Q2_K, IQ4_NL, IQ4_XS, NVFP4, MXFP4,
                    TQ2_0, TQ1_0, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S>;

/// The unit of a format's panels: 16 blocks.
template <class F>
struct PanelUnit : PanelUnitOf<F> {
  static constexpr int kGroups = F::kGroup / kPanelGroup;
  static constexpr int kCodeBytes = kGroups * PanelUnitOf<F>::kGroupBytes;
  static constexpr int kBytes =
      kPanelRows *
      (PanelUnitOf<F>::kRowHead ? PanelUnitOf<F>::kRowHead + kCodeBytes / kPanelRows : int(sizeof(typename F::Block)));
  static constexpr int kHeadBytes = kBytes - kCodeBytes;
};

/// A unit of fp8_g32: 256 times the scale of each row as floats, then column after column the codes of the rows.
struct FloatPanels {
  static constexpr int kHeadBytes = 4 * kPanelRows, kUnitBytes = kHeadBytes + kPanelRows * kPanelGroup;
  static constexpr int64_t kFew = 16;  ///< tokens that read codes and activations where they are
  /// Columns of a chunk, for more tokens: its decoded weights stay in L1. kSpread: floats between tokens of a chunk.
  static constexpr int kColumns = 128, kSpread = 16;
};
static_assert(FloatPanels::kUnitBytes == kPanelRows * sizeof(FP8_G32::Block));

/// Whether the format has FloatPanels.
bool has_float_panels(const WeightFormat& format);
/// Whether the format has a panel layout.
bool has_panels(const WeightFormat& format);
/// Bytes of the packed matrix.
int64_t panel_bytes(const WeightFormat& format, int64_t n_out, int64_t n_in);
/// Packs row-major blocks; rows past n_out in the last panel are zero.
/// Returns the first row with a scale that is not finite, -1 where all are.
int64_t pack_panels(CpuContext& context, const WeightFormat& format, int64_t n_out, int64_t n_in, const std::byte* rows,
                    std::byte* panels);
/// Activations as the panel kernels read them: x = scale * q, where q is one plane, or 128 * the first + the second.
/// Chunks of kPanelChunk columns; the last one may be shorter.
template <int kPlanes>
struct QuantizedTokens {
  int8_t* q;     // [n_chunks, kPlanes, n_tokens, 256]
  float* scale;  // [n_chunks, n_tokens, 8]    of 32 columns
  int32_t* sum;  // [n_chunks, n_tokens, 16]   sum of q over 16 columns, for zero points and minima
  int64_t n_tokens;

  int64_t plane_q() const { return n_tokens * kPanelChunk; }  ///< from a plane to the next
  int8_t* q_of(int64_t chunk, int64_t token) const { return q + (chunk * kPlanes * n_tokens + token) * kPanelChunk; }
  float* scale_of(int64_t chunk, int64_t token) const {
    return scale + (chunk * n_tokens + token) * (kPanelChunk / kPanelGroup);
  }
  int32_t* sum_of(int64_t chunk, int64_t token) const { return sum + (chunk * n_tokens + token) * (kPanelChunk / 16); }
};
/// Bytes of q, scale and sum for so many tokens.
ScratchBytes quantized_bytes(int planes, int64_t n_tokens, int64_t n_in);

/// Bytes of the activations of so many tokens as FloatPanels meet them; none where they stay in their place.
ScratchBytes float_tokens_bytes(int64_t n_tokens, int64_t n_in);

/// The largest integer of one plane and of two: 127, and 127 * 128 + 63.
constexpr float panel_limit(int planes) { return planes == 1 ? 127.0f : 16319.0f; }
/// Factor of a group whose largest magnitude is `largest`: panel_limit / largest, or 0 when that is no finite float
/// (such a group counts as zeros).
inline float group_inverse(float largest, int planes) {
  return largest > (planes == 1 ? 4e-37f : 5e-35f) ? panel_limit(planes) / largest : 0.0f;
}

/// The scalar definition every ISA must equal bit for bit: 32 activations to `planes` planes of 32 integers each,
/// plane_q apart, their scale and their sums over 16. A group with a NaN or infinity gets a NaN scale.
void quantize_group_ref(const float* x, int planes, int64_t plane_q, int8_t* q, float& scale, int32_t* sum);

}  // namespace ridge
