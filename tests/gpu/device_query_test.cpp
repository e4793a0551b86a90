#include "gpu/device_query.h"

#include <gtest/gtest.h>

namespace ridge::gpu {
namespace {

TEST(QueryDevices, ListsDevicesOrSaysWhyThereAreNone) {
  const DeviceReport report = query_devices();
  EXPECT_EQ(report.devices.empty(), !report.why_none.empty());
  for (const Device& device : report.devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GE(device.sm, 50);
    EXPECT_EQ(device.target().rfind(kIsHip ? "gfx11" : "sm_", 0), 0u);
    EXPECT_GT(device.memory_bytes, 0u);
    EXPECT_GT(device.n_processors, 0);
    EXPECT_GE(report.driver_version, report.runtime_version) << "a device that this program cannot use was listed";
  }
}

#ifndef RIDGE_CUDA
TEST(QueryDevices, SaysThatTheBuildHasNoCuda) {
  EXPECT_EQ(query_devices().why_none.rfind("built without CUDA", 0), 0u);
  EXPECT_EQ(query_devices().runtime_version, 0);
}
#endif

}  // namespace
}  // namespace ridge::gpu
