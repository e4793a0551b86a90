// Attention over a KV cache on a device: a step's rows into the cache, and what its queries make of it.
#include <algorithm>
#include <array>

#include "engine/cuda_model.h"
#include "op/attn/attn.h"
#include "op/attn/device_attention.h"
#include "op/cache/append.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {

using B = StepBuffer;
namespace {

gpu::LoggedOp cache_op(std::string_view op, const KvTiles& k, const KvTiles& v, int layer, const Work& work) {
  const auto name = [](const KvTiles& t) { return kv_formats()[size_t(t.format)].name; };
  return {.op = op,
          .what = fmt::format("{}/{}", name(k), name(v)),
          .layer = layer,
          .read_bytes = work.read_bytes,
          .write_bytes = work.write_bytes,
          .flops = work.flops};
}

}  // namespace

void CudaRunner::attend_sub_batch(int i, const StepPlan& step, const SubBatch& sub, DeviceKvMemory& memory) {
  const AttentionPlan& plan = plan_.layers[size_t(i)].attention;
  const CudaLayer& layer = model_.layers[size_t(i)];
  const bool reads_other = plan.kv_layer >= 0;
  const int from = plan.kept_by(i);  // the layer whose K and V these are
  const bool is_latent = plan_.layers[size_t(i)].mixer == MixerKind::latent;
  const StepRows rows = rows_of(sub, memory, memory.page_class(from));
  const StepSpan* const spans = buffers_[B::spans].as<StepSpan>() + sub.first_span;
  const int32_t* const n_spans = buffers_[B::n_spans].as<int32_t>() + (&sub - step.sub_batches.data());
  const bool in_fragments = memory.in_fragments(from);
  const int64_t n = step.n_rows();
  const KvTiles own[2] = {memory.tiles(from, KvSide::k), memory.tiles(from, KvSide::v)};
  KvTiles sides[2] = {own[0], own[1]};
  if (sub.is_long)  // the exact rows of a prompt are in a ring of the step
    for (KvTiles& t : sides) {
      if (t.ring_tiles == 0) continue;
      t.ring = (t.side == KvSide::k ? buffers_[B::k_ring] : buffers_[B::v_ring]).as<std::byte>();
      t.ring_tiles = sub.ring_tiles;
    }

  // [n, q_rows], [n, kv_dim], [n, kv_dim]: for one row joint.
  const float *q = buffers_[B::qkv].as<float>(), *k = q + n * plan.q_rows(), *v = k + n * plan.kv_dim();
  const auto rope_index = size_t(plan_.rope_of(plan, n_ctx_));
  const CudaRope& rope = model_.ropes[rope_index];
  int64_t angles = int64_t(sub.first_row) * rope.n_pairs;
  for (size_t before = 0; before < rope_index; ++before) angles += ssize(step.rows) * model_.ropes[before].n_pairs;
  const bool head_norm = plan.qk_norm && !plan.qk_norm_whole && !plan.qk_norm_after_rope;
  float* const q_weights =
      in_fragments && !sub.is_long && own[0].turn.n_pairs > 0 ? buffers_[B::q_weights].as<float>() : nullptr;
  {
    const gpu::OpRange range(
        [&] { return cache_op("append", own[0], own[1], i, kv_append_work(own[0], own[1], sub.n_rows)); });
    if (sub.is_long) copy_ring_tiles(stream_, own, sides, spans, sub.n_spans, RingCopy::in);
    if (plan.qk_norm_after_rope) {
      TurnedHeads heads{.rows = rows,
                        .n_heads = plan.n_heads,
                        .head_dim = plan.head_dim,
                        .norm = layer.q_norm.as<float>(),
                        .norm_eps = plan_.norm_eps,
                        .cosines = buffers_[B::cosines].as<float>() + angles,
                        .sines = buffers_[B::sines].as<float>() + angles,
                        .n_pairs = rope.n_pairs,
                        .rope_halves = rope.halves,
                        .x = buffers_[B::qkv].as<float>()};
      device_turn_and_norm(stream_, heads);
      heads.x += n * plan.q_rows();
      heads.n_heads = plan.n_kv_heads;
      heads.norm = layer.k_norm.as<float>();
      if (!reads_other) device_turn_and_norm(stream_, heads);
    }
    if (is_latent) device_append_latent(stream_, latent_append(i, n, rows, sides[0], angles));
    else
      device_append(stream_, {.rows = rows,
                              .n_heads = plan.n_heads,
                              .k_tiles = sides[0],
                              .v_tiles = sides[1],
                              .q = q,
                              .k = k,
                              .v = v,
                              .q_pitch = plan.q_rows(),
                              .k_pitch = plan.kv_dim(),
                              .v_pitch = plan.kv_dim(),
                              .q_norm = head_norm ? layer.q_norm.as<float>() : nullptr,
                              .k_norm = head_norm ? layer.k_norm.as<float>() : nullptr,
                              .norm_eps = plan_.norm_eps,
                              .cosines = buffers_[B::cosines].as<float>() + angles,
                              .sines = buffers_[B::sines].as<float>() + angles,
                              .n_pairs = plan.qk_norm_after_rope ? 0 : rope.n_pairs,
                              .rope_halves = rope.halves,
                              .q_out = buffers_[B::q].as<float>(),
                              .q_weights = q_weights,
                              .overlap = step.overlap && in_fragments,
                              .queries_only = reads_other});
    if (sub.calibrates)
      for (const KvTiles& side : sides) device_calibrate(stream_, side, rows);
    if (!step.recorded)
      encode_leaving(stream_, {.n_sides = is_latent ? 1 : 2,
                               .pair = {sides[0], sides[1]},
                               .in_fragments = in_fragments,
                               .weighs = sides[0].metric || sides[1].metric,
                               .n_kv_heads = plan.n_kv_heads,
                               .head_dim = plan.head_dim,
                               .spans = spans,
                               .n_spans = n_spans,
                               .most_spans = sub.n_spans,
                               .most_tiles = sub.leaving_tiles,
                               .pages = rows.pages,
                               .page_pitch = rows.page_pitch});
    if (sub.is_long) copy_ring_tiles(stream_, own, sides, spans, sub.n_spans, RingCopy::out);
  }
  const gpu::OpRange range([&] {
    return cache_op("attention", own[0], own[1], i,
                    attention_work({.n_heads = plan.n_heads, .k = own[0], .v = own[1], .spans = sub.kv_spans}));
  });
  const DeviceAttention attention{.rows = rows,
                                  .n_heads = plan.n_heads,
                                  .scale = plan.scale,
                                  .sink_logits = plan.sink_logits ? layer.sink_logits.as<float>() : nullptr,
                                  .k = sides[0],
                                  .v = sides[is_latent ? 0 : 1],
                                  .q = buffers_[B::q].as<float>(),
                                  .q_weights = q_weights,
                                  .out = buffers_[B::attn].as<float>()};
  const BlockKernel kernel = block_kernel(sides[0], sides[1]);
  const int n_out = is_latent ? plan_.layers[size_t(i)].latent.rank : plan.head_dim;
  if (in_fragments && !sub.is_long)
    return tile_attn(stream_, attention, buffers_[B::attn_scratch].as<std::byte>(),
                     {.overlap = step.overlap && !sub.calibrates, .alone = step.alone});  // the centre is read early
  const BlockRange blocks = sub.blocks.at({.kernel = kernel,
                                           .n_kv_heads = plan.n_kv_heads,
                                           .group = plan.n_heads / plan.n_kv_heads,
                                           .head_dim = plan.head_dim,
                                           .window = plan.window});
  const PrefillList list{.blocks = buffers_[B::blocks].as<AttnBlock>() + blocks.first,
                         .n = blocks.n,
                         .queries = blocks.queries,
                         .part_rows = blocks.part_rows,
                         .scratch = buffers_[B::attn_scratch].as<std::byte>(),
                         .of_rows = !sub.is_long,
                         .by_warpgroups = blocks.by_warpgroups,
                         .turned = buffers_[B::turned_tiles].as<std::byte>(),
                         .n_turned = blocks.n_turned,
                         .spans = buffers_[B::blocks].as<AttnBlock>() + blocks.first + blocks.n,
                         .n_spans = blocks.n_spans};
  switch (kernel) {
    case BlockKernel::prefill: return prefill_attn(stream_, attention, list);
    case BlockKernel::rows_f16: return rows_f16_attn(stream_, attention, list, n_out);
    case BlockKernel::rows: return rows_attn(stream_, attention, {list.blocks, list.n, n_out});
  }
}

/// RMSNorm of all heads of q together, and of k. Ranks of a stage have parts of them, and add up the squares; several
/// may have the same heads of k, each equally many, so that the mean is the same.
void CudaRunner::norm_whole(int i, int64_t n, float* q, float* k) {
  const AttentionPlan& plan = plan_.layers[size_t(i)].attention;
  const float *q_weight = model_.layers[size_t(i)].q_norm.as<float>(),
              *k_weight = model_.layers[size_t(i)].k_norm.as<float>();
  const int64_t q_dim = plan.q_dim(), kv_dim = plan.kv_dim();
  if (!rank_ || !rank_->stage) {
    const gpu::OpRange range([&] { return small_op("norm", n * (q_dim + kv_dim), i); });
    device_rms_norm(stream_, n, q_dim, q, q_weight, plan_.norm_eps, q);
    return device_rms_norm(stream_, n, kv_dim, k, k_weight, plan_.norm_eps, k);
  }
  const ModelSlice& slice = rank_->slice;
  auto *q_sums = buffers_[B::squares].as<float>(), *k_sums = q_sums + n;
  {
    const gpu::OpRange range([&] { return small_op("norm", n * (q_dim + kv_dim), i); });
    device_sum_squares(stream_, n, q_dim, q, q_sums);
    device_sum_squares(stream_, n, kv_dim, k, k_sums);
  }
  {
    const gpu::OpRange range([&] { return small_op("all_reduce", 2 * n, i); });
    rank_->stage->all_reduce(stream_, q_sums, 2 * n, false);
  }
  const gpu::OpRange range([&] { return small_op("norm", n * (q_dim + kv_dim), i); });
  device_rms_norm_part(stream_, n, q_dim, slice.size * q_dim, q_sums, q_weight + slice.first(slice.q), plan_.norm_eps,
                       q);
  device_rms_norm_part(stream_, n, kv_dim, slice.size * kv_dim, k_sums,
                       k_weight + slice.rank / slice.kv_copies * kv_dim, plan_.norm_eps, k);
}

void CudaRunner::attend(int i, const StepPlan& step, DeviceKvMemory& memory) {
  const AttentionPlan& plan = plan_.layers[size_t(i)].attention;
  const CudaLayer& layer = model_.layers[size_t(i)];
  const int64_t n = step.n_rows();
  float *q = buffers_[B::qkv].as<float>(), *k = q + n * plan.q_rows(), *v = k + n * plan.kv_dim();
  MatmulCall call = block_in(i, step, layer.attn_norm);
  std::ranges::copy(std::array{q, k, v}, call.y);
  layer.qkv.run(stream_, call, matmul_scratch_);
  if (plan.qk_norm_whole) norm_whole(i, n, q, k);
  if (plan.kv_layer < 0 && plan.k_is_v) device_copy_columns(stream_, n, plan.kv_dim(), k, plan.kv_dim(), v);
  if (plan.kv_layer < 0 && plan.v_norm)
    device_rms_norm(stream_, n * plan.n_kv_heads, plan.head_dim, v, model_.ones.as<float>(), plan_.norm_eps, v);
  for (const SubBatch& sub : step.sub_batches) attend_sub_batch(i, step, sub, memory);
  if (plan.gate) {
    const gpu::OpRange range([&] { return small_op("gate", n * plan.q_rows(), i); });
    device_sigmoid_gate(stream_, n, plan.q_dim(), q + plan.q_dim(), plan.q_rows(), buffers_[B::attn].as<float>());
  }
  call = block_out(i, step);
  call.x = gather_input(buffers_[B::attn].as<float>(), n, rank_ ? rank_->slice.q : kNoBorders);
  call.norm_weight = plan.out_norm ? layer.attn_sub_norm.as<float>() : nullptr;
  layer.o.run(stream_, call, matmul_scratch_);
  end_block(i, step, layer.attn_post_norm);
}

}  // namespace ridge
