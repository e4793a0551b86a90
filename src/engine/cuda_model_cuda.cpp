#include "engine/cuda_model.h"

#include <cstring>

namespace ridge {
namespace {

/// The arguments of a DeviceProduct.
struct ProductParts {
  std::vector<const Linear*> matrices;
  std::vector<const std::vector<float>*> biases;
  bool glu = false;
};
ProductParts one(const Linear& m, const std::vector<float>* bias = nullptr) { return {{&m}, {bias}}; }
ProductParts qkv_of(const LayerWeights& l) {
  if (!l.k_b.empty()) return {{l.q_b.n_out > 0 ? &l.q_a : &l.q, &l.kv_a}, {nullptr, nullptr}};
  return {{&l.q, &l.k, &l.v}, {&l.q_bias, &l.k_bias, &l.v_bias}};
}
ProductParts delta_in_of(const DeltaWeights& d) {
  return {{&d.qkv, &d.z, &d.a, &d.b}, {nullptr, nullptr, nullptr, nullptr}};
}
ProductParts gate_up_of(const LayerWeights& l, const DensePlan& plan) {
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
  Linear half = join;
  half.n_in = join.n_in / 2;
  half.rows = nullptr;
  if (half.n_in % join.format->group != 0) half.format = weight_format_of_gguf(0);
  return half;
}

/// Columns of an MTP head's join: the first half takes embeddings, the second one hidden states.
struct JoinHalf {
  JoinHalf(const Linear& join, int half) : columns(join) {
    const int64_t n_in = join.n_in / 2, row_bytes = join.format->row_bytes(join.n_in);
    columns.n_in = n_in;
    RIDGE_CHECK(join.rows != nullptr, "a join of {} x {} has no rows", join.n_out, join.n_in);
    const bool cuts_blocks = n_in % join.format->group != 0;
    if (cuts_blocks) columns.format = weight_format_of_gguf(0);  // as floats
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
bool is_here(const LayerWeights& layer) { return layer.o.format; }

bool has_dense(const LayerPlan& layer) { return layer.feed_forward == FeedForwardKind::dense || layer.experts.shared; }

/// Whether the shared expert is like the others, so that it can be one more of them.
bool joins_shared(const LayerPlan& plan, const LayerWeights& l) {
  const ExpertsPlan& e = plan.experts;
  const auto equal = [](const Linear& a, const Linear& b) {
    return a.format == b.format && a.n_out == b.n_out && a.scale == b.scale && !a.int8_activations;
  };
  return e.shared && !e.biases && e.activation == plan.dense.activation && e.n_experts < kMostExperts &&
         e.rule.n_used < kMostUsedExperts && equal(l.gate, l.experts[0].gate) && equal(l.up, l.experts[0].up) &&
         equal(l.down, l.experts[0].down);
}

/// The arguments of a DeviceExpertProduct.
struct ExpertParts {
  std::vector<std::vector<const Linear*>> matrices;
  std::vector<std::vector<const std::vector<float>*>> biases;
  bool glu = false;

  ExpertParts() : matrices(1), biases(1) {}
  /// A role is a matrix and its bias of every expert, and the matrix of the shared one, which counts where it joins.
  struct Role {
    Linear ExpertWeights::*matrix;
    std::vector<float> ExpertWeights::*bias;
    Linear LayerWeights::*shared;
  };
  ExpertParts(const LayerPlan& plan, const LayerWeights& l, std::initializer_list<Role> roles)
      : glu(roles.size() == 2) {
    static const std::vector<float> kNoBias;
    for (const Role& role : roles) {
      auto& of_role = matrices.emplace_back();
      auto& biases_of_role = biases.emplace_back();
      for (const ExpertWeights& expert : l.experts) {
        of_role.push_back(&(expert.*role.matrix));
        biases_of_role.push_back(&(expert.*role.bias));
      }
      if (!joins_shared(plan, l)) continue;
      of_role.push_back(&(l.*role.shared));
      biases_of_role.push_back(&kNoBias);
    }
  }
};
ExpertParts expert_gate_up_of(const LayerPlan& plan, const LayerWeights& l) {
  return {plan,
          l,
          {{&ExpertWeights::gate, &ExpertWeights::gate_bias, &LayerWeights::gate},
           {&ExpertWeights::up, &ExpertWeights::up_bias, &LayerWeights::up}}};
}
ExpertParts expert_down_of(const LayerPlan& plan, const LayerWeights& l) {
  return {plan, l, {{&ExpertWeights::down, &ExpertWeights::down_bias, &LayerWeights::down}}};
}

/// k_b or v_b of a latent layer's heads.
ExpertParts heads_of(const std::vector<Linear>& matrices) {
  ExpertParts parts;
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

}  // namespace

CudaModel::CudaModel(const gpu::Stream& stream, const ModelPlan& plan, const Weights& weights,
                     const ForcedKernels& forced) {
  const auto vector = [&](const std::vector<float>& values) {
    return gpu::to_device(stream, std::span<const float>(values));
  };
  const auto product = [&](const ProductParts& parts) {
    return DeviceProduct(stream, parts.matrices, parts.biases, parts.glu, forced);
  };
  for (const Rope& rope : plan.ropes)
    ropes.push_back({.halves = rope.pairs == RopePairs::halves,
                     .magnitude = rope.magnitude,
                     .n_pairs = int(rope.frequency.size()),
                     .frequency = gpu::to_device(stream, std::span<const double>(rope.frequency))});
  embedding = upload_rows(stream, weights.embedding);
  embedding.scale *= plan.embedding_scale;
  std::vector<float> norm = weights.output_norm;
  for (float& weight : norm) weight /= plan.logit_divisor;
  output_norm = vector(norm);
  if (weights.output.n_out > 0) output = product(one(weights.output));
  if (weights.join.format) {
    join_embedding = product(one(JoinHalf(weights.join, 0).columns));
    join_hidden = product(one(JoinHalf(weights.join, 1).columns));
    join_embedding_norm = vector(weights.join_embedding_norm);
    join_hidden_norm = vector(weights.join_hidden_norm);
  }
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    CudaLayer& layer = layers.emplace_back();
    if (!is_here(from)) continue;
    layer.attn_norm = vector(from.attn_norm);
    layer.q_norm = vector(from.q_norm);
    layer.k_norm = vector(from.k_norm);
    layer.attn_sub_norm = vector(from.attn_sub_norm);
    layer.attn_post_norm = vector(from.attn_post_norm);
    layer.sink_logits = vector(from.sink_logits);
    layer.ffn_norm = vector(from.ffn_norm);
    layer.ffn_sub_norm = vector(from.ffn_sub_norm);
    layer.ffn_post_norm = vector(from.ffn_post_norm);
    if (plan.layers[i].mixer == MixerKind::delta) {
      layer.delta = {.in = product(delta_in_of(from.delta)),
                     .conv = vector(from.delta.conv),
                     .decay = vector(from.delta.decay),
                     .dt_bias = vector(from.delta.dt_bias),
                     .norm = vector(from.delta.norm)};
    } else if (plan.layers[i].mixer == MixerKind::latent) {
      layer.qkv = product(qkv_of(from));
    } else {
      const QueryRows queries(from, plan.layers[i].attention);
      layer.qkv = product({{&queries.q, &from.k, &from.v}, {&queries.bias, &from.k_bias, &from.v_bias}});
    }
    layer.o = product(one(from.o, &from.o_bias));
    if (plan.layers[i].mixer == MixerKind::latent) {
      layer.q_a_norm = vector(from.q_a_norm);
      layer.kv_a_norm = vector(from.kv_a_norm);
      if (from.q_b.n_out > 0) layer.q_b = product(one(from.q_b));
      const ExpertParts k_b = heads_of(from.k_b), v_b = heads_of(from.v_b);
      layer.k_b = DeviceExpertProduct(stream, k_b.matrices, k_b.biases);
      layer.v_b = DeviceExpertProduct(stream, v_b.matrices, v_b.biases);
    }
    if (has_dense(plan.layers[i])) {
      layer.gate_up = product(gate_up_of(from, plan.layers[i].dense));
      layer.down = product(one(from.down, &from.down_bias));
    }
    if (plan.layers[i].feed_forward != FeedForwardKind::experts) continue;
    const ExpertParts gate_up = expert_gate_up_of(plan.layers[i], from), down = expert_down_of(plan.layers[i], from);
    layer.expert_gate_up = DeviceExpertProduct(stream, gate_up.matrices, gate_up.biases, gate_up.glu);
    layer.expert_down = DeviceExpertProduct(stream, down.matrices, down.biases);
    layer.joins_shared = joins_shared(plan.layers[i], from);
    std::vector<float> router = as_floats(from.router);
    router.insert(router.end(), from.shared_gate.begin(), from.shared_gate.end());
    layer.router = vector(router);
    layer.router_bias = vector(from.router_bias);
    layer.choice_bias = vector(from.choice_bias);
  }
  stream.synchronize();
}

int64_t CudaModel::upload_bytes(const ModelPlan& plan, const Weights& weights, const ForcedKernels& forced) {
  int64_t kept = weights.embedding.bytes(), packing = 0;
  for (const Rope& rope : plan.ropes) kept += int64_t(rope.frequency.size() * sizeof(double));
  const auto add_vectors = [&](std::initializer_list<const std::vector<float>*> vectors) {
    for (const auto* values : vectors) kept += 4 * int64_t(values->size());
  };
  const auto add_product = [&](const ProductParts& parts) {
    const ProductBytes bytes = product_bytes(parts.matrices, parts.biases, parts.glu, forced);
    kept += bytes.kept;
    packing = std::max(packing, bytes.packing);
  };
  const auto add_experts = [&](const ExpertParts& parts) {
    const auto [of_product, of_packing] = DeviceExpertProduct::bytes_of(parts.matrices, parts.biases, parts.glu);
    kept += of_product;
    packing = std::max(packing, of_packing);
  };
  add_vectors({&weights.output_norm});
  if (weights.output.n_out > 0) add_product(one(weights.output));
  if (weights.join.format)
    for (int half = 0; half < 2; ++half) add_product(one(half_of(weights.join)));
  add_vectors({&weights.join_embedding_norm, &weights.join_hidden_norm});
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& l = weights.layers[i];
    if (!is_here(l)) continue;
    add_vectors({&l.attn_norm, &l.q_norm, &l.k_norm, &l.attn_sub_norm, &l.attn_post_norm, &l.ffn_norm, &l.ffn_sub_norm,
                 &l.ffn_post_norm, &l.sink_logits});
    if (plan.layers[i].mixer == MixerKind::delta) {
      add_vectors({&l.delta.conv, &l.delta.decay, &l.delta.dt_bias, &l.delta.norm});
      add_product(delta_in_of(l.delta));
    } else {
      add_product(qkv_of(l));
    }
    add_product(one(l.o, &l.o_bias));
    if (plan.layers[i].mixer == MixerKind::latent) {
      add_vectors({&l.q_a_norm, &l.kv_a_norm});
      if (l.q_b.n_out > 0) add_product(one(l.q_b));
      add_experts(heads_of(l.k_b));
      add_experts(heads_of(l.v_b));
    }
    if (has_dense(plan.layers[i])) {
      add_product(gate_up_of(l, plan.layers[i].dense));
      add_product(one(l.down, &l.down_bias));
    }
    if (plan.layers[i].feed_forward != FeedForwardKind::experts) continue;
    add_experts(expert_gate_up_of(plan.layers[i], l));
    add_experts(expert_down_of(plan.layers[i], l));
    kept += 4 * l.router.n_out * l.router.n_in;
    add_vectors({&l.router_bias, &l.choice_bias, &l.shared_gate});
  }
  return kept + packing;
}

CudaModel CudaModel::planned(const ModelPlan& plan, const Weights& weights, const ForcedKernels& forced,
                             gpu::Allocations& all) {
  CudaModel model;
  const auto vectors = [&](std::initializer_list<const std::vector<float>*> of) {
    for (const auto* values : of) all.add(4 * ssize(*values));
  };
  const auto product = [&](const ProductParts& parts) {
    DeviceProduct planned = DeviceProduct::planned(parts.matrices, parts.biases, parts.glu, forced);
    planned.add_to(all);
    return planned;
  };
  const auto experts = [&](const ExpertParts& parts) {
    DeviceExpertProduct planned = DeviceExpertProduct::planned(parts.matrices, parts.biases, parts.glu);
    planned.add_to(all);
    return planned;
  };
  for (const Rope& rope : plan.ropes) all.add(8 * ssize(rope.frequency));
  all.add(weights.embedding.bytes());
  vectors({&weights.output_norm, &weights.join_embedding_norm, &weights.join_hidden_norm});
  if (weights.output.n_out > 0) model.output = product(one(weights.output));
  if (weights.join.format) {
    const Linear half = half_of(weights.join);
    model.join_embedding = product(one(half));
    model.join_hidden = product(one(half));
  }
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& l = weights.layers[i];
    const LayerPlan& of = plan.layers[i];
    CudaLayer& layer = model.layers.emplace_back();
    if (!is_here(l)) continue;
    vectors({&l.attn_norm, &l.q_norm, &l.k_norm, &l.attn_sub_norm, &l.attn_post_norm, &l.ffn_norm, &l.ffn_sub_norm,
             &l.ffn_post_norm, &l.sink_logits});
    if (of.mixer == MixerKind::delta) {
      vectors({&l.delta.conv, &l.delta.decay, &l.delta.dt_bias, &l.delta.norm});
      layer.delta.in = product(delta_in_of(l.delta));
    } else {
      layer.qkv = product(qkv_of(l));
    }
    layer.o = product(one(l.o, &l.o_bias));
    if (of.mixer == MixerKind::latent) {
      vectors({&l.q_a_norm, &l.kv_a_norm});
      if (l.q_b.n_out > 0) layer.q_b = product(one(l.q_b));
      layer.k_b = experts(heads_of(l.k_b));
      layer.v_b = experts(heads_of(l.v_b));
    }
    if (has_dense(of)) {
      layer.gate_up = product(gate_up_of(l, of.dense));
      layer.down = product(one(l.down, &l.down_bias));
    }
    if (of.feed_forward != FeedForwardKind::experts) continue;
    layer.expert_gate_up = experts(expert_gate_up_of(of, l));
    layer.expert_down = experts(expert_down_of(of, l));
    layer.joins_shared = joins_shared(of, l);
    all.add(4 * (l.router.n_out * l.router.n_in + ssize(l.shared_gate)));
    vectors({&l.router_bias, &l.choice_bias});
  }
  return model;
}

int64_t CudaModel::step_bytes(const ModelPlan& plan) const {
  int64_t sum = output.bytes() + join_embedding.bytes() + join_hidden.bytes();
  for (size_t i = 0; i < layers.size(); ++i) {
    const CudaLayer& l = layers[i];
    for (const DeviceProduct* p : {&l.qkv, &l.q_b, &l.delta.in, &l.o, &l.gate_up, &l.down}) sum += p->bytes();
    sum += l.k_b.bytes() + l.v_b.bytes();
    const ExpertsPlan& e = plan.layers[i].experts;
    if (e.n_experts > 0)
      sum += l.router.bytes() +
             (l.expert_gate_up.bytes() + l.expert_down.bytes()) / (e.n_experts + l.joins_shared) * e.rule.n_used;
  }
  return sum;
}

}  // namespace ridge
