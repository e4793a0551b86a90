// From a container to Weights: every tensor found, checked against the configuration and bound, or reported.
#include <cmath>
#include <filesystem>

#include "format/i2_s.h"
#include "format/int4_g128.h"
#include "io/int4_packed.h"
#include "model/arch/arch.h"
#include "model/ternary.h"
#include "model/weights.h"
#include "op/gemv/panels.h"
#include "op/gemv/ternary.h"

namespace ridge {
namespace {

/// Binds tensors by name and collects everything that is missing or has another shape, to report it at once.
class Binder {
 public:
  Binder(std::span<const io::Tensor> tensors, bool is_gguf, Weights& weights,
         io::Int4Layout int4 = io::Int4Layout::none)
      : is_gguf_(is_gguf), int4_(int4), weights_(weights) {
    for (const io::Tensor& tensor : tensors) {
      by_name_[tensor.name] = &tensor;
      weights.stored_bytes += int64_t(tensor.data.size());
      int64_t n = 1;
      for (const int64_t dim : tensor.shape) n *= dim;
      weights.n_params += n * weights_per_element(tensor);
    }
  }

  std::string name(const tensor_names::Name& n, int layer) const {
    return fmt::format(fmt::runtime(is_gguf_ ? n.gguf : n.hf), layer);
  }
  Linear matrix(const tensor_names::Name& n, int layer, int64_t n_out, int64_t n_in) {
    if (int4_ != io::Int4Layout::none && packed(n, layer, "qweight")) return int4_matrix(n, layer, n_out, n_in);
    const io::Tensor* tensor = find(name(n, layer), {n_out, n_in}, true);
    if (!tensor) return {};
    const Result<float> scale = checked_scale(*tensor);
    if (!scale) return problem(fmt::format("{} {}", tensor->name, scale.error().message)), Linear{};
    return {.format = tensor->format,
            .n_out = n_out,
            .n_in = n_in,
            .rows = tensor->data.data(),
            .scale = *scale,
            .int8_activations = tensor->format->gguf_type == I2_S::kGgufType};
  }
  /// A BitNet matrix: i2_s in place, all others as i2_s in a buffer of their own.
  Linear ternary_matrix(const tensor_names::Name& n, int layer, int64_t n_out, int64_t n_in) {
    Linear m = matrix(n, layer, n_out, n_in);
    if (!m.format) return m;
    if (is_gguf_) m.scale *= extra_scale(name(n, layer));
    if (m.int8_activations) return m;
    const io::Tensor& tensor = *by_name_[name(n, layer)];
    if (tensor.format->check) weights_.ternary_source = tensor.format;
    Result<TernaryMatrix> ternary = is_gguf_ ? repack_ternary(tensor) : quantize_ternary(tensor);
    if (!ternary) return problem(fmt::format("{} {}", tensor.name, ternary.error().message)), m;
    m.format = weight_format_of_gguf(I2_S::kGgufType);
    m.rows = weights_.buffers.emplace_back(std::move(ternary->rows)).data();
    m.scale *= ternary->scale;
    m.int8_activations = true;
    return m;
  }
  std::vector<float> vector(const tensor_names::Name& n, int layer, int64_t size, bool required = true) {
    return values(name(n, layer), size, required);
  }
  Status finish(std::string_view where) const {
    if (n_problems_ == 0) return {};
    return bad_file("{}: {} tensor(s) do not fit the configuration:{}", where, n_problems_, problems_);
  }

 private:
  static Result<float> checked_scale(const io::Tensor& tensor) {
    if (tensor.format->check)
      RIDGE_TRY_STATUS(tensor.format->check(tensor.data.data(), tensor.shape[0] * tensor.shape[1]));
    return io::tensor_scale(tensor);
  }
  /// The optional tensor NAME.scale [1] beside NAME.weight, which some converters put a matrix's scale in.
  float extra_scale(std::string weight_name) {
    const std::string scale_name = weight_name.replace(weight_name.rfind(".weight"), 7, ".scale");
    if (!by_name_.contains(scale_name)) return 1;
    const std::vector<float> scale = values(scale_name, 1, true);
    return scale.empty() ? 1 : scale[0];
  }
  std::vector<float> values(const std::string& tensor_name, int64_t size, bool required) {
    const io::Tensor* tensor = find(tensor_name, {size}, required);
    if (!tensor) return {};
    std::vector<float> decoded(size_t(size), 0.0f);
    tensor->format->decode(tensor->data.data(), size, decoded.data());
    for (const float v : decoded)
      if (!std::isfinite(v)) {
        problem(fmt::format("{} holds {}", tensor->name, v));
        break;
      }
    return decoded;
  }
  /// How many weights an element of the tensor is: 8 in a word of codes, none in what belongs to packed codes.
  int weights_per_element(const io::Tensor& tensor) const {
    if (int4_ == io::Int4Layout::none) return 1;
    if (tensor.name.ends_with(".qweight")) return 8;
    for (const std::string_view extra : {".scales", ".qzeros", ".g_idx"})
      if (tensor.name.ends_with(extra)) return 0;
    return 1;
  }
  /// The tensor NAME.part beside what would be NAME.weight; nullptr when there is none.
  const io::Tensor* packed(const tensor_names::Name& n, int layer, std::string_view part) const {
    std::string tensor_name = name(n, layer);
    tensor_name.replace(tensor_name.rfind("weight"), std::string::npos, part);
    const auto found = by_name_.find(tensor_name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  /// A packed matrix, as int4_g128 rows in a buffer of its own.
  Linear int4_matrix(const tensor_names::Name& n, int layer, int64_t n_out, int64_t n_in) {
    const io::Int4Matrix parts{packed(n, layer, "qweight"), packed(n, layer, "scales"), packed(n, layer, "qzeros"),
                               packed(n, layer, "g_idx")};
    if (const Status ok = io::check_int4(int4_, parts, n_out, n_in); !ok)
      return problem(fmt::format("{}: {}", name(n, layer), ok.error().message)), Linear{};
    Linear m{.format = *find_weight_format(Int4G128::kName), .n_out = n_out, .n_in = n_in};
    AlignedBuffer& buffer = weights_.buffers.emplace_back(m.bytes());
    io::unpack_int4(int4_, parts, n_out, n_in, buffer.data());
    m.rows = buffer.data();
    return m;
  }
  const io::Tensor* find(const std::string& tensor_name, std::vector<int64_t> shape, bool required) {
    const auto found = by_name_.find(tensor_name);
    if (found == by_name_.end()) {
      if (required) problem(tensor_name + " is missing");
      return nullptr;
    }
    if (found->second->shape != shape) {
      problem(fmt::format("{} is [{}], expected [{}]", tensor_name, fmt::join(found->second->shape, ", "),
                          fmt::join(shape, ", ")));
      return nullptr;
    }
    if (const WeightFormat* format = found->second->format;
        format == &io::packed_words() || format == &io::wide_words()) {
      problem(fmt::format("{} is {}, expected a weight format", tensor_name, format->name));
      return nullptr;
    }
    return found->second;
  }
  void problem(const std::string& text) {
    constexpr int kShown = 12;
    if (++n_problems_ <= kShown) problems_ += "\n  " + text;
    else if (n_problems_ == kShown + 1) problems_ += "\n  ...";
  }

  bool is_gguf_;
  io::Int4Layout int4_;
  Weights& weights_;
  std::map<std::string, const io::Tensor*, std::less<>> by_name_;
  std::string problems_;
  int n_problems_ = 0;
};

Status bind_tensors(const Config& c, Binder& b, Weights& w, std::string_view where) {
  namespace n = tensor_names;
  w.embedding = b.matrix(n::kEmbedding, 0, c.vocab_size, c.d_model);
  w.output_norm = b.vector(n::kOutputNorm, 0, c.d_model);
  w.output = c.tied_output ? w.embedding : b.matrix(n::kOutput, 0, c.vocab_size, c.d_model);
  w.rope_factors = b.vector(n::kRopeFactors, 0, c.rope_dim / 2, false);
  const auto projection = [&](const n::Name& name, int layer, int64_t n_out, int64_t n_in) {
    return c.ternary ? b.ternary_matrix(name, layer, n_out, n_in) : b.matrix(name, layer, n_out, n_in);
  };
  for (int i = 0; i < c.n_layers; ++i) {
    LayerWeights& layer = w.layers.emplace_back();
    layer.attn_norm = b.vector(n::kAttnNorm, i, c.d_model);
    layer.q = projection(n::kQ, i, c.q_dim(), c.d_model);
    layer.k = projection(n::kK, i, c.kv_dim(), c.d_model);
    layer.v = projection(n::kV, i, c.kv_dim(), c.d_model);
    layer.o = projection(n::kO, i, c.d_model, c.q_dim());
    if (c.qkv_bias) {
      layer.q_bias = b.vector(n::kQBias, i, c.q_dim());
      layer.k_bias = b.vector(n::kKBias, i, c.kv_dim());
      layer.v_bias = b.vector(n::kVBias, i, c.kv_dim());
    }
    if (c.qk_norm) {
      layer.q_norm = b.vector(n::kQNorm, i, c.head_dim);
      layer.k_norm = b.vector(n::kKNorm, i, c.head_dim);
    }
    if (c.sub_norm) {
      layer.attn_sub_norm = b.vector(n::kAttnSubNorm, i, c.q_dim());
      layer.ffn_sub_norm = b.vector(n::kFfnSubNorm, i, c.d_ff);
    }
    layer.ffn_norm = b.vector(n::kFfnNorm, i, c.d_model);
    layer.gate = projection(n::kGate, i, c.d_ff, c.d_model);
    layer.up = projection(n::kUp, i, c.d_ff, c.d_model);
    layer.down = projection(n::kDown, i, c.d_model, c.d_ff);
  }
  RIDGE_TRY_STATUS(b.finish(where));
  for (const float factor : w.rope_factors)
    if (!(factor > 0)) return bad_file("{}: rope_freqs.weight holds {}, expected positive factors", where, factor);
  return {};
}

/// The embedding must have a row for every id the tokenizer can produce.
Status check_vocab(const io::Tokenizer& tokenizer, const Config& c, std::string_view where) {
  if (tokenizer.vocab_size() <= c.vocab_size) return {};
  return bad_file("{}: the tokenizer has {} tokens, the embedding {} rows", where, tokenizer.vocab_size(),
                  c.vocab_size);
}

Result<LoadedModel> load_gguf(const std::string& path) {
  LoadedModel model;
  RIDGE_TRY(io::GgufFile file, io::open_gguf(path));
  RIDGE_TRY(model.config, config_from_gguf(file.gguf, path));
  if (model.config.name.empty()) model.config.name = std::filesystem::path(path).stem().string();
  Binder binder(file.gguf.tensors, true, model.weights);
  RIDGE_TRY_STATUS(bind_tensors(model.config, binder, model.weights, path));
  if (!io::has_no_vocab(file.gguf)) {
    RIDGE_TRY(io::TokenizerSpec spec, io::tokenizer_spec_from_gguf(file.gguf, path));
    RIDGE_TRY(model.tokenizer, io::Tokenizer::make(std::move(spec)));
    RIDGE_TRY_STATUS(check_vocab(*model.tokenizer, model.config, path));
  }
  model.weights.source = std::move(file);
  return model;
}

Result<LoadedModel> load_hf(const std::string& path) {
  LoadedModel model;
  RIDGE_TRY(io::HfDirectory directory, io::open_hf_directory(path));
  RIDGE_TRY(model.config, config_from_hf(directory.config_json, path + "/config.json"));
  model.config.name = std::filesystem::weakly_canonical(path).filename().string();
  RIDGE_TRY(const io::Int4Layout int4, io::int4_layout(directory.config_json, path + "/config.json"));
  if (model.config.ternary && int4 != io::Int4Layout::none)
    return bad_file("{}: 4-bit weights of a BitNet model are not supported", path);
  Binder binder(directory.tensors, false, model.weights, int4);
  RIDGE_TRY_STATUS(bind_tensors(model.config, binder, model.weights, path));
  if (!directory.tokenizer_json.empty()) {
    RIDGE_TRY(io::TokenizerSpec spec,
              io::tokenizer_spec_from_hf(directory.tokenizer_json, directory.tokenizer_config_json,
                                         path + "/tokenizer.json"));
    RIDGE_TRY(model.tokenizer, io::Tokenizer::make(std::move(spec)));
    RIDGE_TRY_STATUS(check_vocab(*model.tokenizer, model.config, path));
  }
  model.weights.source = std::move(directory);
  return model;
}

}  // namespace

Result<LoadedModel> load_model(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) ? load_hf(path) : load_gguf(path);
}

void for_each_matrix(Weights& w, const std::function<void(Linear&, std::string_view)>& fn) {
  for (LayerWeights& layer : w.layers) {
    fn(layer.q, "q");
    fn(layer.k, "k");
    fn(layer.v, "v");
    fn(layer.o, "o");
    fn(layer.gate, "gate");
    fn(layer.up, "up");
    fn(layer.down, "down");
  }
  fn(w.output, "output");
}

void for_each_matrix(const Weights& w, const std::function<void(const Linear&, std::string_view)>& fn) {
  for_each_matrix(const_cast<Weights&>(w), [&](Linear& m, std::string_view name) { fn(m, name); });
}

void pack_weights(CpuContext& context, Weights& weights) {
  for_each_matrix(weights, [&](Linear& m, std::string_view) {
    if (m.panels) return;
    if (wants_ternary_panels(m, context.isa)) {
      AlignedBuffer& buffer = weights.buffers.emplace_back(ternary_panel_bytes(m.n_out, m.n_in));
      pack_ternary_panels(context, m.n_out, m.n_in, m.rows, buffer.data());
      m.panels = buffer.data();
      return;
    }
    if (!wants_panels(*m.format, m.n_in, context.isa)) return;
    AlignedBuffer& buffer = weights.buffers.emplace_back(panel_bytes(*m.format, m.n_out, m.n_in));
    pack_panels(context, *m.format, m.n_out, m.n_in, m.rows, buffer.data());
    m.panels = buffer.data();
  });
}

}  // namespace ridge
