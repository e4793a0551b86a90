// Fuzz target of config_from_hf(): any config.json gives a model that can be planned, or a reason.
#include "fuzz/touch.h"
#include "io/packed.h"
#include "model/arch/arch.h"
#include "model/plan.h"
#include "model/ternary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ridge;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  io::touch(io::read_packing(text, text, "fuzz"));
  io::touch(ternary_layout(text, "fuzz"));
  const auto config = config_from_hf(text, "fuzz");
  io::touch(config);
  if (!config) return 0;
  // Files keep the factors of LongRoPE apart from the configuration: without them there is nothing to plan with.
  const RopeScaling& scaling = config->rope_scaling;
  const ModelPlan plan = make_plan(*config, scaling.short_factors, scaling.long_factors);
  RIDGE_CHECK(ssize(plan.layers) == config->n_layers, "{} layers planned of {}", plan.layers.size(), config->n_layers);
  return 0;
}
