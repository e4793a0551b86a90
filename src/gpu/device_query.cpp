// query_devices() and why_no_links() of a build without CUDA; device_query.cu takes its place under RIDGE_CUDA.
#include "gpu/device_query.h"

namespace ridge::gpu {

DeviceReport query_devices() {
  DeviceReport report;
  report.why_none = "built without CUDA (configure with -DRIDGE_CUDA=ON)";
  return report;
}

std::string why_no_links() { return {}; }

}  // namespace ridge::gpu
