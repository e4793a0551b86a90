// The build without CUDA; cuda_step_buffers_cuda.cpp replaces this file in the other one.
#include "engine/cuda_step_buffers.h"

namespace ridge {
namespace {

[[noreturn]] void refuse() {
  throw_error(ErrorKind::no_device, "device cuda is not available: this program was built without CUDA (use the CPU)");
}

}  // namespace

DeviceBuffers plan_device_buffers(const ModelPlan&, const Weights&, std::span<const KvLayerConfig>,
                                  std::span<const std::string>, std::span<const StepShape>, const DeviceWishes&) {
  refuse();
}
gpu::Allocations plan_device_cache(std::span<const KvLayerConfig>, PageNumbers, SlotNumbers) { refuse(); }

}  // namespace ridge

namespace ridge::gpu {

std::array<Allocations, kMemoryUses> memory_use() { return {}; }
DriverMemory driver_memory() { return {}; }

}  // namespace ridge::gpu
