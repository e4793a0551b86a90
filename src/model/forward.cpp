#include "model/forward.h"

#include <cmath>

#include "op/trace.h"

namespace ridge {
namespace {

View2<float> view(AlignedBuffer& buffer, int64_t rows, int64_t cols) {
  return {reinterpret_cast<float*>(buffer.data()), rows, cols};
}

/// x[t] = row tokens[t] of the embedding.
void embed(CpuContext& context, const Linear& embedding, std::span<const int32_t> tokens, View2<float> x) {
  const int64_t row_bytes = embedding.format->row_bytes(embedding.n_in), n = std::ssize(tokens);
  const TracedOp traced(context, "embed", {}, {n * row_bytes, 4 * n * embedding.n_in, 0});
  for (size_t t = 0; t < tokens.size(); ++t) {
    RIDGE_CHECK(tokens[t] >= 0 && tokens[t] < embedding.n_out, "token {} of a vocabulary of {}", tokens[t],
                embedding.n_out);
    embedding.format->decode(embedding.rows + tokens[t] * row_bytes, embedding.n_in, &x(int64_t(t), 0));
    if (embedding.scale != 1)
      for (float& value : x.row(int64_t(t))) value *= embedding.scale;
  }
}

/// RMSNorm of every head of x [n_tokens, n * head_dim] with one weight [head_dim] (qwen3).
void norm_heads(CpuContext& context, View2<float> x, const std::vector<float>& weight, float eps) {
  const auto dim = int64_t(weight.size());
  const View2<float> heads(x.data, x.rows * x.cols / dim, dim);
  rms_norm(context, heads, weight.data(), eps, heads);
}

void attend(CpuContext& context, const Config& c, int layer, View2<float> q, KvCache& cache, View2<float> out) {
  const int n_tokens = int(q.rows), n_keys = cache.n_past + n_tokens;
  const float scale = 1.0f / std::sqrt(float(c.head_dim));
  const KvStore& k = cache.k(layer);
  const KvStore& v = cache.v(layer);
  k.rotate_queries(context, q);
  if (n_tokens == 1) {
    attn_decode(context, {.n_heads = c.n_heads,
                          .n_kv_heads = c.n_kv_heads,
                          .head_dim = c.head_dim,
                          .n_keys = n_keys,
                          .scale = scale,
                          .q = q.data,
                          .k = k.decode_side(n_keys),
                          .v = v.decode_side(n_keys),
                          .out = out.data});
  } else {
    attn_prefill(context, {.n_heads = c.n_heads,
                           .n_kv_heads = c.n_kv_heads,
                           .head_dim = c.head_dim,
                           .n_tokens = n_tokens,
                           .n_keys = n_keys,
                           .scale = scale,
                           .q = q,
                           .k = k.prefill_side(n_keys, cache.k_scratch),
                           .v = v.prefill_side(n_keys, cache.v_scratch),
                           .out = out});
  }
  v.restore_output(context, c.n_heads, out);
}

}  // namespace

ForwardState::ForwardState(const Config& c, int n)
    : n_ubatch(n),
      x(4 * int64_t(n) * c.d_model),
      h(4 * int64_t(n) * c.d_model),
      q(4 * int64_t(n) * c.q_dim()),
      attn(4 * int64_t(n) * c.q_dim()),
      k(4 * int64_t(n) * c.kv_dim()),
      v(4 * int64_t(n) * c.kv_dim()),
      gate(4 * int64_t(n) * c.d_ff),
      up(4 * int64_t(n) * c.d_ff) {}

View2<float> forward(CpuContext& context, const Config& c, const Weights& w, const Rope& rope,
                     std::span<const int32_t> tokens, LogitRows rows, KvCache& cache, ForwardState& state) {
  const auto n = int64_t(tokens.size());
  RIDGE_CHECK(n > 0 && n <= state.n_ubatch && cache.n_past + n <= cache.n_ctx(), "{} tokens at {} of {}, batch {}", n,
              cache.n_past, cache.n_ctx(), state.n_ubatch);
  const View2<float> x = view(state.x, n, c.d_model), h = view(state.h, n, c.d_model);
  const View2<float> q = view(state.q, n, c.q_dim()), attn = view(state.attn, n, c.q_dim());
  const View2<float> k = view(state.k, n, c.kv_dim()), v = view(state.v, n, c.kv_dim());
  const View2<float> gate = view(state.gate, n, c.d_ff), up = view(state.up, n, c.d_ff);

  embed(context, w.embedding, tokens, x);
  for (int i = 0; i < c.n_layers; ++i) {
    if (context.trace) context.trace->layer = i;
    const LayerWeights& layer = w.layers[size_t(i)];

    rms_norm(context, x, layer.attn_norm.data(), c.rms_eps, h);
    linear(context, layer.q, h, q);
    linear(context, layer.k, h, k);
    linear(context, layer.v, h, v);
    if (c.qkv_bias) {
      add_bias(context, q, layer.q_bias.data());
      add_bias(context, k, layer.k_bias.data());
      add_bias(context, v, layer.v_bias.data());
    }
    if (c.qk_norm) {
      norm_heads(context, q, layer.q_norm, c.rms_eps);
      norm_heads(context, k, layer.k_norm, c.rms_eps);
    }
    apply_rope(context, rope, cache.n_past, c.n_heads, c.head_dim, q);
    apply_rope(context, rope, cache.n_past, c.n_kv_heads, c.head_dim, k);
    if (state.on_attention) state.on_attention(i, q, k, v);
    cache.k(i).append(context, cache.n_past, k, cache.k_scratch);
    cache.v(i).append(context, cache.n_past, v, cache.v_scratch);
    attend(context, c, i, q, cache, attn);
    if (c.sub_norm) rms_norm(context, attn, layer.attn_sub_norm.data(), c.rms_eps, attn);
    linear(context, layer.o, attn, h);
    add(context, x, h);

    rms_norm(context, x, layer.ffn_norm.data(), c.rms_eps, h);
    linear(context, layer.gate, h, gate);
    linear(context, layer.up, h, up);
    if (c.activation == Activation::relu2) relu2_glu(context, gate, up);
    else swiglu(context, gate, up);
    if (c.sub_norm) rms_norm(context, gate, layer.ffn_sub_norm.data(), c.rms_eps, gate);
    linear(context, layer.down, gate, h);
    add(context, x, h);
  }
  if (context.trace) context.trace->layer = -1;
  cache.n_past += int(n);
  if (rows == LogitRows::none) return {};

  const View2<float> scored = rows == LogitRows::all ? x : x.slice(n - 1, 1);
  const View2<float> normed = h.slice(0, scored.rows);
  rms_norm(context, scored, w.output_norm.data(), c.rms_eps, normed);
  const View2<float> logits(state.logits.ensure<float>(scored.rows * c.vocab_size), scored.rows, c.vocab_size);
  linear(context, w.output, normed, logits);
  return logits;
}

Work decode_work(const Config& c, const Weights& w, const KvCache& cache, int n_keys) {
  Work work;
  for (int i = 0; i < c.n_layers; ++i) {
    const LayerWeights& layer = w.layers[size_t(i)];
    for (const Linear* m : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      work += linear_work(*m, 1);
    work += attn_decode_work({.n_heads = c.n_heads,
                              .n_kv_heads = c.n_kv_heads,
                              .head_dim = c.head_dim,
                              .n_keys = n_keys,
                              .scale = 1,
                              .q = nullptr,
                              .k = cache.k(i).decode_side(n_keys),
                              .v = cache.v(i).decode_side(n_keys),
                              .out = nullptr});
  }
  work += linear_work(w.output, 1);
  return work;
}

}  // namespace ridge
