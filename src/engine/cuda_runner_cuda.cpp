// The forward pass on a GPU: one page that walks the plan, queued launch by launch or recorded as a graph.
#include <algorithm>
#include <cmath>

#include "engine/cuda_model.h"
#include "op/attn/attn.h"
#include "op/attn/device_attention.h"
#include "op/cache/append.h"
#include "op/delta/mamba_cuda.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {

using B = StepBuffer;
namespace {

constexpr size_t kMostGraphs = 64;

template <class T>
const T* fill(const gpu::Stream& stream, gpu::Buffer& buffer, const std::vector<T>& values) {
  T* const on_device = buffer.ensure<T>(ssize(values));
  gpu::upload(stream, on_device, values.data(), int64_t(values.size() * sizeof(T)));
  return on_device;
}

bool same_rows(const std::vector<StepRow>& a, const std::vector<StepRow>& b) {
  return std::ranges::equal(a, b, [](const StepRow& x, const StepRow& y) {
    return x.row == y.row && x.position == y.position && x.slot == y.slot && x.ring == y.ring;
  });
}

int next_power_of_two(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return n == 0 ? 0 : power;
}

}  // namespace

gpu::LoggedOp small_op(std::string_view op, int64_t n_floats, int layer) {
  return {.op = op, .layer = layer, .read_bytes = 4 * n_floats, .write_bytes = 4 * n_floats};
}

void activate(gpu::StreamHandle stream, Activation activation, int64_t n, float* gate, const float* up) {
  switch (activation) {
    case Activation::silu: return device_swiglu(stream, n, gate, up);
    case Activation::relu2: return device_relu2_glu(stream, n, gate, up);
    case Activation::gelu_tanh: return device_gelu_glu(stream, n, gate, up);
    case Activation::clamped_swiglu: return device_clamped_swiglu(stream, n, gate, up);
  }
}

std::vector<const void*> CudaRunner::places() const {
  std::vector<const void*> places;
  for (const gpu::Buffer& buffer : buffers_) places.push_back(buffer.as<void>());
  for (const void* place : matmul_scratch_.places()) places.push_back(place);
  for (const gpu::PinnedBuffer* rows : {&host_rows_.x, &host_rows_.experts, &host_rows_.weights, &host_rows_.sum})
    places.push_back(rows->as<void>());
  return places;
}

template <class Buffer, class Memory>
void reserve_step_buffers(StepWorkspace<Buffer>& r, const StepPlan& step, const ModelPlan& plan, const CudaModel& model,
                          const Memory& memory) {
  const int64_t n = step.n_rows();
  r[B::tokens].template ensure<int32_t>(n);
  r[B::rows].template ensure<StepRow>(ssize(step.rows));
  r[B::spans].template ensure<StepSpan>(std::max<int64_t>(n, ssize(step.spans)));
  r[B::n_spans].template ensure<int32_t>(ssize(step.sub_batches));
  r[B::blocks].template ensure<AttnBlock>(ssize(step.blocks));
  int64_t n_angles = 0;
  for (const Rope& rope : plan.ropes) n_angles += n * ssize(rope.frequency);
  r[B::cosines].ensure(std::max<int64_t>(1, n_angles));
  r[B::sines].ensure(std::max<int64_t>(1, n_angles));
  r[B::x].ensure(n * plan.d_model);
  if (model.join_hidden.bytes() > 0) {
    r[B::join].ensure(n * plan.d_model);
    r[B::hidden].ensure(n * plan.d_model);
  }
  r[B::q].ensure(n * plan.q_dim());
  r[B::attn].ensure(n * plan.q_dim());
  r[B::ff].ensure(2 * n * plan.d_ff());  // gate and up, where they are not one matmul
  if (!std::ranges::all_of(plan.layers, adds_at_once)) r[B::block].ensure(n * plan.d_model);
  r[B::sequences].template ensure<DeltaSpan>(ssize(step.sequences));
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan& layer = plan.layers[i];
    if (layer.mixer == MixerKind::latent) r[B::latent].ensure(LatentOffsets(layer, n).end);
    r[B::qkv].ensure(n * (layer.attention.q_rows() + 2 * layer.attention.kv_dim()));
    const DeltaPlan& d = layer.delta;
    if (layer.mixer == MixerKind::delta) {
      // qkv, z, a, b and what comes of them
      r[B::delta].ensure(2 * n * (d.channels() + d.values() + d.n_value_heads) + 24 +
                         step.n_delta_chunks * d.n_value_heads * kDeltaChunkFloats);
    }
    if (layer.mixer == MixerKind::conv) r[B::delta].ensure(4 * n * layer.conv.channels);
    if (layer.mixer == MixerKind::mamba) {
      const MambaPlan& m = layer.mamba;
      r[B::delta].ensure(n * (m.columns() + m.channels() + m.inner()) + 12 +
                         step.n_delta_chunks * m.n_heads * kMambaChunkFloats);
    }
    if (plan.layer_norm) r[B::h].ensure(n * plan.d_model);
    if (layer.d_input > 0) {
      for (const StepBuffer of : {B::layer_inputs, B::layer_embedded})
        r[of].ensure(n * ssize(plan.layers) * layer.d_input);
      r[B::layer_gate].ensure(2 * n * layer.d_input);
    }
    const ExpertsPlan& e = layer.experts;
    if (layer.feed_forward != FeedForwardKind::experts) continue;
    const ExpertChoice choice{.n_tokens = n, .n_experts = e.n_experts, .n_used = e.rule.n_used, .shared = e.shared};
    r[B::h].ensure(n * plan.d_model);
    if (e.shared) r[B::shared].ensure(n * plan.d_model);
    r[B::scores].ensure(n * choice.n_scores());
    r[B::expert_weights].ensure(choice.n_slots());
    r[B::expert_numbers].template ensure<int32_t>(choice.n_slots());
    r[B::packs].template ensure<ExpertPack>(choice.n_packs());
    const bool summed = e.on_host && (step.recorded || !streams_experts(model.layers[i], e, n));
    const bool keeps = summed && keeps_experts(e, n);
    if (keeps) r[B::expert_places].template ensure<int32_t>(choice.n_slots());
    r[B::expert_out].ensure(((summed ? n : 0) + (summed && !keeps ? 0 : choice.n_slots())) * plan.d_model);
    if (!summed || keeps) {
      r[B::expert_gate].ensure(choice.n_slots() * e.d_ff);
      r[B::expert_up].ensure(choice.n_slots() * e.d_ff);
    }
    if (summed) continue;
    r[B::expert_counts].template ensure<int32_t>(choice.n_scores());
    r[B::areas].template ensure<int32_t>(1);
    r[B::area_experts].template ensure<int32_t>(choice.n_areas());
    r[B::area_columns].template ensure<int32_t>(choice.n_areas() * group_columns());
    r[B::slot_columns].template ensure<int32_t>(choice.n_slots());
  }
  if (!step.logits_in_order) {
    r[B::logit_rows].template ensure<int32_t>(ssize(step.logit_rows));
    r[B::logit_x].ensure(ssize(step.logit_rows) * plan.d_model);
  }
  for (const SubBatch& sub : step.sub_batches) {
    for (const auto& [key, blocks] : sub.blocks) {
      r[B::attn_scratch].template ensure<std::byte>(
          prefill_attn_scratch_bytes(blocks.part_rows, key.n_kv_heads, key.head_dim));
      r[B::turned_tiles].template ensure<std::byte>(turned_tile_bytes(blocks.n_turned, key.n_kv_heads, key.head_dim));
    }
    for (int layer = 0; layer < memory.n_layers(); ++layer) {
      const AttentionPlan& a = plan.layers[size_t(layer)].attention;
      if (a.n_heads == 0) continue;
      if (!sub.is_long && memory.in_fragments(layer) && memory.tiles(layer, KvSide::k).turn.n_pairs > 0)
        r[B::q_weights].ensure(n * plan.q_dim());
      if (!sub.is_long && memory.in_fragments(layer))
        r[B::attn_scratch].template ensure<std::byte>(
            tile_attn_scratch_bytes(sub.n_rows, a.n_heads, a.n_kv_heads, a.head_dim, tile_attn_blocks(), step.alone));
      if (!sub.is_long) continue;
      const auto ring = [&](Buffer& buffer, const KvTiles& t) {
        buffer.template ensure<std::byte>(int64_t(sub.n_spans) * t.n_kv_heads * sub.ring_tiles * t.ring_tile_bytes +
                                          64);
      };
      ring(r[B::k_ring], memory.tiles(layer, KvSide::k));
      ring(r[B::v_ring], memory.tiles(layer, KvSide::v));
    }
  }
}

template void reserve_step_buffers(StepWorkspace<gpu::Buffer>&, const StepPlan&, const ModelPlan&, const CudaModel&,
                                   const DeviceKvMemory&);
template void reserve_step_buffers(StepWorkspace<gpu::PlannedBuffer>&, const StepPlan&, const ModelPlan&,
                                   const CudaModel&, const PlannedSides&);

CudaRunner::CudaRunner(int device, const ModelPlan& plan, const Weights& weights, const DeviceOptions& options,
                       std::optional<CudaRank> rank)
    : device_(device),
      plan_(plan),
      options_(options),
      rank_(std::move(rank)),
      model_(stream_, plan_, weights, options.kernels) {
  if (std::ranges::none_of(plan_.layers, [](const LayerPlan& layer) { return layer.experts.on_host; })) return;
  RIDGE_CHECK(options_.host, "experts in host memory, and no CPU that computes them");
  host_experts_.emplace(*options_.host, plan_, weights);
  expert_stream_.emplace(*options_.host, plan_, weights);
  for (size_t i = 0; i < plan_.layers.size(); ++i) {
    const ExpertsPlan& e = plan_.layers[i].experts;
    if (e.n_cached == 0) continue;
    expert_use_.try_emplace(int(i), e.n_experts, e.rule.n_used, e.n_cached);
    upload_places(int(i));
  }
}

StepRows CudaRunner::rows_of(const SubBatch& sub, const DeviceKvMemory& memory, PageClass pages) const {
  return {.n = sub.n_rows,
          .most = sub.most,
          .rows = buffers_[B::rows].as<StepRow>() + sub.first_row,
          .pages = memory.page_table(pages),
          .page_pitch = memory.n_pages()};
}

void CudaRunner::upload(const StepPlan& step, std::span<const int32_t> tokens, View2<const float> joined) {
  if (model_.join_hidden.bytes() > 0) {
    RIDGE_CHECK(joined.rows == step.n_tokens && joined.cols == plan_.d_model, "hidden states [{}, {}] for {} tokens",
                joined.rows, joined.cols, step.n_tokens);
    gpu::upload(stream_, buffers_[B::hidden].as<void>(), joined.data, 4 * joined.rows * joined.cols);
  }
  if (!tokens.empty()) gpu::upload(stream_, buffers_[B::tokens].as<void>(), tokens.data(), 4 * ssize(tokens));
  if (!same_rows(rows_there_, step.rows)) {
    fill(stream_, buffers_[B::rows], step.rows);
    rows_there_ = step.rows;
  }
  if (!step.logits_in_order) fill(stream_, buffers_[B::logit_rows], step.logit_rows);
  upload_lists(step);
}

/// Takes the inputs of a step that kernels write, in place of upload().
void CudaRunner::take(const StepPlan& step, const FedInputs& fed) {
  RIDGE_CHECK(step.recorded, "a step of {} rows that the device places", step.n_tokens);
  const bool asks = !step.logits_in_order && !step.logit_rows.empty();
  fed.write({.tokens = buffers_[B::tokens].as<int32_t>(),
             .rows = buffers_[B::rows].as<StepRow>(),
             .n_rows = int(step.rows.size()),
             .logit_rows = asks ? buffers_[B::logit_rows].ensure<int32_t>(ssize(step.logit_rows)) : nullptr,
             .hidden = buffers_[B::hidden].as<float>()});
  rows_there_.clear();
  upload_lists(step);
}

/// Uploads the lists that depend on the shape of a step.
void CudaRunner::upload_lists(const StepPlan& step) {
  upload_head_packs(step.n_rows());
  if (buffers_[B::delta].bytes() > 0 && sequences_there_ != step.sequences) {
    fill(stream_, buffers_[B::sequences], step.sequences);
    sequences_there_ = step.sequences;
  }
  fill(stream_, buffers_[B::blocks], step.blocks);
  if (step.recorded) return;
  fill(stream_, buffers_[B::spans], step.spans);
  fill(stream_, buffers_[B::n_spans], step.n_spans);
}

/// Embeddings; of an MTP head what its layer reads.
void CudaRunner::embed(const int32_t* tokens, int64_t n) {
  const bool joins = model_.join_hidden.bytes() > 0;
  {
    const gpu::OpRange range([&] { return small_op("embed", n * plan_.d_model); });
    device_embed(stream_, n, tokens, model_.embedding, (joins ? buffers_[B::join] : buffers_[B::x]).as<float>());
  }
  if (model_.layer_inputs.bytes() > 0) embed_for_layers(tokens, n);
  if (!joins) return;
  MatmulCall call{.n_tokens = n,
                  .x = buffers_[B::join].as<float>(),
                  .norm_weight = model_.join_embedding_norm.as<float>(),
                  .norm_eps = plan_.norm_eps,
                  .y = {buffers_[B::x].as<float>()}};
  model_.join_embedding.run(stream_, call, matmul_scratch_);
  call.x = buffers_[B::hidden].as<float>();
  call.norm_weight = model_.join_hidden_norm.as<float>();
  call.output = MatmulOutput::add;
  model_.join_hidden.run(stream_, call, matmul_scratch_);
}

/// Computes the layers' own inputs from the tokens, whose embeddings are in x: (norm(layer_inputs x / sqrt(d_model)) +
/// its embedding sqrt(d_input)) / sqrt(2), the norm over each layer's values.
void CudaRunner::embed_for_layers(const int32_t* tokens, int64_t n) {
  const int64_t d = plan_.layers[0].d_input, width = ssize(plan_.layers) * d;
  auto *const inputs = buffers_[B::layer_inputs].as<float>(), *const rows = buffers_[B::layer_embedded].as<float>();
  model_.layer_inputs.run(stream_, {.n_tokens = n, .x = buffers_[B::x].as<float>(), .y = {inputs}}, matmul_scratch_);
  const gpu::OpRange range([&] { return small_op("embed", 2 * n * width); });
  // Scale eps by d_model, since these values were not divided by sqrt(d_model) before the norm.
  const float eps = plan_.norm_eps * float(plan_.d_model);
  device_rms_norm(stream_, n * ssize(plan_.layers), d, inputs, model_.layer_inputs_norm.as<float>(), eps, inputs);
  device_embed(stream_, n, tokens, model_.layer_embedding, rows);
  device_add(stream_, n * width, inputs, rows, std::sqrt(float(d) / 2));
}

/// x += norm(input_proj(gelu(input_gate x) * what the layer gets of the token)).
void CudaRunner::take_input(int i, const StepPlan& step) {
  const CudaLayer& layer = model_.layers[size_t(i)];
  const int64_t n = step.n_rows(), d = plan_.layers[size_t(i)].d_input;
  auto *const x = buffers_[B::x].as<float>(), *const block = buffers_[B::block].as<float>(),
              *const gate = buffers_[B::layer_gate].as<float>(), *const inputs = gate + n * d;
  MatmulCall call{.n_tokens = n, .x = x, .y = {gate}, .layer = i};
  layer.input_gate.run(stream_, call, matmul_scratch_);
  {
    const gpu::OpRange range([&] { return small_op("activation", 3 * n * d, i); });
    device_copy_columns(stream_, n, d, buffers_[B::layer_inputs].as<float>() + i * d, ssize(plan_.layers) * d, inputs);
    device_gelu_glu(stream_, n * d, gate, inputs);
  }
  call.x = gate;
  call.y[0] = block;
  layer.input_proj.run(stream_, call, matmul_scratch_);
  const gpu::OpRange range([&] { return small_op("residual", n * plan_.d_model, i); });
  device_add_normed(stream_, n, plan_.d_model, x, block, layer.input_post_norm.as<float>(), plan_.norm_eps, 1);
}

/// Angles of the rows, tiles that leave, and the embedding. It comes last: a plain launch, so that its successors find
/// all the others' results in memory however early they start.
void CudaRunner::begin(const StepPlan& step, DeviceKvMemory& memory) {
  const auto n_rows = ssize(step.rows);
  const StepRows rows{.n = int(n_rows), .rows = buffers_[B::rows].as<StepRow>()};  // their pages are not looked at
  {
    const gpu::OpRange range([&] { return small_op("rope", n_rows * plan_.ropes[0].frequency.size()); });
    int64_t at = 0;
    for (const CudaRope& rope : model_.ropes) {
      device_rope_angles(stream_, rows, rope.n_pairs, rope.frequency.as<double>(), rope.magnitude,
                         buffers_[B::cosines].as<float>() + at, buffers_[B::sines].as<float>() + at);
      at += n_rows * rope.n_pairs;
    }
  }
  if (memory.slots().n_histories > 0 && buffers_[B::delta].bytes() > 0) {
    const gpu::OpRange range([&] { return small_op("other", ssize(step.sequences)); });
    device_place_spans(stream_, buffers_[B::sequences].as<DeltaSpan>(), int(step.sequences.size()), rows.rows);
  }
  if (step.recorded && step.n_leaving > 0) {
    const gpu::OpRange range([&] { return small_op("append", n_rows); });
    device_list_leaving(stream_, rows, memory.retentions(), buffers_[B::spans].as<StepSpan>(),
                        buffers_[B::n_spans].as<int32_t>());
    for (const SideGroup& group : memory.groups())
      encode_leaving(stream_, {.n_sides = group.n_sides,
                               .sides = group.tiles.as<KvTiles>(),
                               .in_fragments = group.in_fragments,
                               .weighs = group.weighs,
                               .n_kv_heads = group.n_kv_heads,
                               .head_dim = group.head_dim,
                               .spans = buffers_[B::spans].as<StepSpan>(),
                               .n_spans = buffers_[B::n_spans].as<int32_t>(),
                               .most_spans = next_power_of_two(step.n_leaving),
                               .pages = memory.page_table(group.pages),
                               .page_pitch = memory.n_pages()});
  }
}

MatmulCall CudaRunner::block_in(int i, const StepPlan& step, const gpu::Buffer& norm) const {
  const bool normed = plan_.layers[size_t(i)].norms != NormPlace::after;
  MatmulCall call{.n_tokens = step.n_rows(),
                  .x = buffers_[B::x].as<float>(),
                  .norm_weight = normed ? norm.as<float>() : nullptr,
                  .norm_eps = plan_.norm_eps,
                  .overlap = step.overlap,
                  .layer = i};
  if (!plan_.layer_norm) return call;
  auto* const h = buffers_[B::h].as<float>();
  if (norm.bytes() > 0) {  // else blocks are parallel, and the mixer has read the same
    const gpu::OpRange range([&] { return small_op("norm", call.n_tokens * plan_.d_model, i); });
    device_layer_norm(stream_, call.n_tokens, plan_.d_model, call.x, call.norm_weight, call.norm_eps, h);
  }
  call.x = h;
  call.norm_weight = nullptr;
  return call;
}

MatmulCall CudaRunner::block_out(int i, const StepPlan& step) const {
  MatmulCall call{.n_tokens = step.n_rows(),
                  .norm_eps = plan_.norm_eps,
                  .output = MatmulOutput::store,
                  .y = {buffers_[B::block].as<float>()},
                  .overlap = step.overlap,
                  .layer = i};
  if (gathers()) {
    call.y[0] = buffers_[B::columns].as<float>();
  } else if (adds_at_once(plan_.layers[size_t(i)])) {  // of several ranks, one adds to the residual stream
    call.y[0] = buffers_[B::x].as<float>();
    if (!rank_ || rank_->is_first()) call.output = MatmulOutput::add;
  }
  return call;
}

const float* CudaRunner::gather_input(const float* x, int64_t n, const std::vector<int64_t>& borders) {
  if (!gathers()) return x;
  const gpu::OpRange range([&] { return small_op("gather", n * borders.back()); });
  auto* const whole = buffers_[B::whole].as<float>();
  rank_->stage->gather_columns(stream_, x, n, borders, whole, false);
  return whole;
}

void CudaRunner::join_block(int i, const StepPlan& step) {
  const bool at_once = adds_at_once(plan_.layers[size_t(i)]);
  const int64_t n = step.n_rows(), n_values = n * plan_.d_model;
  if (gathers()) {
    const gpu::OpRange range([&] { return small_op("gather", n_values, i); });
    auto* const block = buffers_[B::block].as<float>();
    rank_->stage->gather_columns(stream_, buffers_[B::columns].as<float>(), n, rank_->slice.model, block, false);
    if (at_once) device_add(stream_, n_values, buffers_[B::x].as<float>(), block, 1);
  } else {
    const gpu::OpRange range([&] { return small_op("all_reduce", n_values, i); });
    rank_->stage->all_reduce(stream_, (at_once ? buffers_[B::x] : buffers_[B::block]).as<float>(), n_values,
                             step.overlap);
  }
}

void CudaRunner::end_block(int i, const StepPlan& step, const gpu::Buffer& post_norm) {
  const LayerPlan& layer = plan_.layers[size_t(i)];
  if (rank_ && rank_->stage) join_block(i, step);
  if (adds_at_once(layer)) return;
  const int64_t n = step.n_rows();
  const gpu::OpRange range([&] { return small_op("residual", n * plan_.d_model, i); });
  auto *x = buffers_[B::x].as<float>(), *block = buffers_[B::block].as<float>();
  if (layer.norms == NormPlace::before || layer.norms == NormPlace::parallel)
    device_add(stream_, n * plan_.d_model, x, block, layer.residual_scale);
  else
    device_add_normed(stream_, n, plan_.d_model, x, block, post_norm.as<float>(), plan_.norm_eps, layer.residual_scale);
}

void CudaRunner::pass_border(int i, int64_t n) {
  if (!rank_ || i == 0 || rank_->slice.stage_of(i - 1) == rank_->slice.stage_of(i)) return;
  DeviceLink* const link = has_layer(i) ? rank_->before : has_layer(i - 1) ? rank_->after : nullptr;
  if (!link) return;
  const gpu::OpRange range([&] { return small_op("border", n * plan_.d_model, i); });
  const int64_t borders[] = {0, plan_.d_model, plan_.d_model};  // the stage before has all columns
  auto* const x = buffers_[B::x].as<float>();
  link->gather_columns(stream_, x, n, borders, x, false);
}

void CudaRunner::hand_to_all(int i, int64_t n) {
  if (!rank_ || rank_->slice.n_stages == 1) return;
  const ModelSlice& slice = rank_->slice;
  const gpu::OpRange range([&] { return small_op("border", n * plan_.d_model); });
  std::vector<int64_t> borders(size_t(slice.n_ranks()) + 1, 0);  // the first rank of that stage has all columns
  std::fill(borders.begin() + slice.stage_of(i) * slice.size + 1, borders.end(), plan_.d_model);
  auto* const x = buffers_[B::x].as<float>();
  rank_->all->gather_columns(stream_, x, n, borders, x, false);
}

void CudaRunner::feed_forward(int i, const StepPlan& step) {
  if (plan_.layers[size_t(i)].feed_forward == FeedForwardKind::none) return;
  if (plan_.layers[size_t(i)].feed_forward == FeedForwardKind::experts) return experts(i, step);
  const CudaLayer& layer = model_.layers[size_t(i)];
  dense(i, block_in(i, step, layer.ffn_norm), block_out(i, step));
  end_block(i, step, layer.ffn_post_norm);
}

/// The gated feed-forward: `in` lacks its output, `out` its input.
void CudaRunner::dense(int i, const MatmulCall& in, const MatmulCall& out) {
  const DensePlan& plan = plan_.layers[size_t(i)].dense;
  const CudaLayer& layer = model_.layers[size_t(i)];
  const bool fused = is_fused(plan);
  auto *gate = buffers_[B::ff].as<float>(), *up = gate + in.n_tokens * plan.d_ff;
  MatmulCall call = in;
  if (fused) call.output = plan.activation == Activation::relu2 ? MatmulOutput::relu2_glu : MatmulOutput::silu_glu;
  call.y[0] = gate;
  call.y[1] = fused ? nullptr : up;
  layer.gate_up.run(stream_, call, matmul_scratch_);
  if (!plan.gated) {
    const gpu::OpRange range([&] { return small_op("activation", in.n_tokens * plan.d_ff, i); });
    device_relu2(stream_, in.n_tokens * plan.d_ff, gate);
  } else if (!fused) {
    const gpu::OpRange range([&] { return small_op("activation", 2 * in.n_tokens * plan.d_ff, i); });
    activate(stream_, plan.activation, in.n_tokens * plan.d_ff, gate, up);
  }
  call = out;
  call.x = gather_input(gate, in.n_tokens, rank_ ? rank_->slice.ff : kNoBorders);
  call.norm_weight = plan.down_norm ? layer.ffn_sub_norm.as<float>() : nullptr;
  layer.down.run(stream_, call, matmul_scratch_);
}

/// Hands the residual stream to whoever watches, and takes it back.
void CudaRunner::show_block(int layer, Block block, int64_t n) {
  if (!on_block_) return;
  hand_to_all(std::min(layer, int(plan_.layers.size()) - 1), n);
  std::vector<float> host(size_t(n * plan_.d_model));
  gpu::download(stream_, host.data(), buffers_[B::x].as<void>(), 4 * ssize(host));
  stream_.synchronize();
  on_block_(layer, block, {host.data(), n, plan_.d_model});
  gpu::upload(stream_, buffers_[B::x].as<void>(), host.data(), 4 * ssize(host));
  stream_.synchronize();
}

void CudaRunner::mix(int i, const StepPlan& step, DeviceKvMemory& memory) {
  switch (plan_.layers[size_t(i)].mixer) {
    case MixerKind::attention: return attend(i, step, memory);
    case MixerKind::delta: return mix_delta(i, step, memory);
    case MixerKind::latent: return attend_latent(i, step, memory);
    case MixerKind::conv: return mix_conv(i, step, memory);
    case MixerKind::mamba: return mix_mamba(i, step, memory);
    case MixerKind::none: return;
  }
}

/// Computes logits. With several ranks, each one computes those of its rows of the output matrix, if it has any, and
/// gathers all.
void CudaRunner::output(const StepPlan& step, float* logits) {
  const int64_t n_logits = step.n_logits();
  if (model_.output.bytes() > 0) {
    const float* x = buffers_[B::x].as<float>();
    if (!step.logits_in_order) {
      const gpu::OpRange range([&] { return small_op("other", n_logits * plan_.d_model); });
      device_gather_rows(stream_, n_logits, plan_.d_model, buffers_[B::logit_rows].as<int32_t>(), x,
                         buffers_[B::logit_x].as<float>());
      x = buffers_[B::logit_x].as<float>();
    }
    const float* norm = model_.output_norm.as<float>();
    if (plan_.layer_norm) {
      const gpu::OpRange range([&] { return small_op("norm", n_logits * plan_.d_model); });
      device_layer_norm(stream_, n_logits, plan_.d_model, x, norm, plan_.norm_eps, buffers_[B::h].as<float>());
      x = buffers_[B::h].as<float>();
      norm = nullptr;
    }
    model_.output.run(stream_,
                      {.n_tokens = n_logits,
                       .x = x,
                       .norm_weight = norm,
                       .norm_eps = plan_.norm_eps,
                       .y = {rank_ ? buffers_[B::own_logits].as<float>() : logits},
                       .overlap = step.overlap && step.logits_in_order},
                      matmul_scratch_);
  }
  if (rank_) {
    const gpu::OpRange range([&] { return small_op("gather", n_logits * plan_.vocab_size); });
    rank_->all->gather_columns(stream_, buffers_[B::own_logits].as<float>(), n_logits, rank_->slice.vocab, logits,
                               false);
  }
  if (plan_.logit_cap > 0) device_soft_cap(stream_, n_logits * plan_.vocab_size, logits, plan_.logit_cap);
}

void CudaRunner::queue(const StepPlan& step, DeviceKvMemory& memory, const int32_t* tokens, float* logits,
                       SamplingWorkspace* workspace) {
  const int64_t n = step.n_rows();
  begin(step, memory);
  if (has_layer(0)) embed(tokens, n);
  for (int i = 0; i < ssize(plan_.layers); ++i) {
    pass_border(i, n);
    show_block(i, Block::mixer, step.n_tokens);
    if (has_layer(i)) mix(i, step, memory);
    show_block(i, Block::feed_forward, step.n_tokens);
    if (has_layer(i)) feed_forward(i, step);
    if (has_layer(i) && plan_.layers[size_t(i)].d_input > 0) take_input(i, step);
    if (has_layer(i) && plan_.layers[size_t(i)].scaled)
      device_scale(stream_, n * plan_.d_model, buffers_[B::x].as<float>(),
                   model_.layers[size_t(i)].layer_scale.as<float>());
  }
  show_block(int(plan_.layers.size()), Block::output, step.n_tokens);
  if (step.n_logits() > 0) output(step, logits);
  if (!workspace) return;
  {
    const gpu::OpRange range([&] { return small_op("sample", step.n_logits() * plan_.vocab_size); });
    workspace->sampler.sample(stream_, logits, workspace->tokens.as<int32_t>(), workspace->ring.view());
  }
  const gpu::OpRange range([&] { return small_op("other", n); });
  device_next_position(stream_, int(ssize(step.rows)), buffers_[B::rows].as<StepRow>());
}

void CudaRunner::run(const Batch& batch, const SequencePool& pool, DeviceKvMemory& memory, CudaOutputs& outputs,
                     SamplingWorkspace* workspace, const FedInputs* fed) {
  gpu::use_device(device_);
  if (host_experts_) host_experts_->rethrow();
  n_ctx_ = pool.n_ctx();
  StepPlan step = plan_step(batch, pool, memory, plan_,
                            {.reach = fed ? fed->reach : std::span<const int>(), .least_rows = options_.least_rows});
  step.recorded = step.recorded && !on_block_;  // what the host does between launches shall stay in between
  step.overlap = step.recorded && options_.overlap && !host_experts_;
  if (!expert_use_.empty()) exchange_experts(step);
  float* const logits = outputs.reserve(ssize(step.logit_rows), step.n_logits());
  {
    const gpu::MemoryLabel label(gpu::MemoryOf::activations);
    reserve_step_buffers(buffers_, step, plan_, model_, memory);
    if (rank_) reserve_rank_buffers(step.n_rows(), step.n_logits());
    if (host_experts_) reserve_host_rows(step.n_rows());
  }
  const gpu::MemoryLabel label(gpu::MemoryOf::scratch);
  if (fed) take(step, *fed);
  else upload(step, workspace ? std::span<const int32_t>() : batch.tokens, batch.joined);
  const int32_t* const tokens = (workspace ? workspace->tokens : buffers_[B::tokens]).as<int32_t>();
  if (rank_) rank_->meet();
  const auto queue_all = [&] { queue(step, memory, tokens, logits, workspace); };
  if (!step.recorded) {
    queue_all();
  } else {
    const DeviceSampler::Needs needs = workspace ? workspace->sampler.needs() : DeviceSampler::Needs{};
    const SubBatch& sub = step.sub_batches[0];
    std::vector<int64_t> key{int64_t(memory.serial()),
                             sub.n_rows,
                             sub.most,
                             step.n_logits(),
                             step.logits_in_order,
                             next_power_of_two(step.n_leaving),
                             int64_t(workspace),
                             2 * int64_t(needs.kind) + needs.penalty};
    for (const auto& [layers, blocks] : sub.blocks) key.push_back(blocks.n);
    if (recorded_.size() >= kMostGraphs && !recorded_.contains(key)) {
      std::erase_if(recorded_, [&](const auto& of) { return of.first[0] != key[0]; });  // of other memories
      if (recorded_.size() >= kMostGraphs) recorded_.clear();
    }
    replay(recorded_[key], logits, queue_all);
  }
  logit_hidden_ = (step.logits_in_order ? buffers_[B::x] : buffers_[B::logit_x]).as<float>();
  if (batch.hidden) {
    hand_to_all(int(plan_.layers.size()) - 1, step.n_tokens);
    outputs.keep_hidden(buffers_[B::x], step.n_tokens, plan_.d_model);
  }
  if (workspace)
    for (StepRow& row : rows_there_) row.position += 1;
}

/// Buffers that steps of several ranks have beside others, and the matmuls' scratch.
void CudaRunner::reserve_rank_buffers(int64_t n, int64_t n_logits) {
  const ModelSlice& slice = rank_->slice;
  buffers_[B::own_logits].ensure(n_logits * slice.own_vocab().count);
  if (slice.whole.qk_norm_whole) buffers_[B::squares].ensure(2 * n);
  if (slice.gathers) {
    buffers_[B::whole].ensure(n * std::max(slice.q.back(), slice.ff.back()));
    buffers_[B::columns].ensure(n * slice.count(slice.model));
    buffers_[B::block].ensure(n * plan_.d_model);
  }
  if (!planned_.emplace(n, n_logits).second) return;
  const gpu::MemoryLabel label(gpu::MemoryOf::scratch);
  PlannedScratch scratch;
  plan_matmuls(plan_, model_, n, n_logits, scratch);
  matmul_scratch_.reserve(scratch);
}

/// Rows that experts in host memory read and make.
void CudaRunner::reserve_host_rows(int64_t n) {
  int64_t most_used = 0;
  for (const LayerPlan& layer : plan_.layers)
    if (layer.experts.on_host) most_used = std::max<int64_t>(most_used, layer.experts.rule.n_used);
  if (4 * n * plan_.d_model > host_rows_.x.bytes()) stream_.synchronize();  // queued steps still use those there are
  host_rows_.x.ensure(n * plan_.d_model);
  host_rows_.experts.ensure<int32_t>(n * most_used);
  host_rows_.weights.ensure(n * most_used);
  host_rows_.sum.ensure(n * plan_.d_model);
}

/// Runs a step that may have been recorded. Recorded steps name the memory that they ran in: when that has grown since,
/// they are recorded again.
void CudaRunner::replay(Recorded& step, const float* logits, const std::function<void()>& queue) {
  const auto queue_logged = [&] {
    step.log = {};
    const gpu::LogLaunches log(&step.log);
    queue();
  };
  const auto places = [&] {
    std::vector<const void*> now = this->places();
    now.push_back(logits);
    return now;
  };
  if (!step.ran) {  // buffers may grow
    queue_logged();
    step.ran = true;
  } else {
    if (!step.graph || step.places != places()) {
      step.graph = gpu::Graph(stream_, queue_logged);
      step.places = places();
    }
    step.graph.launch(stream_);
  }
  if (gpu::LaunchLog* log = gpu::launch_log()) log->append(step.log);
}

void CudaRunner::sample(const CudaOutputs& outputs, SamplingWorkspace& workspace) {
  gpu::use_device(device_);
  const gpu::OpRange range([&] { return small_op("sample", outputs.n_rows() * plan_.vocab_size); });
  workspace.sampler.sample(stream_, outputs.on_device(), workspace.tokens.as<int32_t>(), workspace.ring.view());
}

}  // namespace ridge
