// Parts of packed matrices, as unpack_tensors() (packed.cpp) hands them to the readers of int4 (packed_int4.cpp) and of
// floats (packed_float.cpp).
#pragma once

#include <vector>

#include "io/packed.h"

namespace ridge::io {

/// The tensors of one packed matrix, nullptr where the file has none.
struct PackedMatrix {
  std::string_view name;          ///< without .weight
  const Tensor* codes = nullptr;  ///< qweight, weight or weight_packed
  const Tensor* scales = nullptr;
  const Tensor* qzeros = nullptr;        ///< int4
  const Tensor* g_idx = nullptr;         ///< gptq
  const Tensor* global_scale = nullptr;  ///< nvfp4
  bool divides = false;                  ///< by global_scale
};

/// A matrix in rows of a weight format.
struct UnpackedMatrix {
  const WeightFormat* format = nullptr;
  int64_t n_out = 0, n_in = 0;
  AlignedBuffer rows = {};
  float scale = 1;
  std::vector<int32_t> order = {};  ///< of columns, as Tensor::order; empty: as they are
};

/// The message of each starts with the part of the matrix ("scales is missing").
Result<UnpackedMatrix> unpack_int4(const Packing& packing, const PackedMatrix& m, const WeightFormat& format);
Result<UnpackedMatrix> unpack_fp8(const Packing& packing, const PackedMatrix& m);
Result<UnpackedMatrix> unpack_nvfp4(const PackedMatrix& m);

/// The format that holds every int4 matrix of a checkpoint, by its zeros.
const WeightFormat& int4_format(const Packing& packing, std::span<const PackedMatrix> matrices);

/// Fails unless there is such a tensor of this format and shape.
Status check_part(std::string_view what, const Tensor* tensor, const WeightFormat& format,
                  const std::vector<int64_t>& shape);
/// All values of a tensor of floats. Fails on what is not finite.
Result<std::vector<float>> finite_values(std::string_view what, const Tensor& tensor);

}  // namespace ridge::io
