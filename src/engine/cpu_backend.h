// The backend that runs on the CPU.
#pragma once

#include "engine/backend.h"

namespace ridge {

/// `context`, `plan` and `weights` must outlive the backend. Refuses kinds of the plan that it does not compute.
std::unique_ptr<Backend> make_cpu_backend(CpuContext& context, const ModelPlan& plan, const Weights& weights);

}  // namespace ridge
