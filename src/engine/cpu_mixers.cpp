// What layers do with the tokens of a sequence, on the CPU: attention over its cache, and mixers that keep a state.
#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/cpu_backend.h"
#include "op/cache/append.h"
#include "op/delta/delta.h"
#include "op/delta/mamba.h"
#include "op/delta/short_conv.h"
#include "op/trace.h"

namespace ridge {

using B = CpuBuffer;
namespace {

bool all_finite(std::span<const float> row) {
  uint32_t largest = 0;
  for (const float x : row) largest = std::max(largest, std::bit_cast<uint32_t>(x) & 0x7FFFFFFF);
  return largest < 0x7F800000;  // of infinity
}

/// Rows whose K or V is not finite, or was at an earlier position of the sequence: the codes of a cache can hide that,
/// and logits must tell.
std::vector<KvSpan> lost_rows(std::span<const KvSpan> spans, HostKvMemory& memory, View2<const float> k,
                              View2<const float> v) {
  std::vector<KvSpan> lost;
  for (const KvSpan& span : spans) {
    int first = std::clamp(memory.lost_from(span.slot) - span.n_past, 0, span.n_rows);
    for (int i = 0; i < first && k.rows > 0; ++i) {  // else an earlier layer's, which has looked at them
      if (all_finite(k.row(span.first_row + i)) && all_finite(v.row(span.first_row + i))) continue;
      memory.set_lost_from(span.slot, span.n_past + i);
      first = i;
    }
    if (first < span.n_rows) lost.push_back({.first_row = span.first_row + first, .n_rows = span.n_rows - first});
  }
  return lost;
}

}  // namespace

/// Queries grow with the logarithm of their position.
void CpuBackend::scale_by_position(const AttentionPlan& a, View2<float> q) {
  if (a.position_scale == 0) return;
  for (int64_t t = 0; t < q.rows; ++t) {
    const int lengths = positions_[size_t(t)] / a.position_length;
    const float factor = float(1 + double(a.position_scale) * std::log(1.0 + lengths));
    for (float& value : q.row(t)) value *= factor;
  }
}

/// rows.attn = what queries rows.q make of the caches, grown by rows.k and v; of keys that they choose, where there is
/// an index. Its keys are v.
void CpuBackend::attend_rows(int layer, const Rows& rows, HostKvMemory& memory, View2<float> v, const KeyIndex* index) {
  const LayerPlan& plan = plan_.layers[size_t(layer)];
  const AttentionPlan& a = plan.attention;
  const int from = a.kept_by(layer);
  const KvSide v_side = plan.mixer == MixerKind::latent ? KvSide::k : KvSide::v;
  if (on_attention_) on_attention_(layer, rows.q, rows.k, v_side == KvSide::k ? rows.k : v);
  const std::vector<KvSpan> lost = lost_rows(spans_, memory, rows.k, v);
  for (const std::vector<KvSpan>& spans : parts_[size_t(memory.page_class(from))]) {
    if (from == layer)
      kv_append(context_, memory.tiles(layer, KvSide::k), memory.tiles(layer, KvSide::v), spans, rows.k, v);
    const Attention problem{.n_heads = a.n_heads,
                            .scale = a.scale,
                            .sink_logits = a.sink_logits ? weights_.layers[size_t(layer)].sink_logits.data() : nullptr,
                            .k = memory.tiles(from, KvSide::k),
                            .v = memory.tiles(from, v_side),
                            .spans = spans,
                            .q = rows.q,
                            .out = rows.attn};
    if (!index) {
      attention(context_, problem);
      continue;
    }
    AlignedBuffer& chosen = buffers_[B::chosen];
    attention_over_chosen(context_, problem, *index, {chosen.as<float>(), size_t(chosen.bytes()) / sizeof(float)});
  }
  for (const KvSpan& span : lost)
    for (int i = 0; i < span.n_rows; ++i) std::ranges::fill(rows.attn.row(span.first_row + i), NAN);
}

/// rows.h = attention of rows.h, the sequences' caches grown.
void CpuBackend::attend(int layer, const Rows& rows, HostKvMemory& memory) {
  const AttentionPlan& a = plan_.layers[size_t(layer)].attention;
  const LayerWeights& w = weights_.layers[size_t(layer)];
  const View2<float> q_gate = a.gate ? matrix(B::q_gate, rows.h.rows, 2 * a.q_dim()) : View2<float>();
  const LinearOutput q{&w.q, a.gate ? q_gate : rows.q}, k{&w.k, rows.k};
  if (a.kv_layer >= 0) {
    linear(context_, rows.h, {q});
  } else if (a.k_is_v) {
    linear(context_, rows.h, {q, k});
    std::copy_n(rows.k.data, rows.k.rows * rows.k.cols, rows.v.data);
  } else {
    linear(context_, rows.h, {q, k, {&w.v, rows.v}});
  }
  if (a.qkv_bias) {
    add_bias(context_, a.gate ? q_gate : rows.q, w.q_bias.data());
    if (rows.k.rows > 0) add_bias(context_, rows.k, w.k_bias.data());
    if (rows.k.rows > 0) add_bias(context_, rows.v, w.v_bias.data());
  }
  for (int64_t t = 0; t < q_gate.rows; ++t)
    for (int h = 0; h < a.n_heads; ++h)
      std::copy_n(&q_gate(t, 2 * h * a.head_dim), a.head_dim, &rows.q(t, h * a.head_dim));
  if (a.v_norm && rows.v.rows > 0) norm_heads(rows.v, std::vector<float>(size_t(a.head_dim), 1.0f));
  const auto norm_qk = [&] {
    norm_heads(rows.q, w.q_norm);
    if (rows.k.rows > 0) norm_heads(rows.k, w.k_norm);
  };
  if (a.qk_norm_whole) {
    norm_whole(rows.q, w.q_norm, &ModelSlice::q);
    norm_whole(rows.k, w.k_norm, &ModelSlice::kv);
  } else if (a.qk_norm && !a.qk_norm_after_rope) {
    norm_qk();
  }
  const RopeAngles& angles = angles_[size_t(plan_.rope_of(a, n_ctx_))];
  apply_rope(context_, angles, a.head_dim, rows.q);
  if (rows.k.rows > 0) apply_rope(context_, angles, a.head_dim, rows.k);
  if (a.qk_norm && a.qk_norm_after_rope) norm_qk();
  scale_by_position(a, rows.q);
  attend_rows(layer, rows, memory, rows.v);
  for (int64_t t = 0; t < q_gate.rows; ++t)
    for (int h = 0; h < a.n_heads; ++h)
      for (int i = 0; i < a.head_dim; ++i)
        rows.attn(t, h * a.head_dim + i) /= 1 + std::exp(-q_gate(t, (2 * h + 1) * a.head_dim + i));
  project(w.o, w.o_bias, a.out_norm ? &w.attn_sub_norm : nullptr, rows.attn, slice_ ? &slice_->q : nullptr, rows.h);
}

/// The index's queries and weights of its heads, of the low-rank queries and of rows.h; `keys` gets a key a token,
/// `tiles` will hold them.
KeyIndex CpuBackend::index_of(int layer, const Rows& rows, View2<const float> low, View2<float> keys,
                              const KvTiles& tiles) {
  constexpr float kNormEps = 1e-6f;  // whatever the model's other norms have
  const IndexPlan& index = plan_.layers[size_t(layer)].latent.index;
  const LayerWeights& w = weights_.layers[size_t(layer)];
  const int64_t n = rows.h.rows;
  const View2<float> q = matrix(B::index_q, n, int64_t(index.n_heads) * index.dim),
                     of_heads = matrix(B::index_weights, n, index.n_heads);
  linear(context_, w.index_q, low, q);
  linear(context_, rows.h, {{&w.index_k, keys}, {&w.index_weights, of_heads}});
  layer_norm(context_, keys, w.index_norm.data(), kNormEps, keys);
  add_bias(context_, keys, w.index_norm_bias.data());
  apply_rope(context_, angles_[size_t(index.rope)], index.dim, q);
  apply_rope(context_, angles_[size_t(index.rope)], index.dim, keys);
  return {.n_heads = index.n_heads, .top_k = index.top_k, .keys = tiles, .q = q, .weights = of_heads};
}

/// rows.h = latent attention of rows.h, the sequences' caches grown. rows.k are the latent rows; heads of rows.q and
/// rows.attn are as wide.
void CpuBackend::attend_latent(int layer, const Rows& rows, HostKvMemory& memory) {
  const AttentionPlan& a = plan_.layers[size_t(layer)].attention;
  const LatentPlan& l = plan_.layers[size_t(layer)].latent;
  const LayerWeights& w = weights_.layers[size_t(layer)];
  const int64_t n = rows.h.rows, width = a.head_dim;
  const View2<float> q = matrix(B::latent_q, n, a.n_heads * int64_t(l.query_dim()));
  const auto columns = [](View2<float> x, int64_t first, int64_t count) {
    return View2<float>(x.data + first, x.rows, count, x.stride);
  };
  KeyIndex index;
  const bool chooses = l.index.top_k > 0;
  const View2<float> index_keys = chooses ? matrix(B::v, n, l.index.dim) : rows.k;
  if (l.q_rank > 0) {
    const View2<float> low = matrix(B::latent_v, n, l.q_rank);
    linear(context_, w.q_a, rows.h, low);
    rms_norm(context_, low, w.q_a_norm.data(), plan_.norm_eps, low);
    linear(context_, w.q_b, low, q);
    if (chooses) index = index_of(layer, rows, low, index_keys, memory.tiles(layer, KvSide::v));
  } else {
    linear(context_, w.q, rows.h, q);
  }
  linear(context_, w.kv_a, rows.h, rows.k);
  const View2<float> latent = columns(rows.k, 0, l.rank);
  rms_norm(context_, latent, w.kv_a_norm.data(), plan_.norm_eps, latent);
  for (int64_t h = 0; h < a.n_heads; ++h) {
    const int64_t from = h * l.query_dim(), to = h * width;
    linear(context_, w.k_b[size_t(h)], columns(q, from, l.nope_dim), columns(rows.q, to, l.rank));
    for (int64_t t = 0; t < n; ++t) std::copy_n(&q(t, from + l.nope_dim), l.rope_dim, &rows.q(t, to + l.rank));
  }
  const RopeAngles& angles = angles_[size_t(plan_.rope_of(a, n_ctx_))];
  apply_rope(context_, angles, int(width), columns(rows.q, l.rank, rows.q.cols - l.rank));
  apply_rope(context_, angles, int(width), columns(rows.k, l.rank, l.rope_dim));
  scale_by_position(a, rows.q);
  attend_rows(layer, rows, memory, index_keys, chooses ? &index : nullptr);
  const View2<float> values = matrix(B::latent_v, n, a.n_heads * int64_t(l.value_dim));
  for (int64_t h = 0; h < a.n_heads; ++h)
    linear(context_, w.v_b[size_t(h)], columns(rows.attn, h * width, l.rank),
           columns(values, h * l.value_dim, l.value_dim));
  linear(context_, w.o, values, rows.h);
}

/// rows.h = the gated delta rule over rows.h, the sequences' states moved on.
void CpuBackend::mix_delta(int layer, const Rows& rows, HostKvMemory& memory) {
  const DeltaPlan& d = plan_.layers[size_t(layer)].delta;
  const LayerWeights& w = weights_.layers[size_t(layer)];
  const int64_t n = rows.h.rows;
  const View2<float> qkv = matrix(B::delta_qkv, n, d.channels()), z = matrix(B::delta_z, n, d.values()),
                     a = matrix(B::delta_a, n, d.n_value_heads), b = matrix(B::delta_b, n, d.n_value_heads),
                     out = matrix(B::delta_out, n, d.values());
  linear(context_, rows.h, {{&w.delta.qkv, qkv}, {&w.delta.z, z}, {&w.delta.a, a}, {&w.delta.b, b}});
  gated_delta(context_, {.shape = d,
                         .conv = w.delta.conv.data(),
                         .decay = w.delta.decay.data(),
                         .dt_bias = w.delta.dt_bias.data(),
                         .spans = spans_,
                         .states = memory.states(layer),
                         .qkv = qkv,
                         .a = a,
                         .b = b,
                         .out = out});
  norm_heads(out, w.delta.norm);
  swiglu(context_, z, out);
  linear(context_, w.o, z, rows.h);
}

/// rows.h = the gated short convolution of rows.h, the sequences' states moved on.
void CpuBackend::mix_conv(int layer, const Rows& rows, HostKvMemory& memory) {
  const ConvPlan& conv = plan_.layers[size_t(layer)].conv;
  const LayerWeights& w = weights_.layers[size_t(layer)];
  const View2<float> bcx = matrix(B::delta_qkv, rows.h.rows, 3 * int64_t(conv.channels)),
                     out = matrix(B::delta_out, rows.h.rows, conv.channels);
  linear(context_, w.conv_in, rows.h, bcx);
  short_conv(context_, {.kernel = conv.kernel,
                        .weights = w.conv.data(),
                        .spans = spans_,
                        .states = memory.states(layer),
                        .bcx = bcx,
                        .out = out});
  linear(context_, w.o, out, rows.h);
}

/// rows.h = Mamba2 over rows.h, the sequences' states moved on.
void CpuBackend::mix_mamba(int layer, const Rows& rows, HostKvMemory& memory) {
  const MambaPlan& m = plan_.layers[size_t(layer)].mamba;
  const LayerWeights& w = weights_.layers[size_t(layer)];
  const int64_t n = rows.h.rows, inner = m.inner(), part = inner / m.n_groups;
  const View2<float> in = matrix(B::delta_qkv, n, m.columns()), z = matrix(B::delta_z, n, inner),
                     out = matrix(B::delta_out, n, inner);
  linear(context_, w.conv_in, rows.h, in);
  for (int64_t t = 0; t < n; ++t) std::copy_n(&in(t, 0), inner, &z(t, 0));
  mamba2(context_, {.shape = m,
                    .conv = w.conv.data(),
                    .conv_bias = w.conv_bias.data(),
                    .decay = w.mamba_decay.data(),
                    .dt_bias = w.mamba_dt_bias.data(),
                    .d = w.mamba_d.data(),
                    .spans = spans_,
                    .states = memory.states(layer),
                    .in = in,
                    .out = out});
  swiglu(context_, z, out);
  for (int64_t g = 0; g < m.n_groups; ++g) {
    const View2<float> of_group(z.data + g * part, n, part, inner);
    rms_norm(context_, of_group, w.mamba_norm.data() + g * part, plan_.norm_eps, of_group);
  }
  linear(context_, w.o, z, rows.h);
}

}  // namespace ridge
