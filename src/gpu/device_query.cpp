// query_devices() of a build without CUDA; device_query.cu takes its place under RIDGE_CUDA.
#include "gpu/device_query.h"

namespace ridge::gpu {

DeviceReport query_devices() {
  DeviceReport report;
  report.why_none = "built without CUDA (configure with -DRIDGE_CUDA=ON)";
  return report;
}

}  // namespace ridge::gpu
