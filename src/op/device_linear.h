// The kernels of weight matrices on a GPU, as a table. What the rows say of themselves needs neither a device nor CUDA,
// so `ridge explain`, `ridge info` and --kernel know them in every build. device_matmul.h runs them.
#pragma once

#include <span>
#include <string_view>

#include "op/linear.h"

namespace ridge {

/// More tokens take the kernels of many (op gemm), most of which round activations to f16. They are not bound by the
/// bytes of weights any more but by products.
inline constexpr int64_t kFewTokens = 24;
inline std::string_view device_linear_op(int64_t n_tokens) { return n_tokens <= kFewTokens ? "gemv" : "gemm"; }

/// The order of a matrix's bytes on a device: float32 rows, op/gemv/bricks_cuda.h, op/gemv/int_weights_cuda.h.
enum class DevicePacking : uint8_t { floats, bricks, ints };

struct DeviceLinearProblem {
  Linear matrix;  ///< only its description: format, shape, int8_activations
  int64_t n_tokens = 1;
};

/// One kernel. Rows of a matrix's two ops have the same packing: a format has kernels of one packing only.
struct DeviceLinearVariant {
  std::string_view name;
  DevicePacking packing;
  int planes;      ///< numbers that an activation becomes; 0: it stays a float
  int plane_bits;  ///< of each: 8 or 16
  Support (*supports)(const DeviceLinearProblem& p);
};
/// Worst to best; of int4_g128 the accurate one is the best.
std::span<const DeviceLinearVariant> device_linear_variants();

/// The best row that may serve. Throws Error(usage) where there is none: why, and what to do about a format that
/// devices do not run.
const DeviceLinearVariant& choose_device_linear(const DeviceLinearProblem& p, const ForcedKernels& forced);

}  // namespace ridge
