// When each kernel ran on the device, by the driver's own records (CUPTI activity; needs no special rights).
#pragma once

#include <string>
#include <vector>

namespace ridge::gpu {

/// One kernel as it ran; times are the device's, in microseconds from some origin, resolution about 0.03.
struct KernelTime {
  std::string name;  ///< mangled
  double start_us = 0, end_us = 0;
};

/// Records every kernel of this process on one device while it lives; one at a time. Make it before the graphs it
/// should see into. Throws Error: no_device in a build without CUDA or CUPTI, or where the library is not found, with
/// what to install.
class KernelTimes {
 public:
  explicit KernelTimes(int device);
  ~KernelTimes();
  KernelTimes(const KernelTimes&) = delete;
  KernelTimes& operator=(const KernelTimes&) = delete;

  /// Kernels since the last call, by start. All work must be done (synchronised). Throws failure when records were
  /// lost.
  std::vector<KernelTime> take();
};

}  // namespace ridge::gpu
