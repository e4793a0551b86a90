// Matmuls of some tokens with their experts on a device, weights of int_formats.h times integers: an expert's weights
// are read once for up to four tokens that take it. Activations are rounded as op/gemv/int_gemv_cuda.h has it, in two
// planes.
#pragma once

#include "op/experts/experts_cuda.h"

namespace ridge {

/// Whether device_int_packs() serves a matrix of experts, gate and up in pairs or one of one part, on this device.
bool has_int_packs(const BrickMatrix& w);

/// y [slots, n_out] of the packs' slots, as device_expert_gemv() has it; of pairs glu(gate, up). `w` says what one
/// expert is, its data holds all of them one after another. x is aligned to 16 bytes. The result of a slot does
/// not depend on its pack. With overlap the next grid may read the packs before its wait.
void device_int_packs(gpu::StreamHandle stream, const BrickMatrix& w, const ExpertCall& call, float* y);

}  // namespace ridge
