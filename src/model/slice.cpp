#include "model/slice.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "model/delta_part.h"
#include "model/plan.h"
#include "model/tensors.h"

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

bool is_delta(const LayerWeights& layer) { return layer.delta.qkv.format; }

/// The KV heads that a rank of `size` has; several have the same one where there are fewer heads.
Extent heads_of_rank(int n_kv_heads, int rank, int size) {
  const int count = std::max(1, n_kv_heads / size), copies = std::max(1, size / n_kv_heads);
  return {rank / copies * count, count};
}

/// Whether a rank's columns of the output projections end where blocks do.
Status check_outputs(const Config& c, const Weights& weights, int size) {
  const auto refuse = [&](std::string_view what, int64_t n, int64_t group) {
    return refused(size, what, fmt::format("has {} columns a rank in blocks of {}", n, group));
  };
  const int64_t group = common_group(weights, [](const LayerWeights& l) { return is_delta(l) ? nullptr : &l.o; });
  for (int i = 0; i < c.n_layers; ++i)
    if (const int64_t columns = c.value_width(i) / size; c.attends(i) && columns % group != 0)
      return refuse("the output projection", columns, group);
  if (c.delta.n_key_heads == 0) return {};
  const int64_t of_delta = common_group(weights, [](const LayerWeights& l) { return is_delta(l) ? &l.o : nullptr; });
  for (const Extent& extent : delta_part(c.delta, 0, size).values)
    if (extent.count % of_delta != 0)
      return refuse("the output projection of the gated delta rule", extent.count, of_delta);
  return {};
}

Status check_kinds(const Config& c, const Weights& weights, int size, int n_stages) {
  if (n_stages > 1 && (c.shared_kv_layers > 0 || c.d_layer_input > 0))
    return fail(ErrorKind::usage, "--pp {}: layers of {} that read what others have made cannot be split into stages",
                n_stages, c.arch);
  if (c.delta.n_key_heads % size != 0)
    return refused(size, "the gated delta rule",
                   fmt::format("has {} key heads, which {} ranks do not share evenly", c.delta.n_key_heads, size));
  if (!c.state_layers.empty())
    return refused(size, c.conv_kernel > 0 ? "short convolutions" : "Mamba2", "cannot be cut into slices");
  if (weights.join.format) return refused(size, "an MTP head", "is not cut into slices");
  bool has_rows = true, has_order = false;
  for_each_matrix(weights, [&](const Linear& m, std::string_view) {
    has_rows = has_rows && (m.rows || !m.panels);
    has_order = has_order || m.order;
  });
  if (has_order && size > 1) return refused(size, "a matrix with sorted columns (act-order)", "is not cut");
  if (!has_rows)
    return refused(size, "a synth: model", "has no rows to cut, only panels (use --isa scalar, or a model of a file)");
  for (const int n_kv_heads : {c.n_kv_heads, c.window_kv_heads > 0 ? c.window_kv_heads : c.n_kv_heads})
    if (c.n_heads % size != 0 || (n_kv_heads % size != 0 && size % n_kv_heads != 0))
      return refused(
          size, "attention",
          fmt::format("has {} heads and {} KV heads, which {} ranks do not share evenly", c.n_heads, n_kv_heads, size));
  return {};
}

void keep(std::vector<float>& values, std::span<const Extent> extents) {
  if (values.empty()) return;
  std::vector<float> kept;
  for (const Extent& extent : extents)
    kept.insert(kept.end(), values.begin() + extent.first, values.begin() + extent.end());
  values = std::move(kept);
}

}  // namespace

int ModelSlice::kv_copies_of(int layer) const { return std::max(1, size / whole.kv_heads_of(layer)); }

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
  RIDGE_TRY_STATUS(check_kinds(c, weights, size, n_stages));
  if (c.n_layers < n_stages)
    return fail(ErrorKind::usage, "--pp {}: the model has {} layers: fewer than stages", n_stages, c.n_layers);
  ModelSlice slice{.rank = rank % size, .size = size, .stage = rank / size, .n_stages = n_stages, .ends = ends};
  slice.whole = c;
  slice.layers = slice_borders(c.n_layers, 1, n_stages);
  slice.gathers = size > 1 && (c.sub_norm || c.ternary);
  for (int i = 0; i < c.n_layers; ++i) slice.kv_copies = std::max(slice.kv_copies, slice.kv_copies_of(i));
  const int64_t q_dim = int64_t(c.n_heads) * c.head_dim;  // of all layers, where these borders are used
  slice.q = slice_borders(q_dim, q_dim / size, size);
  for (int r = 0; r <= size; ++r)
    slice.kv.push_back(r * int64_t(heads_of_rank(c.n_kv_heads, r, size).count) * c.head_dim);
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
};

/// Makes the tensors of a layer those of a rank.
struct LayerCut {
  const ModelSlice& slice;
  const DeltaPart* delta;  // where the layer has the gated delta rule
  Copies& copies;
  int layer;

  /// Extents of this rank in the dimension that the row is cut along.
  std::vector<Extent> extents(const TensorRow& row) const {
    const Config& whole = slice.whole;
    const auto of_rank = [&](int64_t count) { return std::vector{Extent{slice.rank * count, count}}; };
    switch (row.cut) {
      case TensorCut::heads: return of_rank(row.shape(whole, layer).n_out / slice.size);
      case TensorCut::kv_heads: {
        const Extent heads = heads_of_rank(whole.kv_heads_of(layer), slice.rank, slice.size);
        const int64_t head_dim = whole.head_dim_of(layer);
        return {{heads.first * head_dim, heads.count * head_dim}};
      }
      case TensorCut::channels: return delta->channels;
      case TensorCut::values: return delta->values;
      case TensorCut::value_heads: return delta->heads;
      case TensorCut::mixed: return delta ? delta->values : of_rank(whole.value_width(layer) / slice.size);
      case TensorCut::ff:
      case TensorCut::ff_columns: return {ModelSlice::part_of(inner_width(row), slice.rank)};
      case TensorCut::whole:
      case TensorCut::summed: break;
    }
    return {};
  }
  const std::vector<int64_t>& inner_width(const TensorRow& row) const {
    if (row.is_in<ExpertWeights>()) return slice.expert_ff;
    return slice.whole.has_experts(layer) ? slice.shared : slice.ff;
  }

  void operator()(const TensorRow& row, Linear& m) const {
    if (!m.format || row.cut == TensorCut::whole) return;
    const std::vector<Extent> part = extents(row);
    const bool columns = row.cut == TensorCut::mixed || row.cut == TensorCut::ff_columns;
    if (columns && slice.gathers) m = row_slice(m, slice.first(slice.model), slice.count(slice.model));
    else if (columns) m = copies.columns(m, part);
    else if (row.is_in<DeltaWeights>()) m = copies.rows(m, part);
    else m = row_slice(m, part[0].first, part[0].count);
  }
  void operator()(const TensorRow& row, Values& values) const {
    if (values.empty() || row.cut == TensorCut::whole) return;
    if (row.cut == TensorCut::summed) return cut_summed(values);
    const std::vector<Extent> part = extents(row);
    if (row.kind != TensorKind::convolution) return keep(values, part);
    std::vector<Extent> of_rows;  // [kernel, channels]
    const auto [kernel, channels] = row.shape(slice.whole, layer);
    for (int64_t k = 0; k < kernel; ++k)
      for (const Extent& extent : part) of_rows.push_back({k * channels + extent.first, extent.count});
    keep(values, of_rows);
  }
  /// The bias of what ranks add up is one rank's; where they have rows of the output each has its own.
  void cut_summed(Values& bias) const {
    const Extent own{slice.first(slice.model), slice.count(slice.model)};
    if (slice.gathers) keep(bias, {&own, 1});
    else if (slice.rank != 0) std::ranges::fill(bias, 0.0f);
  }
};

/// The elements of the rank, of one for each head or expert.
template <class T>
void keep_elements(std::vector<T>& all, int64_t first, int64_t count) {
  all = std::vector<T>(all.begin() + first, all.begin() + first + count);
}

void cut_layer(const LayerCut& cut, LayerWeights& layer) {
  const ModelSlice& slice = cut.slice;
  const bool cuts_experts = slice.experts.empty();  // else ranks have whole ones
  if (!cuts_experts && !layer.experts.empty())
    keep_elements(layer.experts, slice.first(slice.experts), slice.count(slice.experts));
  for (const TensorRow& row : layer_tensors()) {
    if (row.is_in<ExpertWeights>() && !cuts_experts) continue;
    if (!row.of_heads()) for_each_of(row, layer, cut);
    else if (const int64_t n = ssize(layer.**row.of_heads()) / slice.size; n > 0)
      keep_elements(layer.**row.of_heads(), slice.rank * n, n);
  }
}

}  // namespace

Weights view_of(const Weights& whole) {
  Weights view;
  for (const TensorRow& row : model_tensors())
    std::visit(
        [&](auto member) {
          if constexpr (requires { whole.*member; }) view.*member = whole.*member;
        },
        row.member);
  view.layers = whole.layers;
  view.head = whole.head;
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
    cut_layer({slice, whole.has_delta(int(i)) ? &*delta : nullptr, copies, int(i)}, layer);
  }
  if (slice.ends == ModelEnds::in_stages && slice.stage > 0) weights.embedding = row_slice(weights.embedding, 0, 0);
  weights.output = row_slice(weights.output, slice.own_vocab().first, slice.own_vocab().count);
  if (slice.n_stages > 1) c.here = ModelSlice::part_of(slice.layers, slice.stage);
  c.n_heads /= slice.size;
  c.n_kv_heads = std::max(1, c.n_kv_heads / slice.size);
  if (c.window_kv_heads > 0) c.window_kv_heads = std::max(1, c.window_kv_heads / slice.size);
  if (delta) c.delta = delta->shape;
  if (!slice.ff.empty()) c.d_ff = int(slice.count(slice.ff));
  if (!slice.shared.empty()) c.d_ff_shared = int(slice.count(slice.shared));
  if (!slice.expert_ff.empty()) c.d_ff_expert = int(slice.count(slice.expert_ff));
}

std::vector<SidePart> side_parts(const ModelSlice& slice, int rank) {
  const Config& whole = slice.whole;
  const int in_stage = rank % slice.size;
  std::vector<SidePart> parts;
  for (int i = 0; i < whole.n_layers; ++i)
    for (const KvSide side : kKvSides) {
      SidePart& part = parts.emplace_back();
      if (slice.stage_of(i) != rank / slice.size || !whole.has_kv(i)) continue;
      const Extent heads = heads_of_rank(whole.kv_heads_of(i), in_stage, slice.size);
      if (!whole.has_delta(i))
        part.heads = side == KvSide::k || whole.kv_rank == 0 || whole.index_top_k > 0 ? heads : Extent();
      else if (side == KvSide::k) part.state = delta_part(whole.delta, in_stage, slice.size).state;
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

}  // namespace ridge
