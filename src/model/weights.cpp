// Walks over all matrices and vectors of a model, and what they add up to.
#include "model/weights.h"

#include <map>

#include "model/tensors.h"

namespace ridge {

void for_each_matrix(Weights& w, const std::function<void(Linear&, std::string_view)>& fn) {
  for (LayerWeights& layer : w.layers)  // ranks have layers without matrices
    for_each_tensor(layer, [&](const TensorRow& row, Linear& m) {
      if (m.format) fn(m, row.name);
    });
  if (w.layer_inputs.format) fn(w.layer_inputs, "layer_inputs");
  if (w.output.format) fn(w.output, "output");
}

void for_each_matrix(const Weights& w, const std::function<void(const Linear&, std::string_view)>& fn) {
  for_each_matrix(const_cast<Weights&>(w), [&](Linear& m, std::string_view name) { fn(m, name); });
}

void for_each_vector(const Weights& w, const std::function<void(const std::vector<float>&)>& fn) {
  const auto call = [&](const TensorRow&, const Values& values) { fn(values); };
  for (const TensorRow& row : model_tensors()) call_member(row, w, call);
  for (const LayerWeights& layer : w.layers) for_each_tensor(layer, call);
}

int64_t decode_matrix_bytes(const Weights& w, int n_used) {
  int64_t bytes = 0;
  for_each_matrix(w, [&](const Linear& m, std::string_view) { bytes += m.bytes(); });
  for (const LayerWeights& layer : w.layers)
    if (!layer.experts.empty()) {
      int64_t of_one = 0;
      for (const Linear ExpertWeights::*matrix : {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down})
        if (const Linear& m = layer.experts[0].*matrix; m.format) of_one += m.bytes();
      bytes -= std::max<int64_t>(0, ssize(layer.experts) - n_used) * of_one;
    }
  return bytes;
}

std::string matrix_name(const Weights& weights, const Linear& m, std::string_view kind) {
  const std::span<const io::Tensor> tensors = [&]() -> std::span<const io::Tensor> {
    if (const auto* gguf = std::get_if<io::GgufFile>(&weights.source)) return gguf->gguf.tensors;
    if (const auto* directory = std::get_if<io::HfDirectory>(&weights.source)) return directory->tensors;
    return {};
  }();
  for (const io::Tensor& tensor : tensors)
    if (m.rows >= tensor.data.data() && m.rows < tensor.data.data() + tensor.data.size()) return tensor.name;
  if (weights.join.format) return fmt::format("matrix {} of the MTP head", kind);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const auto* const at = reinterpret_cast<const std::byte*>(&m);
    const auto* const first = reinterpret_cast<const std::byte*>(&layer);
    if (at >= first && at < first + sizeof layer) return fmt::format("matrix {} of layer {}", kind, i);
  }
  return fmt::format("a matrix {}", kind);
}

int64_t mapped_matrix_bytes(const Weights& w) {
  std::map<const std::byte*, const std::byte*> buffers;  // their ends, by where they begin
  for (const AlignedBuffer& buffer : w.buffers) buffers[buffer.data()] = buffer.data() + buffer.bytes();
  int64_t bytes = 0;
  for_each_matrix(w, [&](const Linear& m, std::string_view) {
    if (m.panels || !m.rows) return;
    const auto behind = buffers.upper_bound(m.rows);
    if (behind == buffers.begin() || m.rows >= std::prev(behind)->second) bytes += m.bytes();
  });
  return bytes;
}

}  // namespace ridge
