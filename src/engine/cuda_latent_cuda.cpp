// Latent attention on a device: queries are absorbed into the latent space, what attention gives is expanded from
// there.
#include "engine/cuda_model.h"
#include "op/norm_rope/norm_rope_cuda.h"

namespace ridge {

using B = StepBuffer;

LatentOffsets::LatentOffsets(const LayerPlan& layer, int64_t n) {
  const LatentPlan& l = layer.latent;
  const int64_t heads = n * layer.attention.n_heads;
  const auto take = [&](int64_t& at, int64_t size) {
    at = end;
    end += (size + 31) / 32 * 32;  // vector loads
  };
  take(low, n * l.q_rank);
  take(q, heads * l.query_dim());
  take(nope, heads * l.nope_dim);
  take(absorbed, heads * l.rank);
  take(kv, n * layer.attention.head_dim);
  take(values, heads * l.value_dim);
}

/// Every token goes through the matrices of all heads: slot t n_heads + h is head h of token t.
void CudaRunner::upload_head_packs(int64_t n) {
  const auto is_here = [](const LayerPlan& of) { return of.mixer == MixerKind::latent && of.attention.n_heads > 0; };
  const auto found = std::ranges::find_if(plan_.layers, is_here);  // a model's latent layers have as many heads
  if (found == plan_.layers.end() || packs_there_ == n) return;
  const int n_heads = found->attention.n_heads;
  const int most = n == 1 ? 1 : ExpertPack::kMost;
  std::vector<ExpertPack> packs;
  for (int head = 0; head < n_heads; ++head)
    for (int64_t first = 0; first < n; first += most) {
      ExpertPack& pack = packs.emplace_back();
      pack.expert = head;
      for (; pack.n < most && first + pack.n < n; ++pack.n)
        pack.slots[pack.n] = int32_t((first + pack.n) * n_heads + head);
    }
  const gpu::MemoryLabel label(gpu::MemoryOf::activations);
  gpu::upload(stream_, buffers_[B::head_packs].ensure<ExpertPack>(ssize(packs)), packs.data(),
              ssize(packs) * int64_t(sizeof(ExpertPack)));
  packs_there_ = n;
}

LatentAppend CudaRunner::latent_append(int i, int64_t n, const StepRows& rows, const KvTiles& tiles,
                                       int64_t angles) const {
  const LayerPlan& plan = plan_.layers[size_t(i)];
  const CudaRope& rope = model_.ropes[size_t(plan_.rope_of(plan.attention, n_ctx_))];
  const LatentOffsets at(plan, n);
  const float* const latent = buffers_[B::latent].as<float>();
  return {.rows = rows,
          .n_heads = plan.attention.n_heads,
          .tiles = tiles,
          .rank = plan.latent.rank,
          .query_dim = plan.latent.query_dim(),
          .absorbed = latent + at.absorbed,
          .q = latent + at.q,
          .kv = latent + at.kv,
          .norm = model_.layers[size_t(i)].kv_a_norm.as<float>(),
          .norm_eps = plan_.norm_eps,
          .cosines = buffers_[B::cosines].as<float>() + angles,
          .sines = buffers_[B::sines].as<float>() + angles,
          .n_pairs = rope.n_pairs,
          .rope_halves = rope.halves,
          .q_out = buffers_[B::q].as<float>()};
}

void CudaRunner::attend_latent(int i, const StepPlan& step, DeviceKvMemory& memory) {
  const LayerPlan& plan = plan_.layers[size_t(i)];
  const LatentPlan& l = plan.latent;
  const CudaLayer& layer = model_.layers[size_t(i)];
  const int64_t n = step.n_rows(), n_heads = plan.attention.n_heads;
  const LatentOffsets at(plan, n);
  float* const latent = buffers_[B::latent].as<float>();
  MatmulCall call = block_in(i, step, layer.attn_norm);
  call.y[0] = latent + (l.q_rank > 0 ? at.low : at.q);
  call.y[1] = latent + at.kv;
  layer.qkv.run(stream_, call, matmul_scratch_);
  if (l.q_rank > 0)
    layer.q_b.run(stream_,
                  {.n_tokens = n,
                   .x = latent + at.low,
                   .norm_weight = layer.q_a_norm.as<float>(),
                   .norm_eps = plan_.norm_eps,
                   .y = {latent + at.q},
                   .overlap = step.overlap,
                   .layer = i},
                  matmul_scratch_);
  const auto of_heads = [&](const DeviceExpertMatmul& product, int64_t n_out, const float* x, float* y) {
    const gpu::OpRange range([&] {
      return gpu::LoggedOp{.op = "heads",
                           .layer = i,
                           .read_bytes = product.bytes(),
                           .write_bytes = 4 * n * n_heads * n_out,
                           .flops = 2 * n * n_heads * l.rank * (l.nope_dim + l.value_dim - n_out)};
    });
    const ExpertCall heads{.packs = buffers_[B::head_packs].as<ExpertPack>(),
                           .n_packs = n_heads * (n == 1 ? 1 : (n + ExpertPack::kMost - 1) / ExpertPack::kMost),
                           .most = n == 1 ? 1 : ExpertPack::kMost,
                           .x = x,
                           .y = {y}};
    product.run(stream_, heads);
  };
  {
    const gpu::OpRange range([&] { return gpu::LoggedOp{.op = "other", .layer = i}; });
    device_copy_columns(stream_, n * n_heads, l.nope_dim, latent + at.q, l.query_dim(), latent + at.nope);
  }
  of_heads(layer.k_b, l.rank, latent + at.nope, latent + at.absorbed);
  for (const SubBatch& sub : step.sub_batches) attend_sub_batch(i, step, sub, memory);
  of_heads(layer.v_b, l.value_dim, buffers_[B::attn].as<float>(), latent + at.values);
  call = block_out(i, step);
  call.x = latent + at.values;
  layer.o.run(stream_, call, matmul_scratch_);
  end_block(i, step, layer.attn_post_norm);
}

}  // namespace ridge
