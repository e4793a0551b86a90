#include "engine/device_kernels.h"
#include "ridge/error.h"

namespace ridge {
namespace {

/// Notes kernels of gemv or gemm after checking that each is in the table.
void force_kernels(const std::string& choice, ForcedKernels& forced) {
  const size_t equals = choice.find('=');
  const std::string op = choice.substr(0, equals), names = equals == std::string::npos ? "" : choice.substr(equals + 1);
  if (op != "gemv" && op != "gemm")
    throw Error(ErrorKind::usage,
                fmt::format("kernel {} on a GPU: expects gemv=NAME, gemm=NAME, "
                            "launch=plain or launch=overlap",
                            choice),
                "kernels");
  for (size_t at = 0, end = 0; at <= names.size(); at = end + 1) {
    end = std::min(names.find('+', at), names.size());
    const std::string name = names.substr(at, end - at);
    std::string known;
    bool found = false;
    for (const DeviceLinearVariant& variant : device_linear_variants()) {
      known += (known.empty() ? "" : ", ") + std::string(variant.name);
      found = found || variant.name == name;
    }
    if (!found)
      throw Error(ErrorKind::usage,
                  fmt::format("kernel {} on a GPU: op {} has no kernel '{}' (there are: "
                              "{})",
                              choice, op, name, known),
                  "kernels");
  }
  forced[op] = names;
}

}  // namespace

DeviceOptions parse_device_kernels(std::span<const std::string> kernels) {
  DeviceOptions options;
  for (const std::string& choice : kernels) {
    if (choice == "launch=plain") options.overlap = false;
    else if (choice == "launch=overlap") options.overlap = true;
    else force_kernels(choice, options.kernels);
  }
  return options;
}

}  // namespace ridge
