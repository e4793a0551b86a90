#include <limits>

#include "lab/op/op_data.h"

namespace ridge::lab {

DeviceSets::DeviceSets(const gpu::Stream& stream, std::span<const std::byte> bytes, int n_sets)
    : buffer_(n_sets * set_stride(int64_t(bytes.size()))), stride_(set_stride(int64_t(bytes.size()))) {
  gpu::upload(stream, at<void>(0), bytes.data(), int64_t(bytes.size()));
  for (int set = 1; set < n_sets; ++set) gpu::copy(stream, at<void>(set), at<void>(0), int64_t(bytes.size()));
  stream.synchronize();
}

DeviceSets DeviceSets::of_nan(const gpu::Stream& stream, int64_t n_floats, int n_sets) {
  return device_sets(stream, std::vector<float>(size_t(n_floats), std::numeric_limits<float>::quiet_NaN()), n_sets);
}

}  // namespace ridge::lab
