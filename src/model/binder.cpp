#include "model/binder.h"

#include <cmath>
#include <cstring>

#include "format/i2_s.h"
#include "format/mxfp4.h"
#include "format/nvfp4.h"

namespace ridge {

Binder::Binder(const Config& config, const BoundFile& file, Weights& weights)
    : config_(config), arch_(arch_of(config)), file_(file), weights_(weights) {
  if (file.names == FileNames::directory) nesting_ = find_nesting(file.tensors);
  for (const io::Tensor& tensor : file.tensors) {
    by_name_[tensor.name] = &tensor;
    if (!is_of_text(nesting_, tensor.name)) continue;
    weights.stored_bytes += int64_t(tensor.data.size());
    int64_t n = 1;
    for (const int64_t dim : tensor.shape) n *= dim;
    weights.n_params += n * weights_per_element(tensor);
  }
}

void Binder::bind_model(int layer) {
  for (const TensorRow& row : model_tensors())
    if (row.exists(config_, layer))
      call_member(row, weights_, [&](const TensorRow&, auto& to) { read(row, layer, to); });
}

void Binder::bind_layer(int i) {
  LayerWeights layer;
  if (config_.has_experts(i)) layer.experts.resize(size_t(config_.n_experts));
  for (const TensorRow& row : layer_tensors()) {
    if (!row.exists(config_, i)) continue;
    const auto read_one = [&](const TensorRow&, auto& to) { read(row, i, to); };
    if (row.is_in<ExpertWeights>()) read_experts(row, i, layer.experts);
    else if (row.of_heads()) layer.**row.of_heads() = matrices(row, i, config_.n_heads);
    else call_member(row, layer, read_one), call_member(row, layer.delta, read_one);
  }
  weights_.layers.push_back(std::move(layer));
}

constexpr TensorName kJoinedGateUp{"ffn_gate_up_exps.weight", ""};

bool Binder::joins_gate_up(const TensorRow& row, int layer) const {
  const bool is_part =
      row.member == TensorMember(&ExpertWeights::gate) || row.member == TensorMember(&ExpertWeights::up);
  return is_gguf() && is_part && by_name_.contains(name(row, kJoinedGateUp, layer));
}

TensorPart Binder::part_of(const TensorRow& row, int layer) const {
  if (!joins_gate_up(row, layer))
    return ridge::part_of(row, config_, layer, is_gguf() ? &TensorName::gguf : &TensorName::hf);
  const int64_t n = row.shape(config_, layer).n_out;
  const int index = row.member == TensorMember(&ExpertWeights::up) ? 1 : 0;
  return {.first = index * n, .total = 2 * n, .index = index, .count = 2};
}

TensorSource Binder::source(const TensorRow& row, int layer) const {
  if (joins_gate_up(row, layer)) return {kJoinedGateUp};
  const TensorSource found = tensor_source(row, config_, layer), own{row.file};
  const bool stacked = row.is_in<ExpertWeights>() && arch_.experts_stacked && !is_gguf();
  return stacked && by_name_.contains(name(row, own.name, layer)) ? own : found;
}

std::string Binder::name(const TensorRow& row, const TensorName& tensor, int layer, int expert) const {
  if (is_gguf()) return gguf_name(row, tensor, layer);
  const std::string hf = hf_name(row, tensor, layer, expert);
  return file_.names == FileNames::directory ? nested_name(nesting_, hf)
                                             : head_name(file_.names, hf, layer - config_.n_layers);
}

void Binder::read(const TensorRow& row, int layer, Linear& to) {
  const TensorShape shape = row.shape(config_, layer);
  if (row.is_in<Weights>()) to = matrix(name(row, layer), shape);
  else if (config_.ternary) to = ternary_matrix(name(row, layer), shape);
  else if (const TensorPart part = part_of(row, layer); part.count > 1) to = shared_rows(row, layer, part);
  else to = matrix(name(row, layer), shape);
}

void Binder::read(const TensorRow& row, int layer, Values& to) {
  const TensorShape shape = row.shape(config_, layer);
  if (!is_gguf() && row.file.hf.empty()) return;  // factors of RoPE, which config.json has
  const std::string tensor_name = name(row, layer);
  const bool may_lack = is_gguf() && row.traits.may_lack && row.traits.may_lack(config_);
  if (row.kind == TensorKind::convolution) {
    to = convolution(tensor_name, shape);
    return;
  }
  std::vector<int64_t> in_file = {shape.n_out};
  // Some files have a vector as a matrix: of one row, of one column, or of a row a group.
  if (const auto found = by_name_.find(tensor_name); found != by_name_.end())
    if (const auto& own = found->second->shape; own.size() == 2 && row.kind >= TensorKind::inner_norm && own[0] > 0 &&
                                                shape.n_out % own[0] == 0 && own[1] == shape.n_out / own[0])
      in_file = own;
  to = values(tensor_name, in_file, !may_lack);
  if (row.kind == TensorKind::bias || row.kind == TensorKind::output_bias) to.resize(size_t(shape.n_out));
  const bool is_norm = row.kind == TensorKind::norm || row.kind == TensorKind::block_norm;
  for (float& value : to) {
    if (is_norm && arch_.norms_plus_one && !is_gguf()) value += 1;
    if (row.kind == TensorKind::decay && !is_gguf()) value = -std::exp(value);
  }
}

void Binder::read_experts(const TensorRow& row, int layer, std::vector<ExpertWeights>& experts) {
  const auto take = [&](auto member, auto all) {
    for (size_t e = 0; e < experts.size(); ++e) experts[e].*member = std::move(all[e]);
  };
  if (const auto* of_matrix = std::get_if<Linear ExpertWeights::*>(&row.member))
    take(*of_matrix, matrices(row, layer, ssize(experts)));
  else take(std::get<Values ExpertWeights::*>(row.member), vectors(row, layer, ssize(experts)));
}

Linear Binder::matrix(const std::string& tensor_name, TensorShape shape) {
  const io::Tensor* tensor = find(tensor_name, {shape.n_out, shape.n_in});
  if (!tensor) return {};
  const auto checked_scale = [&]() -> Result<float> {
    if (tensor->format->check) RIDGE_TRY_STATUS(tensor->format->check(tensor->data.data(), shape.n_out * shape.n_in));
    const float extra =
        is_gguf() && tensor->format->gguf_type == NVFP4::kGgufType ? extra_scales(tensor_name, 1)[0] : 1;
    RIDGE_TRY(const float scale, io::tensor_scale(*tensor));
    return scale * extra;
  };
  const Result<float> scale = checked_scale();
  if (!scale) return problem(fmt::format("{} {}", tensor->name, scale.error().message)), Linear{};
  return {.format = tensor->format,
          .n_out = shape.n_out,
          .n_in = shape.n_in,
          .rows = tensor->data.data(),
          .order = tensor->order.empty() ? nullptr : tensor->order.data(),
          .scale = *scale,
          .int8_activations = tensor->format->gguf_type == I2_S::kGgufType};
}

Linear Binder::ternary_matrix(const std::string& tensor_name, TensorShape shape) {
  if (file_.ternary != TernaryLayout::master) return packed_ternary_matrix(tensor_name, shape);
  Linear m = matrix(tensor_name, shape);
  if (!m.format) return m;
  if (is_gguf()) m.scale *= extra_scales(tensor_name, 1)[0];
  if (m.int8_activations) return m;
  const io::Tensor& tensor = *by_name_[tensor_name];
  if (tensor.format->check) weights_.ternary_source = tensor.format;
  return as_i2s(tensor_name, shape, is_gguf() ? repack_ternary(tensor) : quantize_ternary(tensor), m.scale);
}

Linear Binder::packed_ternary_matrix(const std::string& tensor_name, TensorShape shape) {
  const WeightFormat* const u8 = &io::packed_bytes();
  const Values scale = values(tensor_name + "_scale", {1});
  const io::Tensor* codes = find(tensor_name, {shape.n_out / 4, shape.n_in}, true, u8);
  if (!codes || scale.empty()) return {};
  if (shape.n_out % 4 != 0 || codes->format != u8 || !(scale[0] > 0)) {
    problem(fmt::format("{} is {} for {} outputs with a scale of {}, expected u8, a multiple of 4 and a positive scale",
                        tensor_name, codes->format->name, shape.n_out, scale[0]));
    return {};
  }
  const bool divides = file_.ternary == TernaryLayout::divide_scale;
  return as_i2s(tensor_name, shape, unpack_ternary(*codes, divides ? 1 / scale[0] : scale[0]), 1);
}

Linear Binder::as_i2s(const std::string& tensor_name, TensorShape shape, Result<TernaryMatrix> codes, float scale) {
  if (!codes) return problem(fmt::format("{} {}", tensor_name, codes.error().message)), Linear{};
  return {.format = weight_format_of_gguf(I2_S::kGgufType),
          .n_out = shape.n_out,
          .n_in = shape.n_in,
          .rows = weights_.buffers.emplace_back(std::move(codes->rows)).data(),
          .scale = scale * codes->scale,
          .int8_activations = true};
}

Linear Binder::shared_rows(const TensorRow& row, int layer, const TensorPart& part) {
  const TensorShape shape = row.shape(config_, layer);
  const std::string tensor_name = name(row, layer);
  const bool is_first = !shared_.contains(tensor_name);
  Linear& whole = shared_[tensor_name];
  if (is_first) {
    whole = matrix(tensor_name, {part.total, shape.n_in});
    if (whole.format && whole.format->tail_bytes > 0) {
      problem(fmt::format("{} is {}, whose rows cannot be taken apart", tensor_name, whole.format->name));
      whole = {};
    }
  }
  if (!whole.format) return {};
  if (source(row, layer).layout == TensorLayout::by_key_head)
    return picked_rows(whole, rows_by_key_head(config_.delta, std::get<Linear DeltaWeights::*>(row.member)));
  Linear rows = whole;
  rows.n_out = shape.n_out;
  rows.rows += part.first * whole.format->row_bytes(shape.n_in);
  return rows;
}

Linear Binder::picked_rows(const Linear& whole, std::span<const int64_t> rows) {
  Linear picked = whole;
  picked.n_out = ssize(rows);
  const int64_t row_bytes = whole.format->row_bytes(whole.n_in);
  std::byte* const to = weights_.buffers.emplace_back(picked.bytes()).data();
  for (int64_t r = 0; r < picked.n_out; ++r)
    std::memcpy(to + r * row_bytes, whole.rows + rows[size_t(r)] * row_bytes, size_t(row_bytes));
  picked.rows = to;
  return picked;
}

Values Binder::values(const std::string& tensor_name, const std::vector<int64_t>& shape, bool required) {
  const io::Tensor* tensor = find(tensor_name, shape, required);
  if (!tensor) return {};
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  Values decoded(size_t(n), 0.0f);
  tensor->format->decode(tensor->data.data(), n, decoded.data());
  if (const auto bad = std::ranges::find_if_not(decoded, [](float v) { return std::isfinite(v); });
      bad != decoded.end())
    problem(fmt::format("{} holds {}", tensor->name, *bad));
  return decoded;
}

Values Binder::convolution(const std::string& tensor_name, TensorShape shape) {
  const int64_t kernel = shape.n_out, channels = shape.n_in;
  Values turned(size_t(kernel * channels), 0.0f);
  const io::Tensor* tensor =
      find(tensor_name, is_gguf() ? std::vector<int64_t>{channels, kernel} : std::vector<int64_t>{channels, 1, kernel});
  if (!tensor || !is_float(tensor_name, *tensor->format)) return turned;
  Values values(turned.size());
  tensor->format->decode(tensor->data.data(), ssize(values), values.data());
  if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); }))
    problem(tensor_name + " holds values that are not finite");
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t k = 0; k < kernel; ++k) turned[size_t(k * channels + c)] = values[size_t(c * kernel + k)];
  return turned;
}

Values Binder::extra_scales(std::string weight_name, int64_t n) {
  const std::string scale_name = weight_name.replace(weight_name.rfind(".weight"), 7, ".scale");
  Values scales;
  if (by_name_.contains(scale_name)) scales = values(scale_name, {n});
  return scales.empty() ? Values(size_t(n), 1.0f) : scales;
}

int Binder::weights_per_element(const io::Tensor& tensor) const {
  if (file_.ternary == TernaryLayout::master) return 1;
  return tensor.format == &io::packed_bytes() ? 4 : tensor.name.ends_with(".weight_scale") ? 0 : 1;
}

const io::Tensor* Binder::find(const std::string& tensor_name, const std::vector<int64_t>& shape, bool required,
                               const WeightFormat* packed) {
  const auto found = by_name_.find(tensor_name);
  if (found == by_name_.end()) {
    if (required) problem(tensor_name + " is missing");
    return nullptr;
  }
  read_.insert(found->second);
  if (found->second->shape != shape) {
    problem(fmt::format("{} is [{}], expected [{}]", tensor_name, fmt::join(found->second->shape, ", "),
                        fmt::join(shape, ", ")));
    return nullptr;
  }
  if (const WeightFormat* format = found->second->format; format != packed && io::is_off_shelf(*format)) {
    problem(fmt::format("{} is {}, expected a weight format", tensor_name, format->name));
    return nullptr;
  }
  return found->second;
}

bool Binder::is_float(const std::string& tensor_name, const WeightFormat& format) {
  if (format.group != 1) problem(fmt::format("{} is {}, expected a float format", tensor_name, format.name));
  return format.group == 1;
}

Linear Binder::end(const TensorName& tensor, int layer) {
  const TensorRow& embedding = model_tensors()[0];
  const std::string tensor_name = name(embedding, tensor, layer);
  return by_name_.contains(tensor_name) ? matrix(tensor_name, embedding.shape(config_, 0)) : Linear{};
}

void Binder::problem(const std::string& text) {
  constexpr int kShown = 12;
  if (++n_problems_ <= kShown) problems_ += "\n  " + text;
  else if (n_problems_ == kShown + 1) problems_ += "\n  ...";
}

Status Binder::check_bound(std::string_view where) const {
  if (n_problems_ == 0) return {};
  return bad_file("{}: {} tensor(s) do not fit the configuration:{}", where, n_problems_, problems_);
}

}  // namespace ridge
