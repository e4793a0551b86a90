// A rank of an MPI job that runs its slice of a model on a CUDA device.
#pragma once

#include "engine/backend.h"
#include "model/slice.h"
#include "rank/ranks.h"

namespace ridge {

/// The backend of this rank's device; plan and weights are its slice. All ranks call it at one time; `ranks` must
/// outlive it. Throws Error as make_cuda_backend() does, and failure when another rank does not come.
std::unique_ptr<Backend> make_cuda_process_rank(int device, const ModelPlan& plan, const Weights& weights,
                                                std::span<const std::string> kernels, Ranks& ranks,
                                                const ModelSlice& slice);

}  // namespace ridge
