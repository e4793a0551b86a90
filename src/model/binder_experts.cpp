// Matrices and vectors that a layer has one of for each head or expert.
#include <algorithm>

#include "format/mxfp4.h"
#include "format/nvfp4.h"
#include "model/binder.h"

namespace ridge {
namespace {

/// The matrix `m` of a float format, in a buffer; at(r, i) is where its values are now.
template <class At>
Linear copied(Linear m, std::vector<AlignedBuffer>& buffers, const At& at) {
  std::byte* to = buffers.emplace_back(m.bytes()).data();
  m.rows = to;
  for (int64_t r = 0; r < m.n_out; ++r)
    for (int64_t i = 0; i < m.n_in; ++i) to = std::copy_n(at(r, i), m.format->block_bytes, to);
  return m;
}

}  // namespace

std::vector<Linear> Binder::matrices(const TensorRow& row, int layer, int64_t n) {
  const TensorSource from = source(row, layer);
  if (!is_gguf() && from.layout == TensorLayout::by_head) return latent_heads(row, layer);
  if (!is_gguf() && from.layout == TensorLayout::woven)
    return by_name_.contains(name(row, layer) + "_blocks") ? woven_mxfp4(row, layer, n) : woven(row, layer, n);
  const bool apart = !is_gguf() && from.name.hf.find("{}") != std::string_view::npos;
  if (!apart) return stacked(row, layer, n);
  std::vector<Linear> all;
  for (int64_t e = 0; e < n; ++e) all.push_back(matrix(name(row, layer, int(e)), row.shape(config_, layer)));
  return all;
}

/// The row's part of each of the matrices [n, n_rows, n_in] in one tensor.
std::vector<Linear> Binder::stacked(const TensorRow& row, int layer, int64_t n) {
  const TensorShape shape = row.shape(config_, layer);
  const TensorPart part = part_of(row, layer);
  const io::Tensor* all = find(name(row, layer), {n, part.total, shape.n_in});
  if (all && all->format->tail_bytes > 0) {
    problem(fmt::format("{} is {}, which has no experts", all->name, all->format->name));
    all = nullptr;
  }
  if (all && all->format->check)
    if (const Status ok = all->format->check(all->data.data(), n * part.total * shape.n_in); !ok) {
      problem(fmt::format("{} {}", all->name, ok.error().message));
      all = nullptr;
    }
  std::vector<Linear> matrices(static_cast<size_t>(n));
  if (!all) return matrices;
  Values scales(size_t(n), 1.0f);
  if (is_gguf() && all->format->gguf_type == NVFP4::kGgufType) scales = extra_scales(all->name, n);
  for (int64_t e = 0; e < n; ++e)
    matrices[size_t(e)] = {
        .format = all->format,
        .n_out = shape.n_out,
        .n_in = shape.n_in,
        .rows = all->data.data() + (e * part.total + part.first) * all->format->row_bytes(shape.n_in),
        .scale = scales[size_t(e)]};
  return matrices;
}

/// Every count-th column of a tensor [n, n_in, n_columns] as rows of matrices, in buffers.
std::vector<Linear> Binder::woven(const TensorRow& row, int layer, int64_t n) {
  const int64_t n_out = row.shape(config_, layer).n_out, n_in = row.shape(config_, layer).n_in;
  const TensorPart part = part_of(row, layer);
  const io::Tensor* all = find(name(row, layer), {n, n_in, part.total});
  std::vector<Linear> matrices(static_cast<size_t>(n));
  if (!all || !is_float(all->name, *all->format)) return matrices;
  for (int64_t e = 0; e < n; ++e)
    matrices[size_t(e)] =
        copied({.format = all->format, .n_out = n_out, .n_in = n_in}, weights_.buffers, [&](int64_t r, int64_t i) {
          const int64_t column = part.index + r * part.count;
          return all->data.data() + ((e * n_in + i) * part.total + column) * all->format->block_bytes;
        });
  return matrices;
}

std::vector<Linear> Binder::woven_mxfp4(const TensorRow& row, int layer, int64_t n) {
  const auto [n_out, n_in] = row.shape(config_, layer);
  const std::string tensor_name = name(row, layer);
  const TensorPart part = part_of(row, layer);
  const int64_t n_blocks = n_in / MXFP4::kGroup;
  std::vector<Linear> matrices(static_cast<size_t>(n));
  if (n_in % MXFP4::kGroup != 0) {
    problem(fmt::format("{} has rows of {}, expected a multiple of {}", tensor_name, n_in, MXFP4::kGroup));
    return matrices;
  }
  const WeightFormat* const u8 = &io::packed_bytes();
  const io::Tensor* const codes = find(tensor_name + "_blocks", {n, part.total, n_blocks, 16}, true, u8);
  const io::Tensor* const exponents = find(tensor_name + "_scales", {n, part.total, n_blocks}, true, u8);
  if (!codes || !exponents) return matrices;
  if (codes->format != u8 || exponents->format != u8) {
    problem(fmt::format("{}_blocks and _scales are {} and {}, expected u8", tensor_name, codes->format->name,
                        exponents->format->name));
    return matrices;
  }
  const auto nibble = [](std::byte b, int i) { return int(b) >> 4 * (i % 2) & 15; };
  for (int64_t e = 0; e < n; ++e) {
    Linear& m = matrices[size_t(e)];
    m = {.format = *find_weight_format(MXFP4::kName), .n_out = n_out, .n_in = n_in};
    auto* block = reinterpret_cast<MXFP4::Block*>(weights_.buffers.emplace_back(m.bytes()).data());
    m.rows = reinterpret_cast<const std::byte*>(block);
    for (int64_t r = 0; r < n_out; ++r)
      for (int64_t b = 0; b < n_blocks; ++b, ++block) {
        const int64_t at = (e * part.total + part.index + r * part.count) * n_blocks + b;
        const std::byte* const from = codes->data.data() + 16 * at;
        block->exponent = uint8_t(exponents->data[size_t(at)]);
        for (int i = 0; i < 16; ++i) block->q[i] = uint8_t(nibble(from[i / 2], i) | nibble(from[8 + i / 2], i) << 4);
      }
  }
  return matrices;
}

Linear Binder::as_floats(const std::string& tensor_name, Linear m) {
  if (!m.format || (m.format->group == 1 && m.scale == 1)) return m;
  if (m.order || m.int8_activations) {
    problem(fmt::format("{} is {}, expected a float format", tensor_name, m.format->name));
    return {};
  }
  Linear floats{.format = weight_format_of_gguf(0), .n_out = m.n_out, .n_in = m.n_in};
  auto* const values = weights_.buffers.emplace_back(floats.bytes()).as<float>();
  m.format->decode(m.rows, m.n_out * m.n_in, values);
  for (int64_t i = 0; i < m.n_out * m.n_in; ++i) values[i] *= m.scale;
  floats.rows = reinterpret_cast<const std::byte*>(values);
  return floats;
}

/// k_b or v_b of every head, of a matrix [n_heads * (nope_dim + value_dim), kv_rank].
std::vector<Linear> Binder::latent_heads(const TensorRow& row, int layer) {
  const Config& c = config_;
  const int64_t rows = c.nope_dim + c.value_dim;
  const std::string tensor_name = name(row, layer);
  const bool is_first = !shared_.contains(tensor_name), is_k = row.member == TensorMember(&LayerWeights::k_b);
  Linear& all = shared_[tensor_name];
  if (is_first) all = as_floats(tensor_name, matrix(tensor_name, {c.n_heads * rows, c.kv_rank}));
  std::vector<Linear> heads;
  for (int64_t h = 0; all.format && h < c.n_heads; ++h) {
    Linear m = all;
    m.n_out = is_k ? c.nope_dim : c.value_dim;
    m.rows += (h * rows + (is_k ? 0 : c.nope_dim)) * all.format->row_bytes(c.kv_rank);
    heads.push_back(
        !is_k ? m
              : copied({.format = m.format, .n_out = m.n_in, .n_in = m.n_out}, weights_.buffers,
                       [&](int64_t r, int64_t i) { return m.rows + (i * m.n_in + r) * m.format->block_bytes; }));
  }
  return heads;
}

/// Reads the n vectors of a tensor [n, n_values]. The rows of a woven tensor hold its parts in turns.
std::vector<Values> Binder::vectors(const TensorRow& row, int layer, int64_t n) {
  const int64_t n_values = row.shape(config_, layer).n_out;
  const TensorPart part = part_of(row, layer);
  std::vector<Values> all(size_t(n), Values(size_t(n_values), 0.0f));
  const io::Tensor* tensor = find(name(row, layer), {n, part.total});
  if (!tensor) return all;
  Values whole(size_t(part.total), 0.0f);
  for (int64_t e = 0; e < n; ++e) {
    tensor->format->decode(tensor->data.data() + e * tensor->format->row_bytes(part.total), part.total, whole.data());
    for (int64_t i = 0; i < n_values; ++i) all[size_t(e)][size_t(i)] = whole[size_t(part.index + i * part.count)];
  }
  return all;
}

}  // namespace ridge
