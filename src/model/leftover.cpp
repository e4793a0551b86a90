// Tensors of a file that no row of tensors.h reads: harmless, or a reason to refuse the file.
#include <cstdlib>

#include "model/binder.h"

namespace ridge {
namespace {

/// Tensors that nothing reads and that change nothing. "*" stands for any text.
struct HarmlessTensor {
  std::string_view name, why;
};
constexpr std::string_view kVision = "images and sound are not read", kTable = "follows from the configuration",
                           kActivationScale = "of activations in 4 or 8 bits, which stay floats here",
                           kCacheScale = "of a cache in 8 bits, which follows the options here";
constexpr HarmlessTensor kHarmlessTensors[] = {
    {"v.*", kVision},
    {"a.*", kVision},
    {"mm.*", kVision},
    {"visual.*", kVision},
    {"model.visual.*", kVision},
    {"vision_tower.*", kVision},
    {"model.vision_tower.*", kVision},
    {"vision_model.*", kVision},
    {"model.vision_model.*", kVision},
    {"multi_modal_projector.*", kVision},
    {"model.multi_modal_projector.*", kVision},
    {"model.embed_vision.*", kVision},
    {"model.embed_audio.*", kVision},
    {"audio_tower.*", kVision},
    {"model.audio_tower.*", kVision},
    {"*.rotary_emb.inv_freq", kTable},
    {"*.rotary_emb.cos_cached", kTable},
    {"*.rotary_emb.sin_cached", kTable},
    {"*.attn_rot_embd", kTable},
    {"*.attn_rot_embd.weight", kTable},
    {"*.attn.bias", "a mask of attention, which is causal"},
    {"*.attn.masked_bias", "a mask of attention, which is causal"},
    {"*.input_scale", kActivationScale},
    {"*.k_scale", kCacheScale},
    {"*.v_scale", kCacheScale},
    {"mtp.*", "a head that proposes further tokens: --spec-type mtp reads it"},
};

bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  return name.size() + 1 >= pattern.size() && name.starts_with(pattern.substr(0, star)) &&
         name.ends_with(pattern.substr(star + 1));
}

}  // namespace

/// Whether a tensor is of a block behind the last layer, where a head that proposes further tokens is.
bool Binder::is_of_head(std::string_view tensor_name) const {
  const TensorRow& norm = tensor_row(&Weights::join_embedding_norm);
  if ((!is_gguf() && !arch_.grouped_experts) || !has(norm, config_.n_layers)) return false;
  const std::string_view block = is_gguf() ? "blk." : "model.layers.";
  return tensor_name.starts_with(block) && std::atoi(tensor_name.data() + block.size()) >= config_.n_layers;
}

bool Binder::is_harmless(const io::Tensor& tensor) const {
  if (std::ranges::any_of(kHarmlessTensors, [&](const HarmlessTensor& h) { return matches(h.name, tensor.name); }))
    return true;
  if (is_of_head(tensor.name)) return true;
  using L = LayerWeights;
  for (int i = config_.n_layers - config_.shared_kv_layers; i < config_.n_layers; ++i)  // which nothing reads there
    for (const TensorMember& member : {TensorMember(&L::k), TensorMember(&L::v), TensorMember(&L::k_norm)})
      if (tensor.name == name(tensor_row(member), i)) return true;
  if (config_.tied_output && tensor.name == name(tensor_row(&Weights::output), 0)) {  // a copy
    const io::Tensor& embedding = *by_name_.find(name(tensor_row(&Weights::embedding), 0))->second;
    return tensor.format == embedding.format && std::ranges::equal(tensor.data, embedding.data);
  }
  if (!tensor.name.ends_with(".bias") || io::is_off_shelf(*tensor.format) || tensor.shape.size() != 1) return false;
  Values bias(size_t(tensor.shape[0]), 0.0f);  // converters of 4-bit models write biases of zeros
  tensor.format->decode(tensor.data.data(), tensor.shape[0], bias.data());
  return std::ranges::all_of(bias, [](float value) { return value == 0; });
}

Status Binder::check_rest(std::string_view where, std::string_view prefix) const {
  constexpr int kShown = 8;
  std::string names;
  int n = 0;
  for (const auto& [tensor_name, tensor] : by_name_)
    if (tensor_name.starts_with(prefix) && !read_.contains(tensor) && !is_harmless(*tensor) && ++n <= kShown)
      names += (n > 1 ? ", " : "") + tensor_name;
  if (n == 0) return {};
  return bad_file(
      "{}: {} tensor(s) would change results and are not supported in {} models: {}{} (convert the model "
      "without them if it was made without them)",
      where, n, config_.arch, names, n > kShown ? fmt::format(" and {} more", n - kShown) : "");
}

}  // namespace ridge
