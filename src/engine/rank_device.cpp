#include "engine/rank_device.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "engine/device_name.h"
#include "gpu/device_query.h"
#include "gpu/nccl.h"
#include "io/json.h"

namespace ridge {
namespace {

using io::Json;

constexpr int kByPlace = -1;

/// Description of this rank's machine and devices, as JSON.
std::string said_here(const std::string& device, int wanted) {
  const gpu::DeviceReport report = gpu::query_devices();
  std::vector<std::string> bus_ids;
  for (const gpu::Device& of : report.devices) bus_ids.push_back(of.pci_bus_id);
  // Without a device NCCL is not looked for: the device is what is missing.
  return Json{{"machine", machine_name()}, {"device", device},
              {"wanted", wanted},          {"why_none", report.why_none},
              {"bus_ids", bus_ids},        {"why_no_nccl", report.devices.empty() ? "" : gpu::why_no_nccl()}}
      .dump();
}

/// The GPU itself: processes may number GPUs differently.
bool is_same_gpu(const Json& a, int a_number, const Json& b, int b_number) {
  const std::string a_bus = a["bus_ids"][size_t(a_number)], b_bus = b["bus_ids"][size_t(b_number)];
  return a["machine"] == b["machine"] && (a_bus.empty() ? a_number == b_number : a_bus == b_bus);
}

}  // namespace

std::string machine_name() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  return fmt::format("{} {}", host, boot_id);
}

int device_of_rank(Ranks& ranks, const std::string& device) {
  const std::vector<int> named = parse_devices(device);
  if (ranks.n_stages() > 1)
    throw Error(ErrorKind::usage, "--pp: layers are not split over GPUs of several processes (leave out --pp)");
  if (named.size() != 1)
    throw_error(ErrorKind::usage,
                "--device {}: with --tp every process has one GPU (use --device cuda, or leave out --tp and mpirun)",
                device);
  std::vector<Json> said;
  for (const std::string& text :
       ranks.gather(said_here(device, device == gpu::kDeviceWord ? kByPlace : named[0]), file_seconds(ranks)))
    said.push_back(Json::parse(text));
  std::vector<int> numbers;
  for (size_t r = 0; r < said.size(); ++r) {
    const auto is_here = [&](const Json& other) { return other["machine"] == said[r]["machine"]; };
    const int wanted = said[r]["wanted"], n = int(said[r]["bus_ids"].size());
    const auto place = std::count_if(said.begin(), said.begin() + ptrdiff_t(r), is_here);
    numbers.push_back(wanted == kByPlace ? int(place) : wanted);
    if (numbers[r] < n) continue;
    const std::string who = ranks.name(int(r));
    if (n == 0)
      throw_error(ErrorKind::no_device, "{}: no GPU: {} (use --device cpu)", who,
                  said[r]["why_none"].get<std::string>());
    if (wanted != kByPlace)
      throw_error(ErrorKind::no_device, "{}: device cuda:{} is not available: there {} (name another one)", who, wanted,
                  n == 1 ? "is 1" : fmt::format("are {}", n));
    throw_error(ErrorKind::no_device,
                "{} has no GPU: its machine has {} rank{} and {} GPU{} that it sees (start fewer ranks there; where "
                "each process sees only a GPU of its own, --device cuda:0)",
                who, std::ranges::count_if(said, is_here), std::ranges::count_if(said, is_here) == 1 ? "" : "s", n,
                n == 1 ? "" : "s");
  }
  for (size_t r = 0; r < said.size(); ++r) {
    for (size_t before = 0; before < r; ++before)
      if (is_same_gpu(said[before], numbers[before], said[r], numbers[r]))
        throw_error(ErrorKind::usage, "{} and {} have one GPU, cuda:{} (use --device cuda: each then takes its own)",
                    ranks.name(int(before)), ranks.name(int(r)), numbers[r]);
    if (const std::string why = said[r]["why_no_nccl"]; !why.empty())
      throw_error(ErrorKind::no_device, "{}: {}", ranks.name(int(r)), why);
  }
  return numbers[size_t(ranks.rank())];
}

}  // namespace ridge
