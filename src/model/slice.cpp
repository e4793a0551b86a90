#include "model/slice.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace ridge {
namespace {

/// Rows at whose multiples parts begin where there are enough: a panel (op/gemv/panels.h).
constexpr int64_t kRows = 16;

Failure refused(int size, std::string_view what, std::string_view why) {
  return fail(ErrorKind::usage, "--tp {}: {} {}", size, what, why);
}

/// Borders of columns that `down` matrices of these groups read.
Result<std::vector<int64_t>> column_borders(std::string_view what, int64_t n, int64_t group, int size) {
  int64_t unit = std::lcm(group, kRows);
  if (n / unit < size) unit = group;
  if (n / unit < size)
    return refused(size, what, fmt::format("has {} columns in blocks of {}: fewer blocks than ranks", n, group));
  return slice_borders(n, unit, size);
}

/// Least common multiple of the groups of the layers' matrices.
template <class Pick>
int64_t common_group(const Weights& weights, const Pick& pick) {
  int64_t group = 1;
  for (const LayerWeights& layer : weights.layers)
    if (const Linear& m = pick(layer); m.format) group = std::lcm(group, int64_t(m.format->group));
  return group;
}

Status check_kinds(const Config& c, const Weights& weights, int size) {
  if (c.delta.n_key_heads > 0)
    return refused(size, "the gated delta rule", "is not cut into slices: its states belong to one rank");
  if (weights.head || weights.join.format) return refused(size, "an MTP head", "is not cut into slices");
  bool has_rows = true;
  for_each_matrix(weights, [&](const Linear& m, std::string_view) { has_rows = has_rows && m.rows; });
  if (!has_rows)
    return refused(size, "a synth: model", "has no rows to cut, only panels (use --isa scalar, or a model of a file)");
  if (c.n_heads % size != 0 || (c.n_kv_heads % size != 0 && size % c.n_kv_heads != 0))
    return refused(
        size, "attention",
        fmt::format("has {} heads and {} KV heads, which {} ranks do not share evenly", c.n_heads, c.n_kv_heads, size));
  return {};
}

void keep(std::vector<float>& values, int64_t first, int64_t count) {
  if (values.empty()) return;
  values = std::vector<float>(values.begin() + first, values.begin() + first + count);
}

void drop_unless(bool has, std::vector<float>& values) {
  if (!has) std::ranges::fill(values, 0.0f);
}

}  // namespace

std::vector<int64_t> slice_borders(int64_t n, int64_t unit, int size) {
  const int64_t n_units = (n + unit - 1) / unit;
  std::vector<int64_t> borders;
  for (int r = 0; r <= size; ++r) borders.push_back(std::min(n, n_units * r / size * unit));
  return borders;
}

Linear row_slice(const Linear& m, int64_t first, int64_t count) {
  RIDGE_CHECK(m.rows && first >= 0 && first + count <= m.n_out, "rows {} to {} of {}", first, first + count, m.n_out);
  Linear part = m;
  part.rows += first * m.format->row_bytes(m.n_in);
  part.n_out = count;
  return part;
}

Linear column_slice(const Linear& m, int64_t first, int64_t count, std::vector<AlignedBuffer>& buffers) {
  const int64_t group = m.format->group;
  RIDGE_CHECK(m.rows && first % group == 0 && count % group == 0 && first + count <= m.n_in,
              "columns {} to {} of {} in blocks of {}", first, first + count, m.n_in, group);
  Linear part = m;
  part.n_in = count;
  std::byte* const to = buffers.emplace_back(part.bytes()).data();
  const int64_t from_bytes = m.format->row_bytes(m.n_in), to_bytes = m.format->row_bytes(count);
  for (int64_t row = 0; row < m.n_out; ++row)
    std::memcpy(to + row * to_bytes, m.rows + row * from_bytes + m.format->row_bytes(first), size_t(to_bytes));
  part.rows = to;
  return part;
}

Result<ModelSlice> plan_slice(const Config& c, const Weights& weights, int rank, int size) {
  RIDGE_TRY_STATUS(check_kinds(c, weights, size));
  ModelSlice slice{.rank = rank, .size = size};
  slice.gathers = c.sub_norm || c.ternary;
  slice.kv_copies = std::max(1, size / c.n_kv_heads);
  slice.q = slice_borders(c.q_dim(), c.q_dim() / size, size);
  const int64_t kv_width = c.n_kv_heads >= size ? c.kv_dim() / size : c.head_dim;
  for (int r = 0; r <= size; ++r) slice.kv.push_back(r * kv_width);
  slice.model = slice_borders(c.d_model, kRows, size);
  slice.vocab = slice_borders(c.vocab_size, kRows, size);
  if (c.vocab_size < kRows * size) slice.vocab = slice_borders(c.vocab_size, 1, size);

  const int64_t o_columns = c.value_width() / size;
  const int64_t o_group = common_group(weights, [](const LayerWeights& layer) { return layer.o; });
  if (!slice.gathers && o_columns % o_group != 0)
    return refused(size, "the output projection",
                   fmt::format("has {} columns a rank in blocks of {}", o_columns, o_group));
  const int64_t group = slice.gathers ? 1 : common_group(weights, [](const LayerWeights& layer) { return layer.down; });
  if (c.n_experts == 0 || !c.dense_layers.empty()) {
    RIDGE_TRY(slice.ff, column_borders("the feed-forward", c.d_ff, group, size));
  }
  if (c.d_ff_shared > 0) {
    RIDGE_TRY(slice.shared, column_borders("the shared expert", c.d_ff_shared, group, size));
  }
  if (c.n_experts > 0) {
    const int64_t expert_group = common_group(
        weights, [](const LayerWeights& layer) { return layer.experts.empty() ? Linear() : layer.experts[0].down; });
    auto columns = column_borders("an expert", c.d_ff_expert, expert_group, size);
    if (columns) slice.expert_ff = std::move(columns).or_throw();
    else if (c.n_experts < size)
      return refused(size, "the model", fmt::format("has {} experts: fewer than ranks", c.n_experts));
    else slice.experts = slice_borders(c.n_experts, 1, size);
  }
  return slice;
}

namespace {

/// Heads of the layer's mixer.
void slice_mixer(const ModelSlice& slice, const Config& whole, LayerWeights& layer,
                 std::vector<AlignedBuffer>& buffers) {
  const int64_t n_heads = whole.n_heads / slice.size, first_head = slice.rank * n_heads;
  const int64_t q_rows = whole.q_rows() / whole.n_heads;  // of a head
  if (whole.kv_rank > 0) {
    Linear& q = whole.q_rank > 0 ? layer.q_b : layer.q;
    q = row_slice(q, first_head * whole.query_dim(), n_heads * whole.query_dim());
    for (std::vector<Linear>* of_heads : {&layer.k_b, &layer.v_b})
      *of_heads = std::vector<Linear>(of_heads->begin() + first_head, of_heads->begin() + first_head + n_heads);
  } else {
    const int64_t kv_width = slice.kv[1], first_kv = slice.rank / slice.kv_copies * kv_width;
    layer.q = row_slice(layer.q, first_head * q_rows, n_heads * q_rows);
    layer.k = row_slice(layer.k, first_kv, kv_width);
    layer.v = row_slice(layer.v, first_kv, kv_width);
    keep(layer.q_bias, first_head * q_rows, n_heads * q_rows);
    keep(layer.k_bias, first_kv, kv_width);
    keep(layer.v_bias, first_kv, kv_width);
    keep(layer.sink_logits, first_head, n_heads);
  }
  const int64_t columns = whole.value_width() / slice.size;
  layer.o = slice.gathers ? row_slice(layer.o, slice.first(slice.model), slice.count(slice.model))
                          : column_slice(layer.o, slice.rank * columns, columns, buffers);
  drop_unless(slice.rank == 0, layer.o_bias);
}

/// Columns of the dense feed-forward or of the shared expert; whole experts.
void slice_feed_forward(const ModelSlice& slice, const std::vector<int64_t>& ff, LayerWeights& layer,
                        std::vector<AlignedBuffer>& buffers) {
  if (layer.gate.format) {
    layer.gate = row_slice(layer.gate, slice.first(ff), slice.count(ff));
    layer.up = row_slice(layer.up, slice.first(ff), slice.count(ff));
    layer.down = slice.gathers ? row_slice(layer.down, slice.first(slice.model), slice.count(slice.model))
                               : column_slice(layer.down, slice.first(ff), slice.count(ff), buffers);
  }
  if (layer.experts.empty()) return;
  if (!slice.experts.empty()) {
    const auto first = layer.experts.begin() + slice.first(slice.experts);
    layer.experts = std::vector<ExpertWeights>(first, first + slice.count(slice.experts));
    return;
  }
  const int64_t first = slice.first(slice.expert_ff), count = slice.count(slice.expert_ff);
  for (ExpertWeights& expert : layer.experts) {
    expert.gate = row_slice(expert.gate, first, count);
    expert.up = row_slice(expert.up, first, count);
    expert.down = column_slice(expert.down, first, count, buffers);
    keep(expert.gate_bias, first, count);
    keep(expert.up_bias, first, count);
    drop_unless(slice.rank == 0, expert.down_bias);
  }
}

}  // namespace

Weights view_of(const Weights& whole) {
  Weights view;
  view.embedding = whole.embedding;
  view.layers = whole.layers;
  view.output_norm = whole.output_norm;
  view.output = whole.output;
  view.rope_factors = whole.rope_factors;
  view.long_rope_factors = whole.long_rope_factors;
  view.head = whole.head;
  view.join = whole.join;
  view.ternary_source = whole.ternary_source;
  view.stored_bytes = whole.stored_bytes;
  view.n_params = whole.n_params;
  return view;
}

void apply_slice(const ModelSlice& slice, Config& c, Weights& weights) {
  const Config whole = c;
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    slice_mixer(slice, whole, weights.layers[i], weights.buffers);
    slice_feed_forward(slice, whole.has_experts(int(i)) ? slice.shared : slice.ff, weights.layers[i], weights.buffers);
  }
  weights.output = row_slice(weights.output, slice.first(slice.vocab), slice.count(slice.vocab));
  c.n_heads /= slice.size;
  c.n_kv_heads = std::max(1, c.n_kv_heads / slice.size);
  if (!slice.ff.empty()) c.d_ff = int(slice.count(slice.ff));
  if (!slice.shared.empty()) c.d_ff_shared = int(slice.count(slice.shared));
  if (!slice.expert_ff.empty()) c.d_ff_expert = int(slice.count(slice.expert_ff));
}

}  // namespace ridge
