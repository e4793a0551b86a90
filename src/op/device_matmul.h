// The matmuls of a layer on a device: one or several matrices with the same input, in whichever order of bytes their
// format has kernels for, and what stands around them: the norm before, bias, residual or gated activation after.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/memory_use.h"
#include "op/device_linear.h"
#include "op/gemv/f16_gemv_cuda.h"
#include "op/gemv/int_gemv_cuda.h"

namespace ridge {

/// Scratch of matmuls that are only planned.
struct PlannedScratch {
  gpu::PlannedBuffer bricks, ints, counters, normed, up, sorted;

  void add_to(gpu::Allocations& all) const {
    for (const gpu::PlannedBuffer* b : {&bricks, &ints, &counters, &normed, &up, &sorted}) all.add(b->size);
  }
};

/// Memory that matmuls of one stream share. What is captured in a graph must have run once with the same scratch
/// before, and is good for as long as places() stays what it was: larger matmuls take new memory and free the old.
struct MatmulScratch {
  gpu::Buffer bricks;
  IntScratch ints;
  gpu::Buffer normed, up, sorted;

  /// At least as much as is planned.
  void reserve(const PlannedScratch& planned) {
    bricks.ensure<std::byte>(planned.bricks.size);
    ints.data.ensure<std::byte>(planned.ints.size);
    ints.counters.ensure<std::byte>(planned.counters.size);
    normed.ensure<std::byte>(planned.normed.size);
    up.ensure<std::byte>(planned.up.size);
    sorted.ensure<std::byte>(planned.sorted.size);
  }
  std::array<const void*, 6> places() const {
    return {bricks.as<void>(), ints.data.as<void>(), ints.counters.as<void>(),
            normed.as<void>(), up.as<void>(),        sorted.as<void>()};
  }
};

enum class MatmulOutput : uint8_t { store, add, silu_glu, relu2_glu };

struct MatmulCall {
  int64_t n_tokens = 0;
  const float* x = nullptr;            ///< [n_tokens, n_in]
  const float* norm_weight = nullptr;  ///< [n_in]: x is RMS-normalised first; may be null
  float norm_eps = 0;
  MatmulOutput output = MatmulOutput::store;  ///< a GLU takes two matrices, gate and up, and has one output
  float* y[4] = {};                           ///< [n_tokens, n_out] of each matrix
  bool overlap = false;
  int layer = -1;  ///< for the launch log
};

/// Bytes of a matmul on a device.
struct MatmulBytes {
  int64_t kept = 0;     ///< what DeviceMatmul::bytes() will say
  int64_t packing = 0;  ///< beside them while it is made
};

/// Up to four matrices of one width, with the kernels of device_linear.h. Matrices of one packing and format share a
/// launch. Where their columns are sorted (Linear::order), x is sorted likewise first; those of one launch are sorted
/// alike.
class DeviceMatmul {
 public:
  DeviceMatmul() = default;
  /// Uploads and packs. `biases` has an entry a matrix, empty or null where there is none. `glu`: two matrices, gate
  /// and up. Throws Error: usage for a matrix without a kernel and as choose_device_linear() does; no_memory.
  DeviceMatmul(const gpu::Stream& stream, std::span<const Linear* const> matrices,
               std::span<const std::vector<float>* const> biases, bool glu, const ForcedKernels& forced);

  /// As the constructor makes it, without device memory: it cannot run. Throws as matmul_bytes() does.
  static DeviceMatmul planned(std::span<const Linear* const> matrices,
                              std::span<const std::vector<float>* const> biases, bool glu,
                              const ForcedKernels& forced) {
    DeviceMatmul product;
    product.plan(matrices, biases, glu, forced);
    return product;
  }
  void run(gpu::StreamHandle stream, const MatmulCall& call, MatmulScratch& scratch) const;
  /// Grows `scratch` as run() would; reads the number of tokens, the norm and the output of `call`.
  void plan_scratch(const MatmulCall& call, PlannedScratch& scratch) const;
  /// Adds the allocations that hold bytes().
  void add_to(gpu::Allocations& all) const;
  /// Bytes of matrices and biases on the device, which a matmul reads.
  int64_t bytes() const;
  /// Names of device_linear_variants(), one for each launch.
  std::vector<std::string_view> kernels(int64_t n_tokens) const;

 private:
  friend MatmulBytes matmul_bytes(std::span<const Linear* const> matrices,
                                  std::span<const std::vector<float>* const> biases, bool glu,
                                  const ForcedKernels& forced);

  /// Matrices that share a launch.
  struct Group {
    const DeviceLinearVariant& kernel(int64_t n_tokens) const { return n_tokens <= kFewTokens ? *few : *many; }
    int64_t bytes() const { return bricks.bytes() + ints.bytes() + floats_bytes + order_bytes; }

    int first = 0, count = 0;
    bool gated = false;             ///< gate and up, packed as one
    IntTurn turn = IntTurn::alone;  ///< of one token's launch, with that of the group before or behind
    const DeviceLinearVariant* few = nullptr;
    const DeviceLinearVariant* many = nullptr;
    // The one of its packing is filled.
    BrickMatrix bricks;
    IntWeights ints;
    int64_t floats_bytes = 0;
    gpu::Buffer floats;  // [n_out, n_in] of one matrix
    int64_t order_bytes = 0;
    gpu::Buffer order;  // int32 [n_in] as Linear::order; empty: columns are as they are
  };
  /// Everything but device memory.
  void plan(std::span<const Linear* const> matrices, std::span<const std::vector<float>* const> biases, bool glu,
            const ForcedKernels& forced);
  MatmulCall sort(gpu::StreamHandle stream, const Group& group, const MatmulCall& call, MatmulScratch& scratch) const;
  void run(gpu::StreamHandle stream, const Group& group, const MatmulCall& call, MatmulScratch& scratch) const;
  /// Whether few tokens become integers; more are two planes of halves.
  static bool runs_int_bricks(const Group& group, int64_t n_tokens);
  /// Outputs and biases of an IntCall or IntGemmCall.
  template <class Call>
  void fill_call(const Group& group, const MatmulCall& call, Call& c) const;
  void run_bricks(gpu::StreamHandle stream, const Group& group, const MatmulCall& call, MatmulScratch& scratch) const;
  void run_ints(gpu::StreamHandle stream, const Group& group, const MatmulCall& call, MatmulScratch& scratch) const;
  void run_floats(gpu::StreamHandle stream, const Group& group, const MatmulCall& call, MatmulScratch& scratch) const;
  int64_t rows() const;

  int64_t n_in_ = 0;
  std::vector<int64_t> n_out_;
  bool glu_ = false;
  std::string text_;  // "2048x1536 int4_g128"
  int64_t bias_bytes_ = 0;
  gpu::Buffer bias_;                  // of all matrices, one after another; empty without any
  std::vector<const float*> biases_;  // into it
  std::vector<Group> groups_;
};

/// Bytes of such a DeviceMatmul, without a device. Throws what its constructor throws, no_memory apart.
MatmulBytes matmul_bytes(std::span<const Linear* const> matrices, std::span<const std::vector<float>* const> biases,
                         bool glu, const ForcedKernels& forced);

}  // namespace ridge
