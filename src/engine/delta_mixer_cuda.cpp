// x += output(norm(delta(qkv x)) silu(z x)) on a device.
#include <algorithm>
#include <array>

#include "engine/cuda_model.h"

namespace ridge {

using B = StepBuffer;

void CudaRunner::mix_delta(int i, const StepPlan& step, DeviceKvMemory& memory) {
  const DeltaPlan& plan = plan_.layers[size_t(i)].delta;
  const CudaLayer& layer = model_.layers[size_t(i)];
  // One row leaves no gaps between the matrices, so that the first four are joint, where widths are multiples of 4.
  StepMatrices matrix{buffers_[B::delta].as<float>(), step.n_rows()};
  float *const qkv = matrix(plan.channels()), *const z = matrix(plan.values()), *const a = matrix(plan.n_value_heads),
               *const b = matrix(plan.n_value_heads), *const mixed = matrix(plan.channels()),
               *const out = matrix(plan.values());
  MatmulCall call = block_in(i, step, layer.attn_norm);
  std::ranges::copy(std::array{qkv, z, a, b}, call.y);
  layer.delta_in.run(stream_, call, matmul_scratch_);
  {
    const gpu::OpRange range([&] {
      int64_t n_sequences = 0;
      for (const DeltaSpan& span : step.sequences) n_sequences += span.n > 0;
      const int64_t states = 4 * n_sequences * plan.state_values();
      return gpu::LoggedOp{.op = "delta",
                           .layer = i,
                           .read_bytes = 4 * step.n_tokens * plan.channels() + states,
                           .write_bytes = 4 * step.n_tokens * plan.values() + states,
                           .flops = 7 * step.n_tokens * plan.values() * plan.key_dim};
    });
    device_gated_delta(stream_, {.shape = plan,
                                 .conv = layer.delta_conv.as<float>(),
                                 .decay = layer.delta_decay.as<float>(),
                                 .dt_bias = layer.delta_dt_bias.as<float>(),
                                 .norm = layer.delta_norm.as<float>(),
                                 .norm_eps = plan_.norm_eps,
                                 .spans = buffers_[B::sequences].as<DeltaSpan>(),
                                 .n_spans = int(step.sequences.size()),
                                 .most = step.most_tokens,
                                 .states = memory.states(i),
                                 .qkv = qkv,
                                 .z = z,
                                 .a = a,
                                 .b = b,
                                 .overlap = step.overlap,
                                 .n_chunked = step.n_chunked,
                                 .mixed = mixed,
                                 .out = out,
                                 .chunks = matrix(0)});
  }
  project_mixed(i, step, z);
}

}  // namespace ridge
