// GEMVs of integer weights and a few tokens on tensor cores, with what stands around them in a layer: the RMS norm
// before, and bias, residual or gated activation after, in one launch (two for more tokens).
//
// int4_g128  Activations become int8 per token and group of 128: step = max|x| / 127 (at least 1e-30 / 127), q =
//            round(x / step). With two planes what that rounding lost is rounded again, in steps of step / 254: about
//            15 bits. Sums in a group are exact, groups are added as float32.
// q4_k, q5_k, q6_k  The same with two planes and a step for every 256 columns. Integers, scales and minima of such a
//            super-block are multiplied and added exactly, its two sums become float32.
// q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl  The same with two planes and a step for every 128 columns. Sums of 32 columns
//            are exact, and become float32 with their scale.
// ternary    The matmul of op/gemv/ternary.h bit for bit, after rms_norm_ref of op/norm_rope when there is a norm
//            (whose double sum is added in another order).
// The result of a token depends on the shape, the number of tokens and the plan, never on timing. A token with a NaN
// or an infinity gives NaN everywhere.
#pragma once

#include <array>
#include <map>
#include <optional>

#include "op/gemv/bricks_cuda.h"
#include "op/gemv/int_weights_cuda.h"

namespace ridge {

/// Output made from the result p of the matmul, with rows numbered as in IntWeights::n_out.
enum class IntOutput : uint8_t {
  store,     ///< y = p + bias
  add,       ///< y += p + bias: the residual
  silu_glu,  ///< y = silu(p of gate) * p of up; gated weights
  relu2_glu  ///< y = max(p of gate, 0)^2 * p of up; gated weights
};

enum class IntTurn : uint8_t { alone, first, second };

inline constexpr int kMostIntParts = 4;

struct IntCall {
  int64_t n_tokens = 0;
  const float* x = nullptr;            ///< [n_tokens, n_in], aligned to 16 bytes
  const float* norm_weight = nullptr;  ///< [n_in], aligned to 16 bytes: x is RMS-normalised first. May be null
  float norm_eps = 0;
  int planes = 1;               ///< of int4_g128, 1 or 2; of bricks 2
  const float* bias = nullptr;  ///< [n_out of all parts]; may be null, and is with gated weights
  IntOutput output = IntOutput::store;
  int n_parts = 1;                    ///< outputs, one for each matrix or one for them all; 1 with gated weights
  int64_t n_out[kMostIntParts] = {};  ///< of each, IntWeights::n_out together
  float* y[kMostIntParts] = {};       ///< [n_tokens, n_out] of each; apart from x
  bool overlap = false;               ///< programmatic dependent launch: weights are fetched while the grid before ends
  /// Two calls with the same x, one launch after the other, run side by side: the second waits for the first at its end
  /// only. Both need runs_beside().
  IntTurn turn = IntTurn::alone;
};

/// How a GEMV is spread over the device. plan_int_gemv() chooses; measurements and tests may choose otherwise.
struct IntPlan {
  int tiles_of_8 = 1;  ///< columns of the mma in eights: 1, 2, 4 or 8; of bricks 1, 2 or 4
  int rows = 1;        ///< most tiles of rows of a block
  int blocks = 0;      ///< they share the tiles of rows evenly; of each part of the columns as many
  int warps = 8;       ///< per block, at most kIntMostWarps; 0: so many tokens do not fit
  int depth = 4;       ///< KB of a warp on their way from memory, one of kIntDepths; of bricks 4, or 6 for one token
                       ///< that every block quantises
  /// Each block makes the int8 values it needs; otherwise a kernel before. Of ternary only for one token.
  bool quantize_inside = true;
  /// Parts of the columns, each of blocks of its own; more than one only of activations that a kernel before quantises,
  /// and of ternary only with two eights of columns and more.
  int split = 1;
};
inline constexpr int kIntMostWarps = 16;
inline constexpr int kIntDepths[] = {4, 6};

/// Most columns (tokens times planes) of one launch; more tokens are several.
inline constexpr int kIntColumns = 64;
/// Most tokens of a GEMV with bricks, and most columns of a row of its weights.
inline constexpr int kIntBrickTokens = 16;
inline constexpr int64_t kIntBrickColumns = 1 << 16;

/// Properties of a device that a plan depends on.
struct IntDevice {
  int n_processors = 132;
  int64_t shared_bytes = gpu::kHopperSharedBytes;  ///< a block's most
};

/// A plan for n_tokens * planes <= kIntColumns.
IntPlan plan_int_gemv(IntKind kind, int64_t n_row_tiles, int64_t n_in, int n_tokens, int planes,
                      const IntDevice& device);

/// Bytes of shared memory of a block.
int64_t int_gemv_shared_bytes(IntKind kind, const IntPlan& plan, int64_t n_in, int n_tokens, int planes);

/// Memory of matmuls that run one after another on a stream. A call that finds too little waits for the device and
/// allocates: calls that are captured must have run once before, and a larger one later would pull the memory from
/// under the recording.
struct IntScratch {
  gpu::Buffer data;
  gpu::Buffer counters;  ///< zero between launches
  /// Plans made so far, by kind, tiles of rows, n_in, tokens and planes.
  std::map<std::array<int64_t, 5>, IntPlan> plans;
};

/// Bytes of an IntScratch.
struct IntScratchBytes {
  int64_t data = 0, counters = 0;
};
/// What such GEMVs of at most n_tokens tokens take on this device.
IntScratchBytes int_gemv_scratch_bytes(const IntWeights& w, int64_t n_tokens, int planes);

/// Queues the matmul of `w` and call.x. Throws Error(failure) for operands that do not fit together.
void device_int_gemv(gpu::StreamHandle stream, const IntWeights& w, const IntCall& call, IntScratch& scratch);
/// Queues the matmul of bricks that has_int_gemv() allows; their parts are the call's. Of kIntBrickTokens tokens at a
/// time.
void device_int_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const IntCall& call, IntScratch& scratch);
void device_int_gemv(gpu::StreamHandle stream, const BrickMatrix& w, const IntCall& call, const IntPlan& plan,
                     IntScratch& scratch);
/// Of int4_g128 too, whose bricks only experts have.
std::optional<IntKind> find_int_kind(BrickFormat format);
/// For rows of n_in columns, which are whole groups, at most kIntBrickColumns.
bool has_int_gemv(BrickFormat format, int64_t n_in);
/// Whether a call of one token can be the first or the second of two: a launch without a kernel before it.
bool runs_beside(const BrickMatrix& w);
IntScratchBytes int_gemv_scratch_bytes(const BrickMatrix& w, int64_t n_tokens);
/// Queues the matmul of `w` with a plan for min(n_tokens, kIntColumns / planes) tokens.
void device_int_gemv(gpu::StreamHandle stream, const IntWeights& w, const IntCall& call, const IntPlan& plan,
                     IntScratch& scratch);

}  // namespace ridge
