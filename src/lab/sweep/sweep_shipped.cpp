// The sweeps that ship, as a user would write them.
#include "lab/sweep/sweep_spec.h"

namespace ridge::lab {

std::span<const ShippedSpec> shipped_specs() {
  static constexpr ShippedSpec kSpecs[] = {
      {"quick", "a few minutes on two cores: each grid of the others, cut short", R"({
  "samples": 20, "repeats": 5, "max_seconds": 1,
  "grids": [
    {"bench": "gemv", "shapes": ["8960x1536"], "batch": [1, 4, 16, 64],
     "weights": ["f16", "int4_g128", "q4_0", "q8_0"]},
    {"bench": "attention", "heads": ["12/2"], "depth": [512, 4096, 32768], "kv": ["f16", "q8_0", "p8/q4_0", "rotor-3"]},
    {"bench": "decode", "models": ["synth:qwen2.5-0.5b@weights=q4_0"], "depth": [0, 4096], "n_gen": 8,
     "kv": ["f16", "q8_0", "rotor-3"]}
  ]
})"},
      {"regime", "weights by batch: batch 1 to 64 x the four shapes of a 1.5B model", R"({
  "grids": [
    {"bench": "gemv", "shapes": ["8960x1536", "1536x8960", "1536x1536", "256x1536"], "batch": [1, 2, 4, 8, 16, 32, 64],
     "weights": ["f16", "int4_g128", "q4_0", "q8_0"]}
  ]
})"},
      {"large", "the same of 8B and 70B models, for a GPU", R"({
  "grids": [
    {"bench": "gemv", "shapes": ["28672x4096", "4096x14336", "57344x8192", "8192x28672"],
     "batch": [1, 2, 4, 8, 16, 32, 64], "weights": ["f16", "int4_g128"]}
  ]
})"},
      {"depth", "attention by depth: 512 to 131072 cached positions, and of eight sequences", R"({
  "grids": [
    {"bench": "attention", "heads": ["20/5", "64/8", "12/2"], "depth": "512-131072*2",
     "kv": ["f16", "q8_0", "p8/q8_0", "p8/q4_0", "rotor-3"]},
    {"bench": "attention", "heads": ["64/8"], "batch": [8], "depth": [8192, 32768],
     "kv": ["f16", "q8_0", "p8/q8_0", "p8/q4_0", "rotor-3"]}
  ]
})"},
      {"decode", "whole models by depth", R"({
  "grids": [
    {"bench": "decode", "models": ["synth:qwen2.5-1.5b@weights=q4_0"], "depth": [0, 2048, 8192, 32768], "n_gen": 32,
     "kv": ["f16", "q8_0", "p8/q4_0", "rotor-3"]}
  ]
})"},
  };
  return kSpecs;
}

}  // namespace ridge::lab
