// Models of the reference data with an MTP head in their own files, made of their last layers.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "base/rng.h"
#include "io/safetensors.h"
#include "model/arch/arch.h"
#include "model/weights.h"

namespace ridge {

struct Added {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// A tensor of the last layer, for the head: with other values.
inline Added changed(const io::Tensor& of, std::string name) {
  Added to{std::move(name), of.shape, {}};
  int64_t n = 1;
  for (const int64_t size : of.shape) n *= size;
  to.values.resize(size_t(n));
  of.format->decode(of.data.data(), n, to.values.data());
  for (float& value : to.values) value *= 1.5f;
  return to;
}

/// The model of the directory `from`, with a head whose layers are like its last one. `apart`: a tensor an expert.
inline void write_with_head(const std::filesystem::path& from, const std::filesystem::path& to, bool apart,
                            int n_layers = 1) {
  const LoadedModel model = load_model(from.native()).or_throw();
  const Config& c = model.config;
  const std::vector<io::Tensor>& tensors = std::get<io::HfDirectory>(model.weights.source).tensors;
  const bool behind = arch_of(c).grouped_experts;
  const std::string last = fmt::format("layers.{}.", c.n_layers - 1);
  const auto layer_of_head = [&](int i) {
    return behind ? fmt::format("model.layers.{}.", c.n_layers + i) : fmt::format("mtp.layers.{}.", i);
  };
  const std::string of_head = layer_of_head(0);
  std::vector<Added> added;
  for (const io::Tensor& tensor : tensors) {
    const size_t at = tensor.name.find(last);
    if (at == std::string::npos) continue;
    const std::string name = tensor.name.substr(at + last.size());
    Added one = changed(tensor, of_head + name);
    for (int i = 1; i < n_layers; ++i) added.push_back(changed(tensor, layer_of_head(i) + name));
    constexpr std::string_view kGateUp = "experts.gate_up_proj", kDown = "experts.down_proj";
    if (!apart || !(one.name.ends_with(kGateUp) || one.name.ends_with(kDown)) || one.shape.size() != 3) {
      added.push_back(std::move(one));
      continue;
    }
    const bool is_down = one.name.ends_with(kDown);
    const std::string base = one.name.substr(0, one.name.rfind('.'));
    const int64_t n_in = one.shape[2], n_out = is_down ? one.shape[1] : one.shape[1] / 2;
    auto first = one.values.begin();
    for (int64_t e = 0; e < one.shape[0]; ++e)
      for (const char* part : is_down ? std::vector{"down"} : std::vector{"gate", "up"}) {
        added.push_back(
            {fmt::format("{}.{}.{}_proj.weight", base, e, part), {n_out, n_in}, {first, first + n_out * n_in}});
        first += n_out * n_in;
      }
  }
  ASSERT_FALSE(added.empty());
  Rng rng(3);
  const auto add = [&](std::string name, std::vector<int64_t> shape) {
    Added& one = added.emplace_back(Added{std::move(name), std::move(shape), {}});
    for (int64_t n = one.shape[0] * (one.shape.size() > 1 ? one.shape[1] : 1); n > 0; --n)
      one.values.push_back(0.1f * float(rng.normal()));
  };
  const int64_t d = c.d_model;
  if (behind) {
    add(of_head + "eh_proj.weight", {d, 2 * d});
    for (const char* norm : {"enorm", "hnorm", "shared_head.norm"}) add(of_head + norm + ".weight", {d});
    for (const char* end : {"embed_tokens", "shared_head.head"}) add(of_head + end + ".weight", {c.vocab_size, d});
  } else {
    add("mtp.fc.weight", {d, 2 * d});
    for (const char* norm : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
      add(fmt::format("mtp.{}.weight", norm), {d});
  }

  std::filesystem::create_directory(to);
  for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json"})
    if (std::filesystem::exists(from / file)) std::filesystem::copy_file(from / file, to / file);
  std::vector<io::SafetensorsSpec> specs;
  for (const io::Tensor& tensor : tensors) specs.push_back({tensor.name, tensor.format, tensor.shape});
  for (const Added& one : added) specs.push_back({one.name, *find_weight_format("f32"), one.shape});
  io::write_safetensors(to / "model.safetensors", specs, [&](size_t i, const io::SafetensorsSink& sink) {
    return i < tensors.size() ? sink(tensors[i].data)
                              : sink(std::as_bytes(std::span(added[i - tensors.size()].values)));
  }).or_throw();
}

}  // namespace ridge
