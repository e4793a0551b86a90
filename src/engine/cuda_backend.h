// The backend that runs on a CUDA device. No CUDA header needed.
#pragma once

#include "engine/backend.h"

namespace ridge {

/// Uploads a model. `plan` and `weights` need live no longer than the call, `kernels` are "op=name" choices. Throws
/// Error: no_device without CUDA or without this device, no_memory before anything is copied when the weights cannot fit,
/// usage for kinds of the plan and kernels that a device lacks.
std::unique_ptr<Backend> make_cuda_backend(int device, const ModelPlan& plan, const Weights& weights,
                                           std::span<const std::string> kernels);

}  // namespace ridge
