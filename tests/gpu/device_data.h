// For tests on a device: skip without one, and move data there and back.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/rng.h"
#include "gpu/device.h"
#include "gpu/device_query.h"

namespace ridge {

/// Skips every test when there is no device.
class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (const gpu::DeviceReport report = gpu::query_devices(); report.devices.empty()) GTEST_SKIP() << report.why_none;
    gpu::use_device(0);
    stream_ = std::make_unique<gpu::Stream>();
  }
  const gpu::Stream& stream() const { return *stream_; }

  template <class T>
  gpu::Buffer up(const std::vector<T>& values) const {
    gpu::Buffer buffer = gpu::to_device(stream(), std::span(values));
    stream().synchronize();
    return buffer;
  }
  template <class T = float>
  std::vector<T> down(const T* device, int64_t n) const {
    std::vector<T> values(size_t(n), T{});
    gpu::download(stream(), values.data(), device, n * int64_t(sizeof(T)));
    stream().synchronize();
    return values;
  }

 private:
  std::unique_ptr<gpu::Stream> stream_;
};

inline std::vector<float> normal_floats(uint64_t seed, int64_t n, double spread = 1) {
  Rng rng(seed);
  std::vector<float> values(size_t(n), 0.0f);
  for (float& x : values) x = float(spread * rng.normal());
  return values;
}

}  // namespace ridge
