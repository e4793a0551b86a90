// MTP heads for tests of speculation.
#pragma once

#include "base/rng.h"
#include "cases/temp_dir.h"
#include "format/list.h"
#include "io/safetensors.h"
#include "ridge/engine.h"

namespace ridge {

/// A file of an MTP head with random weights for this model, without the tensor `missing`.
inline std::string write_random_head(const TempDir& directory, const ModelInfo& m, std::string_view missing = {}) {
  const int64_t d = m.d_model, q = int64_t(m.n_heads) * m.head_dim, kv = int64_t(m.n_kv_heads) * m.head_dim;
  const std::pair<const char*, std::vector<int64_t>> shapes[] = {{"enorm.weight", {d}},
                                                                 {"hnorm.weight", {d}},
                                                                 {"eh_proj.weight", {d, 2 * d}},
                                                                 {"shared_head_norm.weight", {d}},
                                                                 {"layer.input_layernorm.weight", {d}},
                                                                 {"layer.post_attention_layernorm.weight", {d}},
                                                                 {"layer.self_attn.q_proj.weight", {q, d}},
                                                                 {"layer.self_attn.k_proj.weight", {kv, d}},
                                                                 {"layer.self_attn.v_proj.weight", {kv, d}},
                                                                 {"layer.self_attn.o_proj.weight", {d, q}},
                                                                 {"layer.mlp.gate_proj.weight", {m.d_ff, d}},
                                                                 {"layer.mlp.up_proj.weight", {m.d_ff, d}},
                                                                 {"layer.mlp.down_proj.weight", {d, m.d_ff}}};
  std::vector<io::SafetensorsSpec> specs;
  for (const auto& [name, shape] : shapes)
    if (name != missing) specs.push_back({name, *find_weight_format("f32"), shape});
  Rng rng(7);
  const std::filesystem::path path = directory / "head.safetensors";
  io::write_safetensors(path, specs, [&](size_t i, const io::SafetensorsSink& sink) {
    std::vector<float> values;
    for (int64_t n = specs[i].shape[0] * (specs[i].shape.size() > 1 ? specs[i].shape[1] : 1); n > 0; --n)
      values.push_back(0.1f * float(rng.normal()));
    return sink(std::as_bytes(std::span(values)));
  }).or_throw();
  return path.native();
}

}  // namespace ridge
