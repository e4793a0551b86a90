// GEMMs of many tokens with chosen experts in bricks, on f16 tensor cores.
#pragma once

#include <cstdint>

#include "op/gemv/bricks_cuda.h"
#include "op/gemv/expert_packs.h"

namespace ridge {

/// Columns of an area, which belong to one expert: of GEMMs by warps, and by warpgroups.
inline constexpr int kGroupColumns = 32, kWideGroupColumns = 64;
/// On this device.
int group_columns();

/// The slots of a step by expert, in areas of some columns. Pointers are device memory.
struct ExpertGroups {
  int width = 0;  ///< columns of an area: group_columns()
  int64_t n_slots = 0;
  int64_t most_areas = 0;        ///< there may be
  int32_t* n_areas = nullptr;    ///< how many there are
  int32_t* experts = nullptr;    ///< [most_areas]
  int32_t* columns = nullptr;    ///< [most_areas, width]: slots of the area's expert; -1: none
  int32_t* column_of = nullptr;  ///< [n_slots]
};

struct ExpertGroupCall {
  ExpertGroups groups;
  const float* x = nullptr;  ///< slot s reads row s / share of n_in values
  int share = 1;
  const float* biases[2] = {};  ///< [n_experts, n_out], of the part or of gate and up; or null
  BrickGlu glu = BrickGlu::silu;
  float* y = nullptr;  ///< [slots, n_out]
};

/// Whether bricks of a format have such a GEMM: x is rounded to f16, in one plane (device_tensor_gemm()).
bool has_expert_gemm(BrickFormat format);

/// Bytes of scratch, as brick_scratch_bytes() has it.
int64_t expert_gemm_scratch_bytes(const BrickMatrix& w, const ExpertGroups& groups);

/// y = x W^T of the experts' slots. `w` says what one expert is, one part, plain or paired; its data holds all experts
/// one after another. Two launches.
void device_expert_gemm(gpu::StreamHandle stream, const BrickMatrix& w, const ExpertGroupCall& call,
                        const gpu::Buffer& scratch);

}  // namespace ridge
