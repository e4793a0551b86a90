#include "engine/cuda_model.h"

#include <cmath>
#include <cstring>

#include "model/tensors.h"

namespace ridge {
namespace {

/// The arguments of a DeviceMatmul.
struct MatmulParts {
  std::vector<const Linear*> matrices;
  std::vector<const std::vector<float>*> biases;
  bool glu = false;
};
MatmulParts one(const Linear& m, const std::vector<float>* bias = nullptr) { return {{&m}, {bias}}; }
MatmulParts qkv_of(const LayerWeights& l) {
  if (!l.k_b.empty()) return {{l.q_b.n_out > 0 ? &l.q_a : &l.q, &l.kv_a}, {nullptr, nullptr}};
  return {{&l.q, &l.k, &l.v}, {&l.q_bias, &l.k_bias, &l.v_bias}};
}
MatmulParts delta_in_of(const DeltaWeights& d) {
  return {{&d.qkv, &d.z, &d.a, &d.b}, {nullptr, nullptr, nullptr, nullptr}};
}
MatmulParts gate_up_of(const LayerWeights& l, const DensePlan& plan) {
  if (!plan.gated) return one(l.up);
  return {{&l.gate, &l.up}, {&l.gate_bias, &l.up_bias}, is_fused(plan)};
}

/// The query projection; where heads have gates, with the rows of all queries in front of those of all gates.
struct QueryRows {
  QueryRows(const LayerWeights& l, const AttentionPlan& a) : q(l.q), bias(l.q_bias) {
    if (!a.gate) return;
    const auto sort = [&](const auto* from, int64_t row, auto* to) {
      for (int64_t head = 0; head < a.n_heads; ++head)
        for (const int64_t gate : {0, 1})
          std::copy_n(from + (2 * head + gate) * a.head_dim * row, a.head_dim * row,
                      to + (gate * a.n_heads + head) * a.head_dim * row);
    };
    RIDGE_CHECK(q.rows != nullptr && q.n_out == a.q_rows(), "a query projection of {} rows", q.n_out);
    rows.resize(size_t(q.bytes()));
    sort(l.q.rows, q.format->row_bytes(q.n_in), rows.data());
    q.rows = rows.data();
    if (!bias.empty()) sort(l.q_bias.data(), 1, bias.data());
  }
  QueryRows(const QueryRows&) = delete;

  Linear q;
  std::vector<float> bias;
  std::vector<std::byte> rows;
};

/// The matrix that a half of a join is: as blocks, or as floats where a half cuts blocks.
Linear half_of(const Linear& join) {
  if (join.order)
    throw_error(ErrorKind::usage,
                "a GPU does not cut the join of an MTP head whose columns are sorted (act-order): use "
                "the CPU");
  Linear half = join;
  half.n_in = join.n_in / 2;
  half.rows = nullptr;
  if (half.n_in % join.format->group != 0) half.format = weight_format_of_gguf(0);
  return half;
}

/// Columns of an MTP head's join: the first half takes embeddings, the second one hidden states.
struct JoinHalf {
  JoinHalf(const Linear& join, int half) : columns(half_of(join)) {
    const int64_t n_in = columns.n_in, row_bytes = join.format->row_bytes(join.n_in);
    RIDGE_CHECK(join.rows != nullptr, "a join of {} x {} has no rows", join.n_out, join.n_in);
    const bool cuts_blocks = columns.format != join.format;
    const int64_t half_bytes = columns.format->row_bytes(n_in);
    rows.resize(size_t(columns.bytes()));
    std::vector<float> row(size_t(join.n_in), 0.0f);
    for (int64_t i = 0; i < join.n_out; ++i) {
      const std::byte* const from = join.rows + i * row_bytes;
      std::byte* const to = rows.data() + i * half_bytes;
      if (!cuts_blocks) {
        std::copy_n(from + half * half_bytes, half_bytes, to);
      } else {
        join.format->decode(from, join.n_in, row.data());
        std::memcpy(to, row.data() + half * n_in, size_t(half_bytes));
      }
    }
    columns.rows = rows.data();
  }
  JoinHalf(const JoinHalf&) = delete;

  Linear columns;
  std::vector<std::byte> rows;
};

/// Else ranks of another stage have the layer.
bool is_here(const LayerWeights& layer) { return layer.o.format || layer.up.format || !layer.experts.empty(); }

bool has_dense(const LayerPlan& layer) { return layer.feed_forward == FeedForwardKind::dense || layer.experts.shared; }

/// Whether the shared expert is like the others, so that it can be one more of them.
bool joins_shared(const LayerPlan& plan, const LayerWeights& l) {
  const ExpertsPlan& e = plan.experts;
  const auto equal = [](const Linear& a, const Linear& b) {
    return a.format == b.format && a.n_out == b.n_out && a.scale == b.scale && !a.int8_activations;
  };
  return e.shared && !e.beside_dense && !e.biases && e.activation == plan.dense.activation &&
         e.n_experts < kMostExperts && e.rule.n_used < kMostUsedExperts && equal(l.gate, l.experts[0].gate) &&
         equal(l.up, l.experts[0].up) && equal(l.down, l.experts[0].down);
}

/// A role is a matrix and its bias of every expert, and the matrix of the shared one, which counts where it joins.
struct ExpertRole {
  Linear ExpertWeights::*matrix;
  std::vector<float> ExpertWeights::*bias;
  Linear LayerWeights::*shared;
};
ExpertParts parts_of(const LayerPlan& plan, const LayerWeights& l, std::initializer_list<ExpertRole> roles) {
  static const std::vector<float> kNoBias;
  ExpertParts parts{.glu = roles.size() == 2};
  for (const ExpertRole& role : roles) {
    auto& of_role = parts.matrices.emplace_back();
    auto& biases_of_role = parts.biases.emplace_back();
    for (const ExpertWeights& expert : l.experts) {
      of_role.push_back(&(expert.*role.matrix));
      biases_of_role.push_back(&(expert.*role.bias));
    }
    if (plan.experts.on_host || !joins_shared(plan, l)) continue;
    of_role.push_back(&(l.*role.shared));
    biases_of_role.push_back(&kNoBias);
  }
  return parts;
}

/// k_b or v_b of a latent layer's heads.
ExpertParts heads_of(const std::vector<Linear>& matrices) {
  ExpertParts parts{.matrices = {{}}, .biases = {{}}};
  for (const Linear& m : matrices) parts.matrices.back().push_back(&m);
  parts.biases.back().assign(matrices.size(), nullptr);
  return parts;
}

std::vector<float> as_floats(const Linear& m) {
  RIDGE_CHECK(m.rows != nullptr, "a router of {} x {} has no rows", m.n_out, m.n_in);
  std::vector<float> values(size_t(m.n_out * m.n_in));
  m.format->decode(m.rows, m.n_out * m.n_in, values.data());
  for (float& value : values) value *= m.scale;
  return values;
}

/// Where a layer's vectors are on a device; biases of matmuls are within these.
constexpr std::pair<TensorMember, gpu::Buffer CudaLayer::*> kPlaces[] = {
    {&LayerWeights::attn_norm, &CudaLayer::attn_norm},
    {&LayerWeights::q_norm, &CudaLayer::q_norm},
    {&LayerWeights::k_norm, &CudaLayer::k_norm},
    {&LayerWeights::q_a_norm, &CudaLayer::q_a_norm},
    {&LayerWeights::kv_a_norm, &CudaLayer::kv_a_norm},
    {&LayerWeights::attn_sub_norm, &CudaLayer::attn_sub_norm},
    {&LayerWeights::attn_post_norm, &CudaLayer::attn_post_norm},
    {&LayerWeights::sink_logits, &CudaLayer::sink_logits},
    {&LayerWeights::ffn_norm, &CudaLayer::ffn_norm},
    {&LayerWeights::ffn_sub_norm, &CudaLayer::ffn_sub_norm},
    {&LayerWeights::ffn_post_norm, &CudaLayer::ffn_post_norm},
    {&LayerWeights::router_bias, &CudaLayer::router_bias},
    {&LayerWeights::choice_bias, &CudaLayer::choice_bias},
    {&LayerWeights::conv, &CudaLayer::conv},
    {&LayerWeights::conv_bias, &CudaLayer::conv_bias},
    {&LayerWeights::mamba_norm, &CudaLayer::mamba_norm},
    {&LayerWeights::mamba_decay, &CudaLayer::mamba_decay},
    {&LayerWeights::mamba_d, &CudaLayer::mamba_d},
    {&LayerWeights::mamba_dt_bias, &CudaLayer::mamba_dt_bias},
    {&LayerWeights::layer_scale, &CudaLayer::layer_scale},
    {&LayerWeights::input_post_norm, &CudaLayer::input_post_norm},
    {&LayerWeights::router_scale, &CudaLayer::router_scale},
    {&LayerWeights::expert_scale, &CudaLayer::expert_scale},
    {&LayerWeights::expert_norm, &CudaLayer::expert_norm},
    {&LayerWeights::dense_post_norm, &CudaLayer::dense_post_norm},
    {&LayerWeights::expert_post_norm, &CudaLayer::expert_post_norm},
    {&DeltaWeights::conv, &CudaLayer::delta_conv},
    {&DeltaWeights::decay, &CudaLayer::delta_decay},
    {&DeltaWeights::dt_bias, &CudaLayer::delta_dt_bias},
    {&DeltaWeights::norm, &CudaLayer::delta_norm},
};

/// Null where matmuls have the values.
gpu::Buffer CudaLayer::*place_of(const TensorRow& row) {
  const auto* const found = std::ranges::find_if(kPlaces, [&](const auto& place) { return place.first == row.member; });
  if (found != std::end(kPlaces)) return found->second;
  const bool of_products =
      row.kind == TensorKind::bias || row.kind == TensorKind::output_bias || row.kind == TensorKind::gate_row;
  RIDGE_CHECK(of_products, "{} has no place on a device", row.name);
  return nullptr;
}

/// Makes the parts of a model on a device.
struct Uploader {
  const gpu::Stream& stream;
  const ForcedKernels& forced;

  gpu::Buffer vector(std::span<const float> values) const { return gpu::to_device(stream, values); }
  gpu::Buffer vector(std::span<const double> values) const { return gpu::to_device(stream, values); }
  DeviceRows rows(const Linear& m) const { return upload_rows(stream, m); }
  DeviceMatmul product(const MatmulParts& parts) const {
    return {stream, parts.matrices, parts.biases, parts.glu, forced};
  }
  DeviceMatmul qkv(const LayerWeights& l, const AttentionPlan& plan) const {
    const QueryRows queries(l, plan);
    if (plan.kv_layer >= 0) return product({{&queries.q}, {&queries.bias}});
    if (plan.k_is_v) return product({{&queries.q, &l.k}, {&queries.bias, &l.k_bias}});
    return product({{&queries.q, &l.k, &l.v}, {&queries.bias, &l.k_bias, &l.v_bias}});
  }
  DeviceMatmul join(const Linear& join, int half) const { return product(one(JoinHalf(join, half).columns)); }
  DeviceExpertMatmul experts(const ExpertParts& parts) const {
    return {stream, parts.matrices, parts.biases, parts.glu};
  }
  DeviceExpertMatmul slot(const ExpertParts& parts) const {
    return DeviceExpertMatmul::slot(parts.matrices, parts.biases, parts.glu);
  }
  gpu::Buffer room(int64_t bytes) const { return gpu::Buffer(bytes); }
  gpu::Buffer router(const LayerWeights& l) const {
    Values values = as_floats(l.router);
    values.insert(values.end(), l.shared_gate.begin(), l.shared_gate.end());
    return vector(values);
  }
};

/// Makes the parts without device memory, and counts what they take. Of matrices formats and shapes count.
struct Planner {
  const ForcedKernels& forced;
  gpu::Allocations& all;
  int64_t packing = 0;  // what packing for the largest matmul takes beside the parts

  template <class T>
  gpu::Buffer vector(const std::vector<T>& values) {
    all.add(ssize(values) * int64_t(sizeof(T)));
    return {};
  }
  DeviceRows rows(const Linear& m) {
    all.add(m.bytes());
    return {};
  }
  DeviceMatmul product(const MatmulParts& parts) {
    packing = std::max(packing, matmul_bytes(parts.matrices, parts.biases, parts.glu, forced).packing);
    DeviceMatmul planned = DeviceMatmul::planned(parts.matrices, parts.biases, parts.glu, forced);
    planned.add_to(all);
    return planned;
  }
  DeviceMatmul qkv(const LayerWeights& l, const AttentionPlan& plan) {
    if (plan.kv_layer >= 0) return product(one(l.q, &l.q_bias));
    if (plan.k_is_v) return product({{&l.q, &l.k}, {&l.q_bias, &l.k_bias}});
    return product(qkv_of(l));
  }
  DeviceMatmul join(const Linear& join, int) { return product(one(half_of(join))); }
  DeviceExpertMatmul experts(const ExpertParts& parts) {
    packing = std::max(packing, DeviceExpertMatmul::bytes_of(parts.matrices, parts.biases, parts.glu)[1]);
    DeviceExpertMatmul planned = DeviceExpertMatmul::planned(parts.matrices, parts.biases, parts.glu);
    planned.add_to(all);
    return planned;
  }
  DeviceExpertMatmul slot(const ExpertParts& parts) {
    DeviceExpertMatmul planned = DeviceExpertMatmul::planned(parts.matrices, parts.biases, parts.glu);
    planned.add_to(all);
    return planned;
  }
  gpu::Buffer room(int64_t bytes) {
    all.add(bytes);
    return {};
  }
  gpu::Buffer router(const LayerWeights& l) {
    all.add(4 * (l.router.n_out * l.router.n_in + ssize(l.shared_gate)));
    return {};
  }
};

/// The parts of the first n experts, for their number and shape.
ExpertParts first_of(ExpertParts parts, int n) {
  for (auto& of_role : parts.matrices) of_role.resize(size_t(n));
  for (auto& of_role : parts.biases) of_role.resize(size_t(n));
  return parts;
}

template <class Maker>
void make_layer(const LayerPlan& plan, const LayerWeights& from, Maker& maker, CudaLayer& layer) {
  for_each_tensor(from, [&](const TensorRow& row, const Values& values) {
    if (values.empty()) return;  // also those of models that a device refuses, which have no place
    gpu::Buffer CudaLayer::*const place = place_of(row);
    if (!place) return;
    if (row.member != TensorMember(&LayerWeights::router_scale)) {
      layer.*place = maker.vector(values);
      return;
    }
    Values divided = values;  // the router reads x / sqrt(mean x^2 d_model)
    for (float& value : divided) value /= std::sqrt(float(divided.size()));
    layer.*place = maker.vector(divided);
  });
  if (plan.mixer == MixerKind::delta) {
    layer.delta_in = maker.product(delta_in_of(from.delta));
  } else if (plan.mixer == MixerKind::conv || plan.mixer == MixerKind::mamba) {
    layer.delta_in = maker.product(one(from.conv_in));
  } else if (plan.mixer == MixerKind::latent) {
    layer.qkv = maker.product(qkv_of(from));
    if (from.q_b.n_out > 0) layer.q_b = maker.product(one(from.q_b));
    layer.k_b = maker.experts(heads_of(from.k_b));
    layer.v_b = maker.experts(heads_of(from.v_b));
  } else if (plan.mixer == MixerKind::attention) {
    layer.qkv = maker.qkv(from, plan.attention);
  }
  if (plan.mixer != MixerKind::none) layer.o = maker.product(one(from.o, &from.o_bias));
  if (has_dense(plan)) {
    layer.gate_up = maker.product(gate_up_of(from, plan.dense));
    layer.down = maker.product(one(from.down, &from.down_bias));
  }
  if (plan.d_input > 0) {
    layer.input_gate = maker.product(one(from.input_gate));
    layer.input_proj = maker.product(one(from.input_proj));
  }
  if (plan.feed_forward != FeedForwardKind::experts) return;
  layer.router = maker.router(from);
  if (const int n = plan.experts.n_cached; n > 0) {
    layer.cached.gate_up = maker.slot(first_of(expert_gate_up_of(plan, from), n));
    layer.cached.down = maker.slot(first_of(expert_down_of(plan, from), n));
    layer.expert_places = maker.room(4 * plan.experts.n_experts);
  }
  if (plan.experts.on_host) return;
  layer.experts.gate_up = maker.experts(expert_gate_up_of(plan, from));
  layer.experts.down = maker.experts(expert_down_of(plan, from));
  layer.joins_shared = joins_shared(plan, from);
}

/// Key that layers with a common slot share: for each role the number of experts, their format and shape, and whether
/// they have biases.
std::vector<int64_t> slot_shape(std::span<const ExpertParts> parts) {
  std::vector<int64_t> shape;
  for (const ExpertParts& of : parts)
    for (size_t r = 0; r < of.matrices.size(); ++r) {
      const Linear& m = *of.matrices[r][0];
      shape.insert(shape.end(), {ssize(of.matrices[r]), m.format - weight_formats().data(), m.n_out, m.n_in,
                                 int64_t(!of.biases[r][0]->empty())});
    }
  return shape;
}

/// Gives layers whose experts are in host memory a slot, where the device has a GEMM for them and two
/// layers or more share it: the experts of one alone would take as much as the slot.
template <class Maker>
void add_slots(const ModelPlan& plan, const Weights& weights, Maker& maker, CudaModel& model) {
  std::map<std::vector<int64_t>, std::vector<size_t>> layers_of;
  const auto parts_of_layer = [&](size_t i) {
    return std::array{expert_gate_up_of(plan.layers[i], weights.layers[i]),
                      expert_down_of(plan.layers[i], weights.layers[i])};
  };
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    if (!plan.layers[i].experts.on_host) continue;
    const auto parts = parts_of_layer(i);
    if (std::ranges::all_of(parts, [](const ExpertParts& of) {
          return DeviceExpertMatmul::planned(of.matrices, of.biases, of.glu).can_group();
        }))
      layers_of[slot_shape(parts)].push_back(i);
  }
  int64_t source = 0;
  for (const auto& [shape, layers] : layers_of) {
    if (layers.size() < 2) continue;
    const auto [gate_up, down] = parts_of_layer(layers[0]);
    for (const size_t i : layers) model.layers[i].slot = int(model.slots.size());
    model.slots.push_back({.gate_up = maker.slot(gate_up), .down = maker.slot(down)});
    source = std::max(source, model.slots.back().source_bytes());
  }
  for (const CudaLayer& layer : model.layers)
    if (layer.cached.bytes() > 0) source = std::max(source, layer.cached.source_bytes());
  if (source > 0) model.slot_source = maker.room(source);
}

template <class Maker>
void make_model(const ModelPlan& plan, const Weights& weights, Maker& maker, CudaModel& model) {
  for (const Rope& rope : plan.ropes)
    model.ropes.push_back({.halves = rope.pairs == RopePairs::halves,
                           .magnitude = rope.magnitude,
                           .n_pairs = int(rope.frequency.size()),
                           .frequency = maker.vector(rope.frequency)});
  model.embedding = maker.rows(weights.embedding);
  model.embedding.scale *= plan.embedding_scale;
  if (weights.layer_embedding.format) {
    model.layer_embedding = maker.rows(weights.layer_embedding);
    model.layer_inputs = maker.product(one(weights.layer_inputs));
    Values halved = weights.layer_inputs_norm;
    for (float& weight : halved) weight /= std::sqrt(2.0f);
    model.layer_inputs_norm = maker.vector(halved);
  }
  Values norm = weights.output_norm;
  for (float& weight : norm) weight /= plan.logit_divisor;
  model.output_norm = maker.vector(norm);
  int widest = 0;  // of heads whose norm has no weight
  for (const LayerPlan& layer : plan.layers)
    if (layer.attention.v_norm) widest = std::max(widest, layer.attention.head_dim);
  if (widest > 0) model.ones = maker.vector(Values(size_t(widest), 1.0f));
  if (weights.output.n_out > 0) model.output = maker.product(one(weights.output));
  if (weights.join.format) {
    model.join_embedding = maker.join(weights.join, 0);
    model.join_hidden = maker.join(weights.join, 1);
    model.join_embedding_norm = maker.vector(weights.join_embedding_norm);
    model.join_hidden_norm = maker.vector(weights.join_hidden_norm);
  }
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    CudaLayer& layer = model.layers.emplace_back();
    if (is_here(weights.layers[i])) make_layer(plan.layers[i], weights.layers[i], maker, layer);
  }
  add_slots(plan, weights, maker, model);
}

}  // namespace

ExpertParts expert_gate_up_of(const LayerPlan& plan, const LayerWeights& l) {
  if (!plan.experts.gated) return parts_of(plan, l, {{&ExpertWeights::up, &ExpertWeights::up_bias, &LayerWeights::up}});
  return parts_of(plan, l,
                  {{&ExpertWeights::gate, &ExpertWeights::gate_bias, &LayerWeights::gate},
                   {&ExpertWeights::up, &ExpertWeights::up_bias, &LayerWeights::up}});
}
ExpertParts expert_down_of(const LayerPlan& plan, const LayerWeights& l) {
  return parts_of(plan, l, {{&ExpertWeights::down, &ExpertWeights::down_bias, &LayerWeights::down}});
}

CudaModel::CudaModel(const gpu::Stream& stream, const ModelPlan& plan, const Weights& weights,
                     const ForcedKernels& forced) {
  Uploader uploader{stream, forced};
  make_model(plan, weights, uploader, *this);
  stream.synchronize();
}

CudaModel CudaModel::planned(const ModelPlan& plan, const Weights& weights, const ForcedKernels& forced,
                             gpu::Allocations& all) {
  CudaModel model;
  Planner planner{forced, all};
  make_model(plan, weights, planner, model);
  return model;
}

int64_t CudaModel::upload_bytes(const ModelPlan& plan, const Weights& weights, const ForcedKernels& forced) {
  CudaModel model;
  gpu::Allocations all;
  Planner planner{forced, all};
  make_model(plan, weights, planner, model);
  return all.bytes + planner.packing;
}

int64_t CudaModel::step_bytes(const ModelPlan& plan) const {
  int64_t sum = output.bytes() + join_embedding.bytes() + join_hidden.bytes() + layer_inputs.bytes();
  for (size_t i = 0; i < layers.size(); ++i) {
    const CudaLayer& l = layers[i];
    for (const DeviceMatmul* p : {&l.qkv, &l.q_b, &l.delta_in, &l.o, &l.gate_up, &l.down, &l.input_gate, &l.input_proj})
      sum += p->bytes();
    sum += l.k_b.bytes() + l.v_b.bytes();
    const ExpertsPlan& e = plan.layers[i].experts;
    if (e.n_experts > 0)
      sum += l.router.bytes() +
             (l.experts.gate_up.bytes() + l.experts.down.bytes()) / (e.n_experts + l.joins_shared) * e.rule.n_used;
  }
  return sum;
}

}  // namespace ridge
