// The products of a layer on a device: one or several matrices with the same input, in whichever order of bytes their
// format has kernels for, and what stands around them: the norm before, bias, residual or gated activation after.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "op/gemv/half_gemv_cuda.h"
#include "op/gemv/int_gemv_cuda.h"
#include "op/linear.h"

namespace ridge {

/// More tokens take the kernels of many, which round activations to halves (bf16 weights: to two planes). They are not
/// bound by the bytes of weights any more but by products.
inline constexpr int64_t kFewTokens = 64;

/// Memory that products of one stream share. What is captured in a graph must have run once with the same scratch
/// before, and is good for as long as places() stays what it was: larger products take new memory and free the old.
struct ProductScratch {
  gpu::Buffer bricks;
  IntScratch ints;
  gpu::Buffer normed, joint, up;

  std::array<const void*, 6> places() const {
    return {bricks.as<void>(), ints.data.as<void>(), ints.counters.as<void>(),
            normed.as<void>(), joint.as<void>(),     up.as<void>()};
  }
};

enum class ProductOutput : uint8_t { store, add, silu_glu, relu2_glu };

struct ProductCall {
  int64_t n_tokens = 0;
  const float* x = nullptr;            ///< [n_tokens, n_in]
  const float* norm_weight = nullptr;  ///< [n_in]: x is RMS-normalised first; may be null
  float norm_eps = 0;
  ProductOutput output = ProductOutput::store;  ///< a GLU takes two matrices, gate and up, and has one output
  float* y[3] = {};  ///< [n_tokens, n_out] of each matrix. One token: y[i + 1] = y[i] + n_out saves a copy
  bool overlap = false;
  int layer = -1;  ///< for the launch log
};

/// Up to three matrices of one width. Formats: f16, bf16, q8_0, q4_0, q4_k, q6_k and int4_g128 stay what they are, as
/// does i2_s with int8 activations; every other format becomes float32.
class DeviceProduct {
 public:
  DeviceProduct() = default;
  /// Uploads and packs. `biases` has an entry a matrix, empty where there is none. `glu`: two matrices, gate and up.
  /// int4_g128 activations are rounded to `planes` bytes.
  DeviceProduct(const gpu::Stream& stream, std::span<const Linear* const> matrices,
                std::span<const std::vector<float>* const> biases, bool glu, int planes);

  void run(gpu::StreamHandle stream, const ProductCall& call, ProductScratch& scratch) const;
  /// What a product reads of the matrices.
  int64_t bytes() const;
  /// "int-1plane", "int-2planes", "ternary", "bricks", "f32", one for each launch.
  std::vector<std::string_view> kernels() const;
  /// The same of more than kFewTokens tokens: "int4-f16", "ternary-int8", "bricks-f16", "bricks-2planes", "f32".
  std::vector<std::string_view> kernels_of_many() const;

 private:
  /// Matrices that share a launch.
  struct Group {
    int first = 0, count = 0;
    BrickMatrix bricks;
    IntWeights ints;
    std::vector<gpu::Buffer> floats;  // [n_out, n_in] of each matrix
    enum { in_bricks, in_ints, in_floats } kind = in_floats;
  };
  void run(gpu::StreamHandle stream, const Group& group, const ProductCall& call, ProductScratch& scratch) const;

  int64_t n_in_ = 0;
  std::vector<int64_t> n_out_;
  bool glu_ = false;
  std::string text_;  // "2048x1536 int4_g128"
  int planes_ = 1;
  gpu::Buffer bias_;                  // of all matrices, one after another; empty without any
  std::vector<const float*> biases_;  // into it
  std::vector<Group> groups_;
};

/// A matrix as float32 [n_out, n_in], Linear::scale applied. Waits for the copy.
gpu::Buffer upload_as_floats(const gpu::Stream& stream, const Linear& m);
/// Bytes a matrix takes on a device, up to padding.
int64_t device_product_bytes(const Linear& m);

}  // namespace ridge
