// The build without CUDA; device_timer_cuda.cpp replaces this file in the other one.
#include "lab/op/device_timer.h"

#include "ridge/error.h"

namespace ridge::lab {
namespace {

[[noreturn]] void no_cuda() {
  throw Error(ErrorKind::no_device, "nothing can be timed on a device: this program was built without CUDA");
}

}  // namespace

std::vector<CallTimes> time_on_device(const gpu::Stream&, std::span<const DeviceWork>, const TimerOptions&) {
  no_cuda();
}

std::vector<double> time_round_trips(const gpu::Stream&, const DeviceWork&, int) { no_cuda(); }

}  // namespace ridge::lab
