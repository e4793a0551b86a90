// From a container to Weights: every tensor found, checked against the configuration and bound, or reported.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "format/i2_s.h"
#include "format/int4_g128.h"
#include "format/mxfp4.h"
#include "io/int4_packed.h"
#include "model/arch/arch.h"
#include "model/mtp.h"
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
         io::Int4Layout int4 = io::Int4Layout::none, TernaryLayout ternary = TernaryLayout::master)
      : is_gguf_(is_gguf),
        nesting_(is_gguf ? Nesting::none : find_nesting(tensors)),
        int4_(int4),
        ternary_(ternary),
        weights_(weights) {
    for (const io::Tensor& tensor : tensors) {
      by_name_[tensor.name] = &tensor;
      if (!is_of_text(nesting_, tensor.name)) continue;
      weights.stored_bytes += int64_t(tensor.data.size());
      int64_t n = 1;
      for (const int64_t dim : tensor.shape) n *= dim;
      weights.n_params += n * weights_per_element(tensor);
    }
  }

  std::string name(const tensor_names::Name& n, int layer) const {
    if (is_gguf_) return fmt::format(fmt::runtime(n.gguf), layer);
    return nested_name(nesting_, fmt::format(fmt::runtime(n.hf), layer));
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
    if (ternary_ != TernaryLayout::master) return packed_ternary_matrix(name(n, layer), n_out, n_in);
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
  /// Packed codes with their scale in the tensor NAME_scale [1], as i2_s in a buffer of their own.
  Linear packed_ternary_matrix(const std::string& tensor_name, int64_t n_out, int64_t n_in) {
    const WeightFormat* const u8 = &io::packed_bytes();
    const std::vector<float> scale = values(tensor_name + "_scale", 1, true);
    const io::Tensor* codes = find(tensor_name, {n_out / 4, n_in}, true, u8);
    if (!codes || scale.empty()) return {};
    if (n_out % 4 != 0 || codes->format != u8 || !(scale[0] > 0)) {
      problem(
          fmt::format("{} is {} for {} outputs with a scale of {}, expected u8, a multiple of 4 and a positive scale",
                      tensor_name, codes->format->name, n_out, scale[0]));
      return {};
    }
    const bool divides = ternary_ == TernaryLayout::divide_scale;
    Result<TernaryMatrix> ternary = unpack_ternary(*codes, divides ? 1 / scale[0] : scale[0]);
    if (!ternary) return problem(fmt::format("{} {}", tensor_name, ternary.error().message)), Linear{};
    return {.format = weight_format_of_gguf(I2_S::kGgufType),
            .n_out = n_out,
            .n_in = n_in,
            .rows = weights_.buffers.emplace_back(std::move(ternary->rows)).data(),
            .scale = ternary->scale,
            .int8_activations = true};
  }
  /// The rows of one matrix as several, one behind the other.
  std::vector<Linear> fused(const tensor_names::Name& n, int layer, std::initializer_list<int64_t> n_outs,
                            int64_t n_in) {
    int64_t n_rows = 0;
    for (const int64_t n_out : n_outs) n_rows += n_out;
    const Linear whole = matrix(n, layer, n_rows, n_in);
    std::vector<Linear> parts;
    int64_t first = 0;
    for (const int64_t n_out : n_outs) {
      Linear& part = parts.emplace_back(whole);
      part.n_out = n_out;
      if (whole.format) part.rows += first * whole.format->row_bytes(n_in);
      first += n_out;
    }
    if (whole.format && whole.format->tail_bytes > 0)
      problem(fmt::format("{} is {}, whose rows cannot be taken apart", name(n, layer), whole.format->name));
    return parts;
  }
  /// Rows of a matrix in another order, in a buffer.
  Linear picked_rows(const Linear& whole, std::span<const int64_t> rows) {
    Linear picked = whole;
    picked.n_out = ssize(rows);
    if (whole.format && whole.format->tail_bytes > 0)
      problem("rows of " + std::string(whole.format->name) + " in a group");
    if (!whole.format || whole.format->tail_bytes > 0) return picked;
    const int64_t row_bytes = whole.format->row_bytes(whole.n_in);
    std::byte* const to = weights_.buffers.emplace_back(picked.bytes()).data();
    for (int64_t r = 0; r < picked.n_out; ++r)
      std::memcpy(to + r * row_bytes, whole.rows + rows[size_t(r)] * row_bytes, size_t(row_bytes));
    picked.rows = to;
    return picked;
  }
  /// Rows [first, first + n_out) of each of the matrices [n_experts, n_rows, n_in] in one tensor.
  std::vector<Linear> stacked_rows(const tensor_names::Name& n, int layer, std::vector<int64_t> shape, int64_t first,
                                   int64_t n_out) {
    const io::Tensor* all = find(name(n, layer), shape, true);
    std::vector<Linear> experts(static_cast<size_t>(shape[0]));
    for (int64_t e = 0; all && e < shape[0]; ++e)
      experts[size_t(e)] = {.format = all->format,
                            .n_out = n_out,
                            .n_in = shape[2],
                            .rows = all->data.data() + (e * shape[1] + first) * all->format->row_bytes(shape[2])};
    return experts;
  }
  /// The weights of a causal convolution as [kernel, channels].
  std::vector<float> convolution(const tensor_names::Name& n, int layer, int64_t channels, int64_t kernel) {
    std::vector<float> turned(size_t(kernel * channels), 0.0f);
    const io::Tensor* tensor =
        find(name(n, layer),
             is_gguf_ ? std::vector<int64_t>{channels, kernel} : std::vector<int64_t>{channels, 1, kernel}, true);
    if (!tensor) return turned;
    if (tensor->format->group != 1) {
      problem(fmt::format("{} is {}, expected a float format", tensor->name, tensor->format->name));
      return turned;
    }
    std::vector<float> values(turned.size());
    tensor->format->decode(tensor->data.data(), ssize(values), values.data());
    if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); }))
      problem(tensor->name + " holds values that are not finite");
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t k = 0; k < kernel; ++k) turned[size_t(k * channels + c)] = values[size_t(c * kernel + k)];
    return turned;
  }
  /// Every `step`-th column from `first` on of a tensor [n_experts, n_in, n_columns] as rows of matrices, in buffers.
  std::vector<Linear> expert_columns(const tensor_names::Name& n, int layer, std::vector<int64_t> shape, int64_t first,
                                     int64_t step) {
    const io::Tensor* all = find(name(n, layer), shape, true);
    if (all && all->format->group != 1) {
      problem(fmt::format("{} is {}, expected a float format", all->name, all->format->name));
      all = nullptr;
    }
    std::vector<Linear> experts;
    const int64_t n_in = shape[1], n_columns = shape[2];
    for (int64_t e = 0; e < shape[0]; ++e) {
      Linear& m = experts.emplace_back();
      if (!all) continue;
      m = {.format = all->format, .n_out = n_columns / step, .n_in = n_in};
      const int64_t size = m.format->block_bytes;
      std::byte* const to = weights_.buffers.emplace_back(m.bytes()).data();
      for (int64_t r = 0; r < m.n_out; ++r)
        for (int64_t i = 0; i < n_in; ++i)
          std::memcpy(to + (r * n_in + i) * size,
                      all->data.data() + ((e * n_in + i) * n_columns + first + r * step) * size, size_t(size));
      m.rows = to;
    }
    return experts;
  }
  bool has(const std::string& tensor_name) const { return by_name_.contains(tensor_name); }
  /// Whether a Hugging Face file has a tensor for each expert.
  bool has_experts_apart(const tensor_names::Name& n, int layer) const {
    return has(nested_name(nesting_, fmt::format(fmt::runtime(n.hf), layer, 0)));
  }
  /// Every `step`-th row from `first` on of n_experts matrices in MXFP4 as checkpoints have it: codes [n_experts, n_rows,
  /// n_in / 32, 16] with weights 2 i and 2 i + 1 in byte i, exponents [n_experts, n_rows, n_in / 32].
  std::vector<Linear> expert_mxfp4(const tensor_names::Name& n, int layer, std::vector<int64_t> shape, int64_t first,
                                   int64_t step) {
    const int64_t n_rows = shape[1], n_blocks = shape[2] / MXFP4::kGroup;
    std::vector<Linear> experts(static_cast<size_t>(shape[0]));
    if (shape[2] % MXFP4::kGroup != 0) {
      problem(fmt::format("{} has rows of {}, expected a multiple of {}", name(n, layer), shape[2], MXFP4::kGroup));
      return experts;
    }
    const WeightFormat* const u8 = &io::packed_bytes();
    const io::Tensor* const codes = find(name(n, layer) + "_blocks", {shape[0], n_rows, n_blocks, 16}, true, u8);
    const io::Tensor* const exponents = find(name(n, layer) + "_scales", {shape[0], n_rows, n_blocks}, true, u8);
    if (!codes || !exponents) return experts;
    if (codes->format != u8 || exponents->format != u8) {
      problem(fmt::format("{}_blocks and _scales are {} and {}, expected u8", name(n, layer), codes->format->name,
                          exponents->format->name));
      return experts;
    }
    const auto nibble = [](std::byte b, int i) { return int(b) >> 4 * (i % 2) & 15; };
    for (int64_t e = 0; e < shape[0]; ++e) {
      Linear& m = experts[size_t(e)];
      m = {.format = *find_weight_format(MXFP4::kName), .n_out = n_rows / step, .n_in = shape[2]};
      auto* block = reinterpret_cast<MXFP4::Block*>(weights_.buffers.emplace_back(m.bytes()).data());
      m.rows = reinterpret_cast<const std::byte*>(block);
      for (int64_t r = 0; r < m.n_out; ++r)
        for (int64_t b = 0; b < n_blocks; ++b, ++block) {
          const int64_t at = (e * n_rows + first + r * step) * n_blocks + b;
          const std::byte* const from = codes->data.data() + 16 * at;
          block->exponent = uint8_t(exponents->data[size_t(at)]);
          for (int i = 0; i < 16; ++i) block->q[i] = uint8_t(nibble(from[i / 2], i) | nibble(from[8 + i / 2], i) << 4);
        }
    }
    return experts;
  }
  /// Columns of `m`, which has a float format, as rows of a matrix in a buffer.
  Linear transposed(const Linear& m) {
    Linear turned{.format = m.format, .n_out = m.n_in, .n_in = m.n_out};
    const int64_t size = m.format->block_bytes;
    std::byte* const to = weights_.buffers.emplace_back(turned.bytes()).data();
    for (int64_t r = 0; r < turned.n_out; ++r)
      for (int64_t i = 0; i < turned.n_in; ++i)
        std::memcpy(to + (r * turned.n_in + i) * size, m.rows + (i * m.n_in + r) * size, size_t(size));
    turned.rows = to;
    return turned;
  }
  /// k_b and v_b of every head.
  void latent_heads(const Config& c, int layer, LayerWeights& to) {
    namespace n = tensor_names;
    if (is_gguf_) {
      to.k_b = expert_matrices(n::kLatentK, layer, c.n_heads, c.kv_rank, c.nope_dim);
      to.v_b = expert_matrices(n::kLatentV, layer, c.n_heads, c.value_dim, c.kv_rank);
      return;
    }
    const int64_t rows = c.nope_dim + c.value_dim;
    const Linear all = matrix(n::kLatentK, layer, c.n_heads * rows, c.kv_rank);
    if (!all.format) return;
    if (all.format->group != 1)
      return problem(fmt::format("{} is {}, expected a float format", name(n::kLatentK, layer), all.format->name));
    for (int64_t h = 0; h < c.n_heads; ++h) {
      Linear k = all, v = all;
      k.n_out = c.nope_dim;
      k.rows += h * rows * all.format->row_bytes(c.kv_rank);
      v.n_out = c.value_dim;
      v.rows = k.rows + k.bytes();
      to.k_b.push_back(transposed(k));
      to.v_b.push_back(v);
    }
  }
  /// Every `step`-th value from `first` on of each row of a tensor [n_rows, n].
  std::vector<std::vector<float>> row_values(const tensor_names::Name& n, int layer, int64_t n_rows, int64_t n_values,
                                             int64_t first, int64_t step) {
    std::vector<std::vector<float>> rows(size_t(n_rows), std::vector<float>(size_t(n_values / step), 0.0f));
    const io::Tensor* tensor = find(name(n, layer), {n_rows, n_values}, true);
    if (!tensor) return rows;
    std::vector<float> row(size_t(n_values), 0.0f);
    for (int64_t r = 0; r < n_rows; ++r) {
      tensor->format->decode(tensor->data.data() + r * tensor->format->row_bytes(n_values), n_values, row.data());
      for (size_t i = 0; i < rows[size_t(r)].size(); ++i) rows[size_t(r)][i] = row[size_t(first) + i * size_t(step)];
    }
    return rows;
  }
  bool is_gguf() const { return is_gguf_; }
  /// Marks a tensor as read, where there is one.
  bool take(const std::string& tensor_name) {
    const auto found = by_name_.find(tensor_name);
    if (found != by_name_.end()) read_.insert(found->second);
    return found != by_name_.end();
  }
  /// Refuses the file where tensors whose names begin with `prefix` are neither read nor harmless: they would change results.
  Status check_rest(const Config& c, std::string_view where, std::string_view prefix = {}) const;
  /// Matrices [n_out, n_in] of all experts: one tensor each in a Hugging Face file, one of all in a GGUF file.
  std::vector<Linear> expert_matrices(const tensor_names::Name& n, int layer, int n_experts, int64_t n_out,
                                      int64_t n_in) {
    std::vector<Linear> experts;
    for (int e = 0; !is_gguf_ && e < n_experts; ++e) {
      const tensor_names::Name one{n.gguf, expert_names_.emplace_back(fmt::format(fmt::runtime(n.hf), "{}", e))};
      experts.push_back(matrix(one, layer, n_out, n_in));
    }
    if (!is_gguf_) return experts;
    const io::Tensor* all = find(name(n, layer), {n_experts, n_out, n_in}, true);
    if (all && all->format->tail_bytes > 0) {
      problem(fmt::format("{} is {}, which has no experts", all->name, all->format->name));
      all = nullptr;
    }
    for (int e = 0; e < n_experts; ++e) {
      Linear& m = experts.emplace_back();
      if (!all) continue;
      m = {.format = all->format, .n_out = n_out, .n_in = n_in};
      m.rows = all->data.data() + e * m.bytes();
    }
    return experts;
  }
  /// A bias that GGUF files may leave out of some layers; zeros there.
  std::vector<float> bias(const tensor_names::Name& n, int layer, int64_t size, bool required) {
    std::vector<float> found = vector(n, layer, size, required || !is_gguf_);
    found.resize(size_t(size));
    return found;
  }
  std::vector<float> vector(const tensor_names::Name& n, int layer, int64_t size, bool required = true) {
    return values(name(n, layer), size, required);
  }
  /// A matrix [1, size], which GGUF files also have as a vector.
  std::vector<float> row(const tensor_names::Name& n, int layer, int64_t size) {
    const auto found = by_name_.find(name(n, layer));
    const bool is_matrix = found != by_name_.end() && found->second->shape == std::vector<int64_t>{1, size};
    return values(name(n, layer), size, true, is_matrix);
  }
  /// The weight of a norm; a Hugging Face file of some architectures keeps it less one.
  std::vector<float> norm(const tensor_names::Name& n, int layer, int64_t size, bool plus_one) {
    std::vector<float> weight = vector(n, layer, size);
    if (plus_one && !is_gguf_)
      for (float& w : weight) w += 1;
    return weight;
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
  std::vector<float> values(const std::string& tensor_name, int64_t size, bool required, bool is_row = false) {
    const io::Tensor* tensor = find(tensor_name, is_row ? std::vector<int64_t>{1, size} : std::vector{size}, required);
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
  /// How many weights an element of the tensor is: 8 in a word of codes, 4 in a byte of ternary ones, none in what belongs
  /// to packed codes.
  int weights_per_element(const io::Tensor& tensor) const {
    if (ternary_ != TernaryLayout::master)
      return tensor.format == &io::packed_bytes() ? 4 : tensor.name.ends_with(".weight_scale") ? 0 : 1;
    if (int4_ == io::Int4Layout::none) return 1;
    if (tensor.name.ends_with(".qweight")) return 8;
    for (const std::string_view extra : {".scales", ".qzeros", ".g_idx"})
      if (tensor.name.ends_with(extra)) return 0;
    return 1;
  }
  /// The tensor NAME.part beside what would be NAME.weight; nullptr when there is none.
  const io::Tensor* packed(const tensor_names::Name& n, int layer, std::string_view part) {
    std::string tensor_name = name(n, layer);
    tensor_name.replace(tensor_name.rfind("weight"), std::string::npos, part);
    const auto found = by_name_.find(tensor_name);
    if (found == by_name_.end()) return nullptr;
    read_.insert(found->second);
    return found->second;
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
  /// `packed`: what the tensor may be without being a weight format.
  const io::Tensor* find(const std::string& tensor_name, std::vector<int64_t> shape, bool required,
                         const WeightFormat* packed = nullptr) {
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
    if (const WeightFormat* format = found->second->format; format != packed && io::is_integer(*format)) {
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
  Nesting nesting_;
  io::Int4Layout int4_;
  TernaryLayout ternary_;
  Weights& weights_;
  bool is_harmless(const Config& c, const io::Tensor& tensor) const;
  bool is_of_head(const Config& c, std::string_view tensor_name) const;

  std::map<std::string, const io::Tensor*, std::less<>> by_name_;
  std::set<const io::Tensor*> read_;
  std::deque<std::string> expert_names_;  // what Names of single experts point to
  std::string problems_;
  int n_problems_ = 0;
};

/// Tensors that nothing reads and that change nothing. "*" stands for any text.
struct HarmlessTensor {
  std::string_view name, why;
};
constexpr std::string_view kVision = "images and sound are not read", kTable = "follows from the configuration",
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
    {"audio_tower.*", kVision},
    {"model.audio_tower.*", kVision},
    {"*.rotary_emb.inv_freq", kTable},
    {"*.rotary_emb.cos_cached", kTable},
    {"*.rotary_emb.sin_cached", kTable},
    {"*.attn_rot_embd", kTable},
    {"*.attn_rot_embd.weight", kTable},
    {"*.attn.bias", "a mask of attention, which is causal"},
    {"*.attn.masked_bias", "a mask of attention, which is causal"},
    {"*.k_scale", kCacheScale},
    {"*.v_scale", kCacheScale},
    {"mtp.*", "a head that guesses further tokens: --spec-type mtp reads it"},
};

bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  return name.size() + 1 >= pattern.size() && name.starts_with(pattern.substr(0, star)) &&
         name.ends_with(pattern.substr(star + 1));
}

/// Whether a tensor is of a block behind the last layer, where a head that guesses further tokens is.
bool Binder::is_of_head(const Config& c, std::string_view tensor_name) const {
  const Arch& arch = arch_of(c);
  if ((!is_gguf_ && !arch.latent) || !has(name(tensor_names::next_names(arch).embedding_norm, c.n_layers)))
    return false;
  const std::string_view block = is_gguf_ ? "blk." : "model.layers.";
  return tensor_name.starts_with(block) && std::atoi(tensor_name.data() + block.size()) >= c.n_layers;
}

bool Binder::is_harmless(const Config& c, const io::Tensor& tensor) const {
  if (std::ranges::any_of(kHarmlessTensors, [&](const HarmlessTensor& h) { return matches(h.name, tensor.name); }))
    return true;
  if (is_of_head(c, tensor.name)) return true;
  const io::Tensor* const embedding = by_name_.find(name(tensor_names::kEmbedding, 0))->second;
  if (c.tied_output && tensor.name == name(tensor_names::kOutput, 0))  // a copy
    return tensor.format == embedding->format && std::ranges::equal(tensor.data, embedding->data);
  if (!tensor.name.ends_with(".bias") || io::is_integer(*tensor.format) || tensor.shape.size() != 1) return false;
  std::vector<float> bias(size_t(tensor.shape[0]), 0.0f);  // converters of 4-bit models write biases of zeros
  tensor.format->decode(tensor.data.data(), tensor.shape[0], bias.data());
  return std::ranges::all_of(bias, [](float value) { return value == 0; });
}

Status Binder::check_rest(const Config& c, std::string_view where, std::string_view prefix) const {
  constexpr int kShown = 8;
  std::string names;
  int n = 0;
  for (const auto& [tensor_name, tensor] : by_name_)
    if (tensor_name.starts_with(prefix) && !read_.contains(tensor) && !is_harmless(c, *tensor) && ++n <= kShown)
      names += (n > 1 ? ", " : "") + tensor_name;
  if (n == 0) return {};
  return bad_file(
      "{}: {} tensor(s) would change results and are not supported in {} models: {}{} (convert the model "
      "without them if it was made without them)",
      where, n, c.arch, names, n > kShown ? fmt::format(" and {} more", n - kShown) : "");
}

void bind_oss_experts(const Config& c, Binder& b, int i, LayerWeights& layer) {
  namespace n = tensor_names;
  const int64_t n_ff = c.d_ff_expert, n_all = c.n_experts;
  layer.router = b.matrix(n::kOssRouter, i, n_all, c.d_model);
  layer.router_bias = b.vector(n::kOssRouterBias, i, n_all);
  std::vector<Linear> gate, up, down;
  if (b.is_gguf()) {
    gate = b.expert_matrices(n::kOssGate, i, c.n_experts, n_ff, c.d_model);
    up = b.expert_matrices(n::kOssUp, i, c.n_experts, n_ff, c.d_model);
    down = b.expert_matrices(n::kOssDown, i, c.n_experts, c.d_model, n_ff);
  } else if (b.has(b.name(n::kOssDown, i) + "_blocks")) {
    gate = b.expert_mxfp4(n::kOssGate, i, {n_all, 2 * n_ff, c.d_model}, 0, 2);
    up = b.expert_mxfp4(n::kOssUp, i, {n_all, 2 * n_ff, c.d_model}, 1, 2);
    down = b.expert_mxfp4(n::kOssDown, i, {n_all, c.d_model, n_ff}, 0, 1);
  } else {
    gate = b.expert_columns(n::kOssGate, i, {n_all, c.d_model, 2 * n_ff}, 0, 2);
    up = b.expert_columns(n::kOssUp, i, {n_all, c.d_model, 2 * n_ff}, 1, 2);
    down = b.expert_columns(n::kOssDown, i, {n_all, n_ff, c.d_model}, 0, 1);
  }
  const int64_t pair = b.is_gguf() ? 1 : 2;  // gates and ups of a bias side by side
  const auto gate_bias = b.row_values(n::kOssGateBias, i, n_all, pair * n_ff, 0, pair),
             up_bias = b.row_values(n::kOssUpBias, i, n_all, pair * n_ff, pair - 1, pair),
             down_bias = b.row_values(n::kOssDownBias, i, n_all, c.d_model, 0, 1);
  for (size_t e = 0; e < size_t(n_all); ++e)
    layer.experts.push_back({gate[e], up[e], down[e], gate_bias[e], up_bias[e], down_bias[e]});
}

void bind_experts(const Config& c, Binder& b, int i, LayerWeights& layer) {
  namespace n = tensor_names;
  const bool stacked = arch_of(c).experts_stacked && !b.is_gguf() && !b.has_experts_apart(n::kExpertDown, i);
  const int64_t n_all = c.n_experts, n_ff = c.d_ff_expert;
  layer.router = b.matrix(n::kRouter, i, c.n_experts, c.d_model);
  const auto all = [&](const n::Name& name, int64_t n_out, int64_t n_in) {
    return b.expert_matrices(name, i, c.n_experts, n_out, n_in);
  };
  const auto half = [&](int64_t first) {
    return b.stacked_rows(n::kStackedGateUp, i, {n_all, 2 * n_ff, c.d_model}, first, n_ff);
  };
  const std::vector<Linear> gate = stacked ? half(0) : all(n::kExpertGate, n_ff, c.d_model),
                            up = stacked ? half(n_ff) : all(n::kExpertUp, n_ff, c.d_model),
                            down = stacked ? b.stacked_rows(n::kStackedDown, i, {n_all, c.d_model, n_ff}, 0, c.d_model)
                                           : all(n::kExpertDown, c.d_model, n_ff);
  for (size_t e = 0; e < gate.size(); ++e) layer.experts.push_back({.gate = gate[e], .up = up[e], .down = down[e]});
  if (c.sigmoid_router) layer.choice_bias = b.vector(n::kChoiceBias, i, c.n_experts);
  if (c.d_ff_shared == 0) return;
  if (arch_of(c).latent) {
    layer.gate = b.matrix(n::kSharedGates, i, c.d_ff_shared, c.d_model);
    layer.up = b.matrix(n::kSharedUps, i, c.d_ff_shared, c.d_model);
    layer.down = b.matrix(n::kSharedDowns, i, c.d_model, c.d_ff_shared);
    return;
  }
  layer.gate = b.matrix(n::kSharedGate, i, c.d_ff_shared, c.d_model);
  layer.up = b.matrix(n::kSharedUp, i, c.d_ff_shared, c.d_model);
  layer.down = b.matrix(n::kSharedDown, i, c.d_model, c.d_ff_shared);
  layer.shared_gate = b.row(n::kSharedExpertGate, i, c.d_model);
}

void bind_latent(const Config& c, Binder& b, int i, LayerWeights& layer) {
  namespace n = tensor_names;
  const int64_t q_rows = int64_t(c.n_heads) * c.query_dim();
  if (c.q_rank > 0) {
    layer.q_a = b.matrix(n::kQA, i, c.q_rank, c.d_model);
    layer.q_a_norm = b.vector(n::kQANorm, i, c.q_rank);
    layer.q_b = b.matrix(n::kQB, i, q_rows, c.q_rank);
  } else {
    layer.q = b.matrix(n::kQ, i, q_rows, c.d_model);
  }
  layer.kv_a = b.matrix(n::kKvA, i, c.head_dim, c.d_model);
  layer.kv_a_norm = b.vector(n::kKvANorm, i, c.kv_rank);
  b.latent_heads(c, i, layer);
  layer.o = b.matrix(n::kO, i, c.d_model, c.value_width());
}

void bind_delta(const Config& c, Binder& b, int i, LayerWeights& layer) {
  namespace n = tensor_names;
  const DeltaShape& d = c.delta;
  DeltaWeights& w = layer.delta;
  if (arch_of(c).delta_by_key_head) {
    const DeltaRows rows(d);
    const Linear ba = b.matrix(n::kDeltaBa, i, 2 * d.n_value_heads, c.d_model);
    w.b = b.picked_rows(ba, rows.b);
    w.a = b.picked_rows(ba, rows.a);
    if (b.is_gguf()) {
      w.qkv = b.matrix(n::kDeltaQkv, i, d.channels(), c.d_model);
      w.z = b.matrix(n::kDeltaZ, i, d.values(), c.d_model);
    } else {
      const Linear qkvz = b.matrix(n::kDeltaQkvz, i, d.channels() + d.values(), c.d_model);
      w.qkv = b.picked_rows(qkvz, rows.qkv);
      w.z = b.picked_rows(qkvz, rows.z);
    }
  } else {
    w.qkv = b.matrix(n::kDeltaQkv, i, d.channels(), c.d_model);
    w.z = b.matrix(n::kDeltaZ, i, d.values(), c.d_model);
    w.a = b.matrix(n::kDeltaA, i, d.n_value_heads, c.d_model);
    w.b = b.matrix(n::kDeltaB, i, d.n_value_heads, c.d_model);
  }
  w.conv = b.convolution(n::kDeltaConv, i, d.channels(), d.kernel);
  w.decay = b.vector(n::kDeltaDecay, i, d.n_value_heads);
  if (!b.is_gguf())
    for (float& value : w.decay) value = -std::exp(value);
  w.dt_bias = b.vector(n::kDeltaDtBias, i, d.n_value_heads);
  w.norm = b.vector(n::kDeltaNorm, i, d.value_dim);
  layer.o = b.matrix(n::kDeltaOut, i, c.d_model, d.values());
}

void bind_attention(const Config& c, Binder& b, int i, LayerWeights& layer) {
  namespace n = tensor_names;
  const Arch& arch = arch_of(c);
  const auto projection = [&](const n::Name& name, int64_t n_out, int64_t n_in) {
    return c.ternary ? b.ternary_matrix(name, i, n_out, n_in) : b.matrix(name, i, n_out, n_in);
  };
  if (arch.fused) {
    const std::vector<Linear> parts = b.fused(n::kQkv, i, {c.q_dim(), c.kv_dim(), c.kv_dim()}, c.d_model);
    layer.q = parts[0];
    layer.k = parts[1];
    layer.v = parts[2];
  } else {
    layer.q = projection(n::kQ, c.q_rows(), c.d_model);
    layer.k = projection(n::kK, c.kv_dim(), c.d_model);
    layer.v = projection(n::kV, c.kv_dim(), c.d_model);
  }
  layer.o = projection(n::kO, c.d_model, c.q_dim());
  if (c.qkv_bias) {
    layer.q_bias = b.bias(n::kQBias, i, c.q_rows(), arch.qkv_bias);
    layer.k_bias = b.bias(n::kKBias, i, c.kv_dim(), arch.qkv_bias);
    layer.v_bias = b.bias(n::kVBias, i, c.kv_dim(), arch.qkv_bias);
  }
  if (c.o_bias) layer.o_bias = b.bias(n::kOBias, i, c.d_model, arch.gpt_oss);
  if (c.sink_logits) layer.sink_logits = b.vector(n::kSinkLogits, i, c.n_heads);
  if (c.qk_norm) {
    layer.q_norm = b.norm(n::kQNorm, i, c.qk_norm_whole ? c.q_dim() : c.head_dim, arch.norms_plus_one);
    layer.k_norm = b.norm(n::kKNorm, i, c.qk_norm_whole ? c.kv_dim() : c.head_dim, arch.norms_plus_one);
  }
  if (c.sub_norm) layer.attn_sub_norm = b.vector(n::kAttnSubNorm, i, c.q_dim());
}

LayerWeights bind_layer(const Config& c, Binder& b, int i) {
  namespace n = tensor_names;
  const Arch& arch = arch_of(c);
  LayerWeights layer;
  const auto norm = [&](const n::Name& name) { return b.norm(name, i, c.d_model, arch.norms_plus_one); };
  const auto projection = [&](const n::Name& name, int64_t n_out, int64_t n_in) {
    return c.ternary ? b.ternary_matrix(name, i, n_out, n_in) : b.matrix(name, i, n_out, n_in);
  };
  if (c.norms != NormPlace::after) {
    layer.attn_norm = norm(n::kAttnNorm);
    layer.ffn_norm = norm(c.norms == NormPlace::both        ? n::kFfnNormBetween
                          : arch.ffn_norm_is_post_attention ? n::kAttnPostNorm
                                                            : n::kFfnNorm);
  }
  if (c.norms != NormPlace::before) {
    layer.attn_post_norm = norm(n::kAttnPostNorm);
    layer.ffn_post_norm = norm(n::kFfnPostNorm);
  }
  if (c.has_delta(i)) bind_delta(c, b, i, layer);
  else if (c.kv_rank > 0) bind_latent(c, b, i, layer);
  else bind_attention(c, b, i, layer);
  if (c.sub_norm) layer.ffn_sub_norm = b.vector(n::kFfnSubNorm, i, c.d_ff);
  if (c.has_experts(i)) {
    if (arch.gpt_oss) bind_oss_experts(c, b, i, layer);
    else bind_experts(c, b, i, layer);
    return layer;
  }
  if (arch.fused) {
    const std::vector<Linear> parts = b.fused(n::kGateUp, i, {c.d_ff, c.d_ff}, c.d_model);
    layer.gate = parts[0];
    layer.up = parts[1];
  } else {
    layer.gate = projection(n::kGate, c.d_ff, c.d_model);
    layer.up = projection(n::kUp, c.d_ff, c.d_model);
  }
  layer.down = projection(n::kDown, c.d_model, c.d_ff);
  if (c.mlp_bias) {
    layer.gate_bias = b.bias(n::kGateBias, i, c.d_ff, false);
    layer.up_bias = b.bias(n::kUpBias, i, c.d_ff, false);
    layer.down_bias = b.bias(n::kDownBias, i, c.d_model, false);
  }
  return layer;
}

Status bind_tensors(const Config& c, Binder& b, Weights& w, std::string_view where) {
  namespace n = tensor_names;
  w.embedding = b.matrix(n::kEmbedding, 0, c.vocab_size, c.d_model);
  w.output_norm = b.norm(n::kOutputNorm, 0, c.d_model, arch_of(c).norms_plus_one);
  w.output = c.tied_output ? w.embedding : b.matrix(n::kOutput, 0, c.vocab_size, c.d_model);
  const RopeScaling& scaling = c.rope_scaling;
  if (!scaling.long_factors.empty()) {
    w.rope_factors = scaling.short_factors;
    w.long_rope_factors = scaling.long_factors;
  } else if (scaling.kind == RopeScaling::Kind::longrope) {
    w.rope_factors = b.vector(n::kShortRopeFactors, 0, c.rope_dim / 2);
    w.long_rope_factors = b.vector(n::kLongRopeFactors, 0, c.rope_dim / 2);
  } else {
    w.rope_factors = b.vector(n::kRopeFactors, 0, c.rope_dim / 2, false);
  }
  for (int i = 0; i < c.n_layers; ++i) w.layers.push_back(bind_layer(c, b, i));
  RIDGE_TRY_STATUS(b.finish(where));
  RIDGE_TRY_STATUS(b.check_rest(c, where));
  for (const auto* factors : {&w.rope_factors, &w.long_rope_factors})
    for (const float factor : *factors)
      if (!(factor > 0)) return bad_file("{}: a factor of RoPE is {}, expected positive factors", where, factor);
  return {};
}

/// The embedding must have a row for every id that plain text can become. Tokens that were added behind it (images of
/// text-only models, padding) may lack one: such ids are never drawn, and refused in prompts.
Status check_vocab(const io::Tokenizer& tokenizer, const Config& c, std::string_view where) {
  const io::TokenizerSpec& spec = tokenizer.spec();
  for (int id = c.vocab_size; id < tokenizer.vocab_size(); ++id) {
    const io::TokenType type = spec.types[size_t(id)];
    const bool added = type == io::TokenType::control || type == io::TokenType::user_defined;
    if (!added && type != io::TokenType::unused)
      return bad_file("{}: the tokenizer has {} tokens, the embedding {} rows", where, tokenizer.vocab_size(),
                      c.vocab_size);
  }
  for (const auto& [adds, id, name] : {std::tuple(spec.add_bos, spec.bos, "BOS"), {spec.add_eos, spec.eos, "EOS"}})
    if (adds && id && *id >= c.vocab_size)
      return bad_file("{}: the tokenizer adds its {} token {} to texts, but the embedding has {} rows", where, name,
                      *id, c.vocab_size);
  return {};
}

/// Ids up to the last token that is no padding; 0 where nothing else is known.
int drawn_ids(const io::Tokenizer& tokenizer, int vocab_size) {
  int n = std::min(tokenizer.vocab_size(), vocab_size);
  while (n > 0 && tokenizer.spec().types[size_t(n) - 1] == io::TokenType::unused) --n;
  return n;
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
    model.config.n_ids = drawn_ids(*model.tokenizer, model.config.vocab_size);
  }
  model.weights.source = std::move(file);
  return model;
}

Result<LoadedModel> load_hf(const std::string& path) {
  LoadedModel model;
  RIDGE_TRY(io::HfDirectory directory, io::open_hf_directory(path));
  RIDGE_TRY(model.config, config_from_hf(directory.config_json, path + "/config.json", &model.unread_fields));
  model.config.name = std::filesystem::weakly_canonical(path).filename().string();
  RIDGE_TRY(const io::Int4Layout int4, io::int4_layout(directory.config_json, path + "/config.json"));
  if (model.config.ternary && int4 != io::Int4Layout::none)
    return bad_file("{}: 4-bit weights of a BitNet model are not supported", path);
  TernaryLayout ternary = TernaryLayout::master;
  if (model.config.ternary) {
    RIDGE_TRY(ternary, ternary_layout(directory.config_json, path + "/config.json"));
  }
  Binder binder(directory.tensors, false, model.weights, int4, ternary);
  RIDGE_TRY_STATUS(bind_tensors(model.config, binder, model.weights, path));
  if (!directory.tokenizer_json.empty()) {
    RIDGE_TRY(io::TokenizerSpec spec,
              io::tokenizer_spec_from_hf(directory.tokenizer_json, directory.tokenizer_config_json,
                                         path + "/tokenizer.json", directory.special_tokens_map_json));
    RIDGE_TRY_STATUS(io::add_end_ids(spec, directory.generation_config_json, path + "/generation_config.json"));
    RIDGE_TRY_STATUS(io::add_end_ids(spec, directory.config_json, path + "/config.json"));
    RIDGE_TRY(model.tokenizer, io::Tokenizer::make(std::move(spec)));
    RIDGE_TRY_STATUS(check_vocab(*model.tokenizer, model.config, path));
    model.config.n_ids = drawn_ids(*model.tokenizer, model.config.vocab_size);
  }
  model.weights.source = std::move(directory);
  return model;
}

}  // namespace

Result<LoadedModel> load_model(const std::string& path) {
  RIDGE_TRY(const std::filesystem::path found, io::find_model(path));
  std::error_code error;
  return std::filesystem::is_directory(found, error) ? load_hf(found.string()) : load_gguf(found.string());
}

void for_each_matrix(Weights& w, const std::function<void(Linear&, std::string_view)>& fn) {
  for (LayerWeights& layer : w.layers) {
    if (!layer.o.format) continue;  // other ranks have it
    if (layer.delta.qkv.format) {
      fn(layer.delta.qkv, "delta qkv");
      fn(layer.delta.z, "delta z");
      fn(layer.delta.a, "delta a");
      fn(layer.delta.b, "delta b");
    }
    for (const auto& [m, name] : {std::pair(&layer.q, "q"),
                                  {&layer.k, "k"},
                                  {&layer.v, "v"},
                                  {&layer.q_a, "q_a"},
                                  {&layer.q_b, "q_b"},
                                  {&layer.kv_a, "kv_a"}})
      if (m->format) fn(*m, name);
    for (Linear& m : layer.k_b) fn(m, "k_b");
    for (Linear& m : layer.v_b) fn(m, "v_b");
    fn(layer.o, "o");
    if (layer.gate.format) {
      fn(layer.gate, "gate");
      fn(layer.up, "up");
      fn(layer.down, "down");
    }
    if (layer.router.format) fn(layer.router, "router");
    for (ExpertWeights& expert : layer.experts) {
      fn(expert.gate, "expert gate");
      fn(expert.up, "expert up");
      fn(expert.down, "expert down");
    }
  }
  fn(w.output, "output");
}

namespace {

using OnVector = std::function<void(const std::vector<float>&)>;

void for_each_vector(const DeltaWeights& delta, const OnVector& fn) {
  const auto& [qkv, z, a, b, conv, decay, dt_bias, norm] = delta;
  for (const auto* v : {&conv, &decay, &dt_bias, &norm}) fn(*v);
}

void for_each_vector(const LayerWeights& layer, const OnVector& fn) {
  // A member that joins the struct does not compile here until it is named: a vector belongs into the list too.
  const auto& [attn_norm, delta, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, q_a, q_b, q_a_norm, kv_a, kv_a_norm,
               k_b, v_b, attn_sub_norm, o, attn_post_norm, o_bias, sink_logits, ffn_norm, gate, up, gate_bias, up_bias,
               ffn_sub_norm, down, down_bias, ffn_post_norm, router, router_bias, choice_bias, experts, shared_gate] =
      layer;
  for_each_vector(delta, fn);
  for (const auto* values :
       {&attn_norm, &q_bias,        &k_bias,         &v_bias,        &q_norm,      &k_norm,      &q_a_norm,
        &kv_a_norm, &attn_sub_norm, &attn_post_norm, &o_bias,        &sink_logits, &ffn_norm,    &gate_bias,
        &up_bias,   &ffn_sub_norm,  &down_bias,      &ffn_post_norm, &router_bias, &choice_bias, &shared_gate})
    fn(*values);
  for (const auto& [gate_of, up_of, down_of, gate_bias_of, up_bias_of, down_bias_of] : experts)
    for (const auto* values : {&gate_bias_of, &up_bias_of, &down_bias_of}) fn(*values);
}

}  // namespace

void for_each_vector(const Weights& w, const OnVector& fn) {
  for (const auto* values :
       {&w.output_norm, &w.rope_factors, &w.long_rope_factors, &w.join_embedding_norm, &w.join_hidden_norm})
    fn(*values);
  for (const LayerWeights& layer : w.layers) for_each_vector(layer, fn);
}

int64_t decode_matrix_bytes(const Weights& w, int n_used) {
  int64_t bytes = 0;
  for_each_matrix(w, [&](const Linear& m, std::string_view) { bytes += m.bytes(); });
  for (const LayerWeights& layer : w.layers)
    if (!layer.experts.empty()) {
      const ExpertWeights& one = layer.experts[0];
      bytes -=
          std::max<int64_t>(0, ssize(layer.experts) - n_used) * (one.gate.bytes() + one.up.bytes() + one.down.bytes());
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

void for_each_matrix(const Weights& w, const std::function<void(const Linear&, std::string_view)>& fn) {
  for_each_matrix(const_cast<Weights&>(w), [&](Linear& m, std::string_view name) { fn(m, name); });
}

int64_t packed_bytes(const Linear& m, Isa isa) {
  if (wants_ternary_panels(m, isa)) return ternary_panel_bytes(m.n_out, m.n_in);
  return wants_panels(*m.format, m.n_in, isa) ? panel_bytes(*m.format, m.n_out, m.n_in) : 0;
}

namespace {

void pack(CpuContext& context, Weights& weights, Linear& m, std::string_view kind) {
  const int64_t bytes = packed_bytes(m, context.isa);
  if (m.panels || bytes == 0) return;
  std::byte* const panels = weights.buffers.emplace_back(bytes).data();
  int64_t bad = -1;
  if (wants_ternary_panels(m, context.isa)) pack_ternary_panels(context, m.n_out, m.n_in, m.rows, panels);
  else bad = pack_panels(context, *m.format, m.n_out, m.n_in, m.rows, panels);
  if (bad >= 0)
    throw_error(ErrorKind::bad_file, "{}: a scale of row {} is not finite (the file is damaged: get it again)",
                matrix_name(weights, m, kind), bad);
  m.panels = panels;
}

/// The matrix in another format, in a buffer of its own; as it is where the format has no encoder or no such rows.
Linear encoded(const Linear& m, const WeightFormat* format, std::vector<AlignedBuffer>& buffers) {
  if (!format->encode || format == m.format || m.n_in % format->group != 0 || format->tail_bytes > 0) return m;
  Linear to{.format = format, .n_out = m.n_out, .n_in = m.n_in};
  std::byte* const rows = buffers.emplace_back(to.bytes()).data();
  std::vector<float> row(size_t(m.n_in), 0.0f);
  for (int64_t i = 0; i < m.n_out; ++i) {
    m.format->decode(m.rows + i * m.format->row_bytes(m.n_in), m.n_in, row.data());
    format->encode(row.data(), m.n_in, rows + i * format->row_bytes(m.n_in));
  }
  to.rows = rows;
  return to;
}

/// Heads whose RoPE turns halves of their first rope_dim rows, with these in the order of neighbouring pairs.
Linear interleaved(const Linear& m, int64_t head_dim, int64_t rope_dim, std::vector<AlignedBuffer>& buffers) {
  Linear to = m;
  const int64_t row_bytes = m.format->row_bytes(m.n_in);
  std::byte* const rows = buffers.emplace_back(m.bytes()).data();
  for (int64_t i = 0; i < m.n_out; ++i) {
    const int64_t in_head = i % head_dim, turned = in_head % 2 * (rope_dim / 2) + in_head / 2,
                  from = i - in_head + (in_head < rope_dim ? turned : in_head);
    std::copy_n(m.rows + from * row_bytes, row_bytes, rows + i * row_bytes);
  }
  to.rows = rows;
  return to;
}

}  // namespace

void drop_unread_rows(Weights& weights) {
  const auto is_in = [](const AlignedBuffer& buffer, const std::byte* bytes) {
    return bytes >= buffer.data() && bytes < buffer.data() + buffer.bytes();
  };
  std::map<const std::byte*, int64_t> sizes;  // of buffers, by where they begin
  for (const AlignedBuffer& buffer : weights.buffers)
    if (!is_in(buffer, weights.embedding.rows)) sizes[buffer.data()] = buffer.bytes();
  std::map<const std::byte*, const std::byte*> moved;  // layers may share rows
  for_each_matrix(weights, [&](Linear& m, std::string_view) {
    if (m.panels) m.rows = nullptr;
    const auto behind = sizes.upper_bound(m.rows);
    if (m.rows && behind != sizes.begin()) {
      const auto& [first, bytes] = *std::prev(behind);
      if (m.rows < first + bytes && m.bytes() < bytes) {
        const std::byte*& to = moved[m.rows];
        if (!to) {
          AlignedBuffer& own = weights.buffers.emplace_back(m.bytes());
          std::copy_n(m.rows, m.bytes(), own.data());
          to = own.data();
        }
        m.rows = to;
      }
    }
  });
  drop_unread_buffers(weights);
}

void drop_unread_buffers(Weights& weights) {
  std::vector<const std::byte*> used = {weights.embedding.rows};
  for_each_matrix(weights, [&](Linear& m, std::string_view) {
    for (const std::byte* const bytes : {m.rows, m.panels})
      if (bytes) used.push_back(bytes);
  });
  std::ranges::sort(used);
  std::erase_if(weights.buffers, [&](const AlignedBuffer& buffer) {
    const auto first = std::ranges::lower_bound(used, static_cast<const std::byte*>(buffer.data()));
    return first == used.end() || *first >= buffer.data() + buffer.bytes();
  });
}

void pack_weights(CpuContext& context, Weights& weights) {
  for_each_matrix(weights, [&](Linear& m, std::string_view kind) { pack(context, weights, m, kind); });
}

namespace {

/// What a head of its own file calls its tensors, with the names of a model of one layer for those under mtp.layers.0.
std::vector<io::Tensor> own_head_tensors(const Weights& model) {
  constexpr std::string_view kHead = "mtp.", kLayer = "mtp.layers.";
  if (const auto* gguf = std::get_if<io::GgufFile>(&model.source)) return gguf->gguf.tensors;
  std::vector<io::Tensor> tensors;
  for (const io::Tensor& tensor : std::get<io::HfDirectory>(model.source).tensors)
    if (tensor.name.starts_with(kHead)) {
      tensors.push_back(tensor);
      if (tensor.name.starts_with(kLayer)) tensors.back().name.replace(0, kHead.size(), "model.");
    }
  return tensors;
}

/// The head of a plain model in a safetensors file.
Status load_separate_head(const Config& c, const Weights& model, std::string path, MtpHead& head) {
  if (!takes_plain_head(c))
    return fail(ErrorKind::usage, "MTP heads are read for plain layers only, not for {}", c.arch);
  if (const auto* directory = std::get_if<io::HfDirectory>(&model.source); directory && path.empty())
    path = directory->path / "mtp.safetensors";
  if (path.empty()) return fail(ErrorKind::usage, "the model's file has no MTP head (give the file of the head)");
  io::HfDirectory& source = head.weights.source.emplace<io::HfDirectory>();
  RIDGE_TRY(io::MappedFile file, io::MappedFile::open(path));
  source.files.push_back(std::move(file));
  RIDGE_TRY(source.tensors, io::parse_safetensors(source.files[0].bytes(), path));
  Binder b(source.tensors, false, head.weights);
  const auto matrix = [&](std::string_view name, int64_t n_out, int64_t n_in) {
    return b.matrix({"", name}, 0, n_out, n_in);
  };
  const auto norm = [&](std::string_view name) { return b.vector({"", name}, 0, c.d_model); };
  head.weights.join_embedding_norm = norm("enorm.weight");
  head.weights.join_hidden_norm = norm("hnorm.weight");
  head.weights.join = matrix("eh_proj.weight", c.d_model, 2 * int64_t(c.d_model));
  head.weights.output_norm = norm("shared_head_norm.weight");
  LayerWeights& layer = head.weights.layers.emplace_back();
  layer.attn_norm = norm("layer.input_layernorm.weight");
  layer.q = matrix("layer.self_attn.q_proj.weight", c.q_dim(), c.d_model);
  layer.k = matrix("layer.self_attn.k_proj.weight", c.kv_dim(), c.d_model);
  layer.v = matrix("layer.self_attn.v_proj.weight", c.kv_dim(), c.d_model);
  layer.o = matrix("layer.self_attn.o_proj.weight", c.d_model, c.q_dim());
  layer.ffn_norm = norm("layer.post_attention_layernorm.weight");
  layer.gate = matrix("layer.mlp.gate_proj.weight", c.d_ff, c.d_model);
  layer.up = matrix("layer.mlp.up_proj.weight", c.d_ff, c.d_model);
  layer.down = matrix("layer.mlp.down_proj.weight", c.d_model, c.d_ff);
  RIDGE_TRY_STATUS(b.finish(path));
  RIDGE_TRY_STATUS(b.check_rest(c, path));
  const WeightFormat* const format = model.layers.back().q.format;
  for (Linear* m : {&head.weights.join, &layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
    *m = encoded(*m, format, head.weights.buffers);
  if (c.rope_pairs == RopePairs::interleaved) {  // of a GGUF file; the head's are halves
    layer.q = interleaved(layer.q, c.head_dim, c.rope_dim, head.weights.buffers);
    layer.k = interleaved(layer.k, c.head_dim, c.rope_dim, head.weights.buffers);
  }
  return {};
}

}  // namespace

bool takes_plain_head(const Config& c) {
  return !c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm && !c.sink_logits && !c.sub_norm &&
         c.norms == NormPlace::before && !c.has_experts(c.n_layers - 1) && !c.has_delta(c.n_layers - 1) &&
         c.kv_rank == 0;
}

Status add_head_file(io::HfDirectory& directory, const std::filesystem::path& path) {
  namespace n = tensor_names;
  RIDGE_TRY(io::MappedFile file, io::MappedFile::open(path));
  directory.files.push_back(std::move(file));
  RIDGE_TRY(std::vector<io::Tensor> tensors, io::parse_safetensors(directory.files.back().bytes(), path.native()));
  constexpr std::string_view kLayer = "layer.";
  const std::pair<std::string_view, std::string_view> names[] = {{"eh_proj.weight", n::kNext.join.hf},
                                                                 {"enorm.weight", n::kNext.embedding_norm.hf},
                                                                 {"hnorm.weight", n::kNext.hidden_norm.hf},
                                                                 {"shared_head_norm.weight", n::kNext.output_norm.hf}};
  for (io::Tensor& tensor : tensors) {
    if (tensor.name.starts_with(kLayer)) tensor.name.replace(0, kLayer.size(), "mtp.layers.0.");
    for (const auto& [own, name] : names)
      if (tensor.name == own) tensor.name = name;
    directory.tensors.push_back(std::move(tensor));
  }
  return {};
}

Result<std::optional<MtpHead>> read_own_mtp_head(const Config& config, const Weights& model) {
  namespace n = tensor_names;
  const Arch& arch = arch_of(config);
  const n::NextNames& names = n::next_names(arch);
  const auto* const directory = std::get_if<io::HfDirectory>(&model.source);
  const bool is_gguf = std::holds_alternative<io::GgufFile>(model.source), under_mtp = directory && !arch.latent;
  std::optional<MtpHead> head;
  const bool plain = takes_plain_head(config);
  if ((!directory && !is_gguf) || (!arch.latent && !arch.delta && !plain)) return head;
  io::Int4Layout int4 = io::Int4Layout::none;
  if (directory) {
    RIDGE_TRY(int4, io::int4_layout(directory->config_json, directory->path.native()));
  }
  const std::vector<io::Tensor> tensors = under_mtp || is_gguf ? own_head_tensors(model) : directory->tensors;
  head.emplace();
  Binder b(tensors, is_gguf, head->weights, int4);
  const int layer = under_mtp ? 0 : config.n_layers;
  if (!b.has(b.name(names.embedding_norm, layer))) return std::optional<MtpHead>();
  if (b.has(b.name(n::kAttnNorm, layer + 1)))
    return fail(ErrorKind::usage, "the model's file has an MTP head of several layers (not supported)");
  Config c = config;
  c.delta = {};  // the head attends, and has experts where the model has some
  c.dense_layers = {};
  const auto norm = [&](const n::Name& name) { return b.norm(name, layer, c.d_model, arch.norms_plus_one); };
  head->after_norm = arch.delta;
  const bool own_embedding = b.take(b.name(names.embedding, layer)), own_output = b.take(b.name(names.output, layer));
  head->own_ends = own_embedding || own_output;
  head->weights.join_embedding_norm = norm(names.embedding_norm);
  head->weights.join_hidden_norm = norm(names.hidden_norm);
  head->weights.join = b.matrix(names.join, layer, c.d_model, 2 * int64_t(c.d_model));
  head->weights.output_norm = norm(names.output_norm);
  head->weights.layers.push_back(bind_layer(c, b, layer));
  RIDGE_TRY_STATUS(b.finish("the MTP head"));
  const std::string prefix =
      under_mtp ? "" : fmt::format(fmt::runtime(is_gguf ? "blk.{}." : "model.layers.{}."), layer);
  RIDGE_TRY_STATUS(b.check_rest(c, "the MTP head", prefix));
  return head;
}

Result<MtpHead> load_mtp_head(CpuContext& context, const Config& c, const Weights& model, std::string path) {
  MtpHead head;
  if (model.head && path.empty()) {  // its matrices stay the model's
    head.weights.join = model.head->join;
    head.weights.join_embedding_norm = model.head->join_embedding_norm;
    head.weights.join_hidden_norm = model.head->join_hidden_norm;
    head.weights.layers = model.head->layers;
    head.weights.output_norm = model.head->output_norm;
    head.weights.embedding = model.embedding;
    head.weights.output = model.output;
    return head;
  }
  std::optional<MtpHead> own;
  if (path.empty()) {
    RIDGE_TRY(own, read_own_mtp_head(c, model));
  }
  if (own && !takes_plain_head(c) && (c.arch != "qwen35" || c.has_delta(c.n_layers - 1)))
    return fail(ErrorKind::usage,
                "an MTP head in the model's own file is run for qwen35 and plain layers only, not for {}", c.arch);
  if (own && own->own_ends)
    return fail(ErrorKind::usage, "the MTP head has an embedding or an output matrix of its own (not supported)");
  if (own) head = std::move(*own);
  if (!own) RIDGE_TRY_STATUS(load_separate_head(c, model, std::move(path), head));
  LayerWeights& layer = head.weights.layers[0];
  for (Linear* m : {&head.weights.join, &layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
    pack(context, head.weights, *m, "of the MTP head");
  head.weights.embedding = model.embedding;
  head.weights.output = model.output;
  return head;
}

}  // namespace ridge
