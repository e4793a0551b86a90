#include "model/slice.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "model/delta_part.h"
#include "model/plan.h"

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

/// Least common multiple of the groups of the layers' matrices; pick() gives null where a layer has none.
template <class Pick>
int64_t common_group(const Weights& weights, const Pick& pick) {
  int64_t group = 1;
  for (const LayerWeights& layer : weights.layers)
    if (const Linear* const m = pick(layer); m && m->format) group = std::lcm(group, int64_t(m->format->group));
  return group;
}

bool has_delta(const LayerWeights& layer) { return layer.delta.qkv.format; }

/// Whether a rank's columns of the output projections end where blocks do.
Status check_outputs(const Config& c, const Weights& weights, int size) {
  const auto refuse = [&](std::string_view what, int64_t n, int64_t group) {
    return refused(size, what, fmt::format("has {} columns a rank in blocks of {}", n, group));
  };
  const int64_t columns = c.value_width() / size,
                group = common_group(weights, [](const LayerWeights&l) { return has_delta(l) ? nullptr : &l.o; });
  if (columns % group != 0) return refuse("the output projection", columns, group);
  if (c.delta.n_key_heads == 0) return {};
  const int64_t of_delta = common_group(weights, [](const LayerWeights& l) { return has_delta(l) ? &l.o : nullptr; });
  for (const Extent& extent : delta_part(c.delta, 0, size).values)
    if (extent.count % of_delta != 0)
      return refuse("the output projection of the gated delta rule", extent.count, of_delta);
  return {};
}

Status check_kinds(const Config& c, const Weights& weights, int size) {
  if (c.delta.n_key_heads % size != 0)
    return refused(size, "the gated delta rule",
                   fmt::format("has {} key heads, which {} ranks do not share evenly", c.delta.n_key_heads, size));
  if (weights.join.format) return refused(size, "an MTP head", "is not cut into slices");
  bool has_rows = true;
  for_each_matrix(weights, [&](const Linear& m, std::string_view) { has_rows = has_rows && (m.rows || !m.panels); });
  if (!has_rows)
    return refused(size, "a synth: model", "has no rows to cut, only panels (use --isa scalar, or a model of a file)");
  if (c.n_heads % size != 0 || (c.n_kv_heads % size != 0 && size % c.n_kv_heads != 0))
    return refused(
        size, "attention",
        fmt::format("has {} heads and {} KV heads, which {} ranks do not share evenly", c.n_heads, c.n_kv_heads, size));
  return {};
}

void keep(std::vector<float>& values, std::span<const Extent> extents) {
  if (values.empty()) return;
  std::vector<float> kept;
  for (const Extent& extent : extents)
    kept.insert(kept.end(), values.begin() + extent.first, values.begin() + extent.end());
  values = std::move(kept);
}
void keep(std::vector<float>& values, int64_t first, int64_t count) {
  const Extent extent{first, count};
  keep(values, {&extent, 1});
}

void drop_unless(bool has, std::vector<float>& values) {
  if (!has) std::ranges::fill(values, 0.0f);
}

}  // namespace

int ModelSlice::stage_of(int layer) const {
  return n_stages == 1 ? 0 : int(std::ranges::upper_bound(layers, layer) - layers.begin()) - 1;
}

std::vector<int64_t> slice_borders(int64_t n, int64_t unit, int size) {
  const int64_t n_units = (n + unit - 1) / unit;
  std::vector<int64_t> borders;
  for (int r = 0; r <= size; ++r) borders.push_back(std::min(n, n_units * r / size * unit));
  return borders;
}

Linear row_slice(const Linear& m, int64_t first, int64_t count) {
  RIDGE_CHECK(!m.panels && first >= 0 && first + count <= m.n_out, "rows {} to {} of {}", first, first + count,
              m.n_out);
  Linear part = m;
  if (m.rows) part.rows += first * m.format->row_bytes(m.n_in);
  part.n_out = count;
  return part;
}

Linear row_slice(const Linear& m, std::span<const Extent> rows, std::vector<AlignedBuffer>& buffers) {
  if (rows.size() == 1) return row_slice(m, rows[0].first, rows[0].count);
  Linear all = m;
  all.n_out = 0;
  for (const Extent& extent : rows) all.n_out += extent.count;
  std::byte* to = buffers.emplace_back(all.bytes()).data();
  all.rows = to;
  for (const Extent& extent : rows) {
    const Linear part = row_slice(m, extent.first, extent.count);
    to = std::copy_n(part.rows, part.bytes(), to);
  }
  return all;
}

Linear column_slice(const Linear& m, std::span<const Extent> columns, std::vector<AlignedBuffer>& buffers) {
  const int64_t group = m.format->group;
  Linear part = m;
  part.n_in = 0;
  for (const Extent& extent : columns) {
    RIDGE_CHECK(m.rows && extent.first % group == 0 && extent.count % group == 0 && extent.end() <= m.n_in,
                "columns {} to {} of {} in blocks of {}", extent.first, extent.end(), m.n_in, group);
    part.n_in += extent.count;
  }
  std::byte* to = buffers.emplace_back(part.bytes()).data();
  part.rows = to;
  const int64_t row_bytes = m.format->row_bytes(m.n_in);
  for (int64_t row = 0; row < m.n_out; ++row)
    for (const Extent& extent : columns)
      to = std::copy_n(m.rows + row * row_bytes + m.format->row_bytes(extent.first), m.format->row_bytes(extent.count),
                       to);
  return part;
}

Linear column_slice(const Linear& m, int64_t first, int64_t count, std::vector<AlignedBuffer>& buffers) {
  const Extent extent{first, count};
  return column_slice(m, {&extent, 1}, buffers);
}

Result<ModelSlice> plan_slice(const Config& c, const Weights& weights, int rank, int n_ranks, int n_stages,
                              ModelEnds ends) {
  const int size = n_ranks / n_stages;
  RIDGE_CHECK(size * n_stages == n_ranks && rank >= 0 && rank < n_ranks, "rank {} of {} in {} stages", rank, n_ranks,
              n_stages);
  RIDGE_TRY_STATUS(check_kinds(c, weights, size));
  if (c.n_layers < n_stages)
    return fail(ErrorKind::usage, "--pp {}: the model has {} layers: fewer than stages", n_stages, c.n_layers);
  ModelSlice slice{.rank = rank % size, .size = size, .stage = rank / size, .n_stages = n_stages, .ends = ends};
  slice.whole = c;
  slice.layers = slice_borders(c.n_layers, 1, n_stages);
  slice.gathers = size > 1 && (c.sub_norm || c.ternary);
  slice.kv_copies = std::max(1, size / c.n_kv_heads);
  slice.q = slice_borders(c.q_dim(), c.q_dim() / size, size);
  const int64_t kv_width = c.n_kv_heads >= size ? c.kv_dim() / size : c.head_dim;
  for (int r = 0; r <= size; ++r) slice.kv.push_back(r * kv_width);
  slice.model = slice_borders(c.d_model, kRows, size);
  const int n_parts = ends == ModelEnds::in_stages ? size : n_ranks;
  slice.vocab = slice_borders(c.vocab_size, c.vocab_size < kRows * n_parts ? 1 : kRows, n_parts);
  slice.vocab.insert(slice.vocab.begin(), size_t(n_ranks - n_parts), 0);

  if (size > 1 && !slice.gathers) RIDGE_TRY_STATUS(check_outputs(c, weights, size));
  const int64_t group =
      slice.gathers ? 1 : common_group(weights, [](const LayerWeights& layer) { return &layer.down; });
  if (c.n_experts == 0 || !c.dense_layers.empty()) {
    RIDGE_TRY(slice.ff, column_borders("the feed-forward", c.d_ff, group, size));
  }
  if (c.d_ff_shared > 0) {
    RIDGE_TRY(slice.shared, column_borders("the shared expert", c.d_ff_shared, group, size));
  }
  if (c.n_experts > 0) {
    const int64_t expert_group = common_group(
        weights, [](const LayerWeights& layer) { return layer.experts.empty() ? nullptr : &layer.experts[0].down; });
    auto columns = column_borders("an expert", c.d_ff_expert, expert_group, size);
    if (columns) slice.expert_ff = std::move(columns).or_throw();
    else if (c.n_experts < size)
      return refused(size, "the model", fmt::format("has {} experts: fewer than ranks", c.n_experts));
    else slice.experts = slice_borders(c.n_experts, 1, size);
  }
  return slice;
}

namespace {

/// Copies of parts of matrices. Layers that share a matrix share its copy.
struct Copies {
  std::vector<AlignedBuffer>& buffers;
  bool shapes_only;
  std::map<const std::byte*, Linear> made = {};  // by where the whole matrix begins, which is cut in one way only

  template <class Cut>
  Linear once(const Linear& m, std::span<const Extent> extents, int64_t Linear::*side, const Cut& cut) {
    if (shapes_only) {
      Linear part = m;
      part.rows = nullptr;
      part.*side = 0;
      for (const Extent& extent : extents) part.*side += extent.count;
      return part;
    }
    const auto known = made.find(m.rows);
    return known != made.end() ? known->second : made[m.rows] = cut();
  }
  Linear rows(const Linear& m, std::span<const Extent> extents) {
    return once(m, extents, &Linear::n_out, [&] { return row_slice(m, extents, buffers); });
  }
  Linear columns(const Linear& m, std::span<const Extent> extents) {
    return once(m, extents, &Linear::n_in, [&] { return column_slice(m, extents, buffers); });
  }
  Linear columns(const Linear& m, int64_t first, int64_t count) {
    const Extent extent{first, count};
    return columns(m, std::span(&extent, 1));
  }
};

/// The bias of what ranks add up is one rank's; where they have rows of the output each has its own.
void cut_output_bias(const ModelSlice& slice, std::vector<float>& bias) {
  if (slice.gathers) keep(bias, slice.first(slice.model), slice.count(slice.model));
  else drop_unless(slice.rank == 0, bias);
}

/// Heads of a layer that attends.
void slice_attention(const ModelSlice& slice, LayerWeights& layer, Copies& copies) {
  const Config& whole = slice.whole;
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
                          : copies.columns(layer.o, slice.rank * columns, columns);
  cut_output_bias(slice, layer.o_bias);
}

/// Heads of a layer of the gated delta rule.
void slice_delta(const DeltaPart& part, const DeltaShape& whole, LayerWeights& layer, Copies& copies) {
  DeltaWeights& w = layer.delta;
  w.qkv = copies.rows(w.qkv, part.channels);
  w.z = copies.rows(w.z, part.values);
  w.a = copies.rows(w.a, part.heads);
  w.b = copies.rows(w.b, part.heads);
  keep(w.decay, part.heads);
  keep(w.dt_bias, part.heads);
  std::vector<float> conv;  // [kernel, channels]
  for (int64_t row = 0; row < whole.kernel; ++row) {
    const float* const first = w.conv.data() + row * whole.channels();
    for (const Extent& extent : part.channels) conv.insert(conv.end(), first + extent.first, first + extent.end());
  }
  w.conv = std::move(conv);
  layer.o = copies.columns(layer.o, part.values);
}

/// Columns of the dense feed-forward, of the shared expert and of all experts, or whole experts.
void slice_feed_forward(const ModelSlice& slice, const std::vector<int64_t>& ff, LayerWeights& layer, Copies& copies) {
  if (layer.gate.format) {
    layer.gate = row_slice(layer.gate, slice.first(ff), slice.count(ff));
    layer.up = row_slice(layer.up, slice.first(ff), slice.count(ff));
    keep(layer.gate_bias, slice.first(ff), slice.count(ff));
    keep(layer.up_bias, slice.first(ff), slice.count(ff));
    cut_output_bias(slice, layer.down_bias);
    layer.down = slice.gathers ? row_slice(layer.down, slice.first(slice.model), slice.count(slice.model))
                               : copies.columns(layer.down, slice.first(ff), slice.count(ff));
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
    expert.down = copies.columns(expert.down, first, count);
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

void apply_slice(const ModelSlice& slice, Config& c, Weights& weights, bool shapes_only) {
  const Config& whole = slice.whole;
  std::optional<DeltaPart> delta;
  RIDGE_CHECK(whole.delta.n_key_heads == 0 || !slice.gathers, "the output projection of {} is not cut between rows",
              mixer_name(MixerKind::delta));
  if (whole.delta.n_key_heads > 0) delta = delta_part(whole.delta, slice.rank, slice.size);
  Copies copies{weights.buffers, shapes_only};
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    LayerWeights& layer = weights.layers[i];
    if (!slice.has_layer(int(i))) layer = {};
    if (!slice.has_layer(int(i)) || slice.size == 1) continue;
    if (whole.has_delta(int(i))) slice_delta(*delta, whole.delta, layer, copies);
    else slice_attention(slice, layer, copies);
    slice_feed_forward(slice, whole.has_experts(int(i)) ? slice.shared : slice.ff, layer, copies);
  }
  if (slice.ends == ModelEnds::in_stages && slice.stage > 0) weights.embedding = row_slice(weights.embedding, 0, 0);
  weights.output = row_slice(weights.output, slice.own_vocab().first, slice.own_vocab().count);
  if (slice.n_stages > 1) c.here = ModelSlice::part_of(slice.layers, slice.stage);
  c.n_heads /= slice.size;
  c.n_kv_heads = std::max(1, c.n_kv_heads / slice.size);
  if (delta) c.delta = delta->shape;
  if (!slice.ff.empty()) c.d_ff = int(slice.count(slice.ff));
  if (!slice.shared.empty()) c.d_ff_shared = int(slice.count(slice.shared));
  if (!slice.expert_ff.empty()) c.d_ff_expert = int(slice.count(slice.expert_ff));
}

std::vector<SidePart> side_parts(const ModelSlice& slice, int rank) {
  const Config& whole = slice.whole;
  const int64_t n_heads = std::max(1, whole.n_kv_heads / slice.size);
  const int in_stage = rank % slice.size;
  const Extent heads{in_stage / slice.kv_copies * n_heads, n_heads};
  std::vector<SidePart> parts;
  for (int i = 0; i < whole.n_layers; ++i)
    for (const bool is_k : {true, false}) {
      SidePart& part = parts.emplace_back();
      if (slice.stage_of(i) != rank / slice.size) continue;
      if (!whole.has_delta(i)) part.heads = is_k || whole.kv_rank == 0 ? heads : Extent();
      else if (is_k) part.state = delta_part(whole.delta, in_stage, slice.size).state;
    }
  return parts;
}

std::vector<KvLayerConfig> layers_of_part(std::span<const KvLayerConfig> whole, std::span<const SidePart> part) {
  std::vector<KvLayerConfig> layers(whole.begin(), whole.end());
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].n_kv_heads = int(part[2 * i].heads.count);
    layers[i].state_values = 0;
    for (const Extent& values : part[2 * i].state) layers[i].state_values += values.count;
  }
  return layers;
}

std::vector<KvMetricView> metrics_of_part(std::span<const KvLayerConfig> whole, std::span<const KvMetricView> metrics,
                                          std::span<const SidePart> part) {
  std::vector<KvMetricView> own(metrics.begin(), metrics.end());
  for (size_t i = 0; i < own.size(); ++i) {
    const Extent& heads = part[2 * i].heads;
    for (std::span<const float>* form : {&own[i].k, &own[i].v}) {
      if (form->empty()) continue;
      const size_t of_head = form->size() / size_t(whole[i].n_kv_heads);
      *form = form->subspan(size_t(heads.first) * of_head, size_t(heads.count) * of_head);
    }
  }
  return own;
}

std::vector<KvLayerConfig> whole_layers(const ModelSlice& slice, std::span<const KvLayerConfig> own) {
  const Config& whole = slice.whole;
  RIDGE_CHECK(ssize(own) == whole.n_layers, "caches of {} layers of {}", own.size(), whole.n_layers);
  std::vector<KvLayerConfig> layers(own.begin(), own.end());
  for (int i = 0; i < whole.n_layers; ++i) {
    layers[size_t(i)].n_kv_heads = whole.has_delta(i) ? 0 : whole.n_kv_heads;
    layers[size_t(i)].state_values = whole.has_delta(i) ? whole.delta.state_values() : 0;
  }
  return layers;
}

}  // namespace ridge
