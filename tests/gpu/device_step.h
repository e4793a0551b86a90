// A step's rows on their way into the caches of a pool on a device, layer by layer, as the engine queues them
// (engine/cuda_runner_cuda.cpp): for tests of kernels without a model's weights.
#pragma once

#include <array>

#include "engine/cuda_step.h"
#include "gpu/device_data.h"

namespace ridge {

/// Layers of attention that a step is planned for: as the caches, with `group` query heads a kv head.
inline ModelPlan plan_of(std::span<const KvLayerConfig> layers, int group) {
  ModelPlan plan;
  for (const KvLayerConfig& layer : layers)
    plan.layers.push_back(
        {.mixer = layer.v_is_k ? MixerKind::latent : MixerKind::attention,
         .attention = {
             .n_heads = layer.n_kv_heads * group, .n_kv_heads = layer.n_kv_heads, .head_dim = layer.head_dim}});
  return plan;
}

/// A layer's queries, keys and values [n_tokens, heads, head_dim] on the host.
struct StepValues {
  std::vector<float> q, k, v;
};

class DeviceStep {
 public:
  DeviceStep(const gpu::Stream& stream, StepPlan step, DeviceKvMemory& memory)
      : stream_(stream),
        plan_(std::move(step)),
        memory_(memory),
        rows_(gpu::to_device(stream, std::span<const StepRow>(plan_.rows))),
        spans_(int64_t(sizeof(StepSpan)) * std::max(plan_.rows.size(), plan_.spans.size())),
        n_spans_(gpu::to_device(stream, std::span<const int32_t>(plan_.n_spans))),
        blocks_(gpu::to_device(stream, std::span<const AttnBlock>(plan_.blocks))) {
    gpu::upload(stream_, spans_.as<void>(), plan_.spans.data(), int64_t(sizeof(StepSpan) * plan_.spans.size()));
    if (!plan_.recorded) return;
    // One launch a kind of side, in front of all layers.
    const StepRows rows = rows_of(plan_.sub_batches[0]);
    device_list_leaving(stream_, rows, memory_.retentions(), spans_.as<StepSpan>(), n_spans_.as<int32_t>());
    for (const SideGroup& group : memory_.groups())
      encode_leaving(stream_, {.n_sides = group.n_sides,
                               .sides = group.tiles.as<KvTiles>(),
                               .in_fragments = group.in_fragments,
                               .weighs = group.weighs,
                               .n_kv_heads = group.n_kv_heads,
                               .head_dim = group.head_dim,
                               .spans = spans_.as<StepSpan>(),
                               .n_spans = n_spans_.as<int32_t>(),
                               .most_spans = plan_.n_leaving,
                               .pages = rows.pages,
                               .page_pitch = rows.page_pitch});
  }

  const StepPlan& plan() const { return plan_; }
  /// Weights of angles of the queries appended last, as q; null where no centre turns, or rows are those of a prompt.
  const float* q_weights() const { return q_weights_.as<float>(); }
  const AttnBlock* blocks() const { return blocks_.as<AttnBlock>(); }
  StepRows rows_of(const SubBatch& sub) const {
    return {.n = sub.n_rows,
            .most = sub.most,
            .rows = rows_.as<StepRow>() + sub.first_row,
            .pages = memory_.page_table(),
            .page_pitch = memory_.n_pages()};
  }

  /// Appends a layer's rows by sub-batches; after_sub_batch(sub, tiles of K and V as attention reads them, q) comes
  /// behind each. Q in K's cache space, [n_tokens, n_heads, head_dim], is returned.
  template <class AfterSubBatch>
  gpu::Buffer append(int layer, int group, const StepValues& values, const AfterSubBatch& after_sub_batch) {
    const KvTiles own[2] = {memory_.tiles(layer, KvSide::k), memory_.tiles(layer, KvSide::v)};
    const int64_t kv_width = int64_t(own[0].n_kv_heads) * own[0].head_dim;
    const gpu::Buffer q = buffers_for(values.q), k = buffers_for(values.k), v = buffers_for(values.v);
    gpu::Buffer q_out(4 * std::max<int64_t>(plan_.n_tokens, ssize(plan_.rows)) * kv_width * group);
    q_weights_ = gpu::Buffer();
    if (own[0].turn.n_pairs > 0 && memory_.in_fragments(layer) &&
        std::ranges::none_of(plan_.sub_batches, [](const SubBatch& sub) { return sub.is_long; }))
      q_weights_ = gpu::Buffer(q_out.bytes());
    for (const SubBatch& sub : plan_.sub_batches) {
      const StepRows rows = rows_of(sub);
      const StepSpan* const spans = spans_.as<StepSpan>() + sub.first_span;
      std::array<KvTiles, 2> sides{own[0], own[1]};
      std::array<gpu::Buffer, 2> rings;
      if (sub.is_long)
        for (size_t s = 0; s < 2; ++s) {
          if (own[s].ring_tiles == 0) continue;
          // Bytes of NaN: an earlier layer may have left exact rows of another kind.
          const std::vector<uint8_t> left(
              size_t(int64_t(sub.n_spans) * own[s].n_kv_heads * sub.ring_tiles * own[s].ring_tile_bytes), 0xFF);
          rings[s] = gpu::to_device<uint8_t>(stream_, left);
          sides[s].ring = rings[s].as<std::byte>();
          sides[s].ring_tiles = sub.ring_tiles;
        }
      if (sub.is_long) copy_ring_tiles(stream_, own, sides, spans, sub.n_spans, RingCopy::in);
      const bool is_latent = own[1].n_kv_heads == 0;
      if (is_latent)  // whole rows are latent values
        device_append_latent(stream_, {.rows = rows,
                                       .n_heads = group,
                                       .tiles = sides[0],
                                       .rank = own[0].head_dim,
                                       .query_dim = own[0].head_dim,
                                       .absorbed = q.as<float>(),
                                       .q = q.as<float>(),
                                       .kv = k.as<float>(),
                                       .q_out = q_out.as<float>()});
      else
        device_append(stream_, {.rows = rows,
                                .n_heads = own[0].n_kv_heads * group,
                                .k_tiles = sides[0],
                                .v_tiles = sides[1],
                                .q = q.as<float>(),
                                .k = k.as<float>(),
                                .v = v.as<float>(),
                                .q_pitch = kv_width * group,
                                .k_pitch = kv_width,
                                .v_pitch = kv_width,
                                .q_out = q_out.as<float>(),
                                .q_weights = q_weights_.as<float>()});
      if (sub.calibrates)
        for (const KvTiles& side : sides) device_calibrate(stream_, side, rows);
      if (!plan_.recorded)
        encode_leaving(stream_, {.n_sides = is_latent ? 1 : 2,
                                 .pair = {sides[0], sides[1]},
                                 .in_fragments = memory_.in_fragments(layer),
                                 .weighs = sides[0].metric || sides[1].metric,
                                 .n_kv_heads = own[0].n_kv_heads,
                                 .head_dim = own[0].head_dim,
                                 .spans = spans,
                                 .n_spans = n_spans_.as<int32_t>() + (&sub - plan_.sub_batches.data()),
                                 .most_spans = sub.n_spans,
                                 .most_tiles = sub.leaving_tiles,
                                 .pages = rows.pages,
                                 .page_pitch = rows.page_pitch});
      if (sub.is_long) copy_ring_tiles(stream_, own, sides, spans, sub.n_spans, RingCopy::out);
      after_sub_batch(sub, sides, q_out.as<float>());
      stream_.synchronize();
    }
    return q_out;
  }

 private:
  /// Rows of a step are read up to its padding.
  gpu::Buffer buffers_for(const std::vector<float>& values) const {
    const int64_t width = ssize(values) / plan_.n_tokens;
    gpu::Buffer buffer(4 * width * std::max<int64_t>(plan_.n_tokens, ssize(plan_.rows)));
    gpu::upload(stream_, buffer.as<void>(), values.data(), 4 * ssize(values));
    stream_.synchronize();
    return buffer;
  }

  const gpu::Stream& stream_;
  const StepPlan plan_;
  DeviceKvMemory& memory_;
  gpu::Buffer rows_, spans_, n_spans_, blocks_, q_weights_;
};

}  // namespace ridge
