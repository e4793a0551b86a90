#include "op/device_linear.h"

namespace ridge {

std::span<const DeviceLinearVariant> device_linear_variants() { return {}; }

}  // namespace ridge
