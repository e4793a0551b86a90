// Of a build without CUDA.
#include "gpu/kernel_times.h"

#include "base/result.h"

namespace ridge::gpu {

struct KernelTimes::Impl {};

KernelTimes::KernelTimes() {
  throw Error(ErrorKind::no_device, "this build has no CUDA, so no kernels to time (build with the preset cuda)");
}
KernelTimes::~KernelTimes() = default;
std::vector<KernelTime> KernelTimes::take() { return {}; }

}  // namespace ridge::gpu
