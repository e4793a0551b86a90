#include "lab/sweep/doctor.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/result.h"
#include "engine/kv_choice.h"
#include "lab/op/device_ceilings.h"

namespace ridge::lab {
namespace {

std::string trimmed(std::string text) {
  text.erase(0, text.find_first_not_of(' '));
  text.erase(text.find_last_not_of(" \n\r") + 1);
  return text;
}

/// Bits of clocks_throttle_reasons.active, as the driver's NVML defines them; those that change a measurement.
struct Brake {
  unsigned long bit;
  const char* name;
  bool is_fault;  ///< not a limit that was chosen
};
constexpr Brake kBrakes[] = {{0x04, "power cap", false},
                             {0x08, "hardware slowdown", true},
                             {0x20, "temperature (driver)", true},
                             {0x40, "temperature (hardware)", true},
                             {0x80, "power brake", true}};

/// Clocks held back, MIG and others' work on the first GPU, from one line of nvidia-smi.
std::vector<Check> check_state(const Surroundings& here) {
  const std::optional<std::string> line = here.ask(
      "nvidia-smi --query-gpu=clocks_throttle_reasons.active,temperature.gpu,utilization.gpu,mig.mode.current "
      "--format=csv,noheader,nounits 2> /dev/null");
  if (!line) return {{"gpu clocks", Finding::note, "nvidia-smi does not answer", "install the driver's tools"}};
  std::vector<std::string> words;
  for (const std::string& word : split(*line, ',')) words.push_back(trimmed(word));
  if (words.size() != 4 || !words[0].starts_with("0x"))
    return {{"gpu clocks", Finding::note, "not known: nvidia-smi says '" + *line + "'", "look with nvidia-smi -q"}};
  const unsigned long active = std::strtoul(words[0].c_str(), nullptr, 16);
  std::string held;
  bool is_fault = false;
  for (const Brake& brake : kBrakes) {
    if (!(active & brake.bit)) continue;
    held += (held.empty() ? "" : ", ") + std::string(brake.name);
    is_fault |= brake.is_fault;
  }
  std::vector<Check> checks;
  Check clocks{"gpu clocks", Finding::ok, fmt::format("not held back, {} degrees C", words[1]), ""};
  if (!held.empty()) {
    clocks.finding = is_fault ? Finding::problem : Finding::note;
    clocks.what = fmt::format("held back by {}, {} degrees C", held, words[1]);
    clocks.advice = is_fault ? "cool the GPU or wait; see nvidia-smi -q -d PERFORMANCE" : "see nvidia-smi -q -d POWER";
  }
  checks.push_back(clocks);
  if (std::atoi(words[2].c_str()) > 5)
    checks.push_back({"gpu load", Finding::problem, fmt::format("{} % busy with other work", words[2]),
                      "stop it, or choose another GPU"});
  if (words[3] == "Enabled")
    checks.push_back(
        {"mig", Finding::note, "on: figures are of a slice of the GPU", "name the slice beside every figure"});
  return checks;
}

/// Whether the driver lets this user read hardware counters.
Check check_counters(const Surroundings& here) {
  std::ifstream file(here.root / "proc/driver/nvidia/params");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("RmProfilingAdminOnly:")) continue;
    if (trimmed(line.substr(line.find(':') + 1)) == "0") return {"counters", Finding::ok, "open to every user", ""};
    return {"counters", Finding::note, "hardware counters are for root only",
            "NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module, or profile as root"};
  }
  return {"counters", Finding::note, "the driver does not say who may read hardware counters", ""};
}

Check check_device_ceilings(const Surroundings& here) {
  for (const Row& row : here.rows) {
    const double bandwidth = number_in(row, "read_roof_gb_s");
    if (text_in(row, "kind") == "bandwidth-device" && !std::isnan(bandwidth) &&
        text_in(row, "device_name") == here.gpus.devices.front().name)
      return {"gpu ceilings", Finding::ok, fmt::format("read bandwidth {:.0f} GB/s", bandwidth), ""};
  }
  return {"gpu ceilings", Finding::note, "this GPU's read bandwidth is in no stored row",
          fmt::format("ridge bench bandwidth --device {0} --results results/bandwidth-{0}.jsonl", gpu::kDeviceWord)};
}

/// Checks the means by which several GPUs that hold a model together can add.
Check check_gpu_ranks(const Surroundings& here) {
  const std::string& why_no_links = here.why_no_links;
  const std::string nccl = here.nccl.empty() ? "no NCCL" : "NCCL " + here.nccl;
  if (why_no_links.empty() && !here.nccl.empty())
    return {"gpu ranks", Finding::ok, "GPUs write to each other's memory; " + nccl, ""};
  if (why_no_links.empty())
    return {"gpu ranks", Finding::note, "GPUs write to each other's memory; no NCCL for large sums", here.why_no_nccl};
  if (!here.nccl.empty()) return {"gpu ranks", Finding::note, nccl + " alone: " + why_no_links, ""};
  return {"gpu ranks", Finding::note, "GPUs cannot hold a model together: " + why_no_links, here.why_no_nccl};
}

/// A build for AMD GPUs. Its tools do not say what nvidia-smi says.
std::vector<Check> examine_amd_gpu(const Surroundings& here) {
  const gpu::DeviceReport& gpus = here.gpus;
  const std::string build = fmt::format("built for {}", here.build.hip);
  if (gpus.devices.empty())
    return {{"gpu", Finding::problem, fmt::format("{} ({})", gpus.why_none, build),
             "install ROCm 6 or 7 and the driver amdgpu, or use a build for the CPU (make build)"}};
  return {{"gpu", Finding::note,
           fmt::format("{} x {}, {}, {}; code for AMD was executed in an emulator, never on hardware",
                       gpus.devices.size(), gpus.devices.front().name, gpus.devices.front().target(), build),
           "docs/amd.md says what to run first"},
          check_device_ceilings(here)};
}

}  // namespace

std::vector<Check> examine_gpu(const Surroundings& here) {
  const gpu::DeviceReport& gpus = here.gpus;
  if (!here.build.hip.empty()) return examine_amd_gpu(here);
  if (!here.build.cuda) {
    const std::optional<std::string> listed = here.ask("nvidia-smi -L 2> /dev/null");
    if (!listed && std::filesystem::exists(here.root / "dev/kfd"))
      return {{"gpu", Finding::note, "AMD's driver for computing is here: this build cannot use its GPUs",
               "make hip (docs/amd.md)"}};
    if (!listed) return {{"gpu", Finding::ok, "none, and this build is for the CPU only", ""}};
    return {{"gpu", Finding::note, fmt::format("{}: this build cannot use it", *listed), "make cuda"}};
  }
  if (gpus.devices.empty())
    return {{"gpu", Finding::problem, gpus.why_none, "install a driver, or use a build without CUDA"}};
  std::vector<Check> checks;
  const gpu::Device& first = gpus.devices.front();
  Check device{
      "gpu", Finding::ok,
      fmt::format("{} x {}, sm_{}, driver for CUDA {}, built with {}", gpus.devices.size(), first.name, first.sm,
                  runtime_version_text(gpus.driver_version), runtime_version_text(gpus.runtime_version)),
      ""};
  if (gpus.driver_version / 1000 < gpus.runtime_version / 1000)
    device.worsen(Finding::problem, ": the driver is older than this program's CUDA", "update the driver");
  checks.push_back(device);
  for (Check& check : check_state(here)) checks.push_back(std::move(check));
  checks.push_back(check_counters(here));
  checks.push_back(check_device_ceilings(here));
  if (gpus.devices.size() > 1) checks.push_back(check_gpu_ranks(here));
  if (const auto nvcc = here.ask("PATH=$PATH:/usr/local/cuda/bin; nvcc --version 2> /dev/null | grep release"))
    checks.push_back({"toolkit", Finding::ok, *nvcc, ""});
  else
    checks.push_back({"toolkit", Finding::note, "nvcc not found: kernels cannot be rebuilt here", "install CUDA 13"});
  return checks;
}

}  // namespace ridge::lab
