// Device ceilings: the parts that need no device. device_ceilings_run_cuda.cpp measures.
#include "lab/op/device_ceilings.h"

#include <algorithm>

namespace ridge::lab {

const StreamResult* DeviceCeilings::best_read() const {
  const StreamResult* best = nullptr;
  for (const StreamResult& stream : streams)
    if (stream.name.starts_with("read ") && (!best || stream.gb_s.median > best->gb_s.median)) best = &stream;
  return best;
}

double DeviceCeilings::read_gb_s() const {
  const StreamResult* best = best_read();
  return best ? best->gb_s.max : 0;
}

StreamSize choose_device_stream_size(int64_t cache_bytes, int64_t free_bytes) {
  constexpr int64_t kGib = int64_t(1) << 30, kMib = int64_t(1) << 20;
  const auto whole_mib = [=](int64_t bytes) { return std::max(kMib, bytes / kMib * kMib); };
  const int64_t wanted = std::max(4 * kGib, 16 * cache_bytes), allowed = free_bytes / 8;
  const double cache_mib = double(cache_bytes) / double(kMib);
  if (wanted <= allowed)
    return {whole_mib(wanted), fmt::format("{} of {:.0f} MiB",
                                           16 * cache_bytes > 4 * kGib ? "16 x the last-level cache"
                                                                       : "4 GiB, at least 16 x the last-level cache",
                                           cache_mib)};
  return {whole_mib(allowed),
          fmt::format("an eighth of the free memory; the last-level cache has {:.0f} MiB", cache_mib)};
}

std::string runtime_version_text(int version) {
  if (gpu::kIsHip) return fmt::format("{}.{}", version / 10'000'000, version / 100'000 % 100);
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Columns<GpuPlace> gpu_columns() {
  return {
      {"device_sm", "-", "compute capability, 90 is Hopper", [](auto& p) { return p.device.sm; }},
      {"device_processors", "processors", "of the GPU", [](auto& p) { return p.device.n_processors; }},
      {"device_memory_bytes", "bytes", "of the GPU", [](auto& p) { return p.device.memory_bytes; }},
      {"device_l2_bytes", "bytes", "of the GPU's L2", [](auto& p) { return p.device.l2_bytes; }},
      {"driver_cuda", "-", "newest CUDA of the driver", [](auto& p) { return runtime_version_text(p.driver_version); }},
      {"built_with_cuda", "-", "CUDA of the build", [](auto& p) { return runtime_version_text(p.runtime_version); }},
  };
}

Columns<EdgeResult> edge_columns() {
  return {
      {"name", "-", "of the cost", &EdgeResult::name},
      {"what", "-", "what it is", &EdgeResult::what},
      {"", "-", "what costs", [](auto& e) { return fmt::format("{} ({})", e.name, e.what); }, "edge"},
      {"median_us", "us", "of the repeats", [](auto& e) { return e.us.median; }, ">us median", "{:.2f}"},
      {"", "us", "quartiles", [](auto& e) { return e.us.quartiles(2); }, ">quartiles"},
      {"lower_quartile_us", "us", "of the repeats", [](auto& e) { return e.us.lower; }},
      {"upper_quartile_us", "us", "of the repeats", [](auto& e) { return e.us.upper; }},
      {"min_us", "us", "of the repeats", [](auto& e) { return e.us.min; }, ">least", "{:.2f}"},
      {"repeats", "repeats", "measured", &EdgeResult::repeats, ">repeats"},
  };
}

Columns<DeviceCeilings> device_ceiling_columns() {
  return {
      {"device", "-", "cuda:N", [](auto& c) { return gpu::device_text(c.index); }},
      {"device_name", "-", "of the GPU", [](auto& c) { return c.device.name; }},
      part_of<DeviceCeilings>(gpu_columns(), std::identity()),
      {"read_roof_gb_s", "GB/s", "memory bandwidth, best of the fastest kernel", &DeviceCeilings::read_gb_s},
      part_of<DeviceCeilings>(bandwidth_columns<DeviceCeilings>("buffer_bytes"), std::identity()),
      {"edges", "-", "a list, see below", [](auto& c) { return list_of(c.edges, edge_columns()); }},
  };
}

}  // namespace ridge::lab
